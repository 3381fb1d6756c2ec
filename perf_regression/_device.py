"""What a call costs on a GPU besides its work: waits, compilations, driver allocations, nodes of its CUDA graph.

All of these are counts and have no error rate. The GPU's clock is in `device_time`.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch

from fairdraw.perf_regression._named import NoVerdictError

WARM_UP = 3


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
        is_capturable: Whether the call can be captured in a CUDA graph and replayed.
        graph_nodes: Kernels, fills and copies in that graph.
    """

    syncs: int
    compilations: int
    allocator_calls: int
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
    """Count what one call does, after warm-up.

    Raises:
        NoVerdictError: Without a CUDA device.
    """
    require_gpu()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    segments = _segments()
    with _compilations() as compiled, _waits() as waits:
        step()
    torch.cuda.synchronize()
    return DeviceCounts(len(waits), len(compiled), _segments() - segments, *_capturable(step))


def _capturable(step: Callable[[], object]) -> tuple[bool, str, int | None]:
    try:
        graph = graph_of(step, keep_graph=True)
    except RuntimeError as error:
        return False, str(error).splitlines()[0], None
    return True, "", _count_nodes(graph.raw_cuda_graph())


def _count_nodes(raw_graph: int) -> int:
    """Count the nodes of a captured graph, as the driver does; a nested graph is one node."""
    num_nodes = ctypes.c_size_t()
    error = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(raw_graph), None, ctypes.byref(num_nodes))
    if error:
        raise RuntimeError(f"count_on_device: cuGraphGetNodes={error}, but it must be 0. Look the number up in cuda.h.")
    return num_nodes.value


def _segments() -> int:
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0))


@contextmanager
def _waits() -> Iterator[list[str]]:
    """Yield the warnings of torch's sync debug mode."""
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
        # Switching the mode on gives a warning, too, with another text.
        found += [str(one.message) for one in caught if "called a synchronizing" in str(one.message)]


@contextmanager
def _compilations() -> Iterator[list[object]]:
    """Yield the kernels that Triton compiles inside."""
    from triton import knobs

    found: list[object] = []
    with mock.patch.object(knobs.runtime, "jit_post_compile_hook", lambda *args, **kwargs: found.append(kwargs)):
        yield found


def graph_of(step: Callable[[], object], *, keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """Capture one call.

    Args:
        keep_graph: Also keep the graph from which the executable one is made, so that it can be inspected.

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
    """Replays the step as a graph. A graph holds only addresses, so the step and its tensors must live as long."""
    graph = graph_of(step)

    def replay(kept: object = step) -> None:
        graph.replay()

    return replay
