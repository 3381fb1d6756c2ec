"""How time grows with a size, as intervals: the cost of each doubling of the size, in rounds of all sizes.

`log2(t(2n) / t(n))` of each round: 0 if the size has no cost, 1 if time is proportional to it. All sizes of a round run
one after the other, so that a slow minute affects all of them; the sign test bounds the median. No growth curve is
fitted: the best fit may be a bad one. Every doubling has to keep the limit, so that a cost that begins at a certain
size is not averaged out.

On a GPU a launch costs so much that a power distribution would look like sublinear growth. There, time over the
vocabulary is `fixed + slope * size`, and the fixed part has its own limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from fairdraw.perf_regression._decision import Decision, Interval, Verdict, interval
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds


def decide_exponent(rounds: Rounds, limit: float, alpha: float) -> Decision:
    """Return PASS if every doubling keeps the limit, FAIL if one breaks it. Arms are named by their sizes.

    Error rates:
        Either wrong verdict has probability at most `alpha`, which the doublings share.
    """
    sizes = _sizes(rounds)
    found = [interval(values, alpha / (len(sizes) - 1)) for values in _exponents(rounds)]
    return _decided(rounds, f"largest of {len(found)} exponents", found, limit)


def largest_exponent(rounds: Rounds) -> float:
    """Return the largest of the doublings' medians.

    Raises:
        NoVerdictError: If no round counts.
    """
    found = _exponents(rounds)
    if not all(found):
        raise NoVerdictError("all rounds were disturbed")
    return max(map(median, found))


def _sizes(rounds: Rounds) -> list[int]:
    return sorted(map(int, rounds.steps))


def _exponents(rounds: Rounds) -> list[list[float]]:
    """Return the exponents of all rounds that count, by doubling."""
    valid = [found.seconds for found in rounds.found if not found.problem]
    return [
        [math.log(seconds[str(large)] / seconds[str(small)]) / math.log(large / small) for seconds in valid]
        for small, large in pairwise(_sizes(rounds))
    ]


_MOST_DROPPED = 0.25


def _decided(rounds: Rounds, what: str, found: Sequence[Interval | None], limit: float) -> Decision:
    """Decide: all intervals below the limit, one above it, or neither."""
    counts = len(rounds.found) - rounds.num_dropped, rounds.num_dropped
    if rounds.num_dropped > _MOST_DROPPED * len(rounds.found):
        reason = f"{rounds.num_dropped} of {len(rounds.found)} rounds were disturbed"
        return Decision(Verdict.NO_VERDICT, reason, None, *counts)
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return Decision(Verdict.NO_VERDICT, f"{counts[0]} rounds are too few for this alpha", None, *counts)
    worst = max(known, key=lambda one: one.middle)
    kept, broken = all(one.high <= limit for one in known), any(one.low > limit for one in known)
    verdict = Verdict.PASS if kept else Verdict.FAIL if broken else Verdict.INCONCLUSIVE
    return Decision(verdict, f"{what} in [{worst.low:.3f}, {worst.high:.3f}], limit {limit}", worst, *counts)


def decide_fixed_share(rounds: Rounds, limit: float, alpha: float) -> Decision:
    """Return PASS if the fixed time is at most `limit` of the time at the largest size.

    Error rates:
        Either wrong verdict has probability at most `alpha`.
    """
    return _decided(rounds, "fixed share", [interval(_fixed_shares(rounds), alpha)], limit)


def fixed_share(rounds: Rounds) -> float:
    """Return the median of the rounds.

    Raises:
        NoVerdictError: If no round counts.
    """
    found = _fixed_shares(rounds)
    if not found:
        raise NoVerdictError("all rounds were disturbed")
    return median(found)


def _fixed_shares(rounds: Rounds) -> list[float]:
    largest, shares = _sizes(rounds)[-1], []
    for found in rounds.found:
        if not found.problem:
            fixed, slope = affine({int(size): seconds for size, seconds in found.seconds.items()})
            shares.append(fixed / (fixed + slope * largest))
    return shares


def affine(costs: Mapping[int, float]) -> tuple[float, float]:
    """Fit `cost = fixed + slope * size` by least squares: launch cost and cost per entry.

    Example:
        >>> affine({10: 7.0, 20: 9.0, 40: 13.0})
        (5.0, 0.2)
    """
    sizes, values = list(costs), list(costs.values())
    mean_size, mean_value = sum(sizes) / len(sizes), sum(values) / len(values)
    slope = sum((s - mean_size) * (v - mean_value) for s, v in costs.items()) / sum((s - mean_size) ** 2 for s in sizes)
    return round(mean_value - slope * mean_size, 12), round(slope, 12)
