"""Faults of penalty and thinking-budget scanners, as engines have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from exam.areas import EXAMPLE
from exam.correct_scanners import BudgetRows, Budgets, Counted, Penalties, PenaltyRows, Thought
from exam.registry import between, fault
from fairdraw.protocols import Move

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from torch import Tensor

    from exam.registry import Wrong
    from fairdraw.protocols import AddedRow, LiveBatch, LiveRequest, RowChanges


def penalties(session: type[PenaltyRows]) -> Any:
    """A scanner with this session."""
    return type("Faulty", (Penalties,), {"rows": session})()


def budgets(session: type[BudgetRows]) -> Any:
    """A scanner with this session."""
    return type("Faulty", (Budgets,), {"rows": session})()


# -- sizes ----------------------------------------------------------------------------------------------------------


@fault("sizes", EXAMPLE)
def penalties_long_prompt(rng: random.Random) -> Wrong:
    most = rng.choice([256, 512, 1024, 2048])

    class Faulty(PenaltyRows):
        def prompt(self, ids: Sequence[int]) -> np.ndarray:
            return super().prompt(ids[:most])

    return f"prompt tokens beyond {most} are not counted", lambda: penalties(Faulty)


@fault("sizes", EXAMPLE)
def penalties_saturating_counts(rng: random.Random) -> Wrong:
    most = rng.choice([15, 31, 63, 127, 255])

    class Faulty(PenaltyRows):
        def subtract(self, logits: Any, in_prompt: Any, counts: Any, factors: Any) -> None:
            super().subtract(logits, in_prompt, np.minimum(counts, most), factors)

    return f"counts saturate at {most}", lambda: penalties(Faulty)


@fault("sizes", EXAMPLE)
def penalties_rows_beyond_a_block(rng: random.Random) -> Wrong:
    most = rng.choice([8, 16, 32, 40])

    class Faulty(PenaltyRows):
        def apply(self, logits: Any, row: int, request: LiveRequest, drafts: Sequence[int]) -> None:
            if row < most:
                super().apply(logits, row, request, drafts)

    return f"rows from number {most} on are not penalised", lambda: penalties(Faulty)


@fault("sizes", EXAMPLE)
def penalties_many_drafts(rng: random.Random) -> Wrong:
    most = rng.choice([4, 5, 7, 8])

    class Faulty(PenaltyRows):
        def seen(self, request: LiveRequest, place: int) -> Sequence[int]:
            return request.draft_token_ids[max(0, place - most) : place]

    return f"a draft row sees at most the {most} drafts before it", lambda: penalties(Faulty)


@fault("sizes", EXAMPLE)
def penalties_ids_in_few_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([9, 10, 12, 15])

    class Faulty(PenaltyRows):
        def tally(self, ids: Sequence[int]) -> np.ndarray:
            return super().tally([i & ((1 << bits) - 1) if i >= 0 else i for i in ids])

    return f"ids are packed into {bits} bits", lambda: penalties(Faulty)


@fault("sizes", EXAMPLE)
def budget_long_markers(rng: random.Random) -> Wrong:
    most = rng.choice([3, 4, 5])

    class Faulty(BudgetRows):
        def ends_with(self, text: Sequence[int], marker: tuple[int, ...]) -> bool:
            return super().ends_with(text, marker[-most:])

    return f"of a marker only the last {most} tokens are compared", lambda: budgets(Faulty)


@fault("sizes", EXAMPLE)
def budget_window_of_text(rng: random.Random) -> Wrong:
    most = between(rng, 30, 600)

    class Faulty(BudgetRows):
        def fresh(self, added: AddedRow) -> Thought:
            state = super().fresh(added)
            if state.count is not None and state.count > most:
                state.count = state.marks[-1] = None
            return state

    return f"a start marker more than {most} tokens before the end of the prompt is not found", lambda: budgets(Faulty)


@fault("sizes", EXAMPLE)
def budget_many_drafts(rng: random.Random) -> Wrong:
    most = rng.choice([4, 5, 6, 8])

    class Faulty(BudgetRows):
        def along(self, state: Thought, drafts: Sequence[int]) -> list[tuple[int, int]]:
            return [pair for pair in super().along(state, drafts) if pair[0] <= most]

    return f"nothing is forced at positions beyond {most}", lambda: budgets(Faulty)


# -- values ---------------------------------------------------------------------------------------------------------


@fault("values", EXAMPLE)
def penalties_tiny_factors(rng: random.Random) -> Wrong:
    least = rng.choice([0.02, 0.05, 0.1])

    class Faulty(PenaltyRows):
        def subtract(self, logits: Any, in_prompt: Any, counts: Any, factors: Any) -> None:
            presence, frequency, repetition = factors
            near = abs(repetition - 1) < least
            super().subtract(logits, in_prompt, counts, (presence, frequency, 1.0 if near else repetition))

    return f"a repetition penalty nearer than {least:g} to 1 is taken for off", lambda: penalties(Faulty)


@fault("values", EXAMPLE)
def penalties_below_one(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def subtract(self, logits: Any, in_prompt: Any, counts: Any, factors: Any) -> None:
            presence, frequency, repetition = factors
            super().subtract(logits, in_prompt, counts, (presence, frequency, max(repetition, 1.0)))

    return "a repetition penalty below 1 counts as 1", lambda: penalties(Faulty)


@fault("values", EXAMPLE)
def penalties_negative(rng: random.Random) -> Wrong:
    which = rng.choice([0, 1])

    class Faulty(PenaltyRows):
        def subtract(self, logits: Any, in_prompt: Any, counts: Any, factors: Any) -> None:
            kept = tuple(max(f, 0.0) if i == which else f for i, f in enumerate(factors))
            super().subtract(logits, in_prompt, counts, kept)

    return f"a negative {('presence', 'frequency')[which]} penalty counts as 0", lambda: penalties(Faulty)


@fault("values", EXAMPLE)
def penalties_last_id(rng: random.Random) -> Wrong:
    which = rng.choice(["first", "last"])

    class Faulty(PenaltyRows):
        def tally(self, ids: Sequence[int]) -> np.ndarray:
            counts = super().tally(ids)
            counts[0 if which == "first" else -1] = 0
            return counts

    return f"the {which} id of the vocabulary is never counted", lambda: penalties(Faulty)


@fault("values", EXAMPLE)
def budget_of_zero(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def fresh(self, added: AddedRow) -> Thought:
            state = super().fresh(added)
            state.budget = state.budget or None
            return state

    return "a budget of 0 is taken for none", lambda: budgets(Faulty)


@fault("values", EXAMPLE)
def budget_of_few_bits(rng: random.Random) -> Wrong:
    most = rng.choice([7, 15, 31, 63])

    class Faulty(BudgetRows):
        def fresh(self, added: AddedRow) -> Thought:
            state = super().fresh(added)
            state.budget = None if state.budget is None else min(state.budget, most)
            return state

    return f"budgets above {most} count as {most}", lambda: budgets(Faulty)


# -- combinations ---------------------------------------------------------------------------------------------------


@fault("combinations", EXAMPLE)
def penalties_two_at_once(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def subtract(self, logits: Any, in_prompt: Any, counts: Any, factors: Any) -> None:
            presence, frequency, repetition = factors
            if presence and frequency and repetition != 1:
                presence = 0.0
            super().subtract(logits, in_prompt, counts, (presence, frequency, repetition))

    return "with all three penalties on, presence is skipped", lambda: penalties(Faulty)


@fault("combinations", EXAMPLE)
def penalties_beside_plain(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:
            self.plain = [not request.params.penalised for request in batch.requests]
            return super().penalise(logits, batch)

        def apply(self, logits: Any, row: int, request: LiveRequest, drafts: Sequence[int]) -> None:
            after_plain = row > 1 and self.plain[row - 1] and not self.plain[row - 2]
            super().apply(logits, row, request, [] if after_plain else drafts)

    return "a penalised row behind a penalised and a plain one does not see its drafts", lambda: penalties(Faulty)


@fault("combinations", EXAMPLE)
def penalties_placeholders_among_drafts(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def seen(self, request: LiveRequest, place: int) -> Sequence[int]:
            drafts = request.draft_token_ids[:place]
            unknown = any(token < 0 for token in request.output_token_ids)
            return drafts[1:] if unknown else drafts

    return "where the output ends in a token still unknown, the first draft is not counted", lambda: penalties(Faulty)


@fault("combinations", EXAMPLE)
def budget_marker_over_the_prompt_with_drafts(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def along(self, state: Thought, drafts: Sequence[int]) -> list[tuple[int, int]]:
            output = len(state.read) - len(state.prompt)
            if drafts and 0 < output < len(self.start):
                kept = state.count
                state.count = None if state.count == 0 else state.count
                answer = super().along(state, drafts)
                state.count = kept
                return answer
            return super().along(state, drafts)

    return "a section opened by a marker across prompt and output is not seen in a step with drafts", lambda: budgets(
        Faulty
    )


# -- time -----------------------------------------------------------------------------------------------------------


@fault("time", EXAMPLE)
def penalties_regrown_text(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def follow(self, state: Counted, output: Sequence[int]) -> None:
            if len(output) >= len(state.read):
                now = list(output)
                known = [i for i, token in enumerate(state.read) if token < 0]
                self.count(state, [now[i] for i in known] + now[len(state.read) :])
                state.read = now
            else:
                super().follow(state, output)

    return "text that was cut and has grown again between two looks is not recounted", lambda: penalties(Faulty)


@fault("time", EXAMPLE)
def penalties_add_and_move(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def sync(self, changes: RowChanges) -> None:
            for moved in changes.moved:
                self.move(moved.source, moved.target, moved.direction)
            self.remove(changes)
            for added in changes.added:
                self.add(added)

    return "moves are followed before additions", lambda: penalties(Faulty)


@fault("time", EXAMPLE)
def penalties_prompt_kept_on_swap(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def move(self, source: int, target: int, direction: Move) -> None:
            super().move(source, target, direction)
            if direction is Move.SWAP and source in self.rows and target in self.rows:
                one, other = self.rows[source], self.rows[target]
                one.in_prompt, other.in_prompt = other.in_prompt, one.in_prompt

    return "a swap leaves the prompts where they were", lambda: penalties(Faulty)


@fault("time", EXAMPLE)
def penalties_sessions_share(rng: random.Random) -> Wrong:
    class Scanner(Penalties):
        def __init__(self) -> None:
            self.prompts: dict[tuple[int, int], np.ndarray] = {}

        def open_penalties(self, vocab_size: int) -> PenaltyRows:
            prompts = self.prompts

            class Session(PenaltyRows):
                def prompt(self, ids: Sequence[int]) -> np.ndarray:
                    key = (len(ids), self.vocab_size)
                    return prompts.setdefault(key, super().prompt(ids))

            return Session(vocab_size)

    return "prompts are kept for all sessions, by their length", Scanner


@fault("time", EXAMPLE)
def budget_repaired_token(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def follow(self, state: Thought, output: Sequence[int]) -> None:
            length = len(state.prompt) + len(output)
            if length == len(state.read):
                return
            super().follow(state, output)

    return "a text of the same length as at the last step is not read again", lambda: budgets(Faulty)


@fault("time", EXAMPLE)
def budget_cut_below_a_marker(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def back_to(self, state: Thought, length: int) -> None:
            before = state.count
            super().back_to(state, length)
            if before is None and state.count is not None and len(state.read) > len(state.prompt):
                state.count = None

    return "text cut back into a section leaves it closed", lambda: budgets(Faulty)


# -- fixed seed -----------------------------------------------------------------------------------------------------


@fault("fixed seed", EXAMPLE)
def penalties_preempted_returns(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def fresh(self, added: AddedRow) -> Counted:
            state = super().fresh(added)
            state.read = list(added.output_token_ids)
            self.count(state, [t for t in state.read[:-1] if t >= 0] if len(state.read) > 3 else state.read)
            return state

    return "a request that returns with more than three tokens loses the last one's count", lambda: penalties(Faulty)


@fault("fixed seed", EXAMPLE)
def penalties_two_moves(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def sync(self, changes: RowChanges) -> None:
            before = dict(self.rows)
            super().sync(changes)
            moved = [m for m in changes.moved if m.direction is Move.UNIDIRECTIONAL]
            if len(moved) > 1 and moved[0].source in before:
                self.rows[moved[-1].target] = before.get(moved[-1].source, self.rows[moved[-1].target])
                self.rows[moved[0].target] = self.rows[moved[-1].target]

    return "of two moves in one step the last one's row is written twice", lambda: penalties(Faulty)


@fault("fixed seed", EXAMPLE)
def penalties_repair_beside_growth(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def follow(self, state: Counted, output: Sequence[int]) -> None:
            late = [i for i, token in enumerate(state.read) if token < 0]
            grown = len(output) > len(state.read) + 1
            before = state.counts.copy()
            super().follow(state, output)
            if late and grown:
                state.counts = before + self.tally(list(output)[len(state.read) :])

    return "a token that arrives late is lost if two or more follow it in the same step", lambda: penalties(Faulty)


@fault("fixed seed", EXAMPLE)
def penalties_empty_row_reused(rng: random.Random) -> Wrong:
    class Faulty(PenaltyRows):
        def remove(self, changes: RowChanges) -> None:
            self.gone = {row: self.rows[row] for row in changes.removed if row in self.rows}
            super().remove(changes)

        def add(self, added: AddedRow) -> None:
            super().add(added)
            old = self.gone.get(added.row)
            if old is not None and not added.prompt_token_ids[3:]:
                self.rows[added.row].in_prompt = old.in_prompt

    return (
        "a request with a prompt of three tokens or fewer that replaces a finished one keeps its prompt",
        lambda: penalties(Faulty),
    )


@fault("fixed seed", EXAMPLE)
def budget_count_kept_after_end(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def after(self, state: Thought, text: Sequence[int]) -> int | None:
            after = super().after(state, text)
            if after == 0 and len(text) > len(state.prompt):
                closed = [mark for mark in state.marks if mark is not None]
                return closed[-1] if closed and closed[-1] > 1 else 0
            return after

    return "a second section in the output goes on where the first one ended", lambda: budgets(Faulty)


@fault("fixed seed", EXAMPLE)
def budget_partial_end(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def next(self, state: Thought) -> int | None:
            token = super().next(state)
            if token is not None and len(self.end) > 2 and token == self.end[2]:
                return self.end[0]
            return token

    return "after two tokens of the end marker it is forced from its beginning", lambda: budgets(Faulty)


@fault("fixed seed", EXAMPLE)
def budget_swap_with_empty(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def move(self, source: int, target: int, direction: Move) -> None:
            super().move(source, target, direction)
            state = self.rows.get(target)
            if direction is Move.UNIDIRECTIONAL and state is not None and state.count == state.budget:
                self.back_to(state, len(state.read))
                state.budget = None if state.budget is None else state.budget + 1

    return "a row that moves in the very step in which its budget is spent gets one token more", lambda: budgets(Faulty)


@fault("fixed seed", EXAMPLE)
def budget_longer_of_two(rng: random.Random) -> Wrong:
    class Faulty(BudgetRows):
        def after(self, state: Thought, text: Sequence[int]) -> int | None:
            both = self.ends_with(text, self.start) and self.ends_with(text, self.end)
            return 0 if both and len(self.end) > len(self.start) else super().after(state, text)

    return "of two markers that end at the same token the start marker counts", lambda: budgets(Faulty)
