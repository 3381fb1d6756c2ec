"""Faults of the frame around acceptance and recovery: rows, offsets, widths, dtypes, strides."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fairdraw._mutants._mutant import as_mutant
from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SpecDecodeBatch


@as_mutant("REJ103", "REJ602", "REJ601", "REJ115", "REJ624")
class ForgetsTheBonusToken(RejectionOracle):
    """Fully accepted requests end with their last draft: a free token is given away, and draftless requests starve."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return super().random_request(steps, bonus_token_id)[: len(steps)]


@as_mutant("REJ106", "REJ115", "REJ624")
class TakesTheNextRequestsBonusToken(RejectionOracle):
    """Bonus tokens are indexed by something that is one off."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return super().verify(batch.replace(bonus_token_ids=batch.bonus_token_ids.roll(1, 0)), noise)


@as_mutant("REJ105")
class AddsTheBonusTokenAfterARejection(RejectionOracle):
    """The bonus token is appended to every request."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        emitted = super().random_request(steps, bonus_token_id)
        return emitted if len(emitted) > len(steps) else [*emitted, bonus_token_id]


@as_mutant("REJ105")
class GoesOnAfterARejection(RejectionOracle):
    """Every position is decided by itself: one rejection does not end the request."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        decided = [step.draft_token_id if self.accepts(step) else self.recovered_token(step) for step in steps]
        return [*decided, bonus_token_id]


@as_mutant("REJ102")
class LeavesAGapBeforeTheRecoveredToken(RejectionOracle):
    """The slot is counted once for the rejected draft and once for its replacement."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        emitted = super().random_request(steps, bonus_token_id)
        cut_short = len(emitted) <= len(steps)
        return [*emitted[:-1], PLACEHOLDER_TOKEN_ID, emitted[-1]] if cut_short else emitted


@as_mutant("REJ104", "REJ305")
class FillsTheOutputWithZeros(RejectionOracle):
    """The output buffer comes from zeros instead of full(-1): token 0 follows every short row."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return super().verify(batch, noise).clamp(min=0)


@as_mutant("REJ101")
class ReturnsInt64(RejectionOracle):
    """torch's default integer; the next kernel reads every second token as 0."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int64
        return super().verify(batch, noise).long()


@as_mutant("REJ115", "REJ103", "REJ624", "REJ623")
class SkipsRequestsWithoutDrafts(RejectionOracle):
    """Nothing to verify, nothing to write: the bonus token of such a request is lost."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = super().verify(batch, noise)
        output[torch.tensor(batch.num_draft_tokens, device=batch.device) == 0] = PLACEHOLDER_TOKEN_ID
        return output


def _reading_rows(batch: SpecDecodeBatch, rows: list[int]) -> SpecDecodeBatch:
    """The batch as seen through wrong row offsets."""
    index = torch.tensor(rows, dtype=torch.int64, device=batch.device).remainder(max(batch.num_tokens, 1))
    return batch.replace(
        draft_token_ids=batch.draft_token_ids[index],
        draft_probs=None if batch.draft_probs is None else batch.draft_probs[index],
        target_logits=batch.target_logits[index],
    )


@as_mutant("REJ105", "REJ301")
class TheCumulativeSumHasNoLeadingZero(RejectionOracle):
    """`cu_num_draft_tokens[i]` is taken for the start of request i; it is its end."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        starts = batch.cu_num_draft_tokens.tolist()
        rows = [start + j for start, count in zip(starts, batch.num_draft_tokens, strict=True) for j in range(count)]
        return super().verify(_reading_rows(batch, rows), noise)


@as_mutant("REJ305", "REJ105")
class RowsStartAtMultiplesOfMaxSpecLen(RejectionOracle):
    """Every request is thought to own `max_spec_len` rows: right until the first ragged batch."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        rows = [i * batch.max_spec_len + j for i, count in enumerate(batch.num_draft_tokens) for j in range(count)]
        return super().verify(_reading_rows(batch, rows), noise)


@as_mutant("REJ315", "REJ311")
class TakesTheDistributionOfTheLastPosition(RejectionOracle):
    """One row of probabilities per request: the loop over positions moved, the pointer did not."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return super().random_request(
            [dataclasses.replace(s, target_probs=steps[-1].target_probs) for s in steps], bonus_token_id
        )


@as_mutant("REJ114")
class ScalesTheLogitsInPlace(RejectionOracle):
    """Temperature applied in the caller's tensor: this call is right, the log-probabilities after it are not."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = super().verify(batch, noise)
        batch.target_logits.mul_(0.5)
        return output


@as_mutant("REJ312")
class AppliesTheTemperatureAgain(RejectionOracle):
    """Logits are processed; dividing them once more samples at the temperature's square."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        counts = torch.tensor(batch.num_draft_tokens, device=batch.device)
        divisors = batch.temperature.where(~batch.is_greedy, 1.0).repeat_interleave(counts)
        return super().verify(batch.replace(target_logits=batch.target_logits / divisors[:, None]), noise)


@as_mutant("REJ634", "REJ206")
class ComputesInTheDtypeOfTheLogits(RejectionOracle):
    """A softmax in bfloat16: rows sum to 1 within a percent, and near logits become ties."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        probs = batch.target_logits.softmax(-1).float().cpu().numpy()
        steps = super().steps(batch, noise)
        return [dataclasses.replace(s, target_probs=p, target_logits=p) for s, p in zip(steps, probs, strict=True)]


@as_mutant("REJ313")
class DoesNotSubtractTheMaximum(RejectionOracle):
    """exp(logits) overflows float32 above 88: the row becomes NaN, and NaN becomes id 0."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        weights = batch.target_logits.float().exp()
        probs = (weights / weights.sum(-1, keepdim=True)).cpu().numpy()
        steps = super().steps(batch, noise)
        return [dataclasses.replace(s, target_probs=p) for s, p in zip(steps, probs, strict=True)]


@as_mutant("REJ310")
class NormalisesOverThePaddedVocabulary(RejectionOracle):
    """Lanes beyond the vocabulary enter the sum as exp(0): every probability comes out too small."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        lanes = 1 << (batch.vocab_size - 1).bit_length()
        padded = torch.nn.functional.pad(batch.target_logits.float(), (0, lanes - batch.vocab_size))
        probs = padded.softmax(-1)[:, : batch.vocab_size].cpu().numpy()
        steps = super().steps(batch, noise)
        return [dataclasses.replace(s, target_probs=p) for s, p in zip(steps, probs, strict=True)]


@as_mutant("REJ316")
class NormalisesOverThePaddedTiles(RejectionOracle):
    """Three tiles are summed as four, and the fourth adds exp(-2): nothing to a row of usual logits."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        num_tiles = -(-batch.vocab_size // 4096)
        missing = (1 << (num_tiles - 1).bit_length()) - num_tiles
        padded = torch.nn.functional.pad(batch.target_logits.float(), (0, missing), value=-2)
        probs = padded.softmax(-1)[:, : batch.vocab_size].cpu().numpy()
        steps = super().steps(batch, noise)
        return [dataclasses.replace(s, target_probs=p) for s, p in zip(steps, probs, strict=True)]


@as_mutant("REJ327")
class NanPoisonsTheBatch(RejectionOracle):
    """The maximum is taken over all rows at once: one sequence without a distribution takes everybody's away."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        steps = super().steps(batch, noise)
        poison = np.float32(np.nan if any(np.isnan(step.target_probs).any() for step in steps) else 1)
        return [dataclasses.replace(step, target_probs=step.target_probs * poison) for step in steps]


@as_mutant("REJ631", "REJ632")
class IgnoresTheStridesOfTheLogits(RejectionOracle):
    """Row number times vocabulary size: right for contiguous tensors, silent for others."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        logits = batch.target_logits
        return super().verify(
            batch.replace(target_logits=logits.as_strided(logits.shape, (batch.vocab_size, 1))), noise
        )


@as_mutant("REJ633")
class IgnoresTheStridesOfTheDraftDistributions(RejectionOracle):
    """The same for draft distributions, which drafters stack in another order than verification reads them."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        distributions = batch.draft_probs
        if distributions is not None:
            batch = batch.replace(draft_probs=distributions.as_strided(distributions.shape, (batch.vocab_size, 1)))
        return super().verify(batch, noise)


@as_mutant("REJ622")
class LosesDraftsBeyondTheThirtySecond(RejectionOracle):
    """MAX_SPEC_LEN was 32 once; a buffer of that size is still somewhere."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return super().random_request(steps[:32], bonus_token_id)


@as_mutant("REJ623")
class LosesRequestsBeyondTheSixtyFourth(RejectionOracle):
    """A launch grid, or a bit mask, of 64."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = super().verify(batch, noise)
        output[64:] = PLACEHOLDER_TOKEN_ID
        return output


@as_mutant("REJ304", "REJ302")
class TheRowNumberEntersTheRace(RejectionOracle):
    """Noise is addressed by the place in the batch, also where it was handed in."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        ends = list(accumulate(batch.num_draft_tokens))
        owners = [sum(row >= end for end in ends) for row in range(batch.num_tokens)]
        steps = super().steps(batch, noise)
        return [
            dataclasses.replace(s, exponentials=np.roll(s.exponentials, i)) for s, i in zip(steps, owners, strict=True)
        ]
