"""The exact distributions, against closed forms, brute force and the papers' own numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._distributions import (
    OutputDistribution,
    StepDistribution,
    block_verification_distribution,
    chain_distribution,
    exact_match_distribution,
    one_hot_probs,
    residual_probs,
    softmax_probs,
    token_verification_distribution,
    token_verification_step,
)

Distributions = list[NDArray[np.float64]]

VERIFIERS = {"token": token_verification_distribution, "block": block_verification_distribution}


def draw_distributions(
    vocab_size: int, num_positions: int, *parts: object, prefix_dependent: bool = True
) -> Distributions:
    """Random distributions, peaked and with zeros, one per position (and per prefix)."""
    rng = np.random.default_rng(derive_seed(vocab_size, num_positions, *parts))
    distributions = []
    for position in range(num_positions):
        shape = (vocab_size,) * (position if prefix_dependent else 0)
        distribution = rng.dirichlet(np.full(vocab_size, 0.7), size=shape)
        distribution = np.where(
            (distribution < 0.05) & (distribution < distribution.max(axis=-1, keepdims=True)), 0.0, distribution
        )
        distributions.append(distribution / distribution.sum(axis=-1, keepdims=True))
    return distributions


def product(distributions: Distributions) -> NDArray[np.float64]:
    """The joint distribution of a chain of distributions."""
    joint = np.ones(())
    for distribution in distributions:
        joint = joint[..., None] * distribution
    return joint


cases = given(
    vocab_size=st.integers(2, 5), num_draft=st.integers(0, 3), prefix_dependent=st.booleans(), seed=st.integers(0, 999)
)
quick = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("verifier", VERIFIERS)
@cases
@quick
def test_verified_and_completed_row_follows_target(
    verifier: str, vocab_size: int, num_draft: int, prefix_dependent: bool, seed: int
) -> None:
    target = draw_distributions(vocab_size, num_draft + 1, "target", seed, prefix_dependent=prefix_dependent)
    draft = draw_distributions(vocab_size, num_draft, "draft", seed, prefix_dependent=prefix_dependent)

    distribution = VERIFIERS[verifier](target, draft)

    assert distribution.num_accepted_probs().sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(distribution.completed_probs(target), product(target), atol=1e-13)


@cases
@quick
def test_exact_match_verification_follows_target(
    vocab_size: int, num_draft: int, prefix_dependent: bool, seed: int
) -> None:
    target = draw_distributions(vocab_size, num_draft + 1, "target", seed, prefix_dependent=prefix_dependent)
    proposal = draw_distributions(vocab_size, num_draft, "draft", seed, prefix_dependent=prefix_dependent)

    distribution = exact_match_distribution(target, proposal)

    np.testing.assert_allclose(distribution.completed_probs(target), product(target), atol=1e-13)


@pytest.mark.parametrize("verifier", VERIFIERS)
@cases
@quick
def test_emitted_token_follows_target_given_its_prefix(
    verifier: str, vocab_size: int, num_draft: int, prefix_dependent: bool, seed: int
) -> None:
    """P(Y_i = v | Y_<i, position i emitted) = target_i(v | Y_<i)."""
    target = draw_distributions(vocab_size, num_draft + 1, "target", seed, prefix_dependent=prefix_dependent)
    draft = draw_distributions(vocab_size, num_draft, "draft", seed, prefix_dependent=prefix_dependent)
    tables = VERIFIERS[verifier](target, draft).by_num_accepted

    for position, distribution in enumerate(target):
        longer = (table.sum(axis=tuple(range(position + 1, table.ndim))) for table in tables[position:])
        emitted = sum(longer, np.zeros(()))
        np.testing.assert_allclose(emitted, emitted.sum(axis=-1, keepdims=True) * distribution, atol=1e-13)


def test_tuple_distribution_has_the_closed_form() -> None:
    """prod min(target, draft) * (target - draft)_+, and prod min(target, draft) * target for the bonus."""
    target, draft = (
        draw_distributions(4, 3, "target", prefix_dependent=False),
        draw_distributions(4, 2, "draft", prefix_dependent=False),
    )
    overlap = [np.minimum(*distributions) for distributions in zip(target, draft, strict=False)]

    distribution = token_verification_distribution(target, draft)

    excess = [np.maximum(t - d, 0) for t, d in zip(target, draft, strict=False)]
    np.testing.assert_allclose(distribution.by_num_accepted[0], excess[0], atol=1e-15)
    np.testing.assert_allclose(distribution.by_num_accepted[1], np.einsum("i,j->ij", overlap[0], excess[1]), atol=1e-15)
    np.testing.assert_allclose(
        distribution.by_num_accepted[2], np.einsum("i,j,k->ijk", *overlap, target[2]), atol=1e-15
    )


def test_block_verification_reproduces_the_example_of_its_paper() -> None:
    """Two tokens, target (1/3, 2/3), draft (2/3, 1/3), two drafts: 10/9 accepted by token, 11/9 by block."""
    target, draft = [np.array([1, 2]) / 3] * 3, [np.array([2, 1]) / 3] * 2

    assert token_verification_distribution(target, draft).mean_num_emitted() - 1 == pytest.approx(10 / 9)
    assert block_verification_distribution(target, draft).mean_num_emitted() - 1 == pytest.approx(11 / 9)


@cases
@quick
def test_block_verification_accepts_at_least_as_many_as_token_verification(
    vocab_size: int, num_draft: int, prefix_dependent: bool, seed: int
) -> None:
    target = draw_distributions(vocab_size, num_draft + 1, "target", seed, prefix_dependent=prefix_dependent)
    draft = draw_distributions(vocab_size, num_draft, "draft", seed, prefix_dependent=prefix_dependent)

    block, token = block_verification_distribution(target, draft), token_verification_distribution(target, draft)

    assert block.mean_num_emitted() >= token.mean_num_emitted() - 1e-12


def block_distribution_by_brute_force(target: Distributions, draft: Distributions) -> dict[tuple[int, ...], float]:
    """Algorithm 2 read aloud: every draft, every pattern of passed tests, the longest one wins."""
    distribution: dict[tuple[int, ...], float] = {}
    vocab_size, num_draft = target[0].shape[-1], len(draft)
    for drafts in itertools.product(range(vocab_size), repeat=num_draft):
        drawn = np.prod([draft[i][drafts[: i + 1]] for i in range(num_draft)])
        ratios = [1.0]
        for i in range(num_draft):
            ratios.append(min(1.0, ratios[-1] * target[i][drafts[: i + 1]] / max(draft[i][drafts[: i + 1]], 1e-300)))
        spares = [np.maximum(ratios[i] * target[i][drafts[:i]] - draft[i][drafts[:i]], 0) for i in range(num_draft)]
        tests = [s.sum() / max(s.sum() + 1 - r, 1e-300) for s, r in zip(spares, ratios, strict=False)] + [ratios[-1]]
        for passed in itertools.product([False, True], repeat=num_draft):
            pattern = np.prod([h if ok else 1 - h for h, ok in zip(tests[1:], passed, strict=True)])
            longest = max((i + 1 for i in range(num_draft) if passed[i]), default=0)
            last = target[-1][drafts] if longest == num_draft else spares[longest] / max(spares[longest].sum(), 1e-300)
            for token, prob in enumerate(last):
                row = (*drafts[:longest], token)
                distribution[row] = distribution.get(row, 0.0) + float(drawn * pattern * prob)
    return distribution


@pytest.mark.parametrize("seed", range(5))
def test_block_verification_distribution_equals_brute_force(seed: int) -> None:
    target, draft = draw_distributions(3, 4, "target", seed), draw_distributions(3, 3, "draft", seed)

    distribution = block_verification_distribution(target, draft)

    for row, prob in block_distribution_by_brute_force(target, draft).items():
        assert distribution.by_num_accepted[len(row) - 1][row] == pytest.approx(prob, abs=1e-13)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_distributions_of_given_drafts_average_to_the_distribution_of_drawn_drafts(verifier: str) -> None:
    verify = VERIFIERS[verifier]
    target, draft = (
        draw_distributions(3, 3, "target", prefix_dependent=False),
        draw_distributions(3, 2, "draft", prefix_dependent=False),
    )

    average = np.zeros(4**3)
    for drafts in itertools.product(range(3), repeat=2):
        given_drafts = verify(target, draft, list(one_hot_probs(drafts, 3)))
        average += draft[0][drafts[0]] * draft[1][drafts[1]] * given_drafts.row_probs()

    np.testing.assert_allclose(average, verify(target, draft).row_probs(), atol=1e-14)


def test_one_hot_drafts_have_the_distribution_of_exact_match() -> None:
    target = draw_distributions(4, 3, "target", prefix_dependent=False)
    drafts = list(one_hot_probs([2, 1], 4))

    one_hot, exact_match = token_verification_distribution(target, drafts), exact_match_distribution(target, drafts)

    np.testing.assert_allclose(one_hot.row_probs(), exact_match.row_probs(), atol=1e-15)


def test_recovered_token_is_independent_of_the_rejected_draft() -> None:
    step = token_verification_step(
        *draw_distributions(5, 1, "t"), *draw_distributions(5, 1, "d"), *draw_distributions(5, 1, "d")
    )
    rejected = step.rejected

    outer = rejected.sum(axis=1, keepdims=True) * rejected.sum(axis=0, keepdims=True) / rejected.sum()

    np.testing.assert_allclose(rejected, outer, atol=1e-16)


def not_lossless(distribution: OutputDistribution, target: Distributions) -> float:
    """Total-variation distance of the completed row from the target."""
    return 0.5 * float(np.abs(distribution.completed_probs(target) - product(target)).sum())


def test_recovering_from_the_target_is_caught() -> None:
    target, draft = (
        draw_distributions(4, 2, "target", prefix_dependent=False),
        draw_distributions(4, 1, "draft", prefix_dependent=False),
    )
    honest = token_verification_step(target[0], draft[0], draft[0])
    refused = honest.rejected.sum(axis=-1, keepdims=True)
    wrong = StepDistribution(honest.accepted, refused * target[0], honest.recoverable)

    assert not_lossless(chain_distribution([honest], target[-1]), target) < 1e-14
    assert not_lossless(chain_distribution([wrong], target[-1]), target) > 0.01


def test_drafts_from_another_distribution_than_declared_are_caught() -> None:
    target, draft = (
        draw_distributions(4, 3, "target", prefix_dependent=False),
        draw_distributions(4, 2, "draft", prefix_dependent=False),
    )
    proposal = draw_distributions(4, 2, "proposal", prefix_dependent=False)

    assert not_lossless(token_verification_distribution(target, draft, proposal), target) > 0.01
    assert not_lossless(block_verification_distribution(target, draft, proposal), target) > 0.01


def test_residual_of_equal_distributions_is_empty_and_never_used() -> None:
    target = draw_distributions(4, 3, "target", prefix_dependent=False)

    for verify in VERIFIERS.values():
        distribution = verify(target, target[:2])
        assert distribution.num_accepted_probs() == pytest.approx([0, 0, 1], abs=1e-14)
    assert not residual_probs(target[0], target[0]).any()


def test_malformed_rows_have_no_probability_and_are_impossible() -> None:
    target, draft = (
        draw_distributions(2, 3, "target", prefix_dependent=False),
        draw_distributions(2, 2, "draft", prefix_dependent=False),
    )
    distribution = token_verification_distribution(target, draft)

    possible = distribution.row_possible().reshape(3, 3, 3)

    assert not possible[2].any(), "a row without tokens"
    assert not possible[:, 2, :2].any(), "a token after a placeholder"
    assert possible.sum() <= 2 + 4 + 8
    assert not (distribution.row_probs() > 0)[~possible.ravel()].any()


def test_token_within_rounding_of_its_draft_probability_is_not_called_impossible() -> None:
    """float64 says target < draft by 1e-9; a float32 sampler may see it the other way round."""
    target = np.array([0.25, 0.5, 0.25])
    draft = np.array([0.25 + 1e-9, 0.6, 0.15 - 1e-9])

    distribution = token_verification_distribution([target, target], [draft])

    assert distribution.by_num_accepted[0][0] == 0
    assert distribution.possible[0].tolist() == [True, False, True]


def test_softmax_is_float64_of_the_stored_logits() -> None:
    logits = np.array([1.0, 2.0, -np.inf, 0.1], dtype=np.float32)

    probs = softmax_probs(logits, temperature=0.5)

    assert probs.dtype == np.float64
    assert probs[2] == 0
    assert probs[1] / probs[3] == pytest.approx(np.exp(2 * (2.0 - float(np.float32(0.1)))), rel=1e-14)


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], [[0.5, 0.5]], "sums to 1.1, but it must sum to 1"),
        ([[1.5, -0.5], [0.5, 0.5]], [[0.5, 0.5]], r"min\(\)=-0.5, but probabilities must be at least 0"),
        ([[np.nan, 1.0], [0.5, 0.5]], [[0.5, 0.5]], "has NaN or inf, but probabilities must be finite"),
        ([[0.5, 0.5]], [[0.5, 0.5]], r"len\(target_probs\)=1, but it must be 2"),
        ([[0.5, 0.5], [1.0, 0.0]], [[1.0]], r"widths=\[1, 2\], but all distributions must have one vocab_size"),
        ([[0.5, 0.5], [1.0, 0.0]], [[]], "but a distribution needs at least one cell"),
    ],
    ids=["sum", "negative", "nan", "missing bonus distribution", "widths", "no tokens"],
)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_distribution_that_is_none_is_refused(
    verifier: str, target: list[list[float]], draft: list[list[float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        VERIFIERS[verifier](target, draft)


@pytest.mark.parametrize(
    ("logits", "temperature"),
    [([0.0, np.nan], 1.0), ([np.inf, 0.0], 1.0), ([-np.inf, -np.inf], 1.0), ([0.0, 0.0], 0.0)],
    ids=["nan", "inf", "empty row", "greedy"],
)
def test_logits_without_a_distribution_are_refused(logits: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match=r"^softmax_probs: "):
        softmax_probs(logits, temperature)


def test_draft_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 3\)"):
        one_hot_probs([0, 3], 3)
