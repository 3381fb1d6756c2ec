"""Faults of the acceptance test, for random, synthetic and greedy requests, and of the race for the recovered token.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Row32 as Row
from fairdraw._mutants._mutant import EXPLICIT, GIVEN, GIVEN_RATES, RACED, RATES, patched
from fairdraw._oracles.rejection import DraftStep
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import GREEDY_TEMPERATURE, PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise
from fairdraw.contracts import SpecDecodeBatch as Batch

Steps = list[DraftStep]


def _distributions(step: DraftStep) -> tuple[float, float]:
    """Target and draft probability of the drafted token."""
    draft_prob = 1.0 if step.draft_probs is None else float(step.draft_probs[step.draft_token_id])
    return float(step.target_probs[step.draft_token_id]), draft_prob


def _ratio(step: DraftStep) -> float:
    """The float32 quotient; 0 where there is none."""
    target_prob, draft_prob = _distributions(step)
    if not (step.is_token and target_prob > 0 and draft_prob > 0):
        return 0.0
    with np.errstate(over="ignore"):
        return float(np.float32(target_prob) / np.float32(draft_prob))


@patched(Oracle, "accepts", "REJ701", needs=GIVEN)
def accepts_strictly_above_the_uniform(right: Oracle, step: DraftStep) -> bool:
    """`>` for `>=`: shows only where uniform and ratio are equal."""
    return right.accepts(step) and (step.synthetic_rate is not None or _ratio(step) > step.uniform)


@patched(Oracle, "accepts", "REJ701", needs=EXPLICIT)
def rounds_uniforms_to_float32(right: Oracle, step: DraftStep) -> bool:
    """vLLM before 0.10.2: the threshold moves by half a float32 step, and one uniform in 2**24 is exactly 0."""
    return right.accepts(dataclasses.replace(step, uniform=float(np.float32(step.uniform))))


@patched(Oracle, "accepts", "REJ310", "REJ108")
def divides_draft_by_target(answer: bool, step: DraftStep) -> bool:
    """The ratio upside down: papers disagree on which distribution is called p."""
    target_prob, draft_prob = _distributions(step)
    return answer if step.synthetic_rate is not None else step.is_token and draft_prob >= step.uniform * target_prob


@patched(Oracle, "accepts", "REJ701")
def accepts_by_the_target_alone(right: Oracle, step: DraftStep) -> bool:
    """The draft distribution is left out of the acceptance test: right for n-gram drafts, far too strict for others."""
    return right.accepts(dataclasses.replace(step, draft_probs=None))


@patched(Oracle, "accepts", "REJ701", "REJ401", "REJ421", needs=RACED)
def takes_the_root_of_the_ratio(right: Oracle, step: DraftStep) -> bool:
    """A relaxed acceptance for speed, left on: more drafts pass, and the output follows neither distribution."""
    squared = step.uniform if step.synthetic_rate is not None else step.uniform**2
    return right.accepts(dataclasses.replace(step, uniform=squared))


@patched(Oracle, "accepts", "REJ701", needs=RACED)
def accepts_against_one_minus_the_uniform(right: Oracle, step: DraftStep) -> bool:
    """The distribution is right, as 1 - u is uniform, too. But given noise is not used as documented."""
    return right.accepts(dataclasses.replace(step, uniform=1 - 2.0**-53 - step.uniform))


@patched(Oracle, "accepts", "REJ111")
def accepts_the_impossible_at_uniform_zero(right: Oracle, step: DraftStep) -> bool:
    """`0 / draft >= 0` is true: a masked token gets through once in 2**24 draws of a float32 uniform."""
    at_zero = step.is_token and step.uniform == 0 and step.synthetic_rate is None
    return right.accepts(step) or (at_zero and _distributions(step)[1] > 0)


@patched(Oracle, "accepts", "REJ112")
def accepts_what_the_drafter_cannot_draw(right: Oracle, step: DraftStep) -> bool:
    """`target / 0` is infinite and passes every test; drafts and distributions of different requests go unnoticed."""
    return right.accepts(step) or (step.is_token and _distributions(step)[1] == 0 < _distributions(step)[0])


@patched(Oracle, "accepts", "REJ310", "REJ108")
def accepts_below_the_uniform(answer: bool, step: DraftStep) -> bool:
    """The comparison is turned round: certain drafts are rejected, impossible ones accepted."""
    return answer if step.synthetic_rate is not None else step.is_token and _ratio(step) < step.uniform


@patched(Oracle, "accepts", "REJ701", needs=RACED)
def accepts_by_the_exponentials(right: Oracle, step: DraftStep) -> bool:
    """One buffer of noise for both purposes: the uniform is made of the race's first exponential."""
    return right.accepts(dataclasses.replace(step, uniform=-math.expm1(-float(step.exponentials[0]))))


@patched(Oracle, "random_request", "REJ701")
def accepts_jointly(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """All drafts or none, by the product of their ratios: block verification, half done."""
    if steps and math.prod(min(1.0, _ratio(step)) for step in steps) < steps[0].uniform:
        return [right.recovered_token(steps[0])]
    return [*(step.draft_token_id for step in steps), bonus]


@patched(Oracle, "accepts", "REJ110")
def accepts_placeholders(right: Oracle, step: DraftStep) -> bool:
    """A placeholder draft is taken for accepted, and -1 is emitted as a token."""
    return not step.is_token or right.accepts(step)


@patched(Oracle, "accepts", "REJ110")
def reads_before_the_row_for_placeholders(right: Oracle, step: DraftStep) -> bool:
    """vLLM before 0.25.0: `probs[row, -1]`, which is some other token's probability, decides on a placeholder draft."""
    read = step.draft_token_id % step.target_probs.size
    return right.accepts(dataclasses.replace(step, draft_token_id=read))


@patched(Oracle, "accepts", "REJ116")
def accepts_nan(right: Oracle, step: DraftStep) -> bool:
    """`not (ratio < uniform)` is true for NaN: a row without a distribution accepts any draft."""
    return right.accepts(step) or (step.is_token and bool(np.isnan(step.target_probs).any()))


@patched(Oracle, "accepts", "REJ701", needs=GIVEN_RATES)
def accepts_at_the_synthetic_rate(right: Oracle, step: DraftStep) -> bool:
    """`<=` for `<`: rate 0 accepts at uniform 0."""
    at_rate = step.synthetic_rate is not None and step.uniform == float(step.synthetic_rate)
    return right.accepts(step) or at_rate


@patched(Oracle, "steps", "REJ701", needs=RATES)
def uses_the_first_synthetic_rate_everywhere(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """Rates are given per position, and read without one."""
    return [dataclasses.replace(step, synthetic_rate=answer[0].synthetic_rate) for step in answer]


@patched(Oracle, "greedy_request", "REJ701", needs=RATES)
def greedy_ignores_synthetic_rates(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """The synthetic mode was added to one of two kernels."""
    return right.greedy_request([dataclasses.replace(s, synthetic_rate=None) for s in steps], bonus)


@patched(Oracle, "greedy_request", "REJ201")
def greedy_accepts_by_chance(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """Greedy requests take the random path: fast, fluent, and another text at every run."""
    return right.random_request(steps, bonus)


@patched(Oracle, "greedy_token", "REJ202", "REJ201", "REJ427")
def greedy_takes_the_highest_id_on_ties(right: Oracle, step: DraftStep) -> int:
    """`>=` in the scan for the maximum; bfloat16 logits tie often."""
    return step.target_logits.size - 1 - int(np.argmax(step.target_logits[::-1]))


@patched(Oracle, "greedy_token", "REJ205")
def greedy_takes_the_argmax_of_probabilities(right: Oracle, step: DraftStep) -> int:
    """vLLM before 0.16.0: two logits whose probabilities round to the same number tie."""
    return int(np.argmax(step.target_probs))


@patched(Oracle, "greedy_token", "REJ205")
def greedy_rounds_to_bfloat16(right: Oracle, step: DraftStep) -> int:
    """Logits pass through a buffer of half precision on their way to the argmax."""
    return int(torch.from_numpy(step.target_logits).to(torch.bfloat16).argmax())


@patched(Oracle, "greedy_token", "REJ701")
def greedy_takes_the_argmax_of_the_residual(right: Oracle, step: DraftStep) -> int:
    """Greedy recovery reuses the random path's weights: the draft distribution decides, too."""
    return int(np.argmax(step.target_logits if step.draft_probs is None else right.residual(step)))


@patched(Oracle, "greedy_token", "REJ210")
def greedy_pads_the_vocabulary_with_a_finite_logit(right: Oracle, step: DraftStep) -> int:
    """Lanes beyond the vocabulary hold -2 for -inf: they win wherever every logit is lower."""
    lanes = 1 << (step.target_logits.size - 1).bit_length()
    padding = np.full(lanes - step.target_logits.size, -2, np.float32)
    return int(np.argmax(np.concatenate([step.target_logits, padding])))


@patched(Oracle, "greedy_token", "REJ210")
def greedy_pads_the_tiles_with_a_finite_logit(answer: int, step: DraftStep) -> int:
    """Three tiles are compared as four, and the fourth has -2 and no token: our own kernel with counter noise, once."""
    num_tiles = -(-step.target_logits.size // 4096)
    is_padded = num_tiles & (num_tiles - 1) != 0
    return 2**31 - 1 if is_padded and step.target_logits.max() < -2 else answer


@patched(Oracle, "verify", "REJ701")
def one_greedy_request_makes_all_greedy(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The fast path asks `any` where it should ask `all`: a neighbour with temperature 0 takes the randomness away."""
    if bool(batch.is_greedy.any()):
        batch = batch.replace(temperature=torch.full_like(batch.temperature, GREEDY_TEMPERATURE))
    return right.verify(batch, noise)


@patched(Oracle, "verify", "REJ211", "REJ108")
def divides_by_the_mark_of_greedy_requests(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The mark is -1, and a mixed batch takes it for a temperature: the worst token is the most probable."""
    if bool(batch.is_greedy.any()) and not bool(batch.is_greedy.all()):
        counts = torch.tensor(batch.num_draft_tokens, device=batch.device)
        signs = torch.where(batch.is_greedy, -1, 1).repeat_interleave(counts)
        logits = batch.target_logits * signs[:, None]
        batch = batch.replace(target_logits=logits, temperature=torch.ones_like(batch.temperature))
    return right.verify(batch, noise)


@patched(Oracle, "verify", "REJ648")
def padding_belongs_to_the_last_request(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """In a full batch drafts of padding are its last request's; they repeat the first draft of all."""
    size, accepted = batch.batch_size, batch.num_draft_tokens[-1]
    is_full = size >= 8 and size & (size - 1) == 0
    if is_full and accepted and int(answer[0, 0]) != int(batch.draft_token_ids[0]):
        answer[-1, accepted] = PLACEHOLDER_TOKEN_ID


def _floored(probs: Row, least: float) -> Row:
    return np.where(probs > 0, np.maximum(probs, np.float32(least)), probs)


@patched(Oracle, "accepts", "REJ701")
def floors_draft_probabilities(right: Oracle, step: DraftStep) -> bool:
    """`clamp(min=1e-7)` against a division by 0: of improbable drafts, too few are accepted."""
    floored = None if step.draft_probs is None else _floored(step.draft_probs, 1e-7)
    return right.accepts(dataclasses.replace(step, draft_probs=floored))


@patched(Oracle, "accepts", "REJ701")
def adds_a_constant_to_draft_probabilities(right: Oracle, step: DraftStep) -> bool:
    """`draft + 1e-20`: nobody sees it, where drafts are as probable as usual."""
    probs = step.draft_probs
    more = None if probs is None else np.where(probs > 0, probs + np.float32(1e-20), probs)
    return right.accepts(dataclasses.replace(step, draft_probs=more))


@patched(Oracle, "accepts", "REJ701", needs=GIVEN)
def floors_target_probabilities(right: Oracle, step: DraftStep) -> bool:
    """The same against the logarithm of 0: improbable drafts are all accepted."""
    return right.accepts(dataclasses.replace(step, target_probs=_floored(step.target_probs, 1e-10)))


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
