"""Time on a GPU: the clock, what disturbs it, and the roofline.

A copy of the bytes that a step must move runs in the same rounds as the step, so that clocks, throttling and
neighbours are the same for both. The fraction of the copy bandwidth is `time of the copy / time of the step`. Both run
with a cold L2, and that is checked: a small copy must take longer than with a warm one. A fraction well above 1 means
that bytes came from a cache or were not moved, so there is no verdict.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fairdraw.perf_regression._decision import Decision, Gate, Interval, Verdict, decide
from fairdraw.perf_regression._device import require_gpu
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Clock, Rounds, Watch

SPIN_CYCLES = 2_000_000
"""About a millisecond, in which the queue fills, so that launches are not part of the time."""
FLUSH_BYTES = 256 << 20
"""More than twice the largest L2 there is (H200: 60 MB)."""
INNER = 5
NUM_ROUNDS = 40
MOST_FRACTION = 1.05
"""A step cannot beat a copy of the bytes that it must move by more than what the copy itself loses on launching."""
SMALL_COPY = 16 << 20
"""Fits in the L2 of every GPU that kernels like these run on, and lasts longer than a launch."""
WARM_GAIN = 0.1
"""A cold copy of this size takes at least this much longer than a warm one."""
CLOCK_MOVE = 0.03
"""If the clock moves by more than this between the arms of a round, one of them looks slow."""
THROTTLED = {0x08: "hardware slowdown", 0x20: "thermal, software", 0x40: "thermal, hardware", 0x80: "power brake"}
"""Bits of NVML's clocks event reasons. A power cap (0x04) is ignored: if it has an effect, the clock moves."""

_flush_memory: list[torch.Tensor] = []


def event_clock(step: Callable[[], object], inner: int) -> float:
    """Return seconds of device time per call, with a cold L2: events around each call, the flush before them.

    Calls are queued behind a kernel that spins, so that the host's launch cost is hidden, as it is in a server.
    """
    return _queued(step, inner, _flush_l2)


def warm_clock(step: Callable[[], object], inner: int) -> float:
    """Time as `event_clock` does, but with an L2 that keeps what the previous call left there."""
    return _queued(step, inner, lambda: None)


def _flush_l2() -> None:
    """Overwrite the L2 with other data, on the current stream."""
    if not _flush_memory:
        _flush_memory.append(torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda"))
    _flush_memory[0].zero_()


def _queued(step: Callable[[], object], inner: int, before_each: Callable[[], None]) -> float:
    events = [(_event(), _event()) for _ in range(inner)]
    torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
    for begin, end in events:
        before_each()
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return sum(float(begin.elapsed_time(end)) for begin, end in events) * 1e-3 / inner


def _event() -> Any:  # Any: torch leaves its event class untyped
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class GpuState(NamedTuple):
    """The SM clock in MHz, and NVML's reasons for slowing it down, as bits."""

    sm_mhz: float
    reasons: int


def gpu_watches() -> list[Watch]:
    """Return a watch on the current GPU's clock; none where nvidia-smi does not report it."""
    try:
        read_gpu()
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [watch_clock(read_gpu)]


def watch_clock(read: Callable[[], GpuState]) -> Watch:
    """Rejects rounds in which the GPU changed its clock or was throttled."""

    def watch() -> Callable[[], str]:
        before = read()
        return lambda: _moved(before, read())

    return watch


def _moved(before: GpuState, after: GpuState) -> str:
    reasons = [name for bit, name in THROTTLED.items() if (before.reasons | after.reasons) & bit]
    if reasons:
        return f"GPU throttled: {', '.join(reasons)}"
    if abs(after.sm_mhz - before.sm_mhz) > CLOCK_MOVE * before.sm_mhz:
        return f"SM clock moved from {before.sm_mhz:.0f} to {after.sm_mhz:.0f} MHz"
    return ""


def read_gpu() -> GpuState:
    """Return what nvidia-smi reports about the current GPU.

    Raises:
        OSError, SubprocessError: If nvidia-smi cannot be run.
        ValueError: If it does not know.
    """
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    command = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=clocks.sm,clocks_event_reasons.active"]
    ran = subprocess.run(
        [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True, timeout=10
    )
    clock, reasons = ran.stdout.strip().split(",")
    return GpuState(float(clock), int(reasons, 16))


def copy_of(num_bytes: int) -> Callable[[], object]:
    """Return a device-to-device copy that reads and writes `num_bytes` together."""
    source = torch.empty(num_bytes // 2, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def roofline_rounds(step: Callable[[], object], num_bytes: int, clock: Clock = event_clock) -> Rounds:
    """Return the arms `copy` and `step`, not yet measured; their ratio is the fraction of the copy bandwidth.

    Args:
        num_bytes: What the step must read and write.

    Raises:
        NoVerdictError: Without a GPU.
    """
    require_gpu()
    return Rounds({"copy": copy_of(num_bytes), "step": step}, inner=INNER, clock=clock, watches=gpu_watches())


def decide_roofline(rounds: Rounds, limit: float, alpha: float) -> Decision:
    """Measure what `roofline_rounds` made: PASS if the lower bound of the fraction is at least `limit`.

    Error rates:
        A step below the limit passes with probability at most `alpha`, one above it fails with at most `alpha`.
    """
    if not rounds.found:
        rounds.warm_up()
        rounds.run(NUM_ROUNDS)
    gate = Gate(1 / limit if limit else math.inf, alpha=alpha, looks=(NUM_ROUNDS,))
    decision = decide(rounds.pairs("step", "copy"), gate, num_dropped=rounds.num_dropped)
    if decision.ratio is None:
        return decision
    slowness = decision.ratio
    fraction = Interval(1 / slowness.middle, 1 / slowness.high, 1 / slowness.low)
    verdict, reason = decision.verdict, f"fraction in [{fraction.low:.3f}, {fraction.high:.3f}], limit {limit}"
    if fraction.middle > MOST_FRACTION:
        verdict = Verdict.NO_VERDICT
        reason = f"{fraction.middle:.2f} of the copy bandwidth: bytes came from a cache, or were not moved"
    return replace(decision, verdict=verdict, reason=reason, ratio=fraction)


def require_cold_clock(clock: Clock = event_clock, warm: Clock = warm_clock, num_bytes: int = SMALL_COPY) -> None:
    """Time a copy that fits in the L2 with both clocks: the cold one must be clearly slower.

    Raises:
        NoVerdictError: Without a GPU, or if `clock` does not time with a cold L2.
    """
    require_gpu()
    step = copy_of(num_bytes)
    cold_seconds, warm_seconds = (min(one(step, INNER) for _ in range(5)) for one in (clock, warm))
    if cold_seconds < (1 + WARM_GAIN) * warm_seconds:
        times = f"a copy takes {cold_seconds * 1e6:.1f} us cold and {warm_seconds * 1e6:.1f} us warm"
        raise NoVerdictError(f"L2 was warm: {times}")
