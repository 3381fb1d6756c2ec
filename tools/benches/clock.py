"""Clocks for arms that are timed beside each other on a GPU, and what a record says about the machine."""

from __future__ import annotations

import datetime
import hashlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from timeit import timeit

import torch
import triton
from records import Json, gpu

from fairdraw.perf_regression._device import replay_of
from fairdraw.perf_regression._device_time import FLUSH_BYTES
from fairdraw.perf_regression._device_time import _queued as queued
from fairdraw.perf_regression._rounds import Clock, Rounds

IN_A_ROW = 100

Arm = Callable[[], object]
Times = dict[str, list[float]]
Mode = Callable[[dict[str, Arm]], Times]


class GpuClock:
    """Times arms with a cold L2; their rounds are interleaved."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.flush = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def modes(self) -> dict[str, Mode]:
        """Name to what times all arms; see `benches.step`."""
        return {
            "graph": lambda arms: self._rounds(
                {name: replay_of(arm) for name, arm in arms.items()}, partial(queued, before_each=self.flush.sum)
            ),
            "eager": lambda arms: self._rounds(arms, partial(self._cold, until_result=True)),
            "host": lambda arms: self._rounds(arms, partial(self._cold, until_result=False)),
            "alone": lambda arms: {name: sorted(_once(arm) for _ in range(IN_A_ROW)) for name, arm in arms.items()},
        }

    def _rounds(self, arms: dict[str, Arm], clock: Clock) -> Times:
        """Sorted microseconds of every arm. The first two rounds warm clocks and caches and are discarded."""
        rounds = Rounds(arms, clock=clock, drop_switched=False)
        rounds.warm_up()
        found = rounds.run(self.rounds)
        return {name: sorted(1e6 * one.seconds[name] for one in found) for name in arms}

    def _cold(self, arm: Arm, inner: int, *, until_result: bool) -> float:
        self.flush.sum()
        return _once(arm, until_result=until_result) * 1e-6


def _once(arm: Arm, *, until_result: bool = False) -> float:
    """Return the microseconds of a call on an idle GPU, until its result is there or until it returns."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    arm()
    if until_result:
        torch.cuda.synchronize()
    microseconds = (time.perf_counter() - begin) * 1e6
    torch.cuda.synchronize()
    return microseconds


class CpuClock:
    """One call of each arm: shows that everything runs in Triton's interpreter, and says nothing about time."""

    def modes(self) -> dict[str, Mode]:
        return {"eager": lambda arms: {name: [timeit(arm, number=1) * 1e6] for name, arm in arms.items()}}


def summary(times: list[float]) -> Json:
    """Return the median and the quartiles of sorted times."""
    quarter = len(times) // 4
    found = {"median": statistics.median(times), "low": times[quarter], "high": times[-1 - quarter]}
    return {name: round(value, 2) for name, value in found.items()}


def machine() -> Json:
    """Return GPU, driver and versions, and the clocks as they are now."""
    known: Json = gpu()
    if known:
        fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.draw"
        query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        known |= {"nvidia-smi": dict(zip(fields.split(","), shown.split(", "), strict=False))}
    known |= {"platform": platform.platform(), "python": platform.python_version()}
    known |= {"torch": torch.__version__, "triton": triton.__version__}
    return {**known, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}


def sources() -> dict[str, str]:
    """Return the SHA-256 of our modules that were measured, which may be newer than the commit."""
    package = "fairdraw.sampler_impl"
    loaded = {name: module.__file__ for name, module in sorted(sys.modules.items()) if name.startswith(package)}
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in loaded.items() if file}
