"""What spoils a round: it is dropped whole then, never one arm of it, or the balance of the arms would go.

A watch is asked when a round begins, and what it returns is asked when the round ends: why the round does not count.
With more than a quarter of the rounds dropped there is no verdict.
"""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["GpuState", "SmClock", "Watch", "gpu_watches", "read_gpu", "watch_garbage"]

Watch = Callable[[], Callable[[], str]]

CLOCK_MOVE = 0.03
"""A clock that moved by more than this between the arms of a round makes one of them look slow."""
THROTTLED = {0x08: "hardware slowdown", 0x20: "thermal, software", 0x40: "thermal, hardware", 0x80: "power brake"}
"""Bits of NVML's clocks event reasons. A power cap (0x04) is seen by the clock, if it does anything."""


class GpuState(NamedTuple):
    """The SM clock in MHz, and NVML's reasons for slowing it down, as bits."""

    sm_mhz: float
    reasons: int


def watch_garbage() -> Callable[[], str]:
    """Collections by Python: `Rounds` switches them off, but a step may switch them on, or ask for one."""
    before = _collections()
    return lambda: "garbage was collected" if _collections() > before else ""


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


class SmClock:
    """Spoils rounds in which the GPU changed its clock, or was throttled.

    Args:
        read: The state now.
    """

    def __init__(self, read: Callable[[], GpuState]) -> None:
        self._read = read

    def __call__(self) -> Callable[[], str]:
        before = self._read()
        return lambda: _moved(before, self._read())


def _moved(before: GpuState, after: GpuState) -> str:
    reasons = [name for bit, name in THROTTLED.items() if (before.reasons | after.reasons) & bit]
    if reasons:
        return f"GPU throttled: {', '.join(reasons)}"
    if abs(after.sm_mhz - before.sm_mhz) > CLOCK_MOVE * before.sm_mhz:
        return f"SM clock moved from {before.sm_mhz:.0f} to {after.sm_mhz:.0f} MHz"
    return ""


def gpu_watches() -> list[Watch]:
    """A watch on the current GPU's clock; none where nvidia-smi does not tell it."""
    try:
        read_gpu()
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [SmClock(read_gpu)]


def read_gpu() -> GpuState:
    """What nvidia-smi says of the current GPU.

    Raises:
        OSError, SubprocessError: If it cannot be asked.
        ValueError: If it does not know.
    """
    import torch

    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    command = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=clocks.sm,clocks_event_reasons.active"]
    ran = subprocess.run(
        [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True, timeout=10
    )
    clock, reasons = ran.stdout.strip().split(",")
    return GpuState(float(clock), int(reasons, 16))
