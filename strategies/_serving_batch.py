"""A serving batch in plain Python: requests come, go and move between rows; their tokens arrive late or are lost.

This is the suite's only simulator of a server. State machines, checks, tests, tools and benchmarks change a
`ServingBatch` step by step, and show its `batch()` and `take_changes()` to the code under test.

Rows follow vLLM's V1 `InputBatch`: a new request takes the lowest free row; then the last requests move into the rows
that are still free; `RowChanges.removed` names only rows that nobody took over, unless a batch is to name them all.
"""

from __future__ import annotations

from collections import UserList
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, AddedRow, LiveBatch, LiveRequest, Move, MovedRow, RowChanges

MOST_REQUESTS = 4
"""Requests of a batch at one time."""


class CountedTokens(UserList[int]):
    """A token list that counts how many tokens are read from it.

    It is not a `list`, so that no C code can bypass it: `np.array`, `torch.tensor` and `[*tokens]` are counted as well.
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
        """As `list.index`; everything up to the token counts as read."""
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
class ServedRequest(LiveRequest):
    """A request, and what only the server knows about it.

    Args:
        late_token_ids: Ids on their way from the device. They will replace the placeholders at the end of the output,
            and there may be fewer of them.
    """

    output_token_ids: CountedTokens | list[int]  # pyright: ignore[reportIncompatibleVariableOverride]  # it may change
    late_token_ids: list[int] = field(default_factory=list)


class ServingBatch:
    """A server's batch.

    Args:
        vocab_size: Token ids of events are taken modulo this.
        most_requests: A request that would be one too many does not enter.
        counted: Output lists count what is read (`CountedTokens`); otherwise they are plain lists.
        names_taken: `RowChanges.removed` also names rows that another request took over, by entering or moving.
    """

    def __init__(
        self, vocab_size: int, *, most_requests: int = MOST_REQUESTS, counted: bool = False, names_taken: bool = False
    ) -> None:
        self.vocab_size = vocab_size
        self.most_requests = most_requests
        self.slots: list[ServedRequest | None] = []
        self.waiting: list[ServedRequest] = []
        self.num_new = 0
        """Tokens, drafts and repaired placeholders since the last step: what a scanner has to read."""
        self._counted, self._names_taken = counted, names_taken
        self._emptied: set[int] = set()
        self._num_named = 0
        self._last_gone = ""
        self._added: list[int] = []
        self._swapped: list[tuple[int, int]] = []

    @property
    def requests(self) -> list[ServedRequest]:
        return [request for request in self.slots if request is not None]

    @property
    def num_requests(self) -> int:
        return len(self.slots) - self.slots.count(None)

    @property
    def has_added(self) -> bool:
        """Whether a request entered since the last step."""
        return bool(self._added)

    def at(self, row: int) -> int | None:
        """The row that an event means by `row`: any number will do while there are requests."""
        rows = [i for i, request in enumerate(self.slots) if request is not None]
        return rows[row % len(rows)] if rows else None

    def in_row(self, row: int) -> ServedRequest:
        request = self.slots[row]
        assert request is not None, "rows come from `at`"
        return request

    def ids(self, token_ids: Iterable[int]) -> list[int]:
        """Token ids of an event within this vocabulary; fresh `int` objects where Python makes such."""
        return [i if i == PLACEHOLDER_TOKEN_ID else i % self.vocab_size for i in token_ids]

    # Requests come and go.

    def add(
        self, params: Any, prompt: Iterable[int], output: Iterable[int], *, again: bool = False
    ) -> ServedRequest | None:
        """A new request enters; `params` are those of the contract.

        Args:
            again: Under the name of the request that finished last, as clients may do.
        """
        if self.num_requests >= self.most_requests:
            return None
        name = self._last_gone if again and self._last_gone else f"r{self._num_named}"
        self._num_named, self._last_gone = self._num_named + 1, ""
        request = ServedRequest(name, params, self.ids(prompt), self._list(self.ids(output)))
        self._enter(request)
        return request

    def finish(self, row: int) -> None:
        """The request leaves for good, and its name is free."""
        self._last_gone = self.remove(row).req_id

    def remove(self, row: int) -> ServedRequest:
        request = self.in_row(row)
        self.slots[row] = None
        self._emptied.add(row)
        self._added = [added for added in self._added if added != row]
        request.draft_token_ids = []
        return request

    def preempt(self, row: int) -> None:
        self.waiting.append(self.remove(row))

    def resume(self, *, same_list: bool) -> None:
        """The request that waits longest returns; with asynchronous scheduling its list is a new one."""
        if self.waiting and self.num_requests < self.most_requests:
            request = self.waiting.pop(0)
            self.repair(request)
            if not same_list:
                request.output_token_ids = self._list(plain_tokens(request.output_token_ids))
            self._enter(request)

    def carry_on(self, row: int) -> None:
        """A streaming session: the output becomes part of the prompt, and the same list object is used again."""
        request = self.remove(row)
        self.repair(request)
        output = plain_tokens(request.output_token_ids)
        request.prompt_token_ids = [*request.prompt_token_ids, *(i for i in output if i >= 0)]
        request.output_token_ids.clear()
        self._enter(request)

    def renew(self, row: int, params: Any, *, same_list: bool) -> None:
        """The request is removed and added again, with other parameters unless they are `None`."""
        request = self.remove(row)
        self.repair(request)
        if not same_list:
            request.output_token_ids = self._list(plain_tokens(request.output_token_ids))
        if params is not None:
            request.params = params
        self._enter(request)

    def replace_list(self, row: int, output: Sequence[int], *, reported: bool) -> None:
        """The row gets another list object. If that is reported, it counts as a request that is added again."""
        request = self.in_row(row)
        request.output_token_ids = self._list(output)
        if reported and row not in self._added:
            self._added.append(row)
            self.num_new += len(output)

    def _list(self, token_ids: Iterable[int]) -> CountedTokens | list[int]:
        return CountedTokens(token_ids) if self._counted else list(token_ids)

    def _enter(self, request: ServedRequest) -> None:
        free = next((row for row, found in enumerate(self.slots) if found is None), len(self.slots))
        self.slots[free : free + 1] = [request]
        self._added.append(free)
        self.num_new += len(request.output_token_ids)

    def swap(self, row: int, other: int) -> None:
        """Two requests change places, once the rows have closed up as in vLLM."""
        self._swapped.append((row, other))

    # Tokens come and go.

    def emit(self, request: ServedRequest, token_ids: Sequence[int], *, num_late: int = 0) -> None:
        """The tokens of a step: known now, or `num_late` placeholders for them (at least as many as tokens)."""
        self.repair(request)
        request.draft_token_ids = []
        if num_late:
            request.late_token_ids = list(token_ids)
            request.output_token_ids.extend([PLACEHOLDER_TOKEN_ID] * num_late)
        else:
            request.output_token_ids.extend(token_ids)
        self.num_new += max(num_late, len(token_ids))

    def repair(self, request: ServedRequest) -> None:
        """Late ids replace the placeholders at the end of the output; placeholders without an id are dropped."""
        output = request.output_token_ids
        num_placeholders = trailing_placeholders(output)
        if request.late_token_ids and num_placeholders:
            del output[len(output) - num_placeholders :]
            output.extend(request.late_token_ids[:num_placeholders])
            self.num_new += num_placeholders
        request.late_token_ids = []

    def draft(self, request: ServedRequest, token_ids: Iterable[int]) -> None:
        """The drafts that this step verifies."""
        request.draft_token_ids = self.ids(token_ids)
        self.num_new += len(request.draft_token_ids)

    def cut(self, request: ServedRequest, count: int) -> None:
        """The KV cache of the last tokens was lost."""
        del request.output_token_ids[max(0, len(request.output_token_ids) - count) :]
        request.draft_token_ids = []
        self.num_new += count

    def regrow(self, request: ServedRequest, count: int, token_ids: Sequence[int]) -> None:
        """Tokens are lost and others follow at once; the last one that a scanner has read and still finds differs."""
        num_read = len(request.output_token_ids) - trailing_placeholders(request.output_token_ids)
        self.repair(request)
        old, new = plain_tokens(request.output_token_ids), list(token_ids)
        kept = max(0, len(old) - count)
        last = min(num_read - kept, len(new)) - 1
        if last >= 0 and new[last] == old[kept + last]:
            new[last] = (new[last] + 1) % self.vocab_size
        self.cut(request, count)
        if last < 0 or new[last] != old[kept + last]:  # else the vocabulary has one token
            request.output_token_ids.extend(new)
        self.num_new += len(new)

    # What a scanner is shown.

    def take_changes(self) -> RowChanges:
        """Close up the rows and swap; returns what happened to the rows since the last call."""
        added = []
        for row in self._added:
            request = self.in_row(row)
            added.append(AddedRow(row, request.params, request.prompt_token_ids, request.output_token_ids))
        removed, moved = self._close_up()
        for source, target in self._swapped:
            if source != target and max(source, target) < len(self.slots):
                self.slots[source], self.slots[target] = self.slots[target], self.slots[source]
                moved.append(MovedRow(source, target, Move.SWAP))
        removed = tuple(sorted(self._emptied.union(removed))) if self._names_taken else removed
        self._added, self._swapped, self._emptied = [], [], set()
        return RowChanges(len(self.slots), removed, tuple(added), tuple(moved))

    def _close_up(self) -> tuple[tuple[int, ...], list[MovedRow]]:
        """The last requests move into free rows. Returns the rows that nobody took over, and the moves."""
        gone = {row for row, request in enumerate(self.slots) if request is None}
        moved: list[MovedRow] = []
        while None in self.slots:
            last = self.slots.pop()
            if last is not None:
                free = self.slots.index(None)
                self.slots[free] = last
                moved.append(MovedRow(len(self.slots), free, Move.UNIDIRECTIONAL))
                gone.discard(free)
        return tuple(sorted(gone)), moved

    def batch(self) -> LiveBatch:
        return LiveBatch(tuple(self.requests))


def plain_tokens(token_ids: Sequence[int]) -> list[int]:
    """The tokens of an output list; this read is not counted."""
    return list(token_ids.data if isinstance(token_ids, CountedTokens) else token_ids)


def trailing_placeholders(output: Sequence[int]) -> int:
    """The number of placeholders at the end."""
    tokens = output.data if isinstance(output, CountedTokens) else output
    return next((i for i, token_id in enumerate(reversed(tokens)) if token_id != PLACEHOLDER_TOKEN_ID), len(tokens))
