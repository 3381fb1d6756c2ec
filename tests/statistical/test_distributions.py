"""The exact distributions: closed forms, losslessness, and inputs that have none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._configurations import CONFIGURATIONS, RequestDistributions, request_distributions
from fairdraw.statistical._distributions import recoverable, residual_probs, softmax_probs
from fairdraw.statistical._outcomes import enumerate_outcomes
from fairdraw.statistical._validation import check_probs

Probs = NDArray[np.float64]


def random_request(vocab_size: int, num_draft: int, one_hot: bool, *parts: object) -> RequestDistributions:
    """Peaked distributions, with zeros."""
    rng = np.random.default_rng(derive_seed(vocab_size, num_draft, *parts))
    probs = rng.dirichlet(np.full(vocab_size, 0.7), size=2 * num_draft + 1)
    probs = np.where((probs < 0.05) & (probs < probs.max(axis=1, keepdims=True)), 0.0, probs)
    probs /= probs.sum(axis=1, keepdims=True)
    return request_distributions(probs[: num_draft + 1], probs[num_draft + 1 :], one_hot=one_hot)


def row_probs(request: RequestDistributions) -> dict[tuple[int, ...], float]:
    """The distribution of output rows."""
    outcomes = enumerate_outcomes(request)
    found: dict[tuple[int, ...], float] = {}
    for row, prob in zip(outcomes.rows.tokens[0].tolist(), outcomes.probs.tolist(), strict=True):
        found[tuple(row)] = found.get(tuple(row), 0.0) + prob
    return found


@given(vocab_size=st.integers(2, 5), num_draft=st.integers(0, 3), one_hot=st.booleans(), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_completed_row_follows_the_target(vocab_size: int, num_draft: int, one_hot: bool, seed: int) -> None:
    """Losslessness: a row, completed with draws from the target, has the distribution of plain sampling."""
    request = random_request(vocab_size, num_draft, one_hot, seed)
    target, expected = request.exact_target_probs(), np.ones(())
    for probs in target:
        expected = expected[..., None] * probs
    completed = np.zeros_like(expected)
    for row, prob in row_probs(request).items():
        emitted = tuple(token for token in row if token != PLACEHOLDER_TOKEN_ID)
        rest = np.ones(())
        for probs in target[len(emitted) :]:
            rest = rest[..., None] * probs
        completed[emitted] += prob * rest
    np.testing.assert_allclose(completed, expected, atol=1e-7)  # the target is stored in float32


@given(vocab_size=st.integers(2, 4), seed=st.integers(0, 999))
@settings(max_examples=20)
def test_output_rows_have_the_closed_form(vocab_size: int, seed: int) -> None:
    """`prod min(target, draft) * max(target - draft, 0)`, and `prod min(target, draft) * target` with a bonus token."""
    request = random_request(vocab_size, 2, False, seed)
    target, draft = request.exact_target_probs(), request.exact_draft_probs()
    for row, prob in row_probs(request).items():
        num_accepted = sum(token != PLACEHOLDER_TOKEN_ID for token in row) - 1
        expected = np.prod([min(target[i, row[i]], draft[i, row[i]]) for i in range(num_accepted)])
        last = row[num_accepted]
        excess = (
            target[2, last] if num_accepted == 2 else max(target[num_accepted, last] - draft[num_accepted, last], 0)
        )
        assert prob == pytest.approx(float(expected) * excess, abs=1e-12)


@pytest.mark.parametrize("request_of", [r for c in CONFIGURATIONS for r in c.requests], ids=lambda r: str(r.num_draft))
def test_rows_are_well_formed(request_of: RequestDistributions) -> None:
    rows = row_probs(request_of)
    assert sum(rows.values()) == pytest.approx(1)
    for row in rows:
        num_emitted = row.index(PLACEHOLDER_TOKEN_ID) if PLACEHOLDER_TOKEN_ID in row else len(row)
        assert num_emitted >= 1
        assert set(row[num_emitted:]) <= {PLACEHOLDER_TOKEN_ID}


def test_residual_of_equal_distributions_is_empty() -> None:
    probs = np.array([0.2, 0.3, 0.5])
    assert not residual_probs(probs, probs).any()


def test_token_within_rounding_of_its_draft_probability_is_not_impossible() -> None:
    """float64 says target < draft by 1e-9; a float32 sampler may get the opposite."""
    target, draft = np.array([0.25, 0.5, 0.25, 0.0]), np.array([0.25 + 1e-9, 0.6, 0.15 - 1e-9, 0.0])
    assert residual_probs(target, draft)[0] == 0
    assert recoverable(target, draft).tolist() == [True, False, True, False]


def test_softmax_is_float64_of_the_stored_logits() -> None:
    logits = np.array([1.0, 2.0, -np.inf, 0.1], dtype=np.float32)
    probs = softmax_probs(logits, temperature=0.5)
    assert (probs.dtype, probs[2]) == (np.float64, 0)
    assert probs[1] / probs[3] == pytest.approx(np.exp(2 * (2.0 - float(np.float32(0.1)))), rel=1e-14)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.6]], "sums to 1.1, but it must sum to 1"),
        ([[1.5, -0.5]], r"min\(\)=-0.5, but probabilities must be at least 0"),
        ([[np.nan, 1.0]], "has NaN or inf, but probabilities must be finite"),
        ([[]], "but there must be a cell"),
    ],
    ids=["sum", "negative", "nan", "no tokens"],
)
def test_rows_without_a_distribution_are_refused(probs: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=f"^here: rows.*{message}"):
        check_probs("here", "rows", probs)


@pytest.mark.parametrize(
    ("logits", "temperature"),
    [([0.0, np.nan], 1.0), ([np.inf, 0.0], 1.0), ([-np.inf, -np.inf], 1.0), ([0.0, 0.0], 0.0)],
    ids=["nan", "inf", "empty row", "greedy"],
)
def test_logits_without_a_distribution_are_refused(logits: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match=r"^softmax_probs: "):
        softmax_probs(logits, temperature)
