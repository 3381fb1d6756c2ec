"""Faults of the frame around acceptance and recovery: rows, offsets, widths, dtypes, strides.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from fairdraw._mutants._mutant import patched
from fairdraw._oracles.rejection import DraftStep
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise
from fairdraw.contracts import SpecDecodeBatch as Batch

Steps = list[DraftStep]


@patched(Oracle, "random_request", "REJ103")
def forgets_the_bonus_token(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """Fully accepted requests end with their last draft: a free token is given away, and draftless requests starve."""
    return right.random_request(steps, bonus)[: len(steps)]


@patched(Oracle, "verify", "REJ106")
def takes_the_next_requests_bonus_token(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """Bonus tokens are indexed by something that is one off."""
    return right.verify(batch.replace(bonus_token_ids=batch.bonus_token_ids.roll(1, 0)), noise)


@patched(Oracle, "random_request", "REJ105")
def adds_the_bonus_token_after_a_rejection(answer: list[int], steps: Steps, bonus: int) -> list[int]:
    """The bonus token is appended to every request."""
    return answer if len(answer) > len(steps) else [*answer, bonus]


@patched(Oracle, "random_request", "REJ105")
def goes_on_after_a_rejection(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """Every position is decided by itself: one rejection does not end the request."""
    decided = [step.draft_token_id if right.accepts(step) else right.recovered_token(step) for step in steps]
    return [*decided, bonus]


@patched(Oracle, "random_request", "REJ102")
def leaves_a_gap_before_the_recovered_token(answer: list[int], steps: Steps, bonus: int) -> list[int]:
    """The slot is counted once for the rejected draft and once for its replacement."""
    return answer if len(answer) > len(steps) else [*answer[:-1], PLACEHOLDER_TOKEN_ID, answer[-1]]


@patched(Oracle, "verify", "REJ104")
def fills_the_output_with_zeros(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The output buffer comes from zeros instead of full(-1): token 0 follows every short row."""
    return right.verify(batch, noise).clamp(min=0)


@patched(Oracle, "verify", "REJ101")
def returns_int64(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """torch's default integer; the next kernel reads every second token as 0."""
    return right.verify(batch, noise).long()


@patched(Oracle, "verify", "REJ103")
def skips_requests_without_drafts(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """Nothing to verify, nothing to write: the bonus token of such a request is lost."""
    answer[torch.tensor(batch.num_draft_tokens, device=batch.device) == 0] = PLACEHOLDER_TOKEN_ID


def _with_target(steps: Steps, probs: Tensor) -> Steps:  # [num_tokens, vocab_size] float32
    """The steps with other target probabilities."""
    rows = probs.cpu().numpy()
    return [dataclasses.replace(step, target_probs=row) for step, row in zip(steps, rows, strict=True)]


def _reading_rows(batch: Batch, rows: list[int]) -> Batch:
    """The batch as seen through wrong row offsets."""
    index = torch.tensor(rows, dtype=torch.int64, device=batch.device).remainder(max(batch.num_tokens, 1))
    return batch.replace(
        draft_token_ids=batch.draft_token_ids[index],
        draft_probs=None if batch.draft_probs is None else batch.draft_probs[index],
        target_logits=batch.target_logits[index],
    )


@patched(Oracle, "verify", "REJ105")
def the_cumulative_sum_has_no_leading_zero(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """`cu_num_draft_tokens[i]` is taken for the start of request i; it is its end."""
    starts = batch.cu_num_draft_tokens.tolist()
    rows = [start + j for start, count in zip(starts, batch.num_draft_tokens, strict=True) for j in range(count)]
    return right.verify(_reading_rows(batch, rows), noise)


@patched(Oracle, "verify", "REJ701", "REJ105")
def rows_start_at_multiples_of_max_spec_len(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """Every request is thought to own `max_spec_len` rows: right until the first ragged batch."""
    rows = [i * batch.max_spec_len + j for i, count in enumerate(batch.num_draft_tokens) for j in range(count)]
    return right.verify(_reading_rows(batch, rows), noise)


@patched(Oracle, "random_request", "REJ701")
def takes_the_distribution_of_the_last_position(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """One row of probabilities per request: the loop over positions moved, the pointer did not."""
    return right.random_request([dataclasses.replace(s, target_probs=steps[-1].target_probs) for s in steps], bonus)


@patched(Oracle, "verify", "REJ114")
def scales_the_logits_in_place(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """Temperature applied in the caller's tensor: this call is right, the log-probabilities after it are not."""
    batch.target_logits.mul_(0.5)


@patched(Oracle, "verify", "REJ701")
def applies_the_temperature_again(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """Logits are processed; dividing them once more samples at the temperature's square."""
    counts = torch.tensor(batch.num_draft_tokens, device=batch.device)
    divisors = batch.temperature.where(~batch.is_greedy, 1.0).repeat_interleave(counts)
    return right.verify(batch.replace(target_logits=batch.target_logits / divisors[:, None]), noise)


@patched(Oracle, "steps", "REJ701")
def computes_in_the_dtype_of_the_logits(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """A softmax in bfloat16: rows sum to 1 within a percent, and near logits become ties."""
    probs = batch.target_logits.softmax(-1).float().cpu().numpy()
    return [dataclasses.replace(s, target_probs=p, target_logits=p) for s, p in zip(answer, probs, strict=True)]


@patched(Oracle, "steps", "REJ701")
def does_not_subtract_the_maximum(right: Oracle, batch: Batch, noise: ExplicitNoise) -> Steps:
    """exp(logits) overflows float32 above 88: the row becomes NaN, and NaN becomes id 0."""
    weights = batch.target_logits.float().exp()
    return _with_target(right.steps(batch, noise), weights / weights.sum(-1, keepdim=True))


@patched(Oracle, "steps", "REJ310")
def normalises_over_the_padded_vocabulary(right: Oracle, batch: Batch, noise: ExplicitNoise) -> Steps:
    """Lanes beyond the vocabulary enter the sum as exp(0): every probability comes out too small."""
    lanes = 1 << (batch.vocab_size - 1).bit_length()
    padded = torch.nn.functional.pad(batch.target_logits.float(), (0, lanes - batch.vocab_size))
    return _with_target(right.steps(batch, noise), padded.softmax(-1)[:, : batch.vocab_size])


@patched(Oracle, "steps", "REJ210")
def normalises_over_the_padded_tiles(right: Oracle, batch: Batch, noise: ExplicitNoise) -> Steps:
    """Three tiles are summed as four, and the fourth adds exp(-2): nothing to a row of usual logits."""
    num_tiles = -(-batch.vocab_size // 4096)
    missing = (1 << (num_tiles - 1).bit_length()) - num_tiles
    padded = torch.nn.functional.pad(batch.target_logits.float(), (0, missing), value=-2)
    return _with_target(right.steps(batch, noise), padded.softmax(-1)[:, : batch.vocab_size])


@patched(Oracle, "steps", "REJ701")
def nan_poisons_the_batch(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """The maximum is taken over all rows at once: one row without a distribution makes all rows NaN."""
    poison = np.float32(np.nan if any(np.isnan(step.target_probs).any() for step in answer) else 1)
    return [dataclasses.replace(step, target_probs=step.target_probs * poison) for step in answer]


@patched(Oracle, "verify", "REJ631")
def ignores_the_strides_of_the_logits(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """Row number times vocabulary size: right for contiguous tensors, silent for others."""
    logits = batch.target_logits
    return right.verify(batch.replace(target_logits=logits.as_strided(logits.shape, (batch.vocab_size, 1))), noise)


@patched(Oracle, "verify", "REJ631")
def ignores_the_strides_of_the_draft_token_ids(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The same for ids, which may be a column of a padded table."""
    ids = batch.draft_token_ids
    return right.verify(batch.replace(draft_token_ids=ids.as_strided(ids.shape, (1,))), noise)


@patched(Oracle, "verify", "REJ631")
def ignores_the_strides_of_the_draft_distributions(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The same for draft distributions, which drafters stack in another order than verification reads them."""
    if (distributions := batch.draft_probs) is not None:
        batch = batch.replace(draft_probs=distributions.as_strided(distributions.shape, (batch.vocab_size, 1)))
    return right.verify(batch, noise)


@patched(Oracle, "random_request", "REJ642")
def loses_drafts_beyond_the_thirty_second(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """MAX_SPEC_LEN was 32 once; a buffer of that size is still somewhere."""
    return right.random_request(steps[:32], bonus)


@patched(Oracle, "verify", "REJ701")
def loses_requests_beyond_the_sixty_fourth(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """A launch grid, or a bit mask, of 64."""
    answer[64:] = PLACEHOLDER_TOKEN_ID


@patched(Oracle, "steps", "REJ702")
def the_row_number_enters_the_race(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """Noise is addressed by the place in the batch, also if the caller gave it."""
    owners = [i for i, count in enumerate(batch.num_draft_tokens) for _ in range(count)]
    pairs = zip(answer, owners, strict=True)
    return [dataclasses.replace(s, exponentials=np.roll(s.exponentials, i)) for s, i in pairs]
