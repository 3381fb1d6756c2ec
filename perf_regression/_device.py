"""What a GPU is asked to do besides the work: waits, compilations, allocations, kernels of a graph; and its clock.

All but the clock are counts, and have no error rate.
"""

from __future__ import annotations

import ctypes
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.perf_regression._named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "DeviceCounts",
    "count_nodes",
    "count_on_device",
    "event_clock",
    "graph_of",
    "replay_of",
    "require_gpu",
    "warm_clock",
]

WARM_UP = 3
SPIN_CYCLES = 2_000_000
"""About a millisecond: the queue fills meanwhile, so that launches are not part of the time."""
FLUSH_BYTES = 256 << 20
"""More than twice the largest L2 there is (H200: 60 MB)."""


def require_gpu() -> None:
    """Raises:
    NoVerdictError: Without a CUDA device.
    """
    if not torch.cuda.is_available():
        raise NoVerdictError("no GPU: nothing can be timed on one here")


@dataclass(frozen=True)
class DeviceCounts:
    """Per call, after warm-up.

    Args:
        syncs: Waits of the host that torch's sync debug mode sees.
        compilations: Kernels that Triton compiled.
        allocator_calls: Requests that the caching allocator passed on to the driver.
        peak_bytes: Most memory above what was held before.
        is_capturable: Whether the call can be captured in a CUDA graph and replayed.
        graph_nodes: Of that graph: kernels, fills and copies.
    """

    syncs: int
    compilations: int
    allocator_calls: int
    peak_bytes: int
    is_capturable: bool
    why_not_capturable: str = ""
    graph_nodes: int | None = None

    def as_row(self) -> dict[str, int]:
        return {
            "syncs": self.syncs,
            "recompiles": self.compilations,
            "allocator calls": self.allocator_calls,
            "captures refused": int(not self.is_capturable),
        }


def count_on_device(step: Callable[[], object]) -> DeviceCounts:
    """Everything that can be counted about one call.

    Raises:
        NoVerdictError: Without a CUDA device.
    """
    require_gpu()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    held, segments = torch.cuda.memory_allocated(), _segments()
    torch.cuda.reset_peak_memory_stats()
    with _compilations() as compiled, _waits() as waits:
        step()
    torch.cuda.synchronize()
    peak, driver_calls = torch.cuda.max_memory_allocated() - held, _segments() - segments
    return DeviceCounts(len(waits), len(compiled), driver_calls, peak, *_capturable(step))


def _capturable(step: Callable[[], object]) -> tuple[bool, str, int | None]:
    try:
        graph = graph_of(step, keep_graph=True)
    except RuntimeError as error:
        return False, str(error).splitlines()[0], None
    return True, "", count_nodes(graph.raw_cuda_graph(), ctypes.CDLL("libcuda.so.1"))


def count_nodes(raw_graph: int, driver: Any) -> int:  # Any: CUDA's driver as a library of ctypes
    """Nodes of a captured graph, as the driver counts them; a graph inside of it is one.

    Raises:
        RuntimeError: If the driver refuses.
    """
    num_nodes = ctypes.c_size_t()
    error = driver.cuGraphGetNodes(ctypes.c_void_p(raw_graph), None, ctypes.byref(num_nodes))
    if error:
        raise RuntimeError(f"count_nodes: cuGraphGetNodes={error}, but it must be 0. Look the number up in cuda.h.")
    return num_nodes.value


def _segments() -> int:
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0))


@contextmanager
def _waits() -> Iterator[list[str]]:
    """Warnings of torch's sync debug mode."""
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
        # Switching the mode on is announced by a warning of its own, in other words.
        found += [str(one.message) for one in caught if "called a synchronizing" in str(one.message)]


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """Kernels that Triton compiles inside."""
    from triton import knobs

    found: list[str] = []
    before = knobs.runtime.jit_post_compile_hook

    def note(*args: Any, **kwargs: Any) -> None:  # Any: Triton's
        found.append(str(kwargs.get("repr", kwargs.get("key", ""))))

    knobs.runtime.jit_post_compile_hook = note
    try:
        yield found
    finally:
        knobs.runtime.jit_post_compile_hook = before


def graph_of(step: Callable[[], object], *, keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """Capture one call.

    Args:
        keep_graph: Also the graph that it was before it was made executable, to be looked at.

    Raises:
        RuntimeError: If it waits for the device or allocates in a way that cannot be captured.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph(keep_graph)
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    return graph


def replay_of(step: Callable[[], object]) -> Callable[[], None]:
    """The step as a graph to be timed. A graph has addresses only, so what the step holds must live as long as it."""
    graph = graph_of(step)

    def replay(kept: object = step) -> None:
        graph.replay()

    return replay


_flush_memory: list[torch.Tensor] = []


def flush_l2() -> None:
    """Overwrite the L2 with other data, on the current stream."""
    if not _flush_memory:
        _flush_memory.append(torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda"))
    _flush_memory[0].zero_()


def event_clock(step: Callable[[], object], inner: int) -> float:
    """Seconds of device time per call, with a cold L2: events around each call, the flush outside of them.

    Calls are queued behind a kernel that spins, so that the host's launch cost is hidden as it is in a server.
    """
    return _queued(step, inner, flush_l2)


def warm_clock(step: Callable[[], object], inner: int) -> float:
    """As `event_clock`, but the L2 keeps what the call before left there."""
    return _queued(step, inner, lambda: None)


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
