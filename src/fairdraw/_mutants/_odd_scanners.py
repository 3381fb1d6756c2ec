"""Scanners that are correct and unlike the specification: other arithmetic, bookkeeping, or forms of an answer.

The checks must pass every one of them. Each is what a real engine does, or could do, without being wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._mutants._lifecycle_scanners import (
    Copy,
    Follower,
    PenaltiesFollower,
    PenaltiesOf,
    Scanner,
    ThinkingFollower,
    ThinkingOf,
    combined,
)
from fairdraw._oracles.penalties import PenalisedRow
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, Capabilities, Capability, PenaltyPolicy
from fairdraw.protocols._lifecycle import LiveBatch, LiveRequest, Markers, Move, RowChanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw._oracles.penalties import Counts, Logits


class _ComputesInDouble(PenaltiesFollower):
    """One rounding at the end, from factors that were never rounded to float32."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        counts, factors = self.count(row.output_token_ids, len(logits)), row.factors
        seen = (self.count(row.prompt_token_ids, len(logits)) > 0) | (counts > 0)
        wide = logits.astype(np.float64)
        wide = np.where(seen, np.where(wide > 0, wide / factors.repetition, wide * factors.repetition), wide)
        wide -= factors.frequency * counts + factors.presence * (counts > 0)
        return wide.astype(np.float32)


class _DividesByTheRepetition(PenaltiesFollower):
    """A quotient instead of a product with the reciprocal."""

    def repeated(self, logits: Logits, repetition: np.float32) -> Logits:
        return np.where(logits > 0, logits / repetition, logits * repetition)


class _SubtractsTheSumOfPenalties(PenaltiesFollower):
    """Frequency and presence are added up before they are subtracted."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        frequency, presence = np.float32(row.factors.frequency), np.float32(row.factors.presence)
        logits -= frequency * counts.astype(np.float32) + presence * (counts > 0).astype(np.float32)
        return logits


class _SubtractsPresenceFirst(PenaltiesFollower):
    """The two penalties in the other order."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        logits -= np.float32(row.factors.presence) * (counts > 0).astype(np.float32)
        logits -= np.float32(row.factors.frequency) * counts.astype(np.float32)
        return logits


class _AccumulatesPenalties(PenaltiesFollower):
    """One float per token, to which the frequency penalty is added each time the token is emitted, as in SGLang."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        penalty = np.float32(row.factors.presence) * (counts > 0).astype(np.float32)
        for token_id in row.output_token_ids:
            if token_id != PLACEHOLDER_TOKEN_ID:
                penalty[token_id] += np.float32(row.factors.frequency)
        logits -= penalty
        return logits


class _TouchesSeenTokensOnly(PenaltiesFollower):
    """A dict of counts: a token that was not seen is never read or written, so its zero keeps its sign."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        counts = Counter(i for i in row.output_token_ids if i != PLACEHOLDER_TOKEN_ID)
        repetition, penalised = np.float32(row.factors.repetition), logits.copy()
        for token_id in {*counts, *row.prompt_token_ids}:
            one = logits[token_id : token_id + 1]
            penalised[token_id] = self.repeated(one, repetition)[0] if repetition != 1 else one[0]
        for token_id, count in counts.items():
            penalised[token_id] -= np.float32(row.factors.frequency) * np.float32(count)
            penalised[token_id] -= np.float32(row.factors.presence)
        return penalised


class _AddsZeroToTheRest(PenaltiesFollower):
    """Adds a dense row of negated penalties, so that a negative zero elsewhere loses its sign."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        penalties = np.zeros(len(logits), np.float32)
        penalties[counts > 0] -= np.float32(row.factors.presence)
        penalties -= np.where(counts > 0, np.float32(row.factors.frequency) * counts.astype(np.float32), np.float32(0))
        return logits + penalties


class _KeepsSortedTokens(PenaltiesFollower):
    """Counts by bisection in a sorted list."""

    def count(self, token_ids: Sequence[int], vocab_size: int) -> Counts:
        known = sorted(i for i in token_ids if 0 <= i < vocab_size)
        return np.array([bisect_right(known, i) - bisect_left(known, i) for i in range(vocab_size)], np.int64)


class _CountsInInt32OnTheHost(PenaltiesFollower):
    """Makes a small tensor of counts on the host for every row of every step."""

    def count(self, token_ids: Sequence[int], vocab_size: int) -> Counts:
        counts = torch.zeros(vocab_size, dtype=torch.int32)
        known = torch.tensor([i for i in token_ids if 0 <= i < vocab_size], dtype=torch.int64)
        counts.scatter_add_(0, known, torch.ones(len(known), dtype=torch.int32))
        return counts.numpy().astype(np.int64)


class _RepeatsLast(PenaltiesFollower):
    """The repetition penalty is applied to what the others left, in double."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        counts, factors = self.count(row.output_token_ids, len(logits)), row.factors
        wide = logits - (factors.frequency * counts + factors.presence * (counts > 0))
        seen = self.repetition_sees(counts, row)
        repeated = np.where(wide > 0, wide / factors.repetition, wide * factors.repetition)
        return np.where(seen, repeated, wide).astype(np.float32)


class _RepeatsTheOutputAlone(PenaltiesFollower):
    """The repetition penalty does not see the prompt."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        return super().penalise(logits, PenalisedRow((), row.output_token_ids, row.factors))


class _DefersPenalties(PenaltiesFollower):
    """A row of sums and a row of factors grow token by token, and are applied in this order, as in SGLang."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        sums, scales = np.zeros_like(logits), np.ones_like(logits)
        known = [token_id for token_id in row.output_token_ids if token_id != PLACEHOLDER_TOKEN_ID]
        for token_id in known:
            sums[token_id] -= np.float32(row.factors.frequency)
        for token_id in set(known):
            sums[token_id] -= np.float32(row.factors.presence)
            scales[token_id] = row.factors.repetition
        lowered = logits + sums
        return np.where(lowered < 0, lowered * scales, lowered / scales)


class CountsTheLastToken(PenaltiesFollower):
    """Reads an output when its request enters, and from then on one token at each step, whatever has happened."""

    def advance(self, copy: Copy) -> None:
        live = copy.entered.output_token_ids
        copy.ids += live[-1:] if copy.edges else live
        copy.edges.append(len(copy.ids))


class _ReturnsNewTensors(PenaltiesFollower):
    """Leaves the given logits unchanged, and answers with a view of a larger buffer of its own."""

    class _Session(PenaltiesOf):
        def penalised(self, logits: Tensor, rows: list[PenalisedRow]) -> Tensor:  # [num_rows, vocab_size] float32, both
            buffer = torch.full((len(logits) + 1, logits.shape[1] + 3), 7.0)
            view = buffer[: len(logits), : logits.shape[1]]
            return view.copy_(super().penalised(logits.clone(), rows))

    def session(self) -> PenaltiesOf:
        return self._Session(self)


class _ReadsInBothCalls(PenaltiesFollower):
    """Reads repaired placeholders again before it penalises draft rows."""

    class _Session(PenaltiesOf):
        def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
            self.follower.follow(batch)
            return super().penalise_drafts(logits, batch)

    def session(self) -> PenaltiesOf:
        return self._Session(self)


class _GoesThroughRowsBackwards(PenaltiesFollower):
    """Reads the last row first."""

    def follow(self, batch: LiveBatch) -> None:
        self.rows = dict(sorted(self.rows.items(), reverse=True))
        super().follow(batch)


class _ReadsPenalisedRowsOnly(PenaltiesFollower):
    """Leaves requests without penalties unread."""

    def reads(self, copy: Copy) -> bool:
        return bool(copy.entered.params.penalised)


class _ReadsBudgetedRowsOnly(ThinkingFollower):
    """Leaves requests without a budget unread."""

    def reads(self, copy: Copy) -> bool:
        return copy.entered.params.thinking_token_budget is not None


# Ways to follow that both contracts have.


class _RecountsEverything(Follower):
    """Reads everything anew in each step."""

    def standing(self, copy: Copy) -> int:
        return 0


class _FollowsLate(Follower):
    """Changes of rows are queued until an answer is needed."""

    def __init__(self, *setting: object) -> None:
        super().__init__(*setting)
        self.queue: list[RowChanges] = []

    def sync(self, changes: RowChanges) -> None:
        self.queue.append(changes)

    def follow(self, batch: LiveBatch) -> None:
        while self.queue:
            super().sync(self.queue.pop(0))
        super().follow(batch)


class _RebuildsAfterEveryChange(Follower):
    """Discards what it read whenever any row changes."""

    def sync(self, changes: RowChanges) -> None:
        super().sync(changes)
        self.rows = {row: Copy(copy.entered) for row, copy in self.rows.items()}


class _DenseCounts:
    """Shares no code with the specification: a matrix of counts with a row per request, moved as the requests move.

    All rows are counted, penalised or not, and penalised in one vectorised pass in place. Placeholders at the end of an
    output are read again in each step.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.counts = np.zeros((8, vocab_size), np.int32)
        self.in_prompt = np.zeros((8, vocab_size), bool)
        self.lists: list[Sequence[int] | None] = [None] * 8
        self.counted: list[list[int]] = [[] for _ in range(8)]

    def make_room(self, num_rows: int) -> None:
        """Twice the rows, as often as it takes."""
        while len(self.lists) < num_rows:
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
            self.in_prompt = np.concatenate([self.in_prompt, np.zeros_like(self.in_prompt)])
            self.counted += [[] for _ in self.lists]
            self.lists += [None] * len(self.lists)

    def session(self) -> _DenseCounts:
        return self

    def sync(self, changes: RowChanges) -> None:
        rows = (changes.batch_size - 1, *(a.row for a in changes.added), *(m.source for m in changes.moved))
        self.make_room(1 + max(rows))
        for row, _, prompt, output in changes.added:
            self.counts[row], self.in_prompt[row] = 0, False
            self.in_prompt[row, prompt] = True
            self.lists[row], self.counted[row] = output, []
        for source, target, direction in changes.moved:
            both = [source, target]
            self.counts[both], self.in_prompt[both] = self.counts[both[::-1]], self.in_prompt[both[::-1]]
            for kept in (self.lists, self.counted):
                kept[source], kept[target] = kept[target], kept[source]  # type: ignore[call-overload]
            if direction is Move.UNIDIRECTIONAL:
                self.lists[source] = None

    def read(self, row: int, request: LiveRequest) -> None:
        live, counted = request.output_token_ids, self.counted[row]
        if live is not self.lists[row]:
            raise ValueError(f"read: row {row} holds another list.")
        standing = min(len(counted), len(live))
        while standing and counted[standing - 1] == PLACEHOLDER_TOKEN_ID:
            standing -= 1
        standing = standing if standing and live[standing - 1] == counted[standing - 1] else 0
        for token_id in counted[standing:]:
            self.counts[row, token_id] -= token_id != PLACEHOLDER_TOKEN_ID
        new = list(live[standing:])
        for token_id in new:
            self.counts[row, token_id] += token_id != PLACEHOLDER_TOKEN_ID
        counted[standing:] = new

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        for row, request in enumerate(batch.requests):
            self.read(row, request)
        drafts = [request.draft_token_ids for request in batch.requests]
        return self.answer(logits, batch, list(range(len(drafts))), drafts)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        rows = [row for row, request in enumerate(batch.requests) for _ in request.draft_token_ids]
        drafts = [
            request.draft_token_ids[:j] for request in batch.requests for j in range(len(request.draft_token_ids))
        ]
        return self.answer(logits, batch, rows, drafts)

    def answer(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        batch: LiveBatch,
        rows: list[int],
        drafts: list[list[int]],
    ) -> Tensor:  # [num_rows, vocab_size] float32
        counts = torch.from_numpy(self.counts[rows])  # [num_rows, vocab_size] int32
        for index, own in enumerate(drafts):
            for token_id in own:
                counts[index, token_id] += token_id != PLACEHOLDER_TOKEN_ID
        presence, frequency, repetition = (factor[rows, None] for factor in batch.factors())
        seen = torch.from_numpy(self.in_prompt[rows]) | (counts > 0)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits[seen] = repeated[seen]
        return logits.sub_(torch.addcmul(frequency * counts, presence, (counts > 0).float()))


class _ScansFromTheEnd(ThinkingFollower):
    """Searches the last end marker first, then the start marker that opened the section after it."""

    def think_count(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        text = (*prompt, *output)
        starts: list[int] = []
        for length in range(len(text), 0, -1):
            marker = self.marker_at_end(text[:length])
            if marker == self.end:
                break
            starts += [length] if marker == self.start else []
        in_prompt = [start for start in starts if start <= len(prompt)]
        opened = max(in_prompt) if in_prompt else min(starts, default=None)
        return None if opened is None else len(text) - opened


class _KeepsAStatePerToken(ThinkingFollower):
    """Reads each token once: the state after every token is kept, and a cut removes states from the end."""

    def __init__(self, markers: Markers) -> None:
        super().__init__(markers)
        self.states: dict[tuple[int, ...], list[int | None]] = {}
        self.texts: dict[tuple[int, ...], list[int]] = {}

    def think_count(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        states = self.states.setdefault(tuple(prompt), [])
        text, read = (*prompt, *output), self.texts.setdefault(tuple(prompt), [])
        reach = max(len(self.start), len(self.end))
        agreed = next(
            (i for i, (a, b) in enumerate(zip(read, text, strict=False)) if a != b), min(len(read), len(text))
        )
        del states[agreed:], read[agreed:]
        for length in range(agreed + 1, len(text) + 1):
            before, marker = (states[-1] if states else None), self.marker_at_end(text[max(0, length - reach) : length])
            opens = marker == self.start and (before is None or length <= len(prompt))
            states.append(None if marker == self.end else 0 if opens else None if before is None else before + 1)
            read.append(text[length - 1])
        return states[-1] if states else None


class _ReadsWhenItMatters(ThinkingFollower):
    """A text that is shorter than the budget cannot have spent it, so it is not read yet."""

    def follow(self, batch: LiveBatch) -> None:
        for row, request in enumerate(batch.requests):
            self.recognise(row, request)
            if self.matters(request):
                self.advance(self.rows[row])
            else:  # a text that was cut may grow again, otherwise than it was, before it is read
                self.rows[row].ids.clear()

    def decide(self, copy: Copy, request: LiveRequest) -> list[tuple[int, int]]:
        return super().decide(copy, request) if self.matters(request) else []

    @staticmethod
    def matters(request: LiveRequest) -> bool:
        budget = request.params.thinking_token_budget
        length = len(request.prompt_token_ids) + len(request.output_token_ids) + len(request.draft_token_ids)
        return budget is not None and length >= budget


class _OddAnswers(ThinkingFollower):
    """Answers for every row, the last one first, later positions first, in NumPy's numbers; shows no state."""

    class _Session(ThinkingOf):
        think_counts = None  # type: ignore[assignment]  # as if it were not there

        def forced(self, batch: LiveBatch) -> Any:  # Any: another form of the same answers
            found = super().forced(batch)
            return {
                np.int64(row): tuple((np.int64(i), np.int32(token)) for i, token in reversed(found.get(row, [])))
                for row in reversed(range(len(batch.requests)))
            }

    def session(self) -> ThinkingOf:
        return self._Session(self)


_RESCANS = Capabilities({Capability.NEW_TOKENS_ONLY: "reads everything anew when rows change"})
_HIDES = Capabilities(
    {
        Capability.VISIBLE_STATE: "does not count what it need not",
        Capability.NOTICES_REWRITES: "reads late, and compares only what it read last",
    }
)
ONE_TOKEN = Capabilities({Capability.SEVERAL_TOKENS: "it is called once per token"})
_WAYS = (
    ("recounts everything", _RecountsEverything, _RESCANS),
    ("follows late", _FollowsLate, Capabilities()),
    ("rebuilds after every change", _RebuildsAfterEveryChange, _RESCANS),
)

ODD_PENALTIES: tuple[Scanner, ...] = (
    *(Scanner(name, combined(way, PenaltiesFollower), "penalties", capabilities=can) for name, way, can in _WAYS),
    Scanner("goes through rows backwards", _GoesThroughRowsBackwards, "penalties"),
    Scanner("reads penalised rows only", _ReadsPenalisedRowsOnly, "penalties"),
    Scanner("computes in double", _ComputesInDouble, "penalties"),
    Scanner("divides by the repetition", _DividesByTheRepetition, "penalties"),
    Scanner("subtracts the sum of penalties", _SubtractsTheSumOfPenalties, "penalties"),
    Scanner("subtracts presence first", _SubtractsPresenceFirst, "penalties"),
    Scanner("accumulates penalties", _AccumulatesPenalties, "penalties"),
    Scanner("touches seen tokens only", _TouchesSeenTokensOnly, "penalties"),
    Scanner("adds zero to the rest", _AddsZeroToTheRest, "penalties"),
    Scanner("keeps sorted tokens", _KeepsSortedTokens, "penalties"),
    Scanner("counts in int32 on the host", _CountsInInt32OnTheHost, "penalties"),
    Scanner("returns new tensors", _ReturnsNewTensors, "penalties"),
    Scanner("reads in both calls", _ReadsInBothCalls, "penalties"),
    Scanner("dense counts", _DenseCounts, "penalties"),
    Scanner("repeats last", _RepeatsLast, "penalties", policy=PenaltyPolicy(repetition="last")),
    Scanner("repeats the output alone", _RepeatsTheOutputAlone, "penalties", policy=PenaltyPolicy("output")),
    Scanner("defers penalties", _DefersPenalties, "penalties", policy=PenaltyPolicy("output", "last")),
    Scanner("counts the last token", CountsTheLastToken, "penalties", capabilities=ONE_TOKEN),
)

ODD_THINKING: tuple[Scanner, ...] = (
    *(Scanner(name, combined(way, ThinkingFollower), "thinking_budget", capabilities=can) for name, way, can in _WAYS),
    Scanner("reads rows with a budget only", _ReadsBudgetedRowsOnly, "thinking_budget"),
    Scanner("scans from the end", _ScansFromTheEnd, "thinking_budget"),
    Scanner("keeps a state per token", _KeepsAStatePerToken, "thinking_budget"),
    Scanner("reads when it matters", _ReadsWhenItMatters, "thinking_budget", capabilities=_HIDES),
    Scanner("odd answers", _OddAnswers, "thinking_budget"),
)

ODD_BUT_RIGHT: tuple[Scanner, ...] = (*ODD_PENALTIES, *ODD_THINKING)
"""Correct scanners of other making, with the capabilities that they do not support."""
