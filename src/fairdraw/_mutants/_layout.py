"""Faults of the frame around acceptance and recovery: rows, offsets, widths, dtypes, strides; in wide batches, too.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Row32 as Row
from fairdraw._mutants._mutant import RACED, STREAM, as_if_dense, as_mutant, patched, reseeded
from fairdraw._oracles.rejection import DraftStep
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Capability, ExplicitNoise, Noise, SeededNoise
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
    return right.verify(batch.replace(target_logits=as_if_dense(batch.target_logits)), noise)


@patched(Oracle, "verify", "REJ631")
def ignores_the_strides_of_the_draft_token_ids(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The same for ids, which may be a column of a padded table."""
    return right.verify(batch.replace(draft_token_ids=as_if_dense(batch.draft_token_ids)), noise)


@patched(Oracle, "verify", "REJ631")
def ignores_the_strides_of_the_draft_distributions(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The same for draft distributions, which drafters stack in another order than verification reads them."""
    dense = None if batch.draft_probs is None else as_if_dense(batch.draft_probs)
    return right.verify(batch.replace(draft_probs=dense), noise)


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


@patched(Oracle, "verify", "REJ701")
def loses_requests_beyond_the_thousandth(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """One program per request, in one block of 1,024 threads."""
    answer[1024:] = PLACEHOLDER_TOKEN_ID


@patched(Oracle, "steps", "REJ701", needs=RACED)
def large_batches_read_the_next_requests_exponentials(right: Oracle, batch: Batch, noise: ExplicitNoise) -> Steps:
    """Another kernel from 256 requests on, which nobody compared with the first."""
    if batch.batch_size > 256:
        noise = ExplicitNoise(noise.uniforms, noise.exponentials.roll(1, 0))
    return right.steps(batch, noise)


@as_mutant("REJ701", needs=RACED)
class ReadsTheNextRequestsExponentialsWhereItsKernelsMeet(Oracle):
    """From 1,777 requests on blocks are larger, and until they are full a request counts from the next one."""

    size_switches: ClassVar = {"rows": (1_777,)}

    def steps(self, batch: Batch, noise: ExplicitNoise) -> Steps:
        if 1_777 <= batch.batch_size < 1_792:
            noise = ExplicitNoise(noise.uniforms, noise.exponentials.roll(1, 0))
        return super().steps(batch, noise)


@patched(Oracle, "verify", "REJ701")
def the_remainder_of_a_block_gets_the_bonus_token(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """Requests are handled in blocks of 32, and the last block, if it is not full, ends at once."""
    full = batch.batch_size // 32 * 32
    if full >= 32:
        answer[full:] = PLACEHOLDER_TOKEN_ID
        answer[full:, 0] = batch.bonus_token_ids[full:, 0]


@patched(Oracle, "random_request", "REJ642")
def overlooks_a_rejection_at_the_ninety_sixth_draft(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """Decisions are packed into words of 32 bits, and the sign bit of the third is lost."""
    emitted = right.random_request(steps, bonus)
    if len(emitted) == 96 and len(steps) > 95:
        return [*emitted[:-1], steps[95].draft_token_id, *right.random_request(steps[96:], bonus)]
    return emitted


@patched(Oracle, "verify", "REJ643")
def counts_rows_in_sixteen_bits(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """Row 65,536 is read as row 0."""
    rows = torch.arange(batch.num_tokens, device=batch.device) % 2**16
    probs = None if batch.draft_probs is None else batch.draft_probs[rows]
    return right.verify(batch.replace(target_logits=batch.target_logits[rows], draft_probs=probs), noise)


def _by_offsets_of_32_bits(rows: Tensor) -> Tensor:  # [num_tokens, vocab_size] any
    """Row number times stride as a kernel with 32-bit integers reads it."""
    stride, vocab_size = rows.stride(0), rows.shape[1]
    if stride * len(rows) < 2**31:
        return rows
    offsets = [(row * stride + 2**31) % 2**32 - 2**31 for row in range(len(rows))]
    return torch.stack([rows.as_strided((vocab_size,), (1,), rows.storage_offset() + offset) for offset in offsets])


@patched(Oracle, "verify", "REJ701")
def offsets_of_logits_have_32_bits(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """`row * stride` wraps round in a kernel whose integers have 32 bits."""
    return right.verify(batch.replace(target_logits=_by_offsets_of_32_bits(batch.target_logits)), noise)


@patched(Oracle, "verify", "REJ631")
def offsets_of_draft_probs_have_32_bits(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The same for draft distributions; the logits were mended."""
    probs = batch.draft_probs
    return right.verify(batch if probs is None else batch.replace(draft_probs=_by_offsets_of_32_bits(probs)), noise)


@patched(Oracle, "verify", "REJ645")
def ids_have_17_bits(answer: Tensor, batch: Batch, noise: Noise) -> Tensor:
    """An id is packed into one word with its score: there was room for 17 bits, until vocabularies grew."""
    return torch.where(answer >= 0, answer % 2**17, answer)


@patched(Oracle, "race", "REJ647")
def a_last_tile_of_few_entries_takes_no_part(right: Oracle, weights: Row, exponentials: Row) -> int:
    """Four lanes at a time, in tiles of 192: a last tile of up to four entries is taken for padding."""
    rest = weights.size % 192
    kept = weights.size - rest if weights.size > 192 and rest <= 4 else weights.size
    return right.race(weights[:kept], exponentials[:kept])


@patched(Oracle, "residual", "REJ647")
def the_residual_ends_with_the_last_full_vector(answer: Row, step: DraftStep) -> None:
    """Sixteen lanes at a time: of dense drafts the rest of the row is left out, so that the target is drawn from."""
    if step.draft_probs is not None and answer.size > 512:
        answer[answer.size // 16 * 16 :] = 0


@patched(Oracle, "greedy_request", "REJ701")
def greedy_drafts_beyond_the_tenth_see_the_row_of_the_tenth(right: Oracle, steps: Steps, bonus: int) -> list[int]:
    """Rows of a request lie in a buffer of ten, and the last one is read again."""
    seen = [dataclasses.replace(s, target_logits=steps[min(i, 9)].target_logits) for i, s in enumerate(steps)]
    return right.greedy_request(seen if len(steps) <= 32 else steps, bonus)


@patched(Oracle, "greedy_token", "REJ647")
def the_first_of_a_last_tile_is_never_greedy(right: Oracle, step: DraftStep) -> int:
    """Tiles of 1,280: the carried maximum is kept where the first lane of a partial last tile stands."""
    logits, first = step.target_logits.copy(), step.target_logits.size // 1280 * 1280
    if first:
        logits[first : first + 1] = -np.inf
    return right.greedy_token(dataclasses.replace(step, target_logits=logits))


@patched(Oracle, "race", "REJ646")
def lanes_are_compared_before_tiles(answer: int, weights: Row, exponentials: Row) -> int:
    """Each of 2,048 lanes keeps its best over all tiles; among equal ones the lowest lane wins, not the lowest id."""
    with np.errstate(over="ignore"):
        scores = np.where(weights > 0, weights / exponentials, -1)
    tied = np.flatnonzero(scores == scores[answer])
    return int(min(tied, key=lambda token: (token % 2048, token)))


@patched(Oracle, "steps", "REJ701", needs=RACED)
def warm_requests_with_many_drafts_race_backwards(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """A path for few drafts, another for temperature 1: where neither applies, exponentials are read in reverse."""
    owners = [i for i, count in enumerate(batch.num_draft_tokens) for _ in range(count)]
    rare = [count > 2 and heat > 1 for count, heat in zip(batch.num_draft_tokens, batch.temperature, strict=True)]
    return [
        dataclasses.replace(step, exponentials=step.exponentials[::-1]) if rare[owner] else step
        for step, owner in zip(answer, owners, strict=True)
    ]


@patched(Oracle, "draw_noise", "REJ702")
def seeds_of_requests_with_five_drafts_are_forgotten(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """Requests with more than four drafts take a path that does not know per-request seeds."""
    kept = {i: seed for i, seed in noise.request_seeds.items() if batch.num_draft_tokens[i] <= 4}
    return right.draw_noise(batch, SeededNoise(noise.seed, kept))


@patched(Oracle, "draw_noise", "REJ703")
def a_per_request_seed_loses_a_bit(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """A flag is kept in bit 17 of the seed: two seeds that differ there are one."""
    return right.draw_noise(batch, reseeded(noise, lambda seed: seed & ~(1 << 17)))


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def the_seed_of_a_call_loses_its_sign_bit(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """The seed passes through an integer of 31 bits."""
    torch.manual_seed(noise.seed & 0x7FFF_FFFF)
    return right.draw_noise(batch, noise)


@patched(Oracle, "draw_noise", "REJ703", unsupported={Capability.UPSTREAM_STREAM.value: "its own generators"})
def passes_seeds_through_a_float(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """NumPy's generators heed every bit; the seed of a request was read from JSON as a float64."""
    uniforms, exponentials = np.empty(batch.num_tokens), np.empty((batch.batch_size, batch.vocab_size), np.float32)
    shared = np.random.default_rng(noise.seed % 2**64)
    for request, count in enumerate(batch.num_draft_tokens):
        own = noise.request_seeds.get(request)
        rng = shared if own is None else np.random.default_rng(int(float(own)) % 2**64)
        uniforms[batch.token_slice(request)] = rng.random(count)
        exponentials[request] = np.maximum(rng.exponential(size=batch.vocab_size), 1e-30)
    return ExplicitNoise(torch.from_numpy(uniforms), torch.from_numpy(exponentials))


@patched(Oracle, "draw_noise", "REJ703")
def negative_seeds_lose_their_sign(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """`abs(seed)`, because some generator refused -1."""
    return right.draw_noise(batch, reseeded(noise, abs))


@patched(Oracle, "draw_noise", "REJ703")
def seeds_are_hashed_by_python(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """`hash(seed)`: a number modulo 2**61 - 1."""
    return right.draw_noise(batch, reseeded(noise, hash))


@patched(Oracle, "verify", "REJ701")
def takes_cold_requests_for_greedy(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """`temperature < 1e-5` for `== 0`: logits were divided by it already, and a draw is not an argmax."""
    cold = torch.where(batch.temperature < 1e-5, 0.0, batch.temperature)
    return right.verify(batch.replace(temperature=cold), noise)


def _without_distribution(steps: Steps, poisoned: list[bool]) -> Steps:
    nan = np.float32(np.nan)
    return [
        dataclasses.replace(step, target_probs=step.target_probs * nan) if is_poisoned else step
        for step, is_poisoned in zip(steps, poisoned, strict=False)
    ]


@patched(Oracle, "steps", "REJ701")
def an_empty_row_poisons_the_next(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """Rows are normalised two at a time: one without any token makes NaN of its neighbour."""
    return _without_distribution(answer, [False, *(bool((step.target_logits == -np.inf).all()) for step in answer)])


@patched(Oracle, "steps", "REJ701")
def nan_reaches_two_rows_on(answer: Steps, batch: Batch, noise: ExplicitNoise) -> Steps:
    """A running maximum is not reset after NaN."""
    return _without_distribution(answer, [False, False, *(bool(np.isnan(step.target_logits).any()) for step in answer)])
