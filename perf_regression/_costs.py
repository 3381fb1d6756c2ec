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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw._core.contracts import contract_name
from fairdraw.perf_regression._cases import Sizes, fresh_noise, rejection_batch, rejection_step
from fairdraw.perf_regression._counts import counted
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._findings import Finding
from fairdraw.perf_regression._scanner_steps import END_ID, PARAMS, START_ID, Outputs
from fairdraw.perf_regression._worlds import SamplingWorld, WorldSizes, busy_params
from fairdraw.protocols._lifecycle import Markers, RowChanges
from fairdraw.protocols._logits_plan import LogitsBatch, LogitsRequest, PlanSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fairdraw.protocols import AnySampler
    from fairdraw.strategies._serving_batch import ServedRequest

Row = dict[str, int]
"""Counts of one step by name."""

VOCAB_SIZE = 1_024
GROWING = ("launches", "syncs", "copies", "allocations")
AXES = {
    "requests": (8, 16, 32),
    "drafts": (1, 4, 16),
    "output tokens": (256, 512, 1_024),
}
"""Sizes by axis; the others stay at `_STANDARD`."""
_PER_LAUNCH = 4
"""More requests or drafts that may cost one launch: a loop over them costs at least one for each."""
_STANDARD = {"requests": 8, "drafts": 0, "output tokens": 64}
_AXES_OF = {
    "rejection": ("requests", "drafts"),
    "sampling": ("requests",),
    "logits_plan": ("requests", "drafts", "output tokens"),
    "penalties": ("requests", "drafts", "output tokens"),
    "thinking_budget": ("requests", "drafts", "output tokens"),
}
_CHANGING = ((1, 1), (2, 3), (3, 1), (4, 2), (5, 3), (7, 1), (8, 2), (9, 3), (16, 1), (17, 2), (31, 3), (33, 1))
"""(requests, drafts) of steps that a server makes one after another."""
_VARIANTS = 3
"""Compilations per kernel that Triton makes for any integer: 1, multiples of 16, others."""
_STEPS, _SLOW_STEPS, _MOST_KEPT = 150, 20, 32_768
"""Steps of a window, of an interpreter's, and the bytes that may remain: Python and torch keep some for later."""


@dataclass
class Decoding:
    """One batch over time: `step` makes a decode step, in which one request may leave and another enter."""

    step: Callable[[], Any]  # Any: an answer of the contract
    turn: Callable[[], Any]
    num_read: Callable[[], int] = lambda: 0


def decoding(subject: Any, at: Mapping[str, int]) -> Decoding:  # Any: a sampler of some contract
    """A batch of these sizes under the sampler's contract."""
    contract = str(contract_name(subject))
    if contract == "rejection":
        return _verification(subject, at)
    return _sampling(subject, at) if contract == "sampling" else _Served(subject, contract, at).decoding()


def _verification(subject: Any, at: Mapping[str, int]) -> Decoding:  # Any: a sampler of the contract
    sizes = Sizes(at["requests"], max(1, at["drafts"]), VOCAB_SIZE)
    seeds = iter(range(10**9))

    def turn() -> object:
        batch = rejection_batch(sizes)
        return subject.verify(batch, fresh_noise(subject, batch, next(seeds)))

    return Decoding(rejection_step(subject, rejection_batch(sizes)), turn)


def _sampling(subject: Any, at: Mapping[str, int]) -> Decoding:  # Any: a sampler of the contract
    def made(seed: int) -> Callable[[], object]:
        world = SamplingWorld(WorldSizes(at["requests"], VOCAB_SIZE, 0), "cpu")
        return lambda: subject.sample(world.batch, world.noise(subject, seed))

    seeds = iter(range(10**9))
    return Decoding(made(0), lambda: made(next(seeds))())  # noqa: PLW0108  # a fresh batch at each turn


class _Served:
    """A scanner or a logits plan with a live batch, whose lists count what is read."""

    def __init__(self, subject: Any, contract: str, at: Mapping[str, int]) -> None:  # Any: a sampler of the contract
        self.contract, self.at = contract, at
        params = busy_params() if contract == "logits_plan" else [PARAMS]
        self.params = iter(params * 10**4)
        self.outputs = Outputs(at["requests"], at["drafts"], vocab_size=VOCAB_SIZE, params=params, counted=True)
        self.outputs.grow(at["output tokens"])
        self.session = _opened(subject, contract)
        self.changes: RowChanges | None = self.outputs.take_changes()
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(at["requests"] * (1 + at["drafts"]), VOCAB_SIZE, generator=generator)
        self.draft()
        self.step()

    def decoding(self) -> Decoding:
        return Decoding(self.step, self.turn, lambda: sum(output.num_read for output in self.outputs.lists))

    def advance(self) -> None:
        """One decode step later: every request has one more token, and other drafts."""
        self.outputs.lists = [request.output_token_ids for request in self.outputs.requests]
        self.outputs.advance()
        self.draft()

    def draft(self) -> None:
        """Every request has drafts of its own."""
        requests = self.outputs.requests
        for request, drafts in zip(requests, self.outputs.drawn(len(requests), self.at["drafts"]), strict=True):
            request.draft_token_ids = drafts

    def turn(self) -> object:
        """The first request leaves, one of the same sizes enters, and a step is made."""
        self.outputs.remove(0)
        tokens = self.outputs.drawn(1, self.at["output tokens"])[0]
        self.outputs.add(next(self.params), [1, 2, 3], [START_ID, *tokens])
        for request in self.outputs.requests:  # they do not grow: what remains would be their tokens
            del request.output_token_ids[self.at["output tokens"] :]
        self.draft()
        self.changes = self.outputs.take_changes()
        return self.step()

    def step(self) -> object:
        changes, self.changes = self.changes, None
        if self.contract == "logits_plan":
            requests = tuple(map(_plan_request, self.outputs.requests))
            return self.session.process(LogitsBatch(self.logits, requests, changes))
        if changes:
            self.session.sync(changes)
        batch = self.outputs.batch()
        if self.contract == "thinking_budget":
            return self.session.forced(batch)
        penalised = self.session.penalise(self.logits[: len(batch.requests)].clone(), batch)
        if batch.num_drafts:
            self.session.penalise_drafts(self.logits[: batch.num_drafts].clone(), batch)
        return penalised


def _opened(subject: Any, contract: str) -> Any:  # Any: a session of the contract
    if contract == "logits_plan":
        return subject.open_plan(PlanSetup(VOCAB_SIZE, (START_ID,), (END_ID,)))
    if contract == "penalties":
        return subject.open_penalties(VOCAB_SIZE)
    return subject.open_thinking(Markers((START_ID,), (END_ID,)))


def _plan_request(served: ServedRequest) -> LogitsRequest:
    output: Any = served.output_token_ids  # Any: a list that counts
    return LogitsRequest(served.params, served.prompt_token_ids, output, served.draft_token_ids)


# -- what is counted --------------------------------------------------------------------------------------------------


def counts_of(subject: AnySampler, at: Mapping[str, int]) -> Row:
    """Counts of one decode step, the third of its batch: what is set up once is not counted."""
    made = decoding(subject, at)
    later = getattr(made.step, "__self__", None)
    for _ in range(2):
        made.step()
        if isinstance(later, _Served):
            later.advance()
    before = made.num_read()
    with counted() as counts:
        made.step()
    row = counts.as_row()
    row["launches"] += row["operators"]
    return {**{name: row[name] for name in GROWING}, "tokens read": made.num_read() - before}


def num_compilations(subject: AnySampler) -> tuple[int, int]:
    """(variants, kernels) that steps of changing sizes compile; interpreted kernels compile nothing, but have keys."""
    keys: set[tuple[object, ...]] = set()
    graphs = _num_graphs()
    for requests, drafts in _CHANGING[:: 2 if subject.capabilities.slow else 1]:
        made = decoding(subject, {**_STANDARD, "requests": requests, "drafts": drafts})
        with counted() as counts:
            made.step()
        keys |= {launch.key for launch in counts.launches}
    graphs = _num_graphs() - graphs
    return len(keys) + graphs, len({key[0] for key in keys}) + min(graphs, 1)


def _num_graphs() -> int:
    """What `torch.compile` has compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # nothing is compiled before it is imported
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def bytes_kept(subject: AnySampler) -> int:
    """Bytes that remain of a window of steps, the better of two: a cache that fills up and stays is no leak."""
    few = {"requests": 2} if subject.capabilities.slow else {}
    made, steps, found = decoding(subject, {**_STANDARD, **few}), num_turns(subject), []
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(steps):
                made.turn()
            found.append(_live_bytes())
    finally:
        tracemalloc.stop()
    return min(found[1] - found[0], found[2] - found[1])


def num_turns(subject: AnySampler) -> int:
    """Steps of a window."""
    return _SLOW_STEPS if subject.capabilities.slow else _STEPS


def _live_bytes() -> int:
    """Of Python and NumPy, as `tracemalloc` counts them, and of the storages of all tensors."""
    gc.collect()
    storages: dict[int, int] = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.layout is torch.strided:
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = int(storage.nbytes())
    return sum(storages.values()) + tracemalloc.get_traced_memory()[0]


# -- findings ---------------------------------------------------------------------------------------------------------


def costs(ours: AnySampler, reference: AnySampler) -> Iterator[Finding]:
    """A finding for each number.

    Growth with requests and drafts is at most the reference's, or a launch for every fourth. All else has a limit of
    its own: nothing grows with the length of outputs, nothing is compiled for a new batch size, and nothing remains of
    a step.
    """
    contract = str(contract_name(ours))
    for axis in _AXES_OF[contract]:
        yield from _growth(ours, reference, axis)
    yield _compilations(ours)
    kept = bytes_kept(ours)
    reason = f"{kept} bytes remain of {num_turns(ours)} steps in which requests come and go"
    yield _finding("memory", "bytes kept", kept, _MOST_KEPT, reason)


def _growth(ours: AnySampler, reference: AnySampler, axis: str) -> Iterator[Finding]:
    rows = [counts_of(ours, {**_STANDARD, axis: size}) for size in AXES[axis]]
    absolute = axis == "output tokens"
    most = {} if absolute else _growth_of(reference, axis)
    few = 0 if absolute else (AXES[axis][-1] - AXES[axis][0]) // _PER_LAUNCH
    for name in (*GROWING, *["tokens read"] * absolute):
        own, limit = [row[name] for row in rows], max(few, most.get(name, 0))
        sizes = ", ".join(f"{value} at {size}" for value, size in zip(own, AXES[axis], strict=True))
        yield _finding("growth", f"{name} of a step over {axis}", own[-1] - own[0], limit, f"{sizes} {axis}")


def _growth_of(reference: AnySampler, axis: str) -> Row:
    """By how much the reference's counts grow; empty if it cannot be given such batches."""
    try:
        first, last = (counts_of(reference, {**_STANDARD, axis: AXES[axis][end]}) for end in (0, -1))
    except Exception:  # whatever it cannot do, ours is then held to 0
        return {}
    return {name: max(0, last[name] - first[name]) for name in GROWING}


def _compilations(ours: AnySampler) -> Finding:
    own, kernels = num_compilations(ours)
    reason = f"{kernels} kernels have {own} variants in batches of changing requests and drafts"
    return _finding("compilations", "variants of kernels", own, _VARIANTS * kernels, reason)


def _finding(case: str, what: str, value: float, limit: float, reason: str) -> Finding:
    return Finding(case, what, Verdict.PASS if value <= limit else Verdict.FAIL, value, limit, reason)
