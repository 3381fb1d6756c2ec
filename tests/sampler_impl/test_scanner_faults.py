"""The checks of the suite catch mutants of our own penalties and thinking budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw._adapters import load
from fairdraw._core.checks import Profile
from fairdraw._core.failures import CaseRaised, CheckFailure
from fairdraw._run.loading import all_checks
from fairdraw.sampler_impl import penalties as our_penalties
from fairdraw.sampler_impl import thinking_budget as our_thinking
from fairdraw.sampler_impl._scanners import history as _history
from fairdraw.sampler_impl._scanners import penalty_rows as _penalty_rows
from fairdraw.sampler_impl._scanners.history import History
from fairdraw.sampler_impl._scanners.penalty_rows import PenaltyRows
from fairdraw.sampler_impl.thinking_budget import Markers

if TYPE_CHECKING:
    from collections.abc import Callable

Patch = pytest.MonkeyPatch
CHECKS = {check.code: check for check in all_checks()}
SCANNERS = {"PEN101": load("penalties/torch", "cpu"), "THK101": load("thinking_budget/torch")}


# Faults of the history, which both scanners share.


def cut_is_not_noticed(patch: Patch) -> None:
    advance = History.advance

    def stubborn(self: History) -> int:
        before = len(self.ids)
        advance(self)
        return before

    patch.setattr(History, "advance", stubborn)
    rewind = History.rewind
    patch.setattr(History, "rewind", lambda self, length: rewind(self, length)[:0])


def repair_is_forgotten(patch: Patch) -> None:
    def read(self: History) -> list[int]:
        new = self.live[len(self.ids) :]
        self.ids += new
        return new

    patch.setattr(History, "read", read)
    patch.setattr(History, "standing", lambda self: min(len(self.ids), len(self.live)))


def follow_rows_and(patch: Patch, stale: Callable[[dict[int, Any], dict[int, Any], Any], Any]) -> None:
    def follow(states: dict[int, Any], update: Any, make_state: Any) -> dict[int, Any]:
        rows = _history.follow_rows(states, update, make_state)
        return {**stale(states, rows, update.moved), **rows}

    for module in (our_penalties, our_thinking):
        patch.setattr(module, "follow_rows", follow)


def finished_request_is_left_behind(patch: Patch) -> None:
    follow_rows_and(
        patch, lambda old, new, moved: {b: old[b] for _, b, how in moved if how.name != "SWAP" and b in old}
    )


def swapped_rows_share_a_state(patch: Patch) -> None:
    follow_rows_and(
        patch, lambda old, new, moved: {a: new[b] for a, b, how in moved if how.name == "SWAP" and b in new}
    )


# Faults of the penalties.


def only_the_last_new_token_counts(patch: Patch) -> None:
    def read_last(histories: list[History]) -> _history.Changes:
        _, num_added, dropped = _history.read_changes(histories)
        last = [history.ids[-1] for history, count in zip(histories, num_added, strict=True) if count]
        return _history.Changes(last, [min(count, 1) for count in num_added], dropped)

    patch.setattr(_penalty_rows, "read_changes", read_last)


def bonus_row_sees_no_drafts(patch: Patch) -> None:
    patch.setattr(our_penalties, "bonus_rows", lambda slots, _, size: _penalty_rows.bonus_rows(slots, None, size))


def draft_row_sees_its_own_draft(patch: Patch) -> None:
    def draft_rows(*args: Any) -> PenaltyRows:
        rows = _penalty_rows.draft_rows(*args)
        return replace(rows, num_drafts=rows.num_drafts + 1)

    patch.setattr(our_penalties, "draft_rows", draft_rows)


def prompt_is_forgotten(patch: Patch) -> None:
    patch.setattr(our_penalties, "IN_PROMPT", 0)


def placeholder_counts_as_a_token(patch: Patch) -> None:
    seen = PenaltyRows.seen_drafts
    patch.setattr(
        PenaltyRows,
        "seen_drafts",
        lambda rows, size: seen(replace(rows, draft_token_ids=abs(rows.draft_token_ids)), size),
    )


# Faults of the thinking budget.


def marker_across_the_window_edge_is_missed(patch: Patch) -> None:
    advance, text = our_thinking._Request.advance, our_thinking._Request.text
    edge = 0

    def remember(self: Any) -> None:
        nonlocal edge
        edge = len(self.history.ids)
        advance(self)
        edge = 0

    def text_after_edge(self: Any, ids: list[int], length: int) -> list[int]:
        return ids[edge:length] if edge else text(self, ids, length)

    patch.setattr(our_thinking._Request, "advance", remember)
    patch.setattr(our_thinking._Request, "text", text_after_edge)


def prompt_is_forgotten_at_the_edge(patch: Patch) -> None:
    patch.setattr(
        our_thinking._Request,
        "text",
        lambda self, ids, length: ids[max(0, length - self.markers.reach - 1) : length],
    )


def second_start_renews_the_budget(patch: Patch) -> None:
    after = our_thinking._Request._after

    def renewing(self: Any, text: list[int], count: int | None) -> int | None:
        return 0 if self.markers.at_end_of(text) is self.markers.start else after(self, text, count)

    patch.setattr(our_thinking._Request, "_after", renewing)


def end_among_the_drafts_is_missed(patch: Patch) -> None:
    patch.setattr(our_thinking._Request, "_after", lambda self, text, count: count if count is None else count + 1)


def end_marker_is_begun_again(patch: Patch) -> None:
    patch.setattr(Markers, "begun", lambda self, text, most: 0)


def natural_beginning_of_the_end_counts(patch: Patch) -> None:
    begun = Markers.begun
    patch.setattr(Markers, "begun", lambda self, text, most: begun(self, text, 9))


def shorter_marker_counts(patch: Patch) -> None:
    def at_end_of(self: Markers, text: list[int]) -> list[int] | None:
        fitting = [marker for marker in reversed(self.longest_first) if text[-len(marker) :] == marker]
        return fitting[0] if fitting else None

    patch.setattr(Markers, "at_end_of", at_end_of)


SHARED = (cut_is_not_noticed, repair_is_forgotten, finished_request_is_left_behind, swapped_rows_share_a_state)
FAULTS = [
    *((code, fault) for code in SCANNERS for fault in SHARED),
    ("PEN101", only_the_last_new_token_counts),
    ("PEN101", bonus_row_sees_no_drafts),
    ("PEN101", draft_row_sees_its_own_draft),
    ("PEN101", prompt_is_forgotten),
    ("PEN101", placeholder_counts_as_a_token),
    ("THK101", marker_across_the_window_edge_is_missed),
    ("THK101", prompt_is_forgotten_at_the_edge),
    ("THK101", second_start_renews_the_budget),
    ("THK101", end_among_the_drafts_is_missed),
    ("THK101", end_marker_is_begun_again),
    ("THK101", natural_beginning_of_the_end_counts),
    ("THK101", shorter_marker_counts),
]


@pytest.mark.parametrize(("code", "plant"), FAULTS, ids=[f"{code} {plant.__name__}" for code, plant in FAULTS])
def test_mutant_is_caught(code: str, plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises((CheckFailure, CaseRaised)):
        CHECKS[code].run(SCANNERS[code], profile=Profile("mutant", 1000, 1000))


def test_buffer_that_is_not_repaired_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr("fairdraw.sampler_impl._scanners.padded_outputs._repair", lambda row, output_token_ids: None)
    with pytest.raises((CheckFailure, CaseRaised)):
        CHECKS["PEN101"].run(load("penalties/padded"), profile=Profile("mutant", 400, 400))
