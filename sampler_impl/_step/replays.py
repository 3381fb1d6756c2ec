"""Steps that come again are replayed: a CUDA graph of a step's launches costs the host less than one launch.

A kernel with dozens of arguments costs the host 10 to 20 us per launch, and checks as much again. But an engine's eager
steps repeat: its states and input buffers stay where they are, and its allocator puts logits where the last ones were.
What kernels are given is then the same to the last address, and what lies there they read themselves.

    a step that was not seen    ->  checks, launches
    its 16th time               ->  checks, launches, and the same launches once more, captured
    from then on                ->  replay

So a graph stands for addresses, shapes, strides and types, never for contents. It keeps no tensor alive: whatever lies
at the same addresses with the same shape and type is what the next step is about.
"""

from __future__ import annotations

import warnings
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from .known import Known, place_of, seen_before, tensors_by_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .inputs import StepInputs, StepOutput

Key = tuple["Hashable", ...]

_DRAFTS = ("draft_token_ids", "draft_probs", "draft_logits", "draft_logsumexp", "draft_temperature")
_of_batch = attrgetter("logits", "positions", "cu_num_rows", "slots", "grammar_mask", *_DRAFTS)

OFTEN = 16
"""Sights after which a step is captured. On an H200 a capture took 0.3 to 0.5 ms and 96 KiB: steps that take turns
among more places than there are graphs get some 30 us longer, on average and at worst."""
REMEMBERED = 256
"""Steps whose sights are counted."""


class Replays:
    """The graphs of a plan.

    Args:
        known: Tensors by slot that passed their checks.
        most: Graphs that are kept; the one that was not used for the longest time goes first. 0: none is made.
    """

    def __init__(self, known: Known, device: torch.device, most: int) -> None:
        self.known, self.device, self.most = known, device, most
        self.graphs: dict[Key, tuple[torch.cuda.CUDAGraph, StepOutput]] = {}
        self.sights: dict[Key, int] = {}

    def key_of(self, inputs: StepInputs) -> Key | None:
        """Return all that checks and launches depend on. `None`: launch this step, as its tensors by slot were not
        checked yet, something is not a tensor, or the caller captures a graph of its own."""
        if not self.most or torch.cuda.is_current_stream_capturing():
            return None
        tensors = tensors_by_slot(inputs)
        seen = seen_before(self.known, tensors)
        for group, new in zip(seen, tensors, strict=True):
            if group is None and new is not None:
                return None
        forced = None if inputs.edits is None else inputs.edits.forced_token_ids
        try:
            return (
                *(None if group is None else group.number for group in seen),
                *map(place_of, (*_of_batch(inputs), forced)),
            )
        except (AttributeError, RuntimeError):  # the checks say which
            return None

    def replayed(self, key: Key) -> StepOutput | None:
        """Replay this step if it was captured."""
        found = self.graphs.pop(key, None)
        if found is None:
            return None
        self.graphs[key] = found  # the last one used
        graph, output = found
        graph.replay()
        return output

    def note(self, key: Key, launch: Callable[[], StepOutput]) -> None:
        """Note that this step was launched, and capture it if it comes often."""
        sights = self.sights.pop(key, 0) + 1
        if sights >= OFTEN:
            self._capture(key, launch)
            return
        _make_room(self.sights, REMEMBERED)
        self.sights[key] = sights

    def _capture(self, key: Key, launch: Callable[[], StepOutput]) -> None:
        """Capture a step: nothing runs, nothing is waited for. `relaxed`: other threads may do what they like
        meanwhile."""
        graph = torch.cuda.CUDAGraph()
        try:
            side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode="relaxed")
                try:
                    output = launch()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self.most = 0
            warnings.warn(f"StepPlan: a step could not be captured ({error}). All are launched.", stacklevel=4)
            return
        _make_room(self.graphs, self.most)
        self.graphs[key] = graph, output


def _make_room(entries: dict[Key, Any], most: int) -> None:  # Any: of either kind
    """Make room for one more: the oldest go."""
    while len(entries) >= most:
        del entries[next(iter(entries))]
