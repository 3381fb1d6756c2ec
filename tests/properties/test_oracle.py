"""The executable specification, against examples worked by hand and distributions enumerated with fractions."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import plain_batch

from fairdraw._oracles.rejection import RejectionOracle, draw_noise, verify
from fairdraw.contracts import ExplicitNoise, SeededNoise, SpecDecodeBatch

INF = math.inf

# Ratios of these distributions are multiples of 1 / 12, so that counts over midpoints of 24 cells are exact.
FLAT = (0.5, 0.5)
LOW = (0.25, 0.75)
HIGH = (0.75, 0.25)


def batch_of(
    targets: Sequence[tuple[float, ...]],
    drafts: list[int],
    *,
    draft_distributions: Sequence[tuple[float, ...]] | None = None,
    counts: list[int] | None = None,
    bonus: list[int] | None = None,
    greedy: tuple[int, ...] = (),
    rates: list[float] | None = None,
) -> SpecDecodeBatch:
    """A batch from probabilities; one request unless `counts` says otherwise."""
    counts = [len(drafts)] if counts is None else counts
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(targets, np.float64)).astype(np.float32)
    return plain_batch(
        counts,
        logits.shape[1],
        draft_token_ids=torch.tensor(drafts, dtype=torch.int32),
        draft_probs=None if draft_distributions is None else torch.tensor(draft_distributions, dtype=torch.float32),
        target_logits=torch.from_numpy(logits),
        bonus_token_ids=torch.tensor(bonus or [0] * len(counts), dtype=torch.int32)[:, None],
        temperature=torch.tensor([0.0 if i in greedy else 1.0 for i in range(len(counts))]),
        synthetic_rates=None if rates is None else torch.tensor(rates, dtype=torch.float32),
    )


def noise_of(uniforms: list[float], *exponentials: tuple[float, ...]) -> ExplicitNoise:
    return ExplicitNoise(torch.tensor(uniforms, dtype=torch.float64), torch.tensor(exponentials, dtype=torch.float32))


def test_accepted_drafts_are_followed_by_the_bonus_token() -> None:
    batch = batch_of([(0.5, 0.25, 0.25)] * 2, [0, 1], bonus=[2])
    assert verify(batch, noise_of([0.4, 0.2], (1, 1, 1))).tolist() == [[0, 1, 2]]


def test_first_rejection_ends_the_request_with_a_recovered_token() -> None:
    batch = batch_of([(0.5, 0.25, 0.25)] * 3, [0, 0, 0], bonus=[2])
    # Accepted at 0.4 < 0.5, rejected at 0.6; the race among 1 and 2 goes to the smaller exponential.
    assert verify(batch, noise_of([0.4, 0.6, 0.1], (0.01, 2, 1))).tolist() == [[0, 2, -1, -1]]


def test_recovered_token_has_the_largest_residual_over_exponential() -> None:
    # Residual (0, 0.125, 0.375): 0.125 / 0.25 = 0.5 beats 0.375 / 1.
    batch = batch_of([(0.25, 0.25, 0.5)], [0], draft_distributions=[(0.75, 0.125, 0.125)])
    assert verify(batch, noise_of([0.9], (0.001, 0.25, 1))).tolist() == [[1, -1]]


def test_uniform_equal_to_the_ratio_accepts() -> None:
    batch = batch_of([FLAT], [0], draft_distributions=[(1.0, 0.0)])
    assert verify(batch, noise_of([0.5], (1, 1))).tolist() == [[0, 0]]
    assert verify(batch, noise_of([math.nextafter(0.5, 1)], (1, 1))).tolist() == [[1, -1]]


def test_token_without_target_probability_is_rejected_at_uniform_zero() -> None:
    assert verify(batch_of([(0.0, 1.0)], [0]), noise_of([0.0], (1, 1))).tolist() == [[1, -1]]


def test_token_that_its_drafter_cannot_draw_is_rejected() -> None:
    batch = batch_of([HIGH], [0], draft_distributions=[(0.0, 1.0)])
    assert verify(batch, noise_of([0.0], (1, 1))).tolist() == [[0, -1]]


def test_rejection_without_residual_draws_from_the_target() -> None:
    batch = batch_of([(0.0, 0.5, 0.5)], [1], draft_distributions=[(0.0, 0.75, 0.5)])
    assert verify(batch, noise_of([0.9], (0.001, 2, 1))).tolist() == [[2, -1]]


def test_placeholder_draft_is_replaced_from_the_target() -> None:
    # The exponentials favour token 0, which a rejected one-hot draft of token 0 would have removed.
    assert verify(batch_of([FLAT], [-1]), noise_of([0.0], (0.1, 1))).tolist() == [[0, -1]]
    assert verify(batch_of([FLAT], [0]), noise_of([0.9], (0.1, 1))).tolist() == [[1, -1]]


def test_equal_scores_go_to_the_lowest_id() -> None:
    assert verify(batch_of([(0.25,) * 4], [0]), noise_of([0.9], (1, 1, 1, 1))).tolist() == [[1, -1]]


def test_greedy_request_emits_argmax_tokens_until_a_draft_differs() -> None:
    batch = batch_of([LOW, HIGH, LOW], [1, 1, 1], bonus=[1], greedy=(0,))
    assert verify(batch, noise_of([0.99] * 3, (1, 1))).tolist() == [[1, 0, -1, -1]]


def test_greedy_tie_goes_to_the_lowest_id() -> None:
    batch = batch_of([(0.2, 0.4, 0.4)], [2], greedy=(0,))
    assert verify(batch, noise_of([0.0], (1, 1, 1))).tolist() == [[1, -1]]


def test_request_without_drafts_emits_its_bonus_token() -> None:
    batch = batch_of([HIGH], [0], counts=[0, 1, 0], bonus=[1, 0, 1])
    assert verify(batch, noise_of([0.5], (1, 1), (1, 1), (1, 1))).tolist() == [[1, -1], [0, 0], [1, -1]]


@pytest.mark.parametrize(("row", "greedy_token"), [((0.0, math.nan), 1), ((-INF, -INF), 0)], ids=["nan", "empty"])
def test_row_without_a_distribution_gives_the_documented_token(row: tuple[float, ...], greedy_token: int) -> None:
    batch = batch_of([FLAT, FLAT], [1, 1], counts=[1, 1], greedy=(1,))
    batch = batch.replace(target_logits=torch.tensor([row, row]))
    random_row, greedy_row = verify(batch, noise_of([0.0, 0.0], (1, 1), (1, 1))).tolist()
    assert random_row == [0, -1]
    assert greedy_row[0] == greedy_token


def test_synthetic_rates_replace_the_ratio() -> None:
    batch = batch_of([HIGH, HIGH], [1, 0], bonus=[1], rates=[1.0, 0.5])
    assert verify(batch, noise_of([1 - 2.0**-53, 0.5], (1, 1))).tolist() == [[1, 1, -1]]
    assert verify(batch, noise_of([1 - 2.0**-53, 0.49], (1, 1))).tolist() == [[1, 0, 1]]


def test_two_drafted_tokens_follow_the_target_distribution_exactly() -> None:
    """Sum over drafts, uniforms and bonus tokens, in fractions: the first three tokens follow the target.

    With two tokens the residual has one candidate, so that no exponential matters.
    """
    targets, drafts, last = [LOW, HIGH], [FLAT, LOW], FLAT
    seen: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for first, second, bonus in itertools.product(range(2), repeat=3):
        weight = Fraction(drafts[0][first]) * Fraction(drafts[1][second]) * Fraction(last[bonus])
        uniforms = [(cell + 0.5) / 24 for cells in itertools.product(range(24), repeat=2) for cell in cells]
        batch = batch_of(
            targets * 576,
            [first, second] * 576,
            draft_distributions=drafts * 576,
            counts=[2] * 576,
            bonus=[bonus] * 576,
        )
        for row in verify(batch, noise_of(uniforms, *[(1, 1)] * 576)).tolist():
            seen[tuple(token for token in row if token >= 0)] += weight / 576
    distributions = [*targets, last]
    assert _completed(seen, distributions) == {
        text: math.prod(Fraction(distribution[token]) for distribution, token in zip(distributions, text, strict=True))
        for text in itertools.product(range(2), repeat=3)
    }


def _completed(
    seen: Mapping[tuple[int, ...], Fraction], distributions: Sequence[tuple[float, ...]]
) -> dict[tuple[int, ...], Fraction]:
    """Texts that a rejection cut short, continued with the target, as the next step would."""
    texts = dict.fromkeys(itertools.product(range(2), repeat=3), Fraction(0))
    for emitted, weight in seen.items():
        for rest in itertools.product(range(2), repeat=3 - len(emitted)):
            chance = math.prod(
                Fraction(distribution[t]) for distribution, t in zip(distributions[len(emitted) :], rest, strict=True)
            )
            texts[(*emitted, *rest)] += weight * chance
    return texts


def test_race_is_fair_between_equal_weights() -> None:
    """Over all orders of the same exponentials, each of three equal residuals wins equally often."""
    batch = batch_of([(0.25,) * 4], [0])
    orders = itertools.permutations((0.25, 0.5, 1.0))
    winners = Counter(int(verify(batch, noise_of([0.9], (0.1, *order)))[0, 0]) for order in orders)
    assert winners == {1: 2, 2: 2, 3: 2}


def test_race_draws_from_its_weights() -> None:
    """min(e1 / w1, e2 / w2) is e1's with probability w1 / (w1 + w2): here 3 / 4, at quantiles of the exponentials."""
    count = 200
    quantiles = -np.log1p(-(np.arange(count) + 0.5) / count)
    weights = np.array([0.75, 0.25], np.float32)
    oracle = RejectionOracle()
    wins = sum(oracle.race(weights, np.array(pair, np.float32)) == 0 for pair in itertools.product(quantiles, repeat=2))
    assert wins / count**2 == pytest.approx(0.75, abs=1 / count)


def test_noise_of_an_all_greedy_batch_is_not_drawn() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    draw_noise(batch_of([FLAT], [0], greedy=(0,)), SeededNoise(3))
    assert torch.equal(before, torch.get_rng_state())


def test_noise_is_drawn_uniforms_first_and_own_generators_after_the_default_one() -> None:
    batch = batch_of([FLAT] * 3, [0, 0, 0], counts=[1, 0, 2])
    seeded = SeededNoise(5, {1: 8, 2: 7})
    torch.manual_seed(5)
    drawn = draw_noise(batch, seeded)

    torch.manual_seed(5)
    own = torch.Generator().manual_seed(7)
    uniforms = torch.rand(3, dtype=torch.float64)
    uniforms[1:] = torch.empty(2, dtype=torch.float64).uniform_(generator=own)
    exponentials = torch.empty(3, 2).exponential_()
    exponentials[2] = torch.empty(2).exponential_(generator=own)
    assert torch.equal(drawn.uniforms, uniforms)
    assert torch.equal(drawn.exponentials, exponentials)
    assert torch.equal(seeded.generators()[2].get_state(), own.get_state())
    assert torch.equal(seeded.generators()[1].get_state(), torch.Generator().manual_seed(8).get_state())
