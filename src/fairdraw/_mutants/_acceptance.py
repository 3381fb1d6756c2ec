"""Faults of the acceptance test, for random, synthetic and greedy requests.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

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
def divides_draft_by_target(right: Oracle, step: DraftStep) -> bool:
    """The ratio upside down: papers disagree on which distribution is called p."""
    if step.synthetic_rate is not None:
        return right.accepts(step)
    target_prob, draft_prob = _distributions(step)
    return step.is_token and draft_prob >= step.uniform * target_prob


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
def accepts_below_the_uniform(right: Oracle, step: DraftStep) -> bool:
    """The comparison is turned round: certain drafts are rejected, impossible ones accepted."""
    if step.synthetic_rate is not None:
        return right.accepts(step)
    return step.is_token and _ratio(step) < step.uniform


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


@patched(Oracle, "accepts", "REJ701")
def floors_draft_probabilities(right: Oracle, step: DraftStep) -> bool:
    """`clamp(min=1e-7)` against a division by 0: of improbable drafts, too few are accepted."""
    if step.draft_probs is None:
        return right.accepts(step)
    floored = np.where(step.draft_probs > 0, np.maximum(step.draft_probs, np.float32(1e-7)), step.draft_probs)
    return right.accepts(dataclasses.replace(step, draft_probs=floored))


@patched(Oracle, "accepts", "REJ701")
def adds_a_constant_to_draft_probabilities(right: Oracle, step: DraftStep) -> bool:
    """`draft + 1e-20`: nobody sees it, where drafts are as probable as usual."""
    if step.draft_probs is None:
        return right.accepts(step)
    more = np.where(step.draft_probs > 0, step.draft_probs + np.float32(1e-20), step.draft_probs)
    return right.accepts(dataclasses.replace(step, draft_probs=more))


@patched(Oracle, "accepts", "REJ701", needs=GIVEN)
def floors_target_probabilities(right: Oracle, step: DraftStep) -> bool:
    """The same against the logarithm of 0: improbable drafts are all accepted."""
    floored = np.where(step.target_probs > 0, np.maximum(step.target_probs, np.float32(1e-10)), step.target_probs)
    return right.accepts(dataclasses.replace(step, target_probs=floored))
