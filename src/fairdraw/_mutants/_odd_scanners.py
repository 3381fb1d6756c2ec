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
from fairdraw._mutants._mutant import name_of
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, Capabilities, PenaltyPolicy, ThinkingPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw._oracles.penalties import Counts, Logits, PenalisedRow
    from fairdraw.protocols._lifecycle import LiveBatch, LiveRequest, Markers, RowChanges


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


class _ComputesInDouble(PenaltiesFollower):
    """Token by token, by any policy: one rounding at the end, from factors that were never rounded to float32."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        policy, factors, found = self.policy, row.factors, logits.astype(np.float64)
        text = [*((i, False) for i in row.prompt_token_ids), *((i, True) for i in row.output_token_ids)]
        text = [pair for pair in text if 0 <= pair[0] < len(logits)][-(policy.window or 0) :]
        counts = Counter(i for i, is_new in text if is_new or policy.counts_see == "text")
        repeats = Counter(i for i, is_new in text if is_new or policy.repetition_sees == "text")
        for token_id in {*counts, *repeats}:
            times = repeats[token_id] if policy.repetition_power == "count" else min(1, repeats[token_id])
            lowered = factors.frequency * counts[token_id] + factors.presence * (counts[token_id] > 0)
            found[token_id] -= lowered * (policy.repetition == "last")
            for _ in range(times):
                one = found[token_id]
                found[token_id] = one / factors.repetition if one > 0 else one * factors.repetition
            found[token_id] -= lowered * (policy.repetition == "first")
        with np.errstate(over="ignore"):
            return found.astype(np.float32)


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


# Ways to follow that both contracts have.


class _RecountsEverything(Follower):
    """Reads everything anew in each step."""

    def standing(self, copy: Copy) -> int:
        return 0


class _ReadsSomeRows(Follower):
    """Leaves requests without penalties, or without a budget, unread."""

    def reads(self, copy: Copy) -> bool:
        return bool(copy.entered.params != type(copy.entered.params)())


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


class _WritesDownSections(ThinkingFollower):
    """Lists where the thoughts of each section begin and end before it decides by what its policy says."""

    def sections(self, text: tuple[int, ...], num_prompt: int) -> list[list[int]]:
        """First and last place of thoughts; an open one ends behind the text."""
        found: list[list[int]] = []
        for place, token_id in enumerate(text, 1):
            marker = self.marker_at_end(text[:place]) if token_id in (self.start[-1], self.end[-1]) else None
            is_open = bool(found) and found[-1][1] > len(text)
            if marker == self.end and is_open:
                found[-1][1] = place
            elif marker == self.start and (place <= num_prompt or not is_open):
                found = [*(found[:-1] if is_open else found), [place, len(text) + 1]]
        return found

    def next_token(self, prompt: Sequence[int], output: Sequence[int], budget: int) -> int | None:
        text, policy = (*prompt, *output), self.policy
        *earlier, (begin, last) = self.sections(text, len(prompt)) or [[0, 0]]
        spent = [max(0, end - len(self.end) - first) for first, end in earlier if end > len(prompt)]
        if last <= len(text) or (policy.later_sections == "free" and spent):
            return None
        edge = begin + max(0, budget - sum(spent) * (policy.later_sections == "shared"))  # behind the last free thought
        for begun in range(len(self.end) - 1, -1, -1):
            place = len(text) - begun
            if place >= begin and text[place:] == self.end[:begun]:
                is_due = place >= edge if policy.begun_end != "finished" else len(text) >= edge
                if is_due or policy.begun_end == "uncounted":
                    return self.end[begun] if is_due else None
        return None


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


_RESCANS = Capabilities.of({"new-tokens-only": "reads everything anew when rows change"})
_LATE = "reads late, and compares only what it read last"
_HIDES = Capabilities.of({"visible-state": "does not count what it need not", "notices-rewrites": _LATE})
ONE_TOKEN = Capabilities.of({"several-tokens": "it is called once per token"})
_WAYS = (
    ("recounts everything", _RecountsEverything, _RESCANS),
    ("reads some rows", _ReadsSomeRows, Capabilities()),
    ("follows late", _FollowsLate, Capabilities()),
    ("rebuilds after every change", _RebuildsAfterEveryChange, _RESCANS),
)

_PENALISERS: tuple[type[PenaltiesFollower], ...] = (
    *(_GoesThroughRowsBackwards, _ComputesInDouble, _DividesByTheRepetition, _SubtractsTheSumOfPenalties),
    *(_SubtractsPresenceFirst, _AccumulatesPenalties, _TouchesSeenTokensOnly, _AddsZeroToTheRest),
    *(_KeepsSortedTokens, _CountsInInt32OnTheHost, _ReturnsNewTensors, _ReadsInBothCalls),
)

ODD_PENALTIES: tuple[Scanner, ...] = (
    *(Scanner(name, combined(way, PenaltiesFollower), "penalties", capabilities=can) for name, way, can in _WAYS),
    *(Scanner(name_of(kind)[2:], kind, "penalties") for kind in _PENALISERS),
    Scanner("repeats last", _ComputesInDouble, "penalties", policy=PenaltyPolicy(repetition="last")),
    Scanner("repeats the output alone", _ComputesInDouble, "penalties", policy=PenaltyPolicy("output")),
    Scanner("repeats by the count", _ComputesInDouble, "penalties", policy=PenaltyPolicy(repetition_power="count")),
    Scanner("counts the prompt", _ComputesInDouble, "penalties", policy=PenaltyPolicy(counts_see="text")),
    Scanner("looks back", _ComputesInDouble, "penalties", policy=PenaltyPolicy(counts_see="text", window=64)),
    Scanner("defers penalties", _DefersPenalties, "penalties", policy=PenaltyPolicy("output", "last")),
    Scanner("counts the last token", CountsTheLastToken, "penalties", capabilities=ONE_TOKEN),
)

ODD_THINKING: tuple[Scanner, ...] = (
    *(Scanner(name, combined(way, ThinkingFollower), "thinking_budget", capabilities=can) for name, way, can in _WAYS),
    Scanner("keeps a state per token", _KeepsAStatePerToken, "thinking_budget"),
    Scanner("reads when it matters", _ReadsWhenItMatters, "thinking_budget", capabilities=_HIDES),
    *(
        Scanner(str(policy), _WritesDownSections, "thinking_budget", policy=policy)
        for policy in (
            ThinkingPolicy(),
            ThinkingPolicy("finished"),
            ThinkingPolicy("uncounted"),
            ThinkingPolicy(later_sections="free"),
            ThinkingPolicy(later_sections="shared"),
            ThinkingPolicy("finished", "shared"),
        )
    ),
    Scanner("odd answers", _OddAnswers, "thinking_budget"),
)

ODD_BUT_RIGHT: tuple[Scanner, ...] = (*ODD_PENALTIES, *ODD_THINKING)
"""Correct scanners of other making, with the capabilities that they do not support."""
