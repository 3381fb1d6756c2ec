"""The penalties contract, executable: a recount from scratch, row by row.

What is counted is the whole of prompt and output at every step, so there is no state that could be wrong. The
arithmetic is float32 with one rounding per operation, in vLLM's order; that is what "bitwise" refers to. A scanner that
promises no rounding is compared with intervals instead (`penalised_intervals`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._oracles.intervals import UNIT_ROUNDOFF, Intervals
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.protocols._rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "DividingPenaltiesOracle",
    "PenalisedRow",
    "PenaltiesOracle",
    "PenaltyFactors",
    "penalised_intervals",
    "penalties_oracle",
]

_ROUNDINGS = 6
"""Of the longest way: the factor, its reciprocal, the product, two differences, and the sum of two penalties."""


@dataclass(frozen=True)
class PenaltyFactors:
    """Sampling parameters of one request; these defaults change nothing."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


@dataclass(frozen=True)
class PenalisedRow:
    """What one row of logits is penalised for."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    factors: PenaltyFactors


class PenaltiesOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them."""

    name = "oracle"

    def bonus_row(self, row: PenalisedRow, drafts: Sequence[int]) -> PenalisedRow:
        """The row of the bonus token: it sees the output and all drafts."""
        return PenalisedRow(row.prompt_token_ids, [*row.output_token_ids, *drafts], row.factors)

    def draft_rows(self, row: PenalisedRow, drafts: Sequence[int]) -> list[PenalisedRow]:
        """One row per draft token: it sees the output and the drafts before it."""
        return [self.bonus_row(row, drafts[:position]) for position in range(len(drafts))]

    def count(self, token_ids: Sequence[int], vocab_size: int) -> NDArray[np.int64]:  # [vocab_size] int64
        """How often each id occurs; a placeholder and the pad id `vocab_size` count nothing."""
        counts = np.zeros(vocab_size, np.int64)
        for token_id in token_ids:
            if token_id not in (PLACEHOLDER_TOKEN_ID, vocab_size):
                counts[token_id] += 1
        return counts

    def penalise(
        self,
        logits: NDArray[np.float32],  # [vocab_size] float32
        row: PenalisedRow,
    ) -> NDArray[np.float32]:  # [vocab_size] float32
        """Repetition for what is in prompt or output, then frequency and presence for what is in the output."""
        in_prompt = self.count(row.prompt_token_ids, len(logits)) > 0
        output_counts = self.count(row.output_token_ids, len(logits))
        in_output = output_counts > 0
        penalised = np.where(in_prompt | in_output, self.repeated(logits, np.float32(row.factors.repetition)), logits)
        penalised -= np.float32(row.factors.frequency) * output_counts.astype(np.float32)
        penalised -= np.float32(row.factors.presence) * in_output.astype(np.float32)
        return penalised

    def repeated(
        self,
        logits: NDArray[np.float32],  # [vocab_size] float32
        repetition: np.float32,
    ) -> NDArray[np.float32]:  # [vocab_size] float32
        """A positive logit is divided, any other multiplied.

        Division is multiplication by the rounded reciprocal, as in vLLM's torch code; its CUDA kernel divides, as
        `DividingPenaltiesOracle` does.
        """
        return np.where(logits > 0, logits * (np.float32(1) / repetition), logits * repetition)

    def padded(self, rows: Sequence[Sequence[int]], vocab_size: int) -> NDArray[np.int64]:  # [num_rows, longest] int64
        """The tensor that vLLM counts: output ids, padded with `vocab_size`, placeholders replaced by it."""
        padded = np.full((len(rows), max(map(len, rows), default=0)), vocab_size, np.int64)
        for target, token_ids in zip(padded, rows, strict=True):
            for position, token_id in enumerate(token_ids):
                target[position] = vocab_size if token_id == PLACEHOLDER_TOKEN_ID else token_id
        return padded


class DividingPenaltiesOracle(PenaltiesOracle):
    """The same specification, but a positive logit is divided by the repetition penalty, with one rounding.

    A rounded reciprocal and a product round twice, and may end one bit away from the quotient. vLLM does the one in its
    torch code and the other in its CUDA kernel, so "bitwise" has two meanings: this is the second,
    `Rounding.VLLM_CUDA`.
    """

    def repeated(
        self,
        logits: NDArray[np.float32],  # [vocab_size] float32
        repetition: np.float32,
    ) -> NDArray[np.float32]:  # [vocab_size] float32
        """A positive logit is divided, any other multiplied."""
        return np.where(logits > 0, logits / repetition, logits * repetition)


def penalties_oracle(rounding: Rounding) -> PenaltiesOracle:
    """The specification whose bits are promised; that of vLLM's torch code if none are."""
    return DividingPenaltiesOracle() if rounding is Rounding.VLLM_CUDA else PenaltiesOracle()


def penalised_intervals(
    logits: Intervals,  # [vocab_size]
    row: PenalisedRow,
) -> Intervals:  # [vocab_size]
    """Where a penalised logit may lie if no rounding is promised.

    An engine may add the frequency penalty once per occurrence, so each occurrence adds a rounding.
    """
    size, factors = len(logits.low), row.factors
    counts = PenaltiesOracle().count(row.output_token_ids, size)
    seen = (PenaltiesOracle().count(row.prompt_token_ids, size) > 0) | (counts > 0)
    frequency, presence = factors.frequency * counts, factors.presence * (counts > 0)

    def repeated(ends: NDArray[np.float64]) -> NDArray[np.float64]:  # both [vocab_size] float64
        moved = np.where(ends > 0, ends / factors.repetition, ends * factors.repetition)
        return np.where(seen, moved, ends)

    low, high = repeated(logits.low), repeated(logits.high)
    is_changed = (seen & (factors.repetition != 1)) | (frequency != 0) | (presence != 0)
    largest = np.maximum(np.abs(low), np.abs(high)) + np.abs(frequency) + np.abs(presence)
    error = np.where(is_changed, (_ROUNDINGS + counts) * UNIT_ROUNDOFF * largest, 0)
    return Intervals(low - frequency - presence, high - frequency - presence).widened(error)
