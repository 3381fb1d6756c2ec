"""The penalties contract, executable: a recount from scratch, row by row.

The whole of prompt and output is counted at every step, so there is no state that could be wrong. The arithmetic is
float32 with one rounding per operation, in vLLM's order; this is what "bitwise" refers to. A scanner that declares no
rounding is compared with intervals instead (`penalised_intervals`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.array_types import Row64
from fairdraw._oracles.intervals import LARGEST, SMALLEST_NORMAL, UNIT_ROUNDOFF, Intervals
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, PenaltyPolicy, Rounding

Logits = NDArray[np.float32]
"""One row, `[vocab_size] float32`."""
Counts = NDArray[np.int64]
"""`[vocab_size] int64`."""

_VLLM = PenaltyPolicy()
_ROUNDINGS = 6
"""Most roundings of a logit: the factor, its reciprocal, the product, two differences, and the sum of two penalties."""


@dataclass(frozen=True)
class PenaltyFactors:
    """Sampling parameters of one request; these defaults change nothing."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


@dataclass(frozen=True)
class PenalisedRow:
    """The tokens and factors that penalise one row of logits."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    factors: PenaltyFactors


class PenaltiesOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them."""

    name = "oracle"
    policy = PenaltyPolicy()
    """What the penalties see, and the order and the power in which they come."""

    def bonus_row(self, row: PenalisedRow, drafts: Sequence[int]) -> PenalisedRow:
        """The row of the bonus token: it sees the output and all drafts."""
        return PenalisedRow(row.prompt_token_ids, [*row.output_token_ids, *drafts], row.factors)

    def draft_rows(self, row: PenalisedRow, drafts: Sequence[int]) -> list[PenalisedRow]:
        """One row per draft token: it sees the output and the drafts before it."""
        return [self.bonus_row(row, drafts[:position]) for position in range(len(drafts))]

    def count(self, token_ids: Sequence[int], vocab_size: int) -> Counts:
        """How often each id occurs; a placeholder and the pad id `vocab_size` are not counted."""
        ids = np.array(token_ids, np.int64)
        return np.bincount(ids[(ids != PLACEHOLDER_TOKEN_ID) & (ids != vocab_size)], minlength=vocab_size)

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        """Repetition for tokens in prompt or output, then frequency and presence for tokens in the output; or what the
        policy says."""
        counts, repeats = self.counts(row, len(logits))
        if self.policy.repetition == "last":
            logits = self.subtracted(logits.copy(), counts, row)
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):  # of large powers
            scale = self.scale(np.float32(row.factors.repetition), repeats)
            logits = np.where(repeats > 0, self.repeated(logits, scale), logits)
        return self.subtracted(logits, counts, row) if self.policy.repetition == "first" else logits

    def counts(self, row: PenalisedRow, vocab_size: int) -> tuple[Counts, Counts]:
        """How often the frequency penalty sees each token, and how often the repetition penalty does."""
        prompt, output = (self.count(part, vocab_size) for part in self.within_window(row))
        sees = self.policy.counts_see, self.policy.repetition_sees
        counts, repeats = (output + prompt if seen == "text" else output for seen in sees)
        return counts, repeats

    def within_window(self, row: PenalisedRow) -> tuple[Sequence[int], Sequence[int]]:
        """Prompt and output, without what lies before the window; a placeholder takes no place in it."""
        prompt, output = row.prompt_token_ids, row.output_token_ids
        if self.policy.window is None:
            return prompt, output
        known = [[i for i in part if i != PLACEHOLDER_TOKEN_ID] for part in (prompt, output)]
        output = known[1][-self.policy.window :]
        return known[0][max(0, len(known[0]) + len(output) - self.policy.window) :], output

    def scale(self, repetition: Any, repeats: Counts) -> Any:  # Any: a number of NumPy; and an array if it has a power
        """The repetition penalty, to its power."""
        is_power = self.policy.repetition_power == "count"
        return repetition ** repeats.astype(repetition.dtype) if is_power else repetition

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        """Frequency times count, then presence; in place."""
        logits -= np.float32(row.factors.frequency) * counts.astype(np.float32)
        logits -= np.float32(row.factors.presence) * (counts > 0).astype(np.float32)
        return logits

    def repeated(self, logits: Logits, repetition: np.float32) -> Logits:
        """A positive logit is divided, any other multiplied.

        Division is multiplication by the rounded reciprocal, as in vLLM's torch code; its CUDA kernel divides, as
        `DividingPenaltiesOracle` does.
        """
        return np.where(logits > 0, logits * (np.float32(1) / repetition), logits * repetition)


class DividingPenaltiesOracle(PenaltiesOracle):
    """The same specification, but a positive logit is divided by the repetition penalty, with one rounding.

    A reciprocal and a product round twice, and may differ from the quotient in the last bit. vLLM's torch code
    multiplies and its CUDA kernel divides, so "bitwise" has two meanings: this is the second, `Rounding.VLLM_CUDA`.
    """

    def repeated(self, logits: Logits, repetition: np.float32) -> Logits:
        """A positive logit is divided, any other multiplied."""
        return np.where(logits > 0, logits / repetition, logits * repetition)


def penalties_oracle(rounding: Rounding, policy: PenaltyPolicy = _VLLM) -> PenaltiesOracle:
    """The specification with the declared bits and policy; those of vLLM's torch code if none are declared."""
    oracle = DividingPenaltiesOracle() if rounding is Rounding.VLLM_CUDA else PenaltiesOracle()
    oracle.policy = policy
    return oracle


def penalised_intervals(logits: Intervals, row: PenalisedRow, policy: PenaltyPolicy = _VLLM) -> Intervals:
    """Where a penalised logit may lie if no rounding is declared.

    An engine may add the frequency penalty once per occurrence, so each occurrence adds a rounding.
    """
    oracle, factors = penalties_oracle(Rounding.FREE, policy), row.factors
    counts, repeats = oracle.counts(row, len(logits.low))
    with np.errstate(over="ignore", under="ignore"):
        scale = np.where(repeats > 0, oracle.scale(np.float64(factors.repetition), repeats), 1)
    is_beyond, seen = (scale < SMALLEST_NORMAL) | (scale > LARGEST), scale != 1
    frequency, presence = factors.frequency * counts, factors.presence * (counts > 0)
    is_lowered = (frequency != 0) | (presence != 0)
    roundings = _ROUNDINGS + 2 * repeats * (policy.repetition_power == "count")  # of the penalty, and of each factor

    def repeated(given: Intervals) -> Intervals:
        """The factor is positive, so both ends keep their order; one that float32 cannot hold leaves any number."""
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            low, high = (np.where(e > 0, e / scale, e * scale) for e in (given.low, given.high))
        is_any = is_beyond & ~np.isnan(given.low)
        low, high = np.where(is_any, -np.inf, low), np.where(is_any, np.inf, high)
        return Intervals(np.where(seen, low, given.low), np.where(seen, high, given.high))

    def subtracted(given: Intervals, is_changed: NDArray[np.bool_]) -> Intervals:
        largest = _largest(given) + np.abs(frequency) + np.abs(presence)
        error = np.where(is_changed, (roundings + counts) * UNIT_ROUNDOFF * largest, 0)
        return Intervals(given.low - frequency - presence, given.high - frequency - presence).widened(error)

    if policy.repetition == "first":
        return subtracted(repeated(logits), seen | is_lowered)
    found = repeated(subtracted(logits, is_lowered))
    return found.widened(np.where(seen, roundings * UNIT_ROUNDOFF * _largest(found), 0))


def _largest(given: Intervals) -> Row64:
    return np.maximum(np.abs(given.low), np.abs(given.high))
