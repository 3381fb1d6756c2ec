"""The contracts of a live batch: correct penalties and thinking budgets, which keep what they read of each row.

A step compares the text that was read with the live list, forgets what is gone and reads what is new: correct whatever
happened in between, and with state that a fault can spoil.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from exam.examined import Examined, Lazy, constants
from fairdraw.contracts import Capabilities, Move

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.contracts import AddedRow, LiveBatch, LiveRequest, Markers, RowChanges


@dataclass
class State:
    """What a session knows of a row, whatever the contract."""

    params: Any
    num_prompt: int
    came_back: bool
    used_again: bool
    age: int = 0
    moved: bool = False
    moved_before: bool = False
    cut: bool = False
    read: list[int] = field(default_factory=list)


class Rows:
    """A session: what is kept per row, and how it follows the events of the batch."""

    def __init__(self, scanner: Examined) -> None:
        self.scanner, self.rows, self.owned = scanner, dict[int, Any](), set[int]()
        self.step, self.size, self.size_before = -1, 0, 0
        self.requests: Sequence[Any] = ()

    def fresh(self, added: AddedRow, former: Any) -> Any:
        """Return what is known of a request that enters."""
        raise NotImplementedError

    def sync(self, changes: RowChanges) -> None:
        self.requests, self.size_before, self.size = (), self.size, changes.batch_size
        for row in changes.removed:
            self.rows.pop(row, None)
        for added in changes.added:
            former = self.rows.get(added.row) or getattr(self, "gone", {}).get(added.row)
            self.rows[added.row] = self.fresh(added, former)
            self.owned.add(added.row)
        for source, target, direction in changes.moved:
            if self.strikes("not moved", target) and target in self.rows:
                continue
            there = self.rows.pop(target, None)
            if source in self.rows:
                self.rows[target] = self.rows.pop(source)
                self.rows[target].moved = self.rows[target].moved_before = True
            if direction is Move.SWAP and there is not None:
                self.rows[source] = there
                there.moved = there.moved_before = True

    def begin(self, requests: Sequence[Any]) -> None:
        """Begin a step."""
        self.step, self.size, self.requests = self.step + 1, len(requests), requests

    def end(self) -> None:
        """End a step."""
        for state in self.rows.values():
            state.age, state.moved = state.age + 1, False
        self.size_before = self.size
        self.gone = dict(self.rows)

    def base(self, added: AddedRow) -> tuple[Any, int, bool, bool]:
        """Return the first fields of a state."""
        prompt, output = added.prompt_token_ids, added.output_token_ids
        return added.params, len(prompt), len(output) > 0, added.row in self.owned

    def strikes(self, effect: str, row: int, **more: Any) -> bool:
        """Whether the fault strikes this row now."""
        return self.scanner.effect == effect and bool(self.scanner.hit(effect, self.about(row, **more)))

    def about(self, row: int, **more: Any) -> Lazy:
        """Return the features of a row, and some more."""
        state = self.rows.get(row)
        live = self.requests[row] if row < len(self.requests) else None
        ahead = self.requests[row - 1] if 0 < row <= len(self.requests) else None
        drafts = [len(one.draft_token_ids) for one in self.requests]
        makers: dict[str, Any] = {
            "batch_size": lambda: self.size,
            "num_prompt": lambda: -1 if state is None else state.num_prompt,
            "num_output": lambda: -1 if live is None else len(live.output_token_ids),
            "num_drafts": lambda: -1 if live is None else len(live.draft_token_ids),
            "speculates": lambda: live is not None and len(live.draft_token_ids) > 0,
            "row": lambda: row,
            "rows_behind": lambda: self.size - 1 - row,
            "place": lambda: 0,
            "token": lambda: -1,
            "step": lambda: self.step,
            "late": lambda: live is not None and list(live.output_token_ids[-1:]) == [-1],
            "after_bigger": lambda: self.size_before > self.size,
            "among_drafts": lambda: sum(drafts) > (drafts[row] if row < len(drafts) else 0),
            "after_drafts": lambda: ahead is not None and len(ahead.draft_token_ids) > 0,
            "after_late": lambda: ahead is not None and list(ahead.output_token_ids[-1:]) == [-1],
            "after_new": lambda: row - 1 in self.rows and self.rows[row - 1].age == 0,
            "entered": lambda: state is not None and state.age == 0,
        }
        names = ("age", "used_again", "came_back", "moved", "moved_before", "cut")
        kept = {name: 0 if state is None else getattr(state, name) for name in names}
        return Lazy({**makers, **constants(kept | more)})


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(other))
    if list(one[:most]) == list(other[:most]):
        return most
    return next(i for i in range(most) if one[i] != other[i])


# -- penalties ------------------------------------------------------------------------------------------------------


@dataclass
class Counted(State):
    """A row: its prompt's tokens, and how often each token stands in the output that was read."""

    in_prompt: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # [vocab_size] bool
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [vocab_size] int64

    @property
    def factors(self) -> tuple[float, float, float]:
        return self.params.factors  # type: ignore[no-any-return]


class PenaltyRows(Rows):
    """A session."""

    def __init__(self, scanner: Examined, vocab_size: int) -> None:
        super().__init__(scanner)
        self.vocab_size = vocab_size

    def tally(self, ids: Sequence[int]) -> np.ndarray:  # [vocab_size] int64
        known = np.array([i for i in ids if 0 <= i < self.vocab_size], np.int64)
        return np.bincount(known, minlength=self.vocab_size)

    def about(self, row: int, **more: Any) -> Lazy:
        params = self.rows[row].params if row in self.rows else None
        factors = (0, 0, 1) if params is None else params.factors
        return super().about(
            row,
            vocab_size=self.vocab_size,
            has_presence=factors[0] != 0,
            has_frequency=factors[1] != 0,
            has_repetition=factors[2] != 1,
            rewards=min(factors[:2]) < 0 or factors[2] < 1,
            **more,
        )

    def fresh(self, added: AddedRow, former: Any) -> Counted:
        in_prompt = self.tally(added.prompt_token_ids) > 0
        state = Counted(*self.base(added), in_prompt=in_prompt, counts=self.tally([]))
        if former is not None:
            self.rows[added.row] = state  # features are those of the new request
            if self.strikes("left over", added.row):
                state.counts = former.counts.copy()
            if self.strikes("old prompt", added.row):
                state.in_prompt = former.in_prompt
            if self.strikes("old factors", added.row):
                state.params = former.params
        return state

    def follow(self, row: int, output: Sequence[int]) -> None:
        """Forget what is gone, count what is new."""
        state, now = self.rows[row], list(output)
        same = common(state.read, now)
        if same < len(state.read):
            state.cut = True
            if not self.strikes("not taken back", row):
                state.counts = state.counts - self.tally(state.read[same:])
        new = now[same:]
        if self.scanner.effect in ("missed", "twice"):
            times = self.scanner.effect == "twice" and 2
            new = [one for one in new for _ in range(times if self.strikes(self.scanner.effect, row, token=one) else 1)]
        state.counts = state.counts + self.tally(new)
        state.read = now

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32
        self.begin(batch.requests)
        for row, request in enumerate(batch.requests):
            self.follow(row, request.output_token_ids)
        for row, request in enumerate(batch.requests):
            self.apply(logits[row].numpy(), row, request, len(request.draft_token_ids))
        if not batch.num_drafts:
            self.end()
        return logits

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32
        places = [(row, r, place) for row, r in enumerate(batch.requests) for place in range(len(r.draft_token_ids))]
        for line, (row, request, place) in enumerate(places):
            self.apply(logits[line].numpy(), row, request, place)
        if batch.num_drafts:
            self.end()
        return logits

    def apply(self, logits: np.ndarray, row: int, request: LiveRequest, place: int) -> None:
        """Penalise one row in place."""
        drafts = list(request.draft_token_ids)
        seen = drafts[: place + (place < len(drafts) and self.strikes("own draft", row, place=place))]
        if self.strikes("drafts unseen", row, place=place):
            seen = []
        owner = row - 1 if row and self.strikes("neighbour", row, place=place) else row
        state = self.rows[owner]
        counts = state.counts + self.tally(seen) if seen else state.counts
        presence, frequency, repetition = map(np.float32, self.rows[row].factors)
        presence *= not self.strikes("no presence", row, place=place)
        frequency *= not self.strikes("no frequency", row, place=place)
        if self.strikes("no repetition", row, place=place):
            repetition = np.float32(1)
        if self.strikes("weak", row, place=place):
            frequency = np.float32(frequency * self.scanner.size)
        if self.strikes("once", row, place=place):
            counts = np.minimum(counts, 1)
        used = counts > 0
        seen_ids = used if self.strikes("prompt unseen", row, place=place) else state.in_prompt | used
        divides = (logits[seen_ids] > 0) | self.strikes("divides", row, place=place)
        logits[seen_ids] = np.where(divides, logits[seen_ids] / repetition, logits[seen_ids] * repetition)
        logits[used] -= frequency * counts[used].astype(np.float32) + presence


class Penalties(Examined):
    """The scanner."""

    contract = "penalties"
    capabilities = Capabilities.of({"new-tokens-only": "it compares the whole list with what it has read"})

    def open_penalties(self, vocab_size: int) -> PenaltyRows:
        return PenaltyRows(self, vocab_size)


# -- thinking budgets -----------------------------------------------------------------------------------------------


@dataclass
class Thought(State):
    """A row: the text that was read, and the thinking tokens in the open section."""

    count: int | None = None
    marks: list[int | None] = field(default_factory=list)
    """The count after each token that was read, so that text can be taken back."""

    @property
    def budget(self) -> int | None:
        return self.params.thinking_token_budget  # type: ignore[no-any-return]


class BudgetRows(Rows):
    """A session."""

    def __init__(self, scanner: Examined, markers: Markers) -> None:
        super().__init__(scanner)
        self.start, self.finish = tuple(markers.start), tuple(markers.end)

    def about(self, row: int, **more: Any) -> Lazy:
        budget = self.rows[row].budget if row in self.rows else None
        lengths = {"len_start": len(self.start), "len_end": len(self.finish)}
        return super().about(row, budget=-1 if budget is None else budget, **lengths, **more)

    def fresh(self, added: AddedRow, former: Any) -> Thought:
        state = self.rows[added.row] = Thought(*self.base(added))
        for token in added.prompt_token_ids:
            self.read(added.row, token)
        if former is not None and self.strikes("left over", added.row):
            state.count = former.count
        if former is not None and self.strikes("old budget", added.row):
            state.params = former.params
        return state

    def read(self, row: int, token: int, place: int = 0) -> None:
        """Read one token more."""
        state = self.rows[row]
        state.read.append(token)
        state.count = self.after(row, state, token, place)
        state.marks.append(state.count)

    def after(self, row: int, state: Thought, token: int, place: int) -> int | None:
        """Return the count after the last token that was read."""
        text = state.read
        opened, closed = (tuple(text[-len(marker) :]) == marker for marker in (self.start, self.finish))
        closed = closed and not self.strikes("end missed", row, token=token, place=place)
        opened = opened and not self.strikes("start missed", row, token=token, place=place)
        if opened and closed:
            opened, closed = len(self.start) > len(self.finish), len(self.finish) >= len(self.start)
        if closed:
            return None
        if opened and (state.count is None or len(text) <= state.num_prompt):
            return 0
        return None if state.count is None else state.count + 1

    def back_to(self, state: Thought, length: int, *, kept: bool = False) -> None:
        """Take text back."""
        del state.read[length:], state.marks[length:]
        if not kept:
            state.count = state.marks[-1] if state.marks else None

    def follow(self, row: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Read the live output. Placeholders at its end stand for what is forced there."""
        state, now = self.rows[row], list(output)
        known = len(now)
        while known and now[known - 1] == -1:
            known -= 1
        text = [*prompt, *now[:known]]
        same = common(state.read, text)
        if same < len(state.read):
            state.cut = True
            self.back_to(state, same, kept=self.strikes("not taken back", row))
        for token in text[same:]:
            self.read(row, token)
        for _ in range(len(now) - known):
            forced = self.next(row, 0)
            self.read(row, -1 if forced is None else forced)

    def next(self, row: int, place: int) -> int | None:
        """Return the token that is forced after what was read."""
        state = self.rows[row]
        budget = state.budget
        if row and budget is not None and self.strikes("neighbour", row, place=place):
            budget = self.rows[row - 1].budget
        if state.count is None or budget is None or self.strikes("not forced", row, place=place):
            return None
        budget = max(0, budget + self.strikes("late", row, place=place) - self.strikes("early", row, place=place))
        if state.count < budget:
            return None
        shift = int(self.strikes("wrong token", row, place=place))
        longest = 0 if self.strikes("from the first", row, place=place) else len(self.finish) - 1
        for length in range(min(longest, state.count - budget), 0, -1):
            if tuple(state.read[-length:]) == self.finish[:length]:
                return self.finish[length] + shift
        return self.finish[0] + shift

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        found = self.answers(batch.requests)
        return {row: answer for row, answer in found.items() if answer}

    def answers(self, requests: Sequence[Any]) -> dict[int, list[tuple[int, int]]]:
        """Return what is forced in each row with a budget, for a batch of any contract."""
        self.begin(requests)
        found = {}
        for row, request in enumerate(requests):
            if self.rows[row].budget is not None:
                self.follow(row, request.prompt_token_ids, request.output_token_ids)
                found[row] = self.along(row, request.draft_token_ids)
        self.end()
        return found

    def along(self, row: int, drafts: Sequence[int]) -> list[tuple[int, int]]:
        """Return what is forced at each draft and after them; the drafts are taken back at the end."""
        state = self.rows[row]
        length, count, answer = len(state.read), state.count, []
        for place in range(len(drafts) + 1):
            token = self.next(row, place)
            if token is not None:
                answer.append((place, token))
            if place == len(drafts) or (token is not None and drafts[place] != token):
                break
            if not self.strikes("drafts unseen", row, place=place, token=drafts[place]):
                self.read(row, drafts[place], place)
        self.back_to(state, length)
        state.count = count
        return answer


class Budgets(Examined):
    """The scanner."""

    contract = "thinking_budget"
    capabilities = Capabilities.of(
        {"new-tokens-only": "it compares the whole list with what it has read", "visible-state": "it cannot be asked"}
    )

    def open_thinking(self, markers: Markers) -> BudgetRows:
        return BudgetRows(self, markers)
