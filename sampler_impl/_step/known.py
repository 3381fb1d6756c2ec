"""Tensors by slot that a plan has seen: an engine gives the same ones at every step, and a step has 40 us.

They are found again by identity. What was checked of them (kind, shape, type, device, strides) and what launches need
of them (addresses, and what kernels are compiled for) is not found out anew as long as each lies where it lay. Of each
group the last few are kept, because engines take turns between copies; none is kept alive.
"""

from __future__ import annotations

import weakref
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from .inputs import StepInputs

MOST = 4
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

    def __init__(self, tensors: Tensors, num_slots: int) -> None:
        self.number = next(_NUMBERS)
        self.num_slots, self.places = num_slots, list(map(place_of, tensors))
        self.described: tuple[int, Any] | None = None  # Any: arguments of kernels
        self.references: list[weakref.ref[Tensor]] = []


def place_of(
    tensor: Tensor | None,  # [...] any
) -> Place:
    """Return where a tensor lies, and how: `set_`, `resize_`, `t_` and `.data = ...` change that of the same tensor.

    Its address also tells its device."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg()


class Groups:
    """The last few groups of one kind, by the identities of their tensors."""

    def __init__(self) -> None:
        self.by_ids: dict[tuple[int, ...], Group] = {}

    def find(self, tensors: Tensors) -> Group | None:
        """Return the group of these tensors, if they were checked and lie as they did."""
        group = self.by_ids.get(tuple(map(id, tensors)))
        return group if group is not None and group.places == list(map(place_of, tensors)) else None

    def add(self, tensors: Tensors, num_slots: int) -> Group:
        """Add tensors that passed their checks."""
        ids = tuple(map(id, tensors))
        self.by_ids.pop(ids, None)
        while len(self.by_ids) >= MOST:
            del self.by_ids[next(iter(self.by_ids))]
        group = self.by_ids[ids] = Group(tensors, num_slots)

        def forget(_: object) -> None:
            """Forget them: one of them is gone, and its identity may become that of another tensor."""
            self.by_ids.pop(ids, None)

        group.references = [weakref.ref(tensor, forget) for tensor in tensors if tensor is not None]
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
