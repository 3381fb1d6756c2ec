"""Intervals of float64 numbers that contain every result of float32 arithmetic, in any order, on a logit.

An interval starts as the exact logit. Each operation is applied to both ends in float64, whose own rounding is
negligible here. It then widens the interval by the largest error of its float32 roundings: their number times
`UNIT_ROUNDOFF` times the largest number that is rounded. Logits without an operation stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairdraw._core.array_types import AnyRows32, AnyRows64, Flags, Float64s

UNIT_ROUNDOFF = 2.0**-24
"""Of float32: how far, relative to it, a number is from the nearest float32."""
SMALLEST_NORMAL = 2.0**-126
"""Kernels may take numbers below it for 0."""
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Intervals:
    """What each logit may be; `low` and `high` are both NaN where it must be NaN."""

    low: Float64s  # [..., vocab_size] float64
    high: Float64s  # [..., vocab_size] float64

    @staticmethod
    def exactly(logits: AnyRows32) -> Intervals:
        """Logits before any operation."""
        exact = logits.astype(np.float64)
        return Intervals(exact, exact.copy())

    def widened(self, error: AnyRows64) -> Intervals:
        """Both ends moved outwards, by 0 where nothing was rounded; an end beyond float32 is infinite, as there."""
        error = np.where(error > 0, error + SMALLEST_NORMAL, 0)
        with np.errstate(invalid="ignore"):
            low = np.where(np.isfinite(self.low), self.low - error, self.low)
            high = np.where(np.isfinite(self.high), self.high + error, self.high)
        return Intervals(np.where(low < -LARGEST, -np.inf, low), np.where(high > LARGEST, np.inf, high))

    def hold(self, logits: AnyRows32) -> Flags:  # [..., vocab_size] bool
        """Whether each logit lies in its interval; zeros of both signs are alike, and so are all NaN."""
        return ((self.low <= logits) & (logits <= self.high)) | (np.isnan(self.low) & np.isnan(logits))

    @property
    def width(self) -> AnyRows64:
        """How far two correct answers may be apart; 0 where an end is not finite."""
        finite = np.isfinite(self.low) & np.isfinite(self.high)
        return np.subtract(self.high, self.low, out=np.zeros_like(self.low), where=finite)


def alike(one: AnyRows32, other: AnyRows32, apart: AnyRows64 | float = 0.0) -> Flags:  # [..., vocab_size] bool
    """Whether two answers agree, up to `apart`, the sign of zero and the bits of NaN."""
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        found: Flags = equal | (np.abs(one.astype(np.float64) - other) <= apart)
    return found
