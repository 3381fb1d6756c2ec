"""Faults of the recovered token: what the race runs over, and which token wins.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fairdraw._core.array_types import Row32 as Row
from fairdraw._mutants._mutant import GIVEN, RACED, RATES, patched
from fairdraw._oracles.rejection import DraftStep
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import ExplicitNoise
from fairdraw.contracts import SpecDecodeBatch as Batch

Steps = list[DraftStep]


@patched(Oracle, "residual", "REJ109")
def recovers_from_the_target(right: Oracle, step: DraftStep) -> Row:
    """The commonest fault of all: tokens that the draft proposes too often are emitted too often still."""
    return step.target_probs


@patched(Oracle, "residual", "REJ107", "REJ421")
def keeps_the_rejected_draft_in_the_race(right: Oracle, step: DraftStep) -> Row:
    """Without draft probabilities nothing is subtracted: the rejected n-gram gets a second chance."""
    return step.target_probs if step.draft_probs is None else right.residual(step)


@patched(Oracle, "residual", "REJ109", "REJ108", "REJ107")
def recovers_from_the_draft(right: Oracle, step: DraftStep) -> Row:
    """draft - target for target - draft: the output follows the draft model, masked tokens included."""
    one_hot = (np.arange(step.target_probs.size) == step.draft_token_id).astype(np.float32)
    draft_probs = one_hot if step.draft_probs is None else step.draft_probs
    weights: Row = np.maximum(draft_probs - step.target_probs, np.float32(0))
    return weights


@patched(Oracle, "steps", "REJ701", needs=RACED)
def takes_missing_draft_probs_for_uniform(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """`draft_probs=None` becomes a flat distribution: n-gram drafts of more than average probability always pass."""
    flat = np.full(batch.vocab_size, 1 / batch.vocab_size, np.float32)
    return [dataclasses.replace(s, draft_probs=flat if s.draft_probs is None else s.draft_probs) for s in answer]


@patched(Oracle, "recovered_token", "REJ113")
def answers_zero_without_residual(right: Oracle, step: DraftStep) -> int:
    """An argmax over zeros is id 0, whatever its probability: vLLM up to 0.33.0."""
    return right.race(right.residual(step), step.exponentials)


@patched(Oracle, "residual", "REJ701", needs=RACED)
def removes_the_last_token_for_placeholders(right: Oracle, step: DraftStep) -> Row:
    """The drafted token is set to zero by index, and index -1 is the last token."""
    weights = right.residual(step).copy()
    weights[-1] *= step.is_token
    return weights


@patched(Oracle, "recovered_token", "REJ118", "REJ116")
def answers_vocab_size_without_a_distribution(right: Oracle, step: DraftStep) -> int:
    """vLLM before 0.24.0, compiled: nothing beats -inf, so a lane beyond the end wins."""
    return step.target_probs.size if np.isnan(step.target_probs).any() else right.recovered_token(step)


@patched(Oracle, "race", "REJ101")
def lanes_beyond_the_vocabulary_race(right: Oracle, weights: Row, exponentials: Row) -> int:
    """The last tile is padded to a power of two, and the padding has weight."""
    scores = np.ones(1 << (weights.size - 1).bit_length())
    with np.errstate(over="ignore"):
        scores[: weights.size] = weights / exponentials
    return int(np.argmax(scores))


@patched(Oracle, "race", "REJ701")
def never_recovers_the_last_token(right: Oracle, weights: Row, exponentials: Row) -> int:
    """A mask with `<` against `vocab_size - 1`, or a loop over full tiles only."""
    return right.race(weights[:-1], exponentials[:-1]) if weights.size > 1 else 0


@patched(Oracle, "race", "REJ701", needs=GIVEN)
def race_ties_go_to_the_highest_id(right: Oracle, weights: Row, exponentials: Row) -> int:
    """The reduction keeps the last of equal scores."""
    return weights.size - 1 - right.race(weights[::-1], exponentials[::-1])


@patched(Oracle, "race", "REJ646")
def the_last_tile_wins_ties(right: Oracle, weights: Row, exponentials: Row, *, own: Oracle) -> int:
    """Lowest id inside a tile, `>=` between tiles: right in every test with a small vocabulary."""
    if weights.size <= 512:
        return right.race(weights, exponentials)
    finalists = [512 + own.race(weights[512:], exponentials[512:]), right.race(weights[:512], exponentials[:512])]
    return finalists[right.race(weights[finalists], exponentials[finalists])]


@patched(Oracle, "race", "REJ406")
def lets_nan_win_the_race(right: Oracle, weights: Row, exponentials: Row) -> int:
    """0 times an infinite reciprocal is NaN, and NaN wins an argmax."""
    with np.errstate(over="ignore", invalid="ignore"):
        return int(np.argmax(weights * (np.float32(1) / exponentials)))


@patched(Oracle, "race", "REJ108")
def masks_with_zero_in_log_space(right: Oracle, weights: Row, exponentials: Row) -> int:
    """Scores became logarithms, the value of masked lanes stayed 0: larger than most logarithms."""
    alive = weights > 0
    scores = np.zeros(weights.size)
    scores[alive] = np.log(weights[alive].astype(np.float64)) - np.log(exponentials[alive].astype(np.float64))
    return int(np.argmax(scores))


@patched(Oracle, "race", "REJ701")
def clamps_the_residual_above_zero(right: Oracle, weights: Row, exponentials: Row) -> int:
    """A guard against log(0): every token keeps a little weight, masked ones and padding too."""
    return right.race(np.maximum(weights, np.float32(1e-6)), exponentials)


@patched(Oracle, "race", "REJ701", needs=GIVEN)
def clamps_the_exponentials(right: Oracle, weights: Row, exponentials: Row) -> int:
    """A guard against division by zero that is larger than many exponentials."""
    return right.race(weights, np.maximum(exponentials, np.float32(1e-7)))


@patched(Oracle, "race", "REJ701", needs=RACED)
def prefers_low_ids(right: Oracle, weights: Row, exponentials: Row) -> int:
    """A bias towards low ids, as from a running sum that is rounded: every probability is slightly off."""
    bias = np.float32(1) / np.arange(1, weights.size + 1, dtype=np.float32)
    return right.race((weights * bias).astype(np.float32), exponentials)


@patched(Oracle, "recovered_token", "REJ701")
def recovers_with_the_rejecting_uniform(right: Oracle, step: DraftStep) -> int:
    """Inverse CDF with the number that rejected the draft: it is known to be large, so late ids are preferred."""
    sums = np.cumsum(right.residual(step).astype(np.float64))
    return int(np.searchsorted(sums, step.uniform * sums[-1], side="right").clip(0, sums.size - 1))


@patched(Oracle, "random_request", "REJ701")
def never_recovers_the_bonus_token(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """The bonus token is drawn before verification, and kept out of the race as if it were used up."""
    without = [dataclasses.replace(s, target_probs=_without(s.target_probs, bonus)) for s in steps]
    emitted = right.random_request(steps, bonus)
    is_cut = len(emitted) <= len(steps)
    return [*emitted[:-1], right.recovered_token(without[len(emitted) - 1])] if is_cut else emitted


def _without(probs: Row, token: int) -> Row:
    left = probs.copy()
    left[token] = 0
    return left


@patched(Oracle, "race", "REJ401")
def recovers_the_runner_up(right: Oracle, weights: Row, exponentials: Row) -> int:
    """An off-by-one in a sorted list: always the second best."""
    first = right.race(weights, exponentials)
    others = _without(weights, first)
    return right.race(others, exponentials) if (others > 0).any() else first


@patched(Oracle, "recovered_token", "REJ701", needs=RATES)
def synthetic_rejection_skips_recovery(right: Oracle, step: DraftStep) -> int:
    """A mode for benchmarks, where the text does not matter: until it is served."""
    return 0 if step.synthetic_rate is not None else right.recovered_token(step)


@patched(Oracle, "residual", "REJ701")
def recovers_from_the_target_where_little_is_left(answer: Row, step: DraftStep) -> Row:
    """A residual below a thousandth is taken for rounding."""
    return step.target_probs if answer.sum() < 1e-3 else answer


@patched(Oracle, "residual", "REJ701")
def floors_the_residual(answer: Row, step: DraftStep) -> Row:
    """`clamp(min=1e-5)` for `clamp(min=0)`: tokens that the draft has too much of are recovered."""
    return np.where(step.target_probs > 0, np.maximum(answer, np.float32(1e-5)), answer)
