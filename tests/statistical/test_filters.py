"""Plain sampling's exact distributions: supports, order of filters, ties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._filters import FilterRule, TiePolicy, conditional_probs, filtered_probs, nucleus_bounds

LOGITS = np.log(np.array([0.4, 0.1, 0.25, 0.05, 0.2], dtype=np.float32))


def support(rule: FilterRule, logits: np.ndarray = LOGITS) -> list[int]:  # type: ignore[type-arg]  # any float type
    return np.flatnonzero(filtered_probs(logits, rule)).tolist()


def test_unfiltered_distribution_is_the_softmax() -> None:
    np.testing.assert_allclose(filtered_probs(LOGITS, FilterRule()), softmax_probs(LOGITS), rtol=1e-15)


def test_greedy_request_emits_the_lowest_id_of_the_largest_logits() -> None:
    assert support(FilterRule(temperature=0), np.array([1.0, 2.0, 2.0])) == [1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FilterRule(top_k=2), [0, 2]),
        (FilterRule(top_p=0.66), [0, 2, 4]),
        (FilterRule(top_p=0.64), [0, 2]),
        (FilterRule(min_p=0.4), [0, 2, 4]),
        (FilterRule(top_k=9), [0, 1, 2, 3, 4]),
        (FilterRule(top_p=1.0), [0, 1, 2, 3, 4]),
    ],
    ids=["top-k", "top-p above an edge", "top-p", "min-p", "top-k above the vocabulary", "top-p of one"],
)
def test_filter_keeps_its_support(rule: FilterRule, expected: list[int]) -> None:
    assert support(rule) == expected


def test_filter_order_decides_which_tokens_are_left() -> None:
    """Of the two tokens left by top-k, the first alone has 0.61 of the mass; of the whole distribution it has 0.4."""
    p_after_k = FilterRule(top_k=2, top_p=0.61)
    k_after_p = FilterRule(top_k=2, top_p=0.61, order=("top_p", "top_k", "min_p"))

    assert support(p_after_k) == [0]
    assert support(k_after_p) == [0, 2]
    assert support(FilterRule(top_k=2, top_p=0.61, joint=True)) == [0, 2]


def test_kept_tokens_keep_their_odds() -> None:
    probs = filtered_probs(LOGITS, FilterRule(top_k=3, temperature=2.0))
    tempered = softmax_probs(LOGITS, 2.0)

    assert probs.sum() == pytest.approx(1)
    assert probs[0] / probs[4] == pytest.approx(tempered[0] / tempered[4])


@pytest.mark.parametrize(
    ("ties", "expected"),
    [(TiePolicy.ALL, [0, 1, 2, 3]), (TiePolicy.LOWEST_ID, [0, 1]), (TiePolicy.HIGHEST_ID, [1, 3])],
    ids=["all", "lowest id", "highest id"],
)
def test_tie_policy_decides_the_edge(ties: TiePolicy, expected: list[int]) -> None:
    logits = np.array([1.0, 2.0, 1.0, 1.0, 0.0])

    assert support(FilterRule(top_k=2, top_k_ties=ties), logits) == expected


@given(
    seed=st.integers(0, 9999),
    vocab_size=st.integers(1, 30),
    top_p=st.floats(0.05, 1.0),
    num_levels=st.integers(1, 6),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_nucleus_lies_within_its_bounds(seed: int, vocab_size: int, top_p: float, num_levels: int) -> None:
    """Whatever the tie policy, and for any top-p within the tolerance."""
    rng = np.random.default_rng(derive_seed(seed, vocab_size))
    logits = rng.integers(0, num_levels, vocab_size).astype(np.float64)
    required, allowed = nucleus_bounds(softmax_probs(logits), top_p, tolerance=0.01)

    assert (required <= allowed).all()
    for ties, shift in itertools.product(TiePolicy, (-0.009, 0.0, 0.009)):
        kept = filtered_probs(logits, FilterRule(top_p=min(top_p + shift, 1.0), top_p_ties=ties)) > 0
        assert (required <= kept).all()
        assert (kept <= allowed).all()


def test_nucleus_that_drops_its_mode_is_caught() -> None:
    required, allowed = nucleus_bounds([0.5, 0.3, 0.2], 0.4, tolerance=0.01)

    assert required.tolist() == [True, False, False]
    assert allowed.tolist() == [True, False, False]


def test_support_without_mass_is_refused() -> None:
    with pytest.raises(ValueError, match="support has no mass, but some token must be left"):
        conditional_probs([0.5, 0.5, 0.0], np.array([False, False, True]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0, but it must be at least 0"),
        ({"top_k": 0}, "top_k=0, but it must be at least 1"),
        ({"top_p": 0.0}, r"top_p=0.0, but it must lie in \(0, 1\]"),
        ({"min_p": 1.5}, r"min_p=1.5, but it must lie in \(0, 1\]"),
        ({"order": ("top_k",)}, "must name"),
    ],
    ids=["temperature", "top-k", "top-p", "min-p", "order"],
)
def test_sampling_parameter_out_of_range_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FilterRule(**arguments)  # type: ignore[arg-type]  # one wrong argument each
