"""Who stands in the rows of a sampler that keeps something by row: what changed is reported to it, before each call.

Traces say who their requests are (`seat`). Calls of other checks have requests of their own, and those go on as long as
the same noise does: the next call of a trace reports that its own requests are back.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from fairdraw._core.failures import calling
from fairdraw._core.wrapping import unwrapped


class Move(Enum):
    """How a row moved; members are named as those of vLLM's `MoveDirectionality`."""

    UNIDIRECTIONAL = 0
    """Into a row whose request is gone. As in vLLM, `RowChanges.removed` need not name that row."""
    SWAP = 1
    """Both requests changed places."""


@dataclass(frozen=True)
class SeedParams:
    """What is reported to a sampler of a request that enters; all else comes with every batch.

    Args:
        seed: The request's own, as long as it is served, if draws are keyed by (seed, position); else `None`.
    """

    seed: int | None = None


class AddedRow(NamedTuple):
    """A request that entered the batch, new or again; it takes the place of whatever was in its row."""

    row: int
    params: Any  # Any: RequestParams; LogitsParams under the logits-plan contract, SeedParams of samplers
    prompt_token_ids: list[int]
    output_token_ids: Sequence[int]


class MovedRow(NamedTuple):
    """A request, or two, in other rows than before."""

    source: int
    target: int
    direction: Move


@dataclass(frozen=True)
class RowChanges:
    """What happened to the rows since the last step, to be followed in the order of the fields.

    It has the fields of vLLM's `BatchUpdate`, so code that takes one takes the other. It is false if no row changed.
    """

    batch_size: int
    removed: tuple[int, ...] = ()
    added: tuple[AddedRow, ...] = ()
    moved: tuple[MovedRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.moved)


def all_added(requests: Sequence[Any]) -> RowChanges:  # Any: a LiveRequest or LogitsRequest
    """The changes of a session's first step: every request is added, in the order of the rows."""
    rows = (AddedRow(i, r.params, r.prompt_token_ids, r.output_token_ids) for i, r in enumerate(requests))
    return RowChanges(len(requests), added=tuple(rows))


class RowKeeper:
    """Keeps something for each row, wherever its request moves: what `enter` returns. Derive from it.

    Example:
        >>> keeper = RowKeeper()
        >>> keeper.sync(RowChanges(1, added=(AddedRow(0, SeedParams(7), [], []),)))
        >>> keeper.rows
        {0: 7}
    """

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}  # Any: what `enter` returns

    def sync(self, changes: RowChanges) -> None:
        for row in changes.removed:
            self.remove(row)
        for added in changes.added:
            self.rows[added.row] = self.enter(added)
        for moved in changes.moved:
            self.move(moved)

    def remove(self, row: int) -> None:
        self.rows.pop(row, None)

    def enter(self, added: AddedRow) -> Any:  # Any: what is kept
        return added.params.seed

    def move(self, moved: MovedRow) -> None:
        there = {moved.target: self.rows.pop(moved.source)}
        if moved.direction is Move.SWAP and moved.target in self.rows:
            there[moved.source] = self.rows[moved.target]
        self.rows |= there

    def seeds(self) -> dict[int, int]:
        """Row to the seed of its request, of those that entered with one."""
        return {row: seed for row, seed in self.rows.items() if seed is not None}


SyncFunction = Callable[[RowChanges], None]
"""What a sampler does with row events; the optional method `sync` of a sampler."""


def follows_rows(sampler: object) -> bool:
    """Whether `sampler` keeps something by row, and wants to know what happens to its rows (a method `sync`)."""
    return callable(getattr(sampler, "sync", None))


class Owner(NamedTuple):
    """A request in a row.

    Args:
        name: Equal for the same request.
        seed: Its own; `None` if it has none.
    """

    name: object
    seed: int | None


_Seats = tuple[Callable[[], object], Sequence[Owner], Callable[[], object]]
_seats: dict[int, _Seats] = {}
"""Identity of a sampler to the sampler, the owners of its rows, and the noise of its last call."""


def _known(own: object) -> _Seats:
    """Return what is known of a sampler; an identity is used again once its object is gone."""
    found = _seats.get(id(own))
    return found if found and found[0]() is own else (lambda: None, (), lambda: None)


def seat(sampler: Any, owners: Sequence[Owner], noise: object) -> None:  # Any: of any contract
    """Report to a sampler that follows its rows how `owners` came there; a call with `noise` then reports no more.

    Raises:
        Exception: Whatever the sampler raises, marked as its own.
    """
    if follows_rows(sampler):
        own = unwrapped(sampler)
        changes = row_changes(_known(own)[1], owners)
        _seats[id(own)] = weakref.ref(own), owners, weakref.ref(noise)
        if changes:
            with calling(sampler):
                sampler.sync(changes)


def seat_others(sampler: Any, num_rows: int, noise: Any) -> None:  # Any: of any contract
    """Report other requests to a sampler that follows its rows, unless its last call was made with this noise."""
    if follows_rows(sampler):
        _, owners, known = _known(unwrapped(sampler))
        if known() is not noise or len(owners) != num_rows:
            seeds = getattr(noise, "request_seeds", {})
            seat(sampler, [Owner(object(), seeds.get(row)) for row in range(num_rows)], noise)


def row_changes(before: Sequence[Owner], now: Sequence[Owner]) -> RowChanges:
    """Return what happened to rows as an engine reports it: a new request takes the lowest free row, then the last
    requests move into rows that are still free, then some swap. Rows that somebody took over are not named as removed.

    Example:
        >>> a, b, c = (Owner(name, None) for name in "abc")
        >>> row_changes([a, b, c], [c, b]).moved
        (MovedRow(source=2, target=0, direction=<Move.UNIDIRECTIONAL: 0>),)
    """
    stay, known = set(now), set(before)
    rows: list[Owner | None] = [owner if owner in stay else None for owner in before]
    gone = {row for row, owner in enumerate(rows) if owner is None}
    added, moved = [], []
    free = iter(sorted(gone))
    for owner in now:
        if owner not in known:
            row = next(free, len(rows))
            rows[row : row + 1] = [owner]
            added.append(AddedRow(row, SeedParams(owner.seed), [], []))
    places = {owner: row for row, owner in enumerate(rows) if owner is not None}
    for target, owner in enumerate(now):
        source, there = places[owner], rows[target]
        if source != target:
            moved.append(MovedRow(source, target, Move.UNIDIRECTIONAL if there is None else Move.SWAP))
            rows[source], rows[target], places[owner] = there, owner, target
            if there is not None:
                places[there] = source
    taken = {row.row for row in added} | {row.target for row in moved}
    return RowChanges(len(now), tuple(sorted(gone - taken)), tuple(added), tuple(moved))
