"""Follow live output lists by reading only what is new.

An engine keeps one Python list of output token ids per request and changes it in place. Between two sampler calls a
vLLM V1 runner changes such a list in three ways. It replaces the list object only together with an `added` event:

    append    [5, 6]             -> [5, 6, 7, -1]      -1 stands for a token that is still on the device
    repair    [5, 6, 7, -1, -1]  -> [5, 6, 7, 8]       trailing placeholders become tokens, perhaps fewer of them
    cut       [5, 6, 7, 8]       -> [5, 6]             tokens are removed: a lost KV cache, drafts counted too early

A `History` keeps its own copy of what it has read. So a step reads only new tokens, and the tokens that a cut removes
are known without reading again. The copy holds references to the engine's own `int` objects: 8 bytes per token.

Changes without a report that are noticed:

* another list object in the row (`check_rows`): refused, as the prompt may belong to another request as well;
* any cut or repair, whatever its size;
* a cut followed by appends within one step, if the last id read is no longer the *same object* at its position. Ids
  above 256 are separate objects, so this is certain for them. Below, CPython shares one object per value, and a tail
  that was rewritten so that it ends with an equal id is not noticed. The V1 runner never cuts and appends between two
  calls.

Other ids before the last one read are noticed only by `History.audit`, which reads everything again.

Neither torch nor NumPy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

PLACEHOLDER_TOKEN_ID = -1

RequestState = TypeVar("RequestState")


class History:
    """State of one request's live output list, as far as it was read.

    `ids` never ends with a placeholder: those are read again at the next step, when they may have been repaired.
    Placeholders between tokens are `holes`; each is read in every step, as it may be repaired as well.
    """

    __slots__ = ("holes", "ids", "live")

    def __init__(self, live: list[int]) -> None:
        self.live = live
        self.ids: list[int] = []
        self.holes: list[int] = []

    def advance(self) -> int:
        """Make `ids` equal to the live list without its trailing placeholders.

        Returns:
            How many of the earlier ids are still valid; everything in `ids` from there on is new.
        """
        kept = self.standing()
        self.rewind(kept)
        self.read()
        return kept

    def standing(self) -> int:
        """Return the length of the prefix of `ids` that is still in the live list; 0 if the list was changed without a
        report."""
        ids, live = self.ids, self.live
        kept = min(len(ids), len(live))
        for hole in self.holes:
            if hole < kept and live[hole] != PLACEHOLDER_TOKEN_ID:
                kept = hole
        while kept and ids[kept - 1] == PLACEHOLDER_TOKEN_ID:
            kept -= 1
        return kept if kept == 0 or live[kept - 1] is ids[kept - 1] else 0

    def rewind(self, length: int) -> list[int]:
        """Forget everything from position `length` on, and return it."""
        dropped = self.ids[length:]
        del self.ids[length:]
        if self.holes:
            self.holes = [hole for hole in self.holes if hole < length]
        return dropped

    def read(self) -> list[int]:
        """Append what is new in the live list, without trailing placeholders, and return it."""
        first = len(self.ids)
        new = self.live[first:]
        while new and new[-1] == PLACEHOLDER_TOKEN_ID:
            new.pop()
        if PLACEHOLDER_TOKEN_ID in new:
            self.holes += [first + i for i, token_id in enumerate(new) if token_id == PLACEHOLDER_TOKEN_ID]
        self.ids += new
        return new

    def audit(self) -> bool:
        """Compare every id read with the live list; `False` if one differs.

        Lists of equal length are compared pointer by pointer; a slice would first access every object.
        """
        live, ids = self.live, self.ids
        return live == ids if len(live) == len(ids) else live[: len(ids)] == ids


class Changes(NamedTuple):
    """The changes of one step in the histories of a batch."""

    added: list[int]
    """New ids of all histories, flattened; holes included."""
    num_added: list[int]
    """Number of them for each history."""
    dropped: list[tuple[int, list[int]]]
    """Index of a history, and the ids that it lost; applied before `added`."""


def read_changes(histories: Sequence[History]) -> Changes:
    """Advance all histories.

    The loop is the hot path: some more tokens, none of them a placeholder. It is written out because calls of the
    methods would cost more than their work, and one token, the most common case, is read without a slice. Times of
    whole steps are in `perf_regression/records/scanners_cpu.json`.
    """
    added: list[int] = []
    num_added: list[int] = []
    dropped: list[tuple[int, list[int]]] = []
    for history in histories:
        ids, live = history.ids, history.live
        first = len(ids)
        num_new = len(live) - first
        if first and num_new > 0 and live[first - 1] is ids[first - 1] and not history.holes:
            if num_new == 1:
                if (token_id := live[first]) != PLACEHOLDER_TOKEN_ID:
                    ids.append(token_id)
                    added.append(token_id)
                    num_added.append(1)
                    continue
            elif PLACEHOLDER_TOKEN_ID not in (new := live[first:]):
                ids += new
                added += new
                num_added.append(num_new)
                continue
        if (kept := history.standing()) < first:
            dropped.append((len(num_added), history.rewind(kept)))
        added += (new := history.read())
        num_added.append(len(new))
    return Changes(added, num_added, dropped)


class Direction(Protocol):
    """vLLM's `MoveDirectionality`, known by the names of its members."""

    @property
    def name(self) -> str: ...


class BatchUpdate(Protocol):
    """vLLM's `BatchUpdate`: changes of the rows of a batch, to be followed in the order of these fields."""

    @property
    def removed(self) -> Sequence[int]: ...
    @property
    def added(self) -> Sequence[tuple[int, Any, list[int] | None, list[int]]]: ...  # Any: the caller's SamplingParams
    @property
    def moved(self) -> Sequence[tuple[int, int, Direction]]: ...


MakeState = Callable[[Any, "list[int] | None", "list[int]"], "RequestState | None"]
"""A function of sampling parameters, prompt ids and the live output list; `None` if the request needs no state."""


def follow_rows(
    states: dict[int, RequestState], update: BatchUpdate, make_state: MakeState[RequestState]
) -> dict[int, RequestState]:
    """Return the states of the batch after `update`, keyed by row. `states` itself is unchanged, in case `make_state`
    raises.

    A move replaces whatever was in its target row. vLLM leaves a finished request's state there if the request that
    moves in has none, as condensing does not report the row as removed.
    """
    rows = dict(states)
    for row in update.removed:
        rows.pop(row, None)
    for row, params, prompt_token_ids, output_token_ids in update.added:
        _put(rows, row, make_state(params, prompt_token_ids, output_token_ids))
    for source, target, direction in update.moved:
        moving, replaced = rows.pop(source, None), rows.pop(target, None)
        _put(rows, target, moving)
        if direction.name == "SWAP":
            _put(rows, source, replaced)
    return rows


def _put(rows: dict[int, RequestState], row: int, state: RequestState | None) -> None:
    if state is None:
        rows.pop(row, None)
    else:
        rows[row] = state


def drafts_of_batch(
    function: str, draft_token_ids: Sequence[Sequence[int]], batch_size: int
) -> Sequence[Sequence[int]]:
    """Return the drafts of each request; lists beyond the batch are ignored, as vLLM keeps one per possible request.

    Raises:
        ValueError: If a request has no list.
    """
    if len(draft_token_ids) < batch_size:
        raise ValueError(
            f"{function}: len(draft_token_ids)={len(draft_token_ids)}, but it must be at least {batch_size}, the "
            f"number of requests. Use an empty list for a request without drafts."
        )
    return draft_token_ids[:batch_size]


def check_rows(
    function: str, rows: Sequence[int], histories: Iterable[History], output_token_ids: Sequence[list[int]]
) -> None:
    """Check that every history's list is the very object in its row.

    Raises:
        ValueError: If a row is missing or holds another list.
    """
    if rows and rows[-1] >= len(output_token_ids):
        raise ValueError(
            f"{function}: len(output_token_ids)={len(output_token_ids)}, but it must be more than {rows[-1]}, the "
            f"last row with state. Pass the batch's live rows after sync_batch, or let the engine's own code do it."
        )
    for row, history in zip(rows, histories, strict=True):
        if output_token_ids[row] is not history.live:
            raise ValueError(
                f"{function}: output_token_ids[{row}] is not the list that the request was added with, but it must be "
                f"that very object. Report the change through sync_batch, or let the engine's own code do it."
            )
