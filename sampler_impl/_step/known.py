"""Tensors by slot that a plan has seen: an engine gives the same ones at every step, and a step has 40 us.

They are found again by where they lie, not by identity: vLLM makes new views of the same few buffers at every step, and
as long as it was asked which tensors these are, each step was checked and described anew (some 0.5 ms in an engine).
What was checked of them (kind, shape, type, device, strides) and what launches need of them (addresses, and what
kernels are compiled for) follows from their places. Of each group the last few are kept, because engines take turns
between copies; no tensor is kept.
"""

from __future__ import annotations

from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from .inputs import StepInputs

MOST = 8
"""Groups that are kept of each kind."""
_NUMBERS = count()

_of_parameters = attrgetter("temperature", "top_k", "top_p", "min_p")
_of_penalties = attrgetter("presence", "frequency", "repetition", "output_counts", "prompt_mask")
_LISTS = ("bias_counts", "bias_token_ids", "bias_values", "allowed_counts", "allowed_token_ids")
_of_edits = attrgetter(*_LISTS, "stop_counts", "stop_token_ids", "min_lengths")
_of_bad_words = attrgetter("counts", "offsets", "word_ids", "text", "starts")

Tensors = tuple["Tensor | None", ...]
Place = tuple["Hashable", ...] | None


class Group:
    """Tensors that were checked together.

    Args:
        number: No other group ever has it.
        described: What launches made of them.
    """

    def __init__(self, num_slots: int) -> None:
        self.number, self.num_slots = next(_NUMBERS), num_slots
        self.described: tuple[int, Any] | None = None  # Any: arguments of kernels


def place_of(
    tensor: Tensor | None,  # [...] any
) -> Place:
    """Return where a tensor lies, and how: `set_`, `resize_`, `t_` and `.data = ...` change that of the same tensor.

    Its address tells which GPU it is on. Memory of the host that a GPU may read has one address for both."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg(), tensor.is_cuda


class Groups:
    """The last few groups of one kind, by the places of their tensors."""

    def __init__(self) -> None:
        self.by_places: dict[tuple[Place, ...], Group] = {}

    def find(self, tensors: Tensors) -> Group | None:
        """Return the group of these tensors, if tensors that lie as they do were checked."""
        try:
            return self.by_places.get(tuple(map(place_of, tensors)))
        except (AttributeError, RuntimeError):  # the checks say which is no tensor
            return None

    def add(self, tensors: Tensors, num_slots: int) -> Group:
        """Add tensors that passed their checks."""
        while len(self.by_places) >= MOST:
            del self.by_places[next(iter(self.by_places))]
        group = self.by_places[tuple(map(place_of, tensors))] = Group(num_slots)
        return group


class Known(NamedTuple):
    """Groups that a plan has seen."""

    parameters: Groups
    penalties: Groups
    edits: Groups


class BySlot(NamedTuple):
    """A step's groups; `None` for what it does not have, or was not seen before."""

    parameters: Group | None
    penalties: Group | None
    edits: Group | None


def tensors_by_slot(inputs: StepInputs) -> tuple[Tensors, Tensors | None, Tensors | None]:
    """Return parameters with seeds, penalties, edits; a row's forced token has no slot."""
    penalties, edits = inputs.penalties, inputs.edits
    listed: Tensors | None = None
    if edits is not None:
        words = edits.bad_words
        listed = _of_edits(edits) if words is None else (*_of_edits(edits), *_of_bad_words(words))
    given = inputs.seeds, *_of_parameters(inputs.parameters)
    return given, None if penalties is None else _of_penalties(penalties), listed


def seen_before(known: Known, tensors: tuple[Tensors, Tensors | None, Tensors | None]) -> BySlot:
    """Return the groups that were checked with as many slots."""
    given, penalties, edits = tensors
    first = known.parameters.find(given)
    if first is None:
        return BySlot(None, None, None)
    second = None if penalties is None else known.penalties.find(penalties)
    third = None if edits is None else known.edits.find(edits)
    slots = first.num_slots
    return BySlot(
        first,
        second if second is not None and second.num_slots == slots else None,
        third if third is not None and third.num_slots == slots else None,
    )
