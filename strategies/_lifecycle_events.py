"""What can happen to a live batch: plain data that prints as code. Any sequence of events is a possible trace.

An event that has nothing to happen to (a `Finish` of an empty batch) does nothing, and row numbers are taken modulo the
batch, so events can be dropped and reordered freely: that is how a failing trace shrinks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.protocols._lifecycle import RequestParams
from fairdraw.strategies._recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairdraw.strategies._lifecycle_world import World

__all__ = [
    "EVENT_KINDS",
    "Add",
    "CarryOn",
    "Cut",
    "Decode",
    "Draft",
    "Event",
    "Finish",
    "Preempt",
    "Repair",
    "Replace",
    "Resume",
    "Swap",
    "event_from_json",
]

Tokens = tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Event(Recipe):
    """One thing that happens; after it the scanner is asked, unless the event is `held`.

    Args:
        held: More happens before the next step: its changes reach the scanner together with the next event's.
    """

    held: bool = field(default=False, kw_only=True)

    def happen(self, world: World) -> None:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True, repr=False)
class Add(Event):
    """A request enters; with an `output` it was begun elsewhere, and -1 in it is a token that nobody will repair."""

    prompt: Tokens = ()
    output: Tokens = ()
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    budget: int | None = None

    def happen(self, world: World) -> None:
        world.add(self.params, self.prompt, self.output)

    @property
    def params(self) -> RequestParams:
        return RequestParams(self.presence, self.frequency, self.repetition, self.budget)


@dataclass(frozen=True, repr=False)
class _OfRow(Event):
    row: int = 0

    def happen(self, world: World) -> None:
        row = world.at(self.row)
        if row is not None:
            self.happen_to(world, row)

    def happen_to(self, world: World, row: int) -> None:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Finish(_OfRow):
    """A request leaves for good; the last one moves into its row, if nobody new does."""

    def happen_to(self, world: World, row: int) -> None:
        world.remove(row)


@dataclass(frozen=True, repr=False)
class Preempt(_OfRow):
    """A request leaves to make room, and waits."""

    def happen_to(self, world: World, row: int) -> None:
        world.preempt(row)


@dataclass(frozen=True, repr=False)
class Resume(Event):
    """The preempted request that waits longest returns with its tokens, in another list object if asynchronous."""

    same_list: bool = True

    def happen(self, world: World) -> None:
        world.resume(same_list=self.same_list)


@dataclass(frozen=True, repr=False)
class CarryOn(_OfRow):
    """A streaming session: what was said becomes prompt, and the request is added again."""

    def happen_to(self, world: World, row: int) -> None:
        world.carry_on(row)


@dataclass(frozen=True, repr=False)
class Swap(_OfRow):
    """Two rows change places."""

    other: int = 1

    def happen_to(self, world: World, row: int) -> None:
        other = world.at(self.other)
        if other is not None:
            world.swap(row, other)


@dataclass(frozen=True, repr=False)
class Decode(Event):
    """Every request emits its first `accepted` drafts and a token; drafts that are left were rejected.

    Args:
        tokens: One per row; rows beyond its end emit 0, and `None` emits nothing (a part of a prompt, discarded).
        accepted: Of the drafts, per row; rows beyond its end accept none.
        late: Asynchronous scheduling: placeholders stand for the tokens, as many as could have been emitted.
    """

    tokens: tuple[int | None, ...] = ()
    accepted: Tokens = ()
    late: bool = False

    def happen(self, world: World) -> None:
        for row, kept in enumerate(world.requests):
            token_id = self.tokens[row] if row < len(self.tokens) else 0
            drafts = kept.live.draft_token_ids
            kept_drafts = drafts[: self.accepted[row] if row < len(self.accepted) else 0]
            if token_id is None:
                world.say(kept, [])
                continue
            said = [*(0 if i == PLACEHOLDER_TOKEN_ID else i for i in kept_drafts), *world.ids([token_id])]
            world.say(kept, said, num_late=len(drafts) + 1 if self.late else 0)


@dataclass(frozen=True, repr=False)
class Repair(Event):
    """Late ids arrive: placeholders become tokens, and those of rejected drafts vanish."""

    def happen(self, world: World) -> None:
        for kept in world.requests:
            world.arrive(kept)


@dataclass(frozen=True, repr=False)
class Draft(Event):
    """A speculative step begins: drafts per row, -1 for one that is not known yet; rows beyond its end have none."""

    drafts: tuple[Tokens, ...] = ()

    def happen(self, world: World) -> None:
        for row, kept in enumerate(world.requests):
            kept.live.draft_token_ids = world.ids(self.drafts[row]) if row < len(self.drafts) else []
            world.num_new += len(kept.live.draft_token_ids)


@dataclass(frozen=True, repr=False)
class Cut(_OfRow):
    """The KV cache of the last tokens was lost: they are taken back."""

    count: int = 1

    def happen_to(self, world: World, row: int) -> None:
        world.cut(world.kept(row), self.count)


@dataclass(frozen=True, repr=False)
class Replace(_OfRow):
    """Behind the scanner's back the row gets another list object; no contract allows it, so it must be noticed.

    Args:
        told: The scanner is told that the row holds a request anew: the same lists, and nothing behind its back.
    """

    output: Tokens = ()
    told: bool = False

    def happen_to(self, world: World, row: int) -> None:
        world.replace(world.kept(row), world.ids(self.output), row if self.told else None)


_KINDS: tuple[type[Event], ...] = (Add, Finish, Preempt, Resume, CarryOn, Swap, Decode, Repair, Draft, Cut, Replace)
EVENT_KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in _KINDS}


def event_from_json(plain: dict[str, Any]) -> Event:  # Any: JSON
    """The event that `to_json` wrote.

    Raises:
        ValueError: If the kind or a field is unknown.
    """
    values = dict(plain)
    name = values.pop("event", None)
    kind = EVENT_KINDS.get(name)
    if kind is None or not set(values) <= {f.name for f in fields(kind)}:
        raise ValueError(f"Lifecycle: event={plain}, but it must be one of {', '.join(EVENT_KINDS)}. Correct the file.")
    return kind(**{key: _tuples(value) for key, value in values.items()})


def _tuples(value: Any) -> Any:  # Any: JSON
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
