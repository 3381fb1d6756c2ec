"""Our thinking budget against a recount from the whole text: any markers, any budgets, any history. Needs no vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import fairdraw
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.sampler_impl import thinking_budget
from fairdraw.sampler_impl._scanners import history as _history
from fairdraw.sampler_impl._scanners.history import History
from fairdraw.sampler_impl.thinking_budget import ForcedToken, Markers, ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_REQUESTS = 4


def batch_update(removed: Any = (), added: Any = (), moved: Any = ()) -> Any:  # Any: as vLLM's BatchUpdate
    requests = [(row, SimpleNamespace(thinking_token_budget=b), prompt, live) for row, b, prompt, live in added]
    moves = [(source, target, SimpleNamespace(name=name)) for source, target, name in moved]
    return SimpleNamespace(removed=removed, added=requests, moved=moves)


@dataclass
class Request:
    prompt: list[int]
    budget: int | None
    output: list[int]


@dataclass(frozen=True)
class Event:
    kind: str
    row: int
    other: int
    ids: list[int]
    drafts: list[list[int]]


IDS = st.integers(0, 2)
MARKERS = st.lists(IDS, min_size=1, max_size=4)
KINDS = (*("append", "add", "append", "hide", "repair") * 2, "obey", "cut", "remove", "swap", "resume")
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(KINDS),
    row=st.integers(0, 3),
    other=st.integers(0, 6),
    ids=st.lists(IDS, max_size=4),
    drafts=st.lists(st.lists(st.integers(-1, 2), max_size=4), min_size=MOST_REQUESTS, max_size=MOST_REQUESTS),
)


class Batch:
    """Rows of requests, and our state that follows them."""

    def __init__(self, start: list[int], end: list[int]) -> None:
        self.ours = ThinkingBudget(start, end)
        self.oracle = ThinkingBudgetOracle(start, end)
        self.rows: list[Request] = []

    def live(self, event: Event) -> None:
        getattr(self, event.kind)(event, self.rows[event.row % len(self.rows)] if self.rows else None)
        self.ours.update_state([request.output for request in self.rows], event.drafts[: len(self.rows)])
        for row, request in enumerate(self.rows):
            budget = None if request.budget == -1 else request.budget
            expected = self.oracle.forced(request.prompt, request.output, event.drafts[row], budget)
            assert self.ours.forced.get(row, []) == expected
            if budget is not None:
                known = self.oracle.known(request.prompt, request.output, budget)
                assert self.ours.think_counts()[row] == self.oracle.think_count(request.prompt, known)

    def append(self, event: Event, request: Request | None) -> None:
        if request:
            request.output += event.ids

    def obey(self, event: Event, request: Request | None) -> None:
        forced = self.ours.forced.get(event.row % max(1, len(self.rows)), [])
        if request:
            request.output += [token.token_id for token in forced if token.position == 0]

    def hide(self, event: Event, request: Request | None) -> None:
        if request:
            request.output += [-1] * len(event.ids)

    def repair(self, event: Event, request: Request | None) -> None:
        """In every row the trailing placeholders become tokens, perhaps fewer."""
        for row in self.rows:
            hidden = 0
            while row.output and row.output[-1] == -1:
                hidden += 1
                row.output.pop()
            row.output += event.ids[:hidden]

    def cut(self, event: Event, request: Request | None) -> None:
        if request:
            del request.output[max(0, len(request.output) - event.other) :]

    def add(self, event: Event, request: Request | None) -> None:
        if len(self.rows) < MOST_REQUESTS:
            self.rows.append(Request([*event.ids, *event.drafts[0]], event.other - 1, list(event.drafts[1])))
            self.enter(len(self.rows) - 1)

    def enter(self, row: int) -> None:
        request = self.rows[row]
        self.ours.sync_batch(batch_update(added=((row, request.budget, request.prompt, request.output),)))

    def remove(self, event: Event, request: Request | None) -> None:
        """The last row moves into the gap, as when vLLM condenses."""
        if request:
            row, last = event.row % len(self.rows), len(self.rows) - 1
            self.rows[row] = self.rows[last]
            del self.rows[last]
            gap = batch_update(removed=(last,)) if row == last else batch_update(moved=((last, row, "UNIDIRECTIONAL"),))
            self.ours.sync_batch(gap)

    def swap(self, event: Event, request: Request | None) -> None:
        if len(self.rows) > 1:
            a, b = event.row % len(self.rows), event.other % len(self.rows)
            if a != b:
                self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
                self.ours.sync_batch(batch_update(moved=((a, b, "SWAP"),)))

    def resume(self, event: Event, request: Request | None) -> None:
        """Preempted and added again, with a new list if asynchronous."""
        if request:
            request.output = request.output if event.other % 2 else list(request.output)
            self.enter(event.row % len(self.rows))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(start=MARKERS, end=MARKERS, events=st.lists(EVENTS, max_size=25))
def test_forced_tokens_equal_recount_after_every_event(start: list[int], end: list[int], events: list[Event]) -> None:
    live(start, end, events)


def live(start: list[int], end: list[int], events: list[Event]) -> None:
    batch = Batch(start, end if end != start else [*end, 3])
    for event in events:
        batch.live(event)


def marker_across_the_window_edge_is_missed(patch: pytest.MonkeyPatch) -> None:
    advance, text = thinking_budget._Request.advance, thinking_budget._Request.text
    edge = 0

    def remember(self: Any) -> None:
        nonlocal edge
        edge = len(self.history.ids)
        advance(self)
        edge = 0

    def text_after_edge(self: Any, ids: list[int], length: int) -> list[int]:
        return ids[edge:length] if edge else text(self, ids, length)

    patch.setattr(thinking_budget._Request, "advance", remember)
    patch.setattr(thinking_budget._Request, "text", text_after_edge)


def prompt_is_forgotten_at_the_edge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        thinking_budget._Request,
        "text",
        lambda self, ids, length: ids[max(0, length - self.markers.reach - 1) : length],
    )


def cut_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    advance = History.advance

    def stubborn(self: History) -> int:
        before = len(self.ids)
        advance(self)
        return before

    patch.setattr(History, "advance", stubborn)


def repair_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def read(self: History) -> None:
        self.ids += self.live[len(self.ids) :]

    patch.setattr(History, "read", read)
    patch.setattr(History, "standing", lambda self: min(len(self.ids), len(self.live)))


def second_start_renews_the_budget(patch: pytest.MonkeyPatch) -> None:
    after = thinking_budget._Request._after

    def renewing(self: Any, text: list[int], count: int | None) -> int | None:
        return 0 if self.markers.at_end_of(text) is self.markers.start else after(self, text, count)

    patch.setattr(thinking_budget._Request, "_after", renewing)


def end_among_the_drafts_is_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(thinking_budget._Request, "_after", lambda self, text, count: count if count is None else count + 1)


def end_marker_is_begun_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Markers, "begun", lambda self, text, most: 0)


def natural_beginning_of_the_end_counts(patch: pytest.MonkeyPatch) -> None:
    begun = Markers.begun
    patch.setattr(Markers, "begun", lambda self, text, most: begun(self, text, 9))


def shorter_marker_counts(patch: pytest.MonkeyPatch) -> None:
    def at_end_of(self: Markers, text: list[int]) -> list[int] | None:
        fitting = [marker for marker in reversed(self.longest_first) if text[-len(marker) :] == marker]
        return fitting[0] if fitting else None

    patch.setattr(Markers, "at_end_of", at_end_of)


def finished_request_is_left_behind(patch: pytest.MonkeyPatch) -> None:
    def follow(states: dict[int, Any], update: Any, make_state: Any) -> dict[int, Any]:
        filled = [target for _, target, direction in update.moved if direction.name != "SWAP"]
        return {row: states[row] for row in filled if row in states} | _history.follow_rows(states, update, make_state)

    patch.setattr(thinking_budget, "follow_rows", follow)


def swapped_rows_share_a_state(patch: pytest.MonkeyPatch) -> None:
    def follow(states: dict[int, Any], update: Any, make_state: Any) -> dict[int, Any]:
        rows = _history.follow_rows(states, update, make_state)
        return {a: rows[b] for a, b, direction in update.moved if direction.name == "SWAP" and b in rows} | rows

    patch.setattr(thinking_budget, "follow_rows", follow)


FAULTS = (
    marker_across_the_window_edge_is_missed,
    prompt_is_forgotten_at_the_edge,
    cut_is_not_noticed,
    repair_is_forgotten,
    second_start_renews_the_budget,
    end_among_the_drafts_is_missed,
    end_marker_is_begun_again,
    natural_beginning_of_the_end_counts,
    shorter_marker_counts,
    finished_request_is_left_behind,
    swapped_rows_share_a_state,
)


@pytest.mark.parametrize("plant", FAULTS, ids=[plant.__name__.replace("_", " ") for plant in FAULTS])
def test_mutant_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    search = settings(max_examples=2000, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    check = search(given(start=MARKERS, end=MARKERS, events=st.lists(EVENTS, max_size=25))(live))
    with pytest.raises((AssertionError, IndexError, ValueError)):
        check()


# One request: what is forced where, what is refused, and what is read.


def tracked(budget: int | None, prompt: list[int] | None, output: list[int], row: int = 0) -> ThinkingBudget:
    ours = ThinkingBudget([7], [8, 9])
    ours.sync_batch(batch_update(added=[(row, budget, prompt, output)]))
    return ours


def forced_logits(ours: ThinkingBudget, num_rows: int, bonus: bool, drafts: list[list[int]]) -> list[list[int]]:
    logits = ours.apply_to_logits(torch.zeros(num_rows, 10), bonus, drafts)
    assert set(logits.unique().tolist()) <= {0.0, 1e9}
    found: list[list[int]] = logits.nonzero().tolist()
    return found


def test_forced_tokens_are_set_in_the_rows_of_drafts_and_bonus() -> None:
    outputs, drafts = [[], [], [1]], [[1], [2, 3], [8, 9, 1]]
    ours = tracked(2, [7], outputs[2], row=2)
    ours.update_state(outputs, drafts)
    assert ours.forced == {2: [ForcedToken(1, 8)]}
    assert forced_logits(ours, 6, False, drafts) == [[4, 8]]
    assert forced_logits(ours, 3, True, drafts) == []
    drafts[2] = [1, 8]
    ours.update_state(outputs, drafts)
    assert forced_logits(ours, 5, False, drafts) == [[4, 8]]
    assert forced_logits(ours, 3, True, drafts) == [[2, 9]]


def test_step_without_drafts_forces_the_request_s_own_row() -> None:
    outputs: list[list[int]] = [[], [], [1, 1]]
    ours = tracked(2, [7], outputs[2], row=2)
    for drafts in ([[], [], []], []):
        ours.update_state(outputs, drafts)
        assert forced_logits(ours, 3, False, drafts) == [[2, 8]]


@pytest.mark.parametrize("budget", [None, -1])
def test_request_without_budget_is_not_tracked(budget: int | None) -> None:
    assert not tracked(budget, [7], []).has_tracked_requests()


@pytest.mark.parametrize("num_in_prompt", range(6))
def test_marker_may_span_prompt_and_output_at_any_place(num_in_prompt: int) -> None:
    start, output = [1, 2, 3, 4, 5], list[int]()
    ours = ThinkingBudget(start, [8])
    ours.sync_batch(batch_update(added=[(0, 9, start[:num_in_prompt], output)]))
    output += start[num_in_prompt:]
    ours.update_state([output])
    assert ours.think_counts() == {0: 0}


def test_embedded_prompt_opens_no_section() -> None:
    ours = tracked(0, None, output := [7])
    ours.update_state([output])
    assert ours.think_counts() == {0: 0}
    assert ours.forced == {0: [ForcedToken(0, 8)]}


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start_token_ids=\[\], but it must be at least one token id"):
        ThinkingBudget([], [1])
    with pytest.raises(ValueError, match=r"end_token_ids=\[-1\], but"):
        ThinkingBudget([1], [-1])
    with pytest.raises(ValueError, match=r"start_token_ids=\[1\] equals end_token_ids"):
        ThinkingBudget([1], [1])
    with pytest.raises(ValueError, match="thinking_token_budget=-2, but it must be at least 0"):
        tracked(-2, [], [])
    ours = tracked(0, [7], output := [1])
    with pytest.raises(ValueError, match=r"update_state: output_token_ids\[0\] is not the list"):
        ours.update_state([[1]])
    ours.update_state([output])
    with pytest.raises(ValueError, match=r"logits are \[1, 8\], but row 0 and token 8 must be in it"):
        ours.apply_to_logits(torch.zeros(1, 8), False)


class WatchedList(list[int]):
    """Counts the elements that are read."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:  # Any: an element or a slice
        found = super().__getitem__(index)
        self.num_read += len(found) if isinstance(index, slice) else 1
        return found


def test_step_reads_new_tokens_only() -> None:
    output = WatchedList([1] * 1000)
    ours = tracked(5000, [7], output)
    ours.update_state([output])
    before = output.num_read
    output += [1, 2, 3]
    ours.update_state([output])
    assert output.num_read - before == 4  # three new tokens, and the last one that was read before


def test_scanner_imports_neither_torch_nor_numpy() -> None:
    program = "import sys, fairdraw.sampler_impl.thinking_budget; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(fairdraw.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
