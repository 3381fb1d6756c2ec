"""Correct scanners of the thinking budget that read, decide or answer in another way than the specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairdraw._mutants._lifecycle_scanners import Copy, Scanner, ThinkingFollower, ThinkingOf
from fairdraw.contracts import Capabilities, LiveBatch, LiveRequest, Markers, ThinkingPolicy
from odd.following import scanners_of


class KeepsAStatePerToken(ThinkingFollower):
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


class WritesDownSections(ThinkingFollower):
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


class ReadsWhenItMatters(ThinkingFollower):
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


class OddAnswers(ThinkingFollower):
    """Answers for every row, the last one first, later positions first, in NumPy's numbers; shows no state."""

    class Session(ThinkingOf):
        think_counts = None  # type: ignore[assignment]  # as if it were not there

        def forced(self, batch: LiveBatch) -> Any:  # Any: another form of the same answers
            found = super().forced(batch)
            return {
                np.int64(row): tuple((np.int64(i), np.int32(token)) for i, token in reversed(found.get(row, [])))
                for row in reversed(range(len(batch.requests)))
            }

    def session(self) -> ThinkingOf:
        return self.Session(self)


_HIDES = Capabilities.of(
    {
        "visible-state": "does not count what it need not",
        "notices-rewrites": "reads late, and compares only what it read last",
    }
)

ODD: tuple[Scanner, ...] = (
    *scanners_of(ThinkingFollower, "thinking_budget"),
    Scanner("keeps a state per token", KeepsAStatePerToken, "thinking_budget"),
    Scanner("reads when it matters", ReadsWhenItMatters, "thinking_budget", capabilities=_HIDES),
    *(
        Scanner(str(policy), WritesDownSections, "thinking_budget", policy=policy)
        for policy in (
            ThinkingPolicy(),
            ThinkingPolicy("finished"),
            ThinkingPolicy("uncounted"),
            ThinkingPolicy(later_sections="free"),
            ThinkingPolicy(later_sections="shared"),
            ThinkingPolicy("finished", "shared"),
        )
    ),
    Scanner("odd answers", OddAnswers, "thinking_budget"),
)
