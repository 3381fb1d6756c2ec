"""Correct scanners: penalties and thinking budgets that keep what they know of each row between steps.

Each row remembers the text that it has read. A step compares it with the live list, forgets what is no longer there and
reads what is new: right whatever happened in between, and with state that a fault can spoil.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairdraw.protocols import Capabilities, Move

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.protocols import AddedRow, LiveBatch, LiveRequest, Markers, RowChanges

_LACKING = {"new-tokens-only": "it compares the whole list with what it has read"}


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix."""
    most = min(len(one), len(other))
    if list(one[:most]) == list(other[:most]):
        return most
    return next(i for i in range(most) if one[i] != other[i])


class Rows:
    """What a session keeps per row, and how it follows the events of the batch."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}

    def fresh(self, added: AddedRow) -> Any:
        """What is known of a request that enters."""
        raise NotImplementedError

    def sync(self, changes: RowChanges) -> None:
        self.remove(changes)
        for added in changes.added:
            self.add(added)
        for moved in changes.moved:
            self.move(moved.source, moved.target, moved.direction)

    def remove(self, changes: RowChanges) -> None:
        for row in changes.removed:
            self.rows.pop(row, None)

    def add(self, added: AddedRow) -> None:
        self.rows[added.row] = self.fresh(added)

    def move(self, source: int, target: int, direction: Move) -> None:
        there = self.rows.pop(target, None)
        if source in self.rows:
            self.rows[target] = self.rows.pop(source)
        if direction is Move.SWAP and there is not None:
            self.rows[source] = there


# -- penalties ------------------------------------------------------------------------------------------------------


@dataclass
class Counted:
    """One row: its prompt's tokens, and how often each token stands in the output that was read."""

    in_prompt: np.ndarray  # [vocab_size] bool
    counts: np.ndarray  # [vocab_size] int64
    factors: tuple[float, float, float]
    read: list[int] = field(default_factory=list)


class PenaltyRows(Rows):
    """A session."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def tally(self, ids: Sequence[int]) -> np.ndarray:  # [vocab_size] int64
        known = np.array([i for i in ids if 0 <= i < self.vocab_size], np.int64)
        return np.bincount(known, minlength=self.vocab_size)

    def fresh(self, added: AddedRow) -> Counted:
        return Counted(self.prompt(added.prompt_token_ids), self.tally([]), added.params.factors)

    def prompt(self, ids: Sequence[int]) -> np.ndarray:  # [vocab_size] bool
        return np.asarray(self.tally(ids) > 0)

    def follow(self, state: Counted, output: Sequence[int]) -> None:
        """Forget what is gone, count what is new."""
        now = list(output)
        same = common(state.read, now)
        if same < len(state.read):
            self.forget(state, state.read[same:])
        self.count(state, now[same:])
        state.read = now

    def forget(self, state: Counted, ids: Sequence[int]) -> None:
        state.counts = state.counts - self.tally(ids)

    def count(self, state: Counted, ids: Sequence[int]) -> None:
        state.counts = state.counts + self.tally(ids)

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32
        rows = logits.numpy()
        for row, request in enumerate(batch.requests):
            self.follow(self.rows[row], request.output_token_ids)
            self.apply(rows[row], row, request, self.seen(request, len(request.draft_token_ids)))
        return logits

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32
        rows, at = logits.numpy(), 0
        for row, request in enumerate(batch.requests):
            for place in range(len(request.draft_token_ids)):
                self.apply(rows[at], row, request, self.seen(request, place))
                at += 1
        return logits

    def seen(self, request: LiveRequest, place: int) -> Sequence[int]:
        """The drafts that stand before a row."""
        return request.draft_token_ids[:place]

    def apply(self, logits: np.ndarray, row: int, request: LiveRequest, drafts: Sequence[int]) -> None:
        """Penalise one row in place."""
        state = self.rows[row]
        counts = state.counts + self.tally(drafts) if len(drafts) else state.counts
        self.subtract(logits, state.in_prompt, counts, state.factors)

    def subtract(
        self, logits: np.ndarray, in_prompt: np.ndarray, counts: np.ndarray, factors: tuple[float, float, float]
    ) -> None:
        presence, frequency, repetition = map(np.float32, factors)
        seen = in_prompt | (counts > 0)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
        used = counts > 0
        logits[used] -= frequency * counts[used].astype(np.float32) + presence


class Penalties:
    """The scanner."""

    name, device = "correct", "cpu"
    contract: Literal["penalties"] = "penalties"
    rows: type[PenaltyRows] = PenaltyRows

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.of(_LACKING)

    def open_penalties(self, vocab_size: int) -> PenaltyRows:
        return self.rows(vocab_size)


# -- thinking budgets -----------------------------------------------------------------------------------------------


@dataclass
class Thought:
    """One row: the text that was read, and the thinking tokens in the open section."""

    prompt: tuple[int, ...]
    budget: int | None
    read: list[int] = field(default_factory=list)
    count: int | None = None
    marks: list[int | None] = field(default_factory=list)
    """The count after each token that was read, so that text can be taken back."""


class BudgetRows(Rows):
    """A session."""

    def __init__(self, markers: Markers) -> None:
        super().__init__()
        self.start, self.end = tuple(markers.start), tuple(markers.end)

    def fresh(self, added: AddedRow) -> Thought:
        state = Thought(tuple(added.prompt_token_ids), added.params.thinking_token_budget)
        for token in state.prompt:
            self.read(state, token)
        return state

    def read(self, state: Thought, token: int) -> None:
        """One token more."""
        state.read.append(token)
        state.count = self.after(state, state.read)
        state.marks.append(state.count)

    def ends_with(self, text: Sequence[int], marker: tuple[int, ...]) -> bool:
        return tuple(text[-len(marker) :]) == marker

    def after(self, state: Thought, text: Sequence[int]) -> int | None:
        """The count after the last token of `text`."""
        opened, closed = self.ends_with(text, self.start), self.ends_with(text, self.end)
        if opened and closed:
            opened, closed = len(self.start) > len(self.end), len(self.end) >= len(self.start)
        if closed:
            return None
        if opened and (state.count is None or len(text) <= len(state.prompt)):
            return 0
        return None if state.count is None else state.count + 1

    def back_to(self, state: Thought, length: int) -> None:
        """Take text back."""
        del state.read[length:], state.marks[length:]
        state.count = state.marks[-1] if state.marks else None

    def follow(self, state: Thought, output: Sequence[int]) -> None:
        """Read the live output. Placeholders at its end stand for what is forced there."""
        now = list(output)
        known = len(now)
        while known and now[known - 1] == -1:
            known -= 1
        text = [*state.prompt, *now[:known]]
        same = common(state.read, text)
        if same < len(state.read):
            self.back_to(state, same)
        for token in text[same:]:
            self.read(state, token)
        for _ in range(len(now) - known):
            forced = self.next(state)
            self.read(state, -1 if forced is None else forced)

    def next(self, state: Thought) -> int | None:
        """The token that is forced after what was read."""
        if state.budget is None or state.count is None or state.count < state.budget:
            return None
        for length in range(min(len(self.end) - 1, state.count - state.budget), 0, -1):
            if tuple(state.read[-length:]) == self.end[:length]:
                return self.end[length]
        return self.end[0]

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        found = {}
        for row, request in enumerate(batch.requests):
            state = self.rows[row]
            if state.budget is not None:
                self.follow(state, request.output_token_ids)
                answer = self.along(state, request.draft_token_ids)
                if answer:
                    found[row] = answer
        return found

    def along(self, state: Thought, drafts: Sequence[int]) -> list[tuple[int, int]]:
        """What is forced at each draft and after them; the drafts are taken back at the end."""
        length, answer = len(state.read), []
        for position in range(len(drafts) + 1):
            token = self.next(state)
            if token is not None:
                answer.append((position, token))
            if position == len(drafts) or (token is not None and drafts[position] != token):
                break
            self.read(state, drafts[position])
        self.back_to(state, length)
        return answer


class Budgets:
    """The scanner."""

    name, device = "correct", "cpu"
    contract: Literal["thinking_budget"] = "thinking_budget"
    rows: type[BudgetRows] = BudgetRows

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.of(_LACKING | {"visible-state": "it cannot be asked"})

    def open_thinking(self, markers: Markers) -> BudgetRows:
        return self.rows(markers)
