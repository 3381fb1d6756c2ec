"""The single truth of a lifecycle: requests, rows and token lists as a server keeps them, in plain Python.

Rows are handled as vLLM's V1 `InputBatch` does: a new request takes the lowest free row; then the last requests move
into the free rows that are left; `RowChanges` names as removed only rows that nobody took.
"""

from __future__ import annotations

from collections import UserList
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.protocols._lifecycle import AddedRow, LiveBatch, LiveRequest, Move, MovedRow, RequestParams, RowChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["MOST_REQUESTS", "CountedTokens", "World", "trailing_placeholders"]

MOST_REQUESTS = 4
"""Requests of a batch at one time."""


class CountedTokens(UserList[int]):
    """A token list that counts how many tokens are read from it, whoever reads them.

    It is no `list`, so that no C code can look past it: `np.array`, `torch.tensor` and `[*tokens]` are counted as well.
    """

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        super().__init__(token_ids)
        self.num_read = 0

    def __getitem__(self, index: Any) -> Any:  # Any: a token, or a plain list for a slice
        found = self.data[index]
        self.num_read += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        for token_id in self.data:
            self.num_read += 1
            yield token_id

    def __eq__(self, other: object) -> bool:
        self.num_read += len(self.data)
        return self.data == (other.data if isinstance(other, UserList) else other)

    __hash__ = None

    def __contains__(self, token_id: object) -> bool:
        return any(token_id == found for found in self)

    def index(self, token_id: int, start: SupportsIndex = 0, *stop: SupportsIndex) -> int:
        """As `list.index`; everything up to the token is read."""
        found = self.data.index(token_id, start, *stop)
        self.num_read += found + 1 - int(start)
        return found

    def count(self, item: int) -> int:
        self.num_read += len(self.data)
        return self.data.count(item)

    def copy(self) -> CountedTokens:
        self.num_read += len(self.data)
        return CountedTokens(self.data)


@dataclass(eq=False)
class _Kept:
    """A request and what the server knows of it beyond the live list.

    Args:
        late: Ids of the placeholders at the end of the live list that are on their way; there may be fewer.
    """

    live: LiveRequest
    output: CountedTokens | list[int]
    late: list[int] = field(default_factory=list)


class World:
    """A server's batch.

    Args:
        vocab_size: Token ids of events are taken modulo this.
        counted: Output lists count what is read (`CountedTokens`); otherwise they are plain lists.
    """

    def __init__(self, vocab_size: int, *, counted: bool = False) -> None:
        self.vocab_size = vocab_size
        self.slots: list[_Kept | None] = []
        self.waiting: list[_Kept] = []
        self.num_new = 0
        """Tokens, drafts and repaired placeholders since the last step: what a scanner has to read."""
        self._counted = counted
        self._num_named = 0
        self._added: list[int] = []
        self._swapped: list[MovedRow] = []

    @property
    def requests(self) -> list[_Kept]:
        return [kept for kept in self.slots if kept is not None]

    @property
    def has_added(self) -> bool:
        """Whether a request entered since the last step."""
        return bool(self._added)

    def at(self, row: int) -> int | None:
        """The row that an event means by `row`: any number will do while there are requests."""
        rows = [i for i, kept in enumerate(self.slots) if kept is not None]
        return rows[row % len(rows)] if rows else None

    def kept(self, row: int) -> _Kept:
        kept = self.slots[row]
        assert kept is not None, "rows come from `at`"
        return kept

    def ids(self, token_ids: Iterable[int]) -> list[int]:
        """Token ids of an event within this vocabulary; fresh `int` objects where Python makes such."""
        return [i if i == PLACEHOLDER_TOKEN_ID else i % self.vocab_size for i in token_ids]

    # Requests come and go.

    def add(self, params: RequestParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        if len(self.requests) < MOST_REQUESTS:
            tokens = self._list(self.ids(output))
            name = f"r{self._num_named}"
            self._num_named += 1
            self._enter(_Kept(LiveRequest(name, params, self.ids(prompt), tokens), tokens))

    def remove(self, row: int) -> _Kept:
        kept = self.kept(row)
        self.slots[row] = None
        self._added = [added for added in self._added if added != row]
        kept.live.draft_token_ids = []
        return kept

    def preempt(self, row: int) -> None:
        self.waiting.append(self.remove(row))

    def resume(self, *, same_list: bool) -> None:
        """The request that waits longest returns; with asynchronous scheduling its list is a new one."""
        if self.waiting and len(self.requests) < MOST_REQUESTS:
            kept = self.waiting.pop(0)
            self.arrive(kept)
            if not same_list:
                self.replace(kept, list(kept.output))
            self._enter(kept)

    def carry_on(self, row: int) -> None:
        """A streaming session: what was said becomes prompt, and the same list object is used again."""
        kept = self.remove(row)
        self.arrive(kept)
        kept.live.prompt_token_ids = [*kept.live.prompt_token_ids, *(i for i in kept.output if i >= 0)]
        kept.output.clear()
        self._enter(kept)

    def replace(self, kept: _Kept, output: Sequence[int], explained_row: int | None = None) -> None:
        """Another list object; whoever is not told holds a dead one. With its row, it is told as added anew."""
        kept.output = self._list(output)
        kept.live.output_token_ids = kept.output
        if explained_row is not None and explained_row not in self._added:
            self._added.append(explained_row)
            self.num_new += len(kept.output)

    def _list(self, token_ids: Iterable[int]) -> CountedTokens | list[int]:
        return CountedTokens(token_ids) if self._counted else list(token_ids)

    def _enter(self, kept: _Kept) -> None:
        free = next((row for row, found in enumerate(self.slots) if found is None), len(self.slots))
        self.slots[free : free + 1] = [kept]
        self._added.append(free)
        self.num_new += len(kept.output)

    def swap(self, row: int, other: int) -> None:
        """Two requests change places, after the rows have unsupported up as in vLLM."""
        self._swapped.append(MovedRow(row, other, Move.SWAP))

    # Tokens come and go.

    def say(self, kept: _Kept, token_ids: Sequence[int], *, num_late: int = 0) -> None:
        """Tokens of a step: known now, or `num_late` placeholders for them (at least as many as tokens)."""
        self.arrive(kept)
        kept.live.draft_token_ids = []
        if num_late:
            kept.late = list(token_ids)
            kept.output.extend([PLACEHOLDER_TOKEN_ID] * num_late)
        else:
            kept.output.extend(token_ids)
        self.num_new += max(num_late, len(token_ids))

    def arrive(self, kept: _Kept) -> None:
        """Late ids take the places of the placeholders at the end, of which some may turn out superfluous."""
        num_placeholders = trailing_placeholders(kept.output)
        if kept.late and num_placeholders:
            del kept.output[len(kept.output) - num_placeholders :]
            kept.output.extend(kept.late[:num_placeholders])
            self.num_new += num_placeholders
        kept.late = []

    def cut(self, kept: _Kept, count: int) -> None:
        """The KV cache of the last tokens was lost."""
        del kept.output[max(0, len(kept.output) - count) :]
        kept.live.draft_token_ids = []
        self.num_new += count

    # What a scanner is told.

    def take_changes(self) -> RowChanges:
        """Close up the rows, swap, and say what happened since the last call."""
        added = tuple(self._added_row(row) for row in self._added)
        removed, moved = self._close_up()
        for source, target, _ in self._swapped:
            if source != target and max(source, target) < len(self.slots):
                self.slots[source], self.slots[target] = self.slots[target], self.slots[source]
                moved.append(MovedRow(source, target, Move.SWAP))
        self._added, self._swapped = [], []
        return RowChanges(len(self.slots), removed, added, tuple(moved))

    def _added_row(self, row: int) -> AddedRow:
        live = self.kept(row).live
        return AddedRow(row, live.params, live.prompt_token_ids, live.output_token_ids)

    def _close_up(self) -> tuple[tuple[int, ...], list[MovedRow]]:
        """The last requests move into free rows; which rows are gone without a trace, and the moves."""
        gone = {row for row, kept in enumerate(self.slots) if kept is None}
        moved: list[MovedRow] = []
        while None in self.slots:
            if self.slots[-1] is None:
                self.slots.pop()
                continue
            free, last = self.slots.index(None), len(self.slots) - 1
            self.slots[free] = self.slots.pop()
            moved.append(MovedRow(last, free, Move.UNIDIRECTIONAL))
            gone.discard(free)
        return tuple(sorted(gone)), moved

    def batch(self) -> LiveBatch:
        return LiveBatch(tuple(kept.live for kept in self.requests))


def trailing_placeholders(output: Sequence[int]) -> int:
    """How many placeholders stand at the end."""
    tokens = output.data if isinstance(output, CountedTokens) else output
    return next((i for i, token_id in enumerate(reversed(tokens)) if token_id != PLACEHOLDER_TOKEN_ID), len(tokens))
