"""The roofline: how much of the copy bandwidth a step reaches on the bytes that it must move.

A copy of as many bytes runs in the same rounds as the step, so that clocks, throttling and neighbours are the same for
both, and the fraction is `time of the copy / time of the step`, with its sign-test interval. Both run with a cold L2,
and that is checked: a small copy must take longer than it does with a warm one. A fraction well above 1 means that
bytes came out of a cache, or were not moved: no verdict.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fairdraw.perf_regression._decision import Decision, Interval, Verdict, interval
from fairdraw.perf_regression._device import event_clock, require_gpu
from fairdraw.perf_regression._rounds import Rounds
from fairdraw.perf_regression._validity import gpu_watches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairdraw.perf_regression._rounds import Clock

__all__ = ["SMALL_COPY", "copy_of", "decide_roofline", "measure_roofline", "roofline_rounds", "why_warm"]

NUM_ROUNDS = 40
MOST_DROPPED = 0.25
INNER = 5
MOST_FRACTION = 1.05
"""A step cannot beat a copy of the bytes that it must move by more than what the copy itself loses on launching."""
SMALL_COPY = 16 << 20
"""Fits in the L2 of every card that kernels like these run on, and lasts longer than a launch."""
WARM_GAIN = 0.1
"""A cold copy of so many bytes takes at least this part longer than a warm one."""


def copy_of(num_bytes: int) -> Callable[[], object]:
    """A device-to-device copy that reads and writes `num_bytes` together."""
    source = torch.empty(num_bytes // 2, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure_roofline(rounds: Rounds, limit: float, alpha: float) -> Decision:
    """Measure what `roofline_rounds` made, and judge it.

    Args:
        limit: Least fraction of the copy's speed.
    """
    rounds.warm_up()
    rounds.run(NUM_ROUNDS)
    return decide_roofline(rounds.pairs("copy", "step"), limit, alpha, num_dropped=rounds.num_dropped)


def roofline_rounds(step: Callable[[], object], num_bytes: int, clock: Clock = event_clock) -> Rounds:
    """Not yet measured: the arms `copy` and `step`, whose ratio is the fraction.

    Args:
        num_bytes: That the step must read and write.

    Raises:
        NoVerdictError: Without a GPU.
    """
    require_gpu()
    arms = {"copy": copy_of(num_bytes), "step": step}
    return Rounds(arms, inner=INNER, clock=clock, watches=gpu_watches())


def decide_roofline(
    pairs: Sequence[tuple[float, float]], limit: float, alpha: float, *, num_dropped: int = 0
) -> Decision:
    """Judge rounds of `(copy, step)` seconds: PASS if the lower bound of the fraction keeps the limit.

    Error rates:
        A step below the limit passes with probability at most `alpha`, one above it fails with at most `alpha`.
    """
    total = len(pairs) + num_dropped
    if num_dropped > MOST_DROPPED * total:
        return Decision(Verdict.NO_VERDICT, f"{num_dropped} of {total} rounds were disturbed")
    logs = interval([math.log(copy / step) for copy, step in pairs], alpha)
    if logs is None:
        return Decision(Verdict.NO_VERDICT, f"{len(pairs)} rounds are too few for this alpha", num_rounds=len(pairs))
    fraction = Interval(*(math.exp(value) for value in (logs.middle, logs.low, logs.high)))
    if fraction.middle > MOST_FRACTION:
        reason = f"{fraction.middle:.2f} of the copy bandwidth: bytes came out of a cache, or were not moved"
        return Decision(Verdict.NO_VERDICT, reason, fraction, len(pairs))
    kept, broken = fraction.low >= limit, fraction.high < limit
    verdict = Verdict.PASS if kept else Verdict.FAIL if broken else Verdict.INCONCLUSIVE
    reason = f"fraction in [{fraction.low:.3f}, {fraction.high:.3f}], limit {limit}"
    return Decision(verdict, reason, fraction, len(pairs))


def why_warm(clock: Clock, warm: Clock, num_bytes: int) -> str:
    """Why `clock` does not time with a cold L2; empty if it does.

    A copy that fits in the L2 is timed with both clocks: if the cold one is not clearly slower, nothing was flushed.
    """
    step = copy_of(num_bytes)
    cold_seconds, warm_seconds = (min(one(step, INNER) for _ in range(5)) for one in (clock, warm))
    if cold_seconds < (1 + WARM_GAIN) * warm_seconds:
        return f"L2 was warm: a copy takes {cold_seconds * 1e6:.1f} us cold and {warm_seconds * 1e6:.1f} us warm"
    return ""
