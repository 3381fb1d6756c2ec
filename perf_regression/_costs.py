"""Costs that need no clock, of any sampler on a CPU: how counts grow, what is compiled anew, and what is never freed.

Each is a named number with a limit:

    growth        launches, syncs, copies and allocations of a step, from few requests (drafts, tokens) to many
    tokens read   by a scanner in one step, from short outputs to long ones
    compilations  that kernels need while the batch and its drafts change
    memory        that remains of each step, once many were made

A `launch` is one of a Triton kernel or of a torch operator: on a GPU the host pays for either.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator

import torch

from fairdraw._core.contracts import contract_name
from fairdraw.contracts import AnySampler
from fairdraw.perf_regression._counts import counted
from fairdraw.perf_regression._findings import Finding, counted_finding
from fairdraw.perf_regression._world import BenchmarkWorld, Sizes
from fairdraw.perf_regression._worlds import count_world, small_world

Row = dict[str, int]
"""Counts of one step by name."""

VOCAB_SIZE = 1_024
GROWING = ("launches", "syncs", "copies", "allocations")
AXES = {"requests": (8, 16, 32), "drafts": (1, 4, 16), "output tokens": (256, 512, 1_024)}
"""Sizes by axis; the others stay at `_STANDARD`."""
_PER_LAUNCH = 4
"""More requests or drafts that may cost one launch: a loop over them costs at least one for each."""
_STANDARD = {"requests": 8, "drafts": 0, "output tokens": 64}
_AXES_OF = {"rejection": ("requests", "drafts"), "sampling": ("requests",)}
"""Axes of a contract; all of them if it is not here."""
_CHANGING = ((1, 1), (2, 3), (3, 1), (4, 2), (5, 3), (7, 1), (8, 2), (9, 3), (16, 1), (17, 2), (31, 3), (33, 1))
"""(requests, drafts) of steps that a server makes one after another."""
_VARIANTS = 3
"""Compilations per kernel that Triton makes for any integer: 1, multiples of 16, others."""
_STEPS, _SLOW_STEPS, _MOST_KEPT = 150, 20, 32_768
"""Steps of a window, of an interpreter's, and the bytes that may remain: Python and torch keep some for later."""


def _world(subject: AnySampler, **changes: int) -> BenchmarkWorld:
    """Make a small world of the sampler's contract, with some of its sizes changed."""
    at = _STANDARD | changes
    return small_world(
        str(contract_name(subject)), Sizes(at["requests"], at["drafts"], VOCAB_SIZE, at["output tokens"])
    )


def counts_of(subject: AnySampler, **changes: int) -> Row:
    """Count one decode step."""
    world = _world(subject, **changes)
    row = count_world(world, world.own_step(subject)).as_row()
    row["launches"] += row["operators"]
    return {**{name: row[name] for name in GROWING}, "tokens read": row["tokens_read"]}


def num_compilations(subject: AnySampler) -> tuple[int, int]:
    """Return (variants, kernels) that steps of changing sizes compile; interpreted kernels only have keys."""
    keys: set[tuple[object, ...]] = set()
    graphs = _num_graphs()
    for requests, drafts in _CHANGING[:: 2 if subject.capabilities.slow else 1]:
        step = _world(subject, requests=requests, drafts=drafts).own_step(subject)
        with counted() as counts:
            step()
        keys |= {launch.key for launch in counts.launches}
    graphs = _num_graphs() - graphs
    return len(keys) + graphs, len({key[0] for key in keys}) + min(graphs, 1)


def _num_graphs() -> int:
    """Return the number of graphs that `torch.compile` has compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # nothing is compiled before it is imported
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def bytes_kept(subject: AnySampler) -> int:
    """Return the bytes that remain of a window of steps, the better of two: a cache that fills up is no leak."""
    gc.freeze()  # what was there before does not change: a process that has loaded vLLM holds millions of objects
    try:
        world = _world(subject, **({"requests": 2} if subject.capabilities.slow else {}))
        step, found = world.own_step(subject), []
        tracemalloc.start()
        for _ in range(3):
            for _ in range(num_steps(subject)):
                world.renew(subject)
                step()
            found.append(_live_bytes())
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    return min(found[1] - found[0], found[2] - found[1])


def num_steps(subject: AnySampler) -> int:
    """Return the steps of a window."""
    return _SLOW_STEPS if subject.capabilities.slow else _STEPS


def _live_bytes() -> int:
    """Add up Python's and NumPy's memory, as `tracemalloc` counts it, and the storages of all tensors not frozen."""
    gc.collect()
    storages: dict[int, int] = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.layout is torch.strided:
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = int(storage.nbytes())
    return sum(storages.values()) + tracemalloc.get_traced_memory()[0]


def costs(ours: AnySampler, reference: AnySampler) -> Iterator[Finding]:
    """Yield a finding for each number.

    Growth with requests and drafts is at most the reference's, or a launch for every fourth. All else has a limit of
    its own: nothing grows with the length of outputs, nothing is compiled for a new batch size, and nothing remains of
    a step.
    """
    for axis in _AXES_OF.get(str(contract_name(ours)), AXES):
        yield from _growth(ours, reference, axis)
    own, kernels = num_compilations(ours)
    reason = f"{kernels} kernels have {own} variants in batches of changing requests and drafts"
    yield counted_finding("compilations", "variants of kernels", own, _VARIANTS * kernels, reason)
    kept = bytes_kept(ours)
    reason = f"{kept} bytes remain of {num_steps(ours)} steps in which requests come and go"
    yield counted_finding("memory", "bytes kept", kept, _MOST_KEPT, reason)


def _growth(ours: AnySampler, reference: AnySampler, axis: str) -> Iterator[Finding]:
    rows = [counts_of(ours, **{axis: size}) for size in AXES[axis]]
    absolute = axis == "output tokens"
    most = {} if absolute else _growth_of(reference, axis)
    few = 0 if absolute else (AXES[axis][-1] - AXES[axis][0]) // _PER_LAUNCH
    for name in (*GROWING, *["tokens read"] * absolute):
        own, limit = [row[name] for row in rows], max(few, most.get(name, 0))
        sizes = ", ".join(f"{value} at {size}" for value, size in zip(own, AXES[axis], strict=True))
        yield counted_finding("growth", f"{name} of a step over {axis}", own[-1] - own[0], limit, f"{sizes} {axis}")


def _growth_of(reference: AnySampler, axis: str) -> Row:
    """Return by how much the reference's counts grow; empty if it cannot be given such batches."""
    try:
        first, last = (counts_of(reference, **{axis: AXES[axis][end]}) for end in (0, -1))
    except Exception:  # whatever it cannot do, ours is then held to 0
        return {}
    return {name: max(0, last[name] - first[name]) for name in GROWING}
