"""How time grows with a size, as an interval: the exponent of two sizes measured in the same rounds.

`log(t(large) / t(small)) / log(large / small)` of each round: 0 if size costs nothing, 1 if proportional. All sizes of
a round run next to each other, so that a slow minute is slow for all; the sign test bounds the median. It is never
asked which growth law fits best: a law that fits best may fit badly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fairdraw.perf_regression.decision import Decision, Interval, Verdict, interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.perf_regression.rounds import Round

__all__ = ["affine", "decide_exponent", "exponent_interval"]


def exponent_interval(rounds: Sequence[Round], small: int, large: int, alpha: float) -> Interval | None:
    """Exponent between two sizes, whose arms are named by the sizes; `None` if there are too few rounds.

    Error rates:
        Each bound is wrong with probability at most `alpha`.
    """
    logs = [math.log(r.seconds[str(large)] / r.seconds[str(small)]) for r in rounds if not r.problem]
    return interval([value / math.log(large / small) for value in logs], alpha)


def decide_exponent(
    rounds: Sequence[Round], small: int, large: int, limit: float, alpha: float, *, drop_fraction_max: float = 0.25
) -> Decision:
    """PASS if the upper bound keeps the limit, FAIL if the lower one breaks it.

    Error rates:
        Either wrong verdict has probability at most `alpha`.
    """
    dropped = sum(bool(found.problem) for found in rounds)
    if dropped > drop_fraction_max * len(rounds):
        return Decision(Verdict.NO_VERDICT, f"{dropped} of {len(rounds)} rounds were disturbed")
    found = exponent_interval(rounds, small, large, alpha)
    if found is None:
        return Decision(Verdict.NO_VERDICT, "too few rounds for this alpha")
    reason = f"exponent in [{found.low:.3f}, {found.high:.3f}], limit {limit}"
    kept, broken = found.high <= limit, found.low > limit
    verdict = Verdict.PASS if kept else Verdict.FAIL if broken else Verdict.INCONCLUSIVE
    return Decision(verdict, reason, found, len(rounds) - dropped, dropped)


def affine(costs: dict[int, float]) -> tuple[float, float]:
    """`cost = fixed + slope * size`, least squares: launch cost and cost per entry, told apart.

    A power law would take a large fixed cost for growth slower than linear.

    Example:
        >>> affine({10: 7.0, 20: 9.0, 40: 13.0})
        (5.0, 0.2)
    """
    sizes, values = list(costs), list(costs.values())
    mean_size, mean_value = sum(sizes) / len(sizes), sum(values) / len(values)
    slope = sum((s - mean_size) * (v - mean_value) for s, v in costs.items()) / sum((s - mean_size) ** 2 for s in sizes)
    return round(mean_value - slope * mean_size, 12), round(slope, 12)
