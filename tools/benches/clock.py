"""Clocks for arms that are timed beside each other on a GPU, and what a record says about the machine."""

from __future__ import annotations

import datetime
import hashlib
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from timeit import timeit
from typing import Any

import torch
import triton
import triton.language as tl
from records import gpu

FLUSH_BYTES = 256 << 20
IN_A_ROW = 100

Arm = Callable[[], object]
Times = dict[str, list[float]]
Mode = Callable[[dict[str, Arm]], Times]
Json = dict[str, Any]  # Any: JSON


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _copy_kernel(  # type: ignore[no-untyped-def]
    to_ptr,
    from_ptr,
    size,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to_ptr + at, tl.load(from_ptr + at, mask=at < size), mask=at < size)


class GpuClock:
    """Times arms with a cold L2; their rounds are interleaved."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.flush = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.order = random.Random(0)

    def modes(self) -> dict[str, Mode]:
        """Name to what times all arms; see `benches.step`."""
        return {"graph": self._graph, "eager": self._eager, "host": self._host, "alone": self._alone}

    def _graph(self, arms: dict[str, Arm]) -> Times:
        return self._rounds({name: capture(arm).replay for name, arm in arms.items()}, self._between_events)

    def _eager(self, arms: dict[str, Arm]) -> Times:
        return self._rounds(arms, lambda arm: self._cold(arm, until_result=True))

    def _host(self, arms: dict[str, Arm]) -> Times:
        return self._rounds(arms, lambda arm: self._cold(arm, until_result=False))

    def _alone(self, arms: dict[str, Arm]) -> Times:
        return {name: sorted(_once(arm, until_result=False) for _ in range(IN_A_ROW)) for name, arm in arms.items()}

    def _rounds(self, arms: dict[str, Arm], time_one: Callable[[Arm], Callable[[], float]]) -> Times:
        """Sorted microseconds of every arm. The first two rounds warm clocks and caches and are discarded."""
        times: Times = {name: [] for name in arms}
        for round_ in range(self.rounds + 2):
            readers = {name: time_one(arms[name]) for name in self.order.sample(sorted(arms), len(arms))}
            torch.cuda.synchronize()
            if round_ >= 2:
                for name, reader in readers.items():
                    times[name].append(reader())
        return {name: sorted(values) for name, values in times.items()}

    def _between_events(self, arm: Arm) -> Callable[[], float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.sum()
        begin.record()
        arm()
        end.record()
        return lambda: begin.elapsed_time(end) * 1e3

    def _cold(self, arm: Arm, *, until_result: bool) -> Callable[[], float]:
        self.flush.sum()
        microseconds = _once(arm, until_result=until_result)
        return lambda: microseconds


def _once(arm: Arm, *, until_result: bool) -> float:
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


def capture(arm: Arm) -> torch.cuda.CUDAGraph:
    """Return the arm as a graph, after everything is compiled and loaded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arm()
        arm()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arm()
    return graph


def copy_arm(num_bytes: int) -> Arm:
    """Return an arm that moves `num_bytes` in all."""
    source = torch.randint(1 << 30, (max(num_bytes // 8, 1),), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    grid = (triton.cdiv(len(source), 4096),)
    return lambda: _copy_kernel[grid](target, source, len(source), BLOCK=4096)  # pyright: ignore[reportArgumentType]


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
