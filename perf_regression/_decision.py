"""From paired rounds to a verdict, by the exact sign test.

A round measures all arms next to each other, so that a busy machine slows all of them. Whatever the shape of the noise,
the log ratio of a round is above or below the median with probability 1/2. The j-th smallest of `n` log ratios is
therefore above the median with probability exactly `P(Binomial(n, 1/2) < j)`, and the j-th largest is below it with the
same probability. There is no resampling, no seed and no normal approximation.

    alpha per look 8.3e-5     rounds   20   40   80
                              j         2    8   23
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median


class Verdict(Enum):
    """The outcome of a comparison. Only PASS is evidence of a kept limit; only FAIL is evidence of a broken one."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_VERDICT = "NO VERDICT"


@dataclass(frozen=True)
class Gate:
    """A limit on the ratio ours / reference.

    Args:
        floor: An excess of at most so many seconds is not a failure.
        alpha: One-sided error of this gate, over all its checkpoints.
        looks: Numbers of rounds at which it may stop: the checkpoints.
        drop_fraction_max: With more dropped rounds than this there is no verdict.

    Error rates:
        A sampler whose median ratio keeps the limit fails with probability at most `alpha`, and one that breaks it
        passes with probability at most `alpha`: each checkpoint spends `alpha / len(looks)` on either side. With
        `alpha = family_alpha / number of gates`, that holds for the whole run at once, at `family_alpha`.
    """

    limit: float
    floor: float = 0.0
    alpha: float = 0.01
    looks: tuple[int, ...] = (20, 40, 80)
    drop_fraction_max: float = 0.25

    @property
    def alpha_per_look(self) -> float:
        return self.alpha / len(self.looks)


@dataclass(frozen=True)
class Interval:
    """Median of the rounds' values with a lower and an upper bound, each at a one-sided alpha."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """A verdict and its evidence. `ratio` is `None` if there is none."""

    verdict: Verdict
    reason: str
    ratio: Interval | None = None
    num_rounds: int = 0
    num_dropped: int = 0


def rank(num_rounds: int, alpha: float) -> int:
    """Return the greatest `j` for which the j-th smallest round bounds the median at `alpha`; 0 if there is none.

    Example:
        >>> [rank(n, 0.01 / 40 / 3) for n in (15, 20, 40, 80)]
        [1, 2, 8, 23]
    """
    tail, j = 0.0, 0
    while j <= num_rounds:
        tail += math.comb(num_rounds, j) * 0.5**num_rounds
        if tail > alpha:
            return j
        j += 1
    return 0


def interval(values: Sequence[float], alpha: float) -> Interval | None:
    """Return the median with sign-test bounds at one-sided `alpha`; `None` if there are too few values for one."""
    j = rank(len(values), alpha)
    if j == 0:
        return None
    ordered = sorted(values)
    return Interval(median(ordered), ordered[j - 1], ordered[-j])


def decide(pairs: Sequence[tuple[float, float]], gate: Gate, *, num_dropped: int = 0) -> Decision:
    """Decide from valid rounds, each `(ours, reference)` in seconds.

    FAIL needs two things: the whole interval beyond the limit, and an excess beyond `gate.floor` seconds, because a
    ratio of two tiny times does not matter.
    """
    total, counts = len(pairs) + num_dropped, (len(pairs), num_dropped)
    if total and num_dropped > gate.drop_fraction_max * total:
        return Decision(Verdict.NO_VERDICT, f"{num_dropped} of {total} rounds were disturbed", None, *counts)
    if any(ours <= 0 or reference <= 0 for ours, reference in pairs):
        return Decision(Verdict.NO_VERDICT, "a sample took no time: the clock is too coarse", None, *counts)
    if (ratio := _ratio_interval(pairs, gate.alpha_per_look)) is None:
        return Decision(Verdict.NO_VERDICT, f"{len(pairs)} rounds are too few for this alpha", None, *counts)
    verdict, reason = _compared(pairs, gate, ratio)
    return Decision(verdict, reason, ratio, *counts)


def _ratio_interval(pairs: Sequence[tuple[float, float]], alpha: float) -> Interval | None:
    found = interval([math.log(ours / reference) for ours, reference in pairs], alpha)
    return found and Interval(*(math.exp(value) for value in (found.middle, found.low, found.high)))


def _compared(pairs: Sequence[tuple[float, float]], gate: Gate, ratio: Interval) -> tuple[Verdict, str]:
    if ratio.high <= gate.limit:
        return Verdict.PASS, f"at most {ratio.high:.4g}, limit {gate.limit:.4g}"
    if ratio.low <= gate.limit:
        return Verdict.INCONCLUSIVE, f"limit {gate.limit:.4g} lies within [{ratio.low:.4g}, {ratio.high:.4g}]"
    excess = median(ours - gate.limit * reference for ours, reference in pairs)
    if excess <= gate.floor:
        reason = f"beyond the limit by {excess * 1e6:.1f} us only, floor {gate.floor * 1e6:.1f} us"
        return Verdict.INCONCLUSIVE, reason
    return Verdict.FAIL, f"at least {ratio.low:.4g}, limit {gate.limit:.4g}"
