"""Lives in which vLLM decides rightly about thinking budgets, so that it can serve as a reference.

Outside of them vLLM 0.22.0 has the defects that `fairdraw.sampler_impl.thinking_budget` names. These rules keep each of
them out:

    re-entry, stray end, nested markers   a request has one section, and says its end inside of it; tokens of markers
                                          are said for nothing else
    cut, repeat, late ids                 nothing is cut or discarded; ids are late only where nothing is forced
    draft markers, draft of the end,      nothing is drafted; `tests/sampler_impl/test_thinking_upstream.py` compares
    no-draft step                         servers that speculate
    resume                                not while an end marker is being said
    long start, spanning                  a prompt is ordinary, or ends inside of a section that a short start opened
    left behind, swap                     every request has a budget

Requests obey: a forced token is what they say next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.protocols._lifecycle import Markers
from fairdraw.strategies.lifecycle import (
    MOST_REQUESTS,
    Add,
    Decode,
    Draft,
    Finish,
    LifecycleMachine,
    Preempt,
    Resume,
    Swap,
    ThinkingTrace,
)

if TYPE_CHECKING:
    from fairdraw.protocols._lifecycle import LiveRequest

__all__ = ["SoundUpstreamMachine"]

_START, _END = -1, -2
"""Drawn for: say the start marker, say the end marker, where that is sound."""
_WORDS = st.integers(5, 7)
_ROWS = st.integers(0, MOST_REQUESTS - 1)
_SAID = st.lists(st.one_of(_WORDS, st.just(_START), st.just(_END)), min_size=MOST_REQUESTS, max_size=MOST_REQUESTS)


def _has_settled_rows(machine: LifecycleMachine) -> bool:
    """Nobody has entered in this step: otherwise a step without tokens would come first, and rows might move in it."""
    return machine.num_requests > 1 and not machine.playing.world.has_added


class SoundUpstreamMachine(LifecycleMachine):
    """Requests that think once; changes of rows are held until the next step, so that every step yields tokens."""

    trace = ThinkingTrace()
    free = False

    @initialize(
        start=st.sampled_from(((1,), (1, 2))),
        end=st.sampled_from(((3,), (3, 4), (3, 3, 4))),
    )
    def begin(self, start: tuple[int, ...], end: tuple[int, ...]) -> None:
        self.begun = self.trace.replace(start=start, end=end)

    @property
    def live(self) -> list[LiveRequest]:
        return [kept.live for kept in self.playing.world.requests]

    @property
    def oracle(self) -> ThinkingBudgetOracle:
        return ThinkingBudgetOracle(self.begun.start, self.begun.end)

    @rule(words=st.lists(_WORDS, max_size=3), inside=st.booleans(), budget=st.integers(0, 4))
    @precondition(lambda self: self.num_requests < MOST_REQUESTS)
    def add(self, words: list[int], inside: bool, budget: int) -> None:
        opening = self.begun.start if inside and len(self.begun.start) == 1 else ()
        self.do(Add((*opening, *words), budget=budget, held=True))

    @rule(row=_ROWS)
    @precondition(_has_settled_rows)
    def finish(self, row: int) -> None:
        self.do(Finish(row, held=True))

    @rule(row=_ROWS, other=_ROWS)
    @precondition(_has_settled_rows)
    def swap(self, row: int, other: int) -> None:
        self.do(Swap(row, other, held=True))

    @rule(row=_ROWS)
    @precondition(_has_settled_rows)
    def preempt(self, row: int) -> None:
        """With all of its ids, and outside of a marker."""
        chosen = self.live[row % self.num_requests]
        if -1 not in chosen.output_token_ids and not self.in_marker(chosen) and not self.spent_in_prompt(chosen):
            self.do(Preempt(row % self.num_requests, held=True))

    @rule()
    @precondition(lambda self: bool(self.playing.world.waiting))
    def resume(self) -> None:
        self.do(Resume(same_list=False, held=True))

    @rule(said=_SAID, late=st.booleans())
    @precondition(lambda self: self.num_requests > 0)
    def step(self, said: list[int], late: bool) -> None:
        """One step: the scanners are asked, then every request says something."""
        self.do(Draft())
        tokens = tuple(self.sound(request, token) for request, token in zip(self.live, said, strict=False))
        late = late and min(tokens) >= 5 and not any(self.forced(request) for request in self.live)
        self.do(Decode(tokens, late=late, held=True))

    def forced(self, request: LiveRequest) -> dict[int, int]:
        """Position to token."""
        budget = request.params.thinking_token_budget
        return dict(self.oracle.forced(request.prompt_token_ids, self.known(request), (), budget))

    def known(self, request: LiveRequest) -> list[int]:
        """The output with the ids that are on their way."""
        kept = next(kept for kept in self.playing.world.requests if kept.live is request)
        tokens = list(request.output_token_ids)
        return [*tokens[: len(tokens) - len(kept.late)], *kept.late]

    def in_marker(self, request: LiveRequest) -> bool:
        text = self.known(request)
        return any(text[-n:] == list(self.begun.end[:n]) for n in range(1, len(self.begun.end)))

    def spent_in_prompt(self, request: LiveRequest) -> bool:
        """Then a long end marker is forced from the prompt on, which a resumption begins anew."""
        count, budget = self.oracle.think_count(request.prompt_token_ids, ()), request.params.thinking_token_budget
        return len(self.begun.end) > 1 and count is not None and budget is not None and count >= budget

    def sound(self, request: LiveRequest, drawn: int) -> int:
        """What a request says: what is forced, the rest of a marker, what was drawn, or an ordinary token instead."""
        output, prompt, markers = (
            self.known(request),
            request.prompt_token_ids,
            Markers(self.begun.start, self.begun.end),
        )
        if 0 in (forced := self.forced(request)):
            return forced[0]
        for marker in (markers.start, markers.end):
            for length in range(len(marker) - 1, 0, -1):
                if tuple(output[-length:]) == marker[:length]:
                    return marker[length]
        if drawn == _START and markers.start[0] not in (*prompt, *output):
            return markers.start[0]
        if drawn == _END and self.oracle.think_count(prompt, output) is not None:
            return markers.end[0]
        return drawn if drawn >= 5 else 5
