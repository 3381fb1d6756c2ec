"""Event traces in which vLLM decides correctly about thinking budgets, so that it can serve as a reference.

Elsewhere vLLM 0.22.0 has the defects that `fairdraw.sampler_impl.thinking_budget` names. The rules below keep each of
them out:

    re-entry, stray end, nested markers   a request has one section, and emits its end inside it; tokens of markers are
                                          not emitted elsewhere
    cut, repeat, late ids                 nothing is cut or discarded; ids are late only where nothing is forced
    draft markers, draft of the end,      nothing is drafted; `tests/sampler_impl/test_vllm_plugin_traces.py` compares
    servers that no-draft step                         speculate
    resume                                not while an end marker is being emitted
    long start, spanning                  a prompt is ordinary, or ends inside a section that a short start opened
    left behind, swap                     every request has a budget

V2 of 0.33.0 (`--reference thinking_budget/vllm-v2`) is a reference, too. It differs elsewhere (`known_defects.toml`):

    renewed budget, nested markers        as above
    begun end marker                      a request ends its section itself only with the whole marker within its budget

Requests always emit the forced token. So every `ThinkingPolicy` forces the same in these traces.
"""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.strategies import lifecycle
from fairdraw.strategies._serving_batch import ServedRequest

_START, _END = -1, -2
"""Drawn for: emit the start marker, emit the end marker, where vLLM is correct."""
_WORDS = st.integers(5, 7)
_ROWS = st.integers(0, lifecycle.MOST_REQUESTS - 1)
_DRAWN = st.lists(
    st.one_of(_WORDS, st.just(_START), st.just(_END)),
    min_size=lifecycle.MOST_REQUESTS,
    max_size=lifecycle.MOST_REQUESTS,
)


def _has_settled_rows(machine: lifecycle.LifecycleMachine) -> bool:
    """No request has entered in this step: otherwise a step without tokens would come first, and rows might move."""
    return machine.num_requests > 1 and not machine.playing.batch.has_added


class SoundUpstreamMachine(lifecycle.LifecycleMachine):
    """Requests that think once; changes of rows are held until the next step, so that every step yields tokens."""

    trace = lifecycle.ThinkingTrace()
    free = False

    @initialize(start=st.sampled_from(((1,), (1, 2))), end=st.sampled_from(((3,), (3, 4), (3, 3, 4))))
    def begin(self, start: tuple[int, ...], end: tuple[int, ...]) -> None:
        self.begun = self.trace.replace(start=start, end=end)

    @property
    def requests(self) -> list[ServedRequest]:
        return self.playing.batch.requests

    @property
    def oracle(self) -> ThinkingBudgetOracle:
        return ThinkingBudgetOracle(self.begun.start, self.begun.end)

    @rule(words=st.lists(_WORDS, max_size=3), inside=st.booleans(), budget=st.integers(0, 6))
    @precondition(lambda self: self.num_requests < lifecycle.MOST_REQUESTS)
    def add(self, words: list[int], inside: bool, budget: int) -> None:
        opening = self.begun.start if inside and len(self.begun.start) == 1 else ()
        self.do(lifecycle.Add((*opening, *words), budget=budget, held=True))

    @rule(row=_ROWS)
    @precondition(_has_settled_rows)
    def finish(self, row: int) -> None:
        self.do(lifecycle.Finish(row, held=True))

    @rule(row=_ROWS, other=_ROWS)
    @precondition(_has_settled_rows)
    def swap(self, row: int, other: int) -> None:
        self.do(lifecycle.Swap(row, other, held=True))

    @rule(row=_ROWS)
    @precondition(_has_settled_rows)
    def preempt(self, row: int) -> None:
        """With all of its ids, and outside a marker."""
        chosen = self.requests[row % self.num_requests]
        if -1 not in chosen.output_token_ids and not self.in_marker(chosen) and not self.spent_in_prompt(chosen):
            self.do(lifecycle.Preempt(row % self.num_requests, held=True))

    @rule()
    @precondition(lambda self: bool(self.playing.batch.waiting))
    def resume(self) -> None:
        self.do(lifecycle.Resume(same_list=False, held=True))

    @rule(drawn=_DRAWN, late=st.booleans())
    @precondition(lambda self: self.num_requests > 0)
    def step(self, drawn: list[int], late: bool) -> None:
        """One step: the scanners run, then every request emits a token."""
        self.do(lifecycle.Draft())
        tokens = tuple(self.sound(request, token) for request, token in zip(self.requests, drawn, strict=False))
        late = late and min(tokens) >= 5 and not any(self.forced(request) for request in self.requests)
        self.do(lifecycle.Decode(tokens, late=late, held=True))

    def forced(self, request: ServedRequest) -> dict[int, int]:
        """Position to token."""
        budget = request.params.thinking_token_budget
        return dict(self.oracle.forced(request.prompt_token_ids, self.known(request), (), budget))

    @staticmethod
    def known(request: ServedRequest) -> list[int]:
        """The output with the ids that are on their way."""
        tokens, late = request.output_token_ids, request.late_token_ids
        return [*tokens[: len(tokens) - len(late)], *late]

    def in_marker(self, request: ServedRequest) -> bool:
        text = self.known(request)
        return any(text[-n:] == list(self.begun.end[:n]) for n in range(1, len(self.begun.end)))

    def spent_in_prompt(self, request: ServedRequest) -> bool:
        """Then a long end marker is forced from the prompt on, and a resumption begins it anew."""
        count, budget = self.oracle.think_count(request.prompt_token_ids, ()), request.params.thinking_token_budget
        return len(self.begun.end) > 1 and count is not None and count >= budget

    def sound(self, request: ServedRequest, drawn: int) -> int:
        """The token of a request: the forced one, the rest of a marker, the drawn one, or an ordinary one instead."""
        output, prompt = self.known(request), request.prompt_token_ids
        if 0 in (forced := self.forced(request)):
            return forced[0]
        for marker in (self.begun.start, self.begun.end):
            for length in range(len(marker) - 1, 0, -1):
                if tuple(output[-length:]) == marker[:length]:
                    return int(marker[length])
        if drawn == _START and self.begun.start[0] not in (*prompt, *output):
            return int(self.begun.start[0])
        if drawn == _END and self.may_end(request):
            return int(self.begun.end[0])
        return drawn if drawn >= 5 else 5

    def may_end(self, request: ServedRequest) -> bool:
        """Its section is open, and its budget has room for the whole marker."""
        count, budget = (
            self.oracle.think_count(request.prompt_token_ids, self.known(request)),
            request.params.thinking_token_budget,
        )
        return count is not None and budget is not None and count + len(self.begun.end) <= budget
