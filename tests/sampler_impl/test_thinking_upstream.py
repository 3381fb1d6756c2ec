"""Our thinking budget against the real vLLM 0.22.0, where that is right: state and forced tokens, in every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw._adapters._runtime import prepare_triton, quiet_imports
from fairdraw._core.seeds import derive_seed
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

prepare_triton("cpu")
with quiet_imports():
    vllm = pytest.importorskip("vllm")
    from vllm.utils.torch_utils import async_tensor_h2d
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

if vllm.__version__ != "0.22.0":
    pytest.skip("the contract is that of vLLM 0.22.0", allow_module_level=True)

MOST_REQUESTS, MOST_DRAFTS, VOCAB_SIZE = 4, 3, 40
Forced = list[tuple[int, int]]
"""Row and token."""


@pytest.fixture(autouse=True)
def _host_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_tensor_h2d, "__defaults__", (False,))


@dataclass
class Request:
    prompt: list[int]
    budget: int | None
    output: list[int] = field(default_factory=list)
    script: list[int] = field(default_factory=list)
    """What the model says next, unless it is forced."""


class Both:
    """vLLM's holder and ours, told the same."""

    def __init__(self, start: list[int], end: list[int], num_spec_tokens: int = 0) -> None:
        config = SimpleNamespace(reasoning_start_token_ids=start, reasoning_end_token_ids=end)
        self.theirs = ThinkingBudgetStateHolder(config, 8, num_spec_tokens, torch.device("cpu"), False)
        self.ours = ThinkingBudget(start, end)
        self.rows: list[Request] = []
        self.states: dict[int, dict[str, Any]] = {}
        """Theirs, between update and apply."""

    def sync(self, removed: Any = (), added: Any = (), moved: Any = ()) -> None:
        update = BatchUpdate(
            batch_size=len(self.rows),
            removed=list(removed),
            added=[self.added(row) for row in added],
            moved=[(source, target, MoveDirectionality[name]) for source, target, name in moved],
        )
        self.theirs.sync_batch(update)
        self.ours.sync_batch(update)

    def added(self, row: int) -> tuple[int, Any, list[int], list[int]]:
        request = self.rows[row]
        return row, SimpleNamespace(thinking_token_budget=request.budget), request.prompt, request.output

    def step(self, *drafts: list[int]) -> tuple[dict[str, Forced], dict[str, Forced]]:
        """What each of them forces in this step, theirs first: in plain rows, or in bonus and draft rows."""
        lists = list(drafts) or [[] for _ in self.rows]
        outputs = [request.output for request in self.rows]
        combined = [[*output, *ids] if ids else output for output, ids in zip(outputs, lists, strict=True)]
        self.theirs.update_state(combined, lists)
        self.ours.update_state(outputs, lists)
        self.states = {row: dict(state) for row, state in self.theirs._state.items()}
        return self.apply(self.theirs, lists), self.apply(self.ours, lists)

    def apply(self, holder: Any, drafts: list[list[int]]) -> dict[str, Forced]:
        num_tokens = sum(map(len, drafts))
        plan = (
            {"bonus": (len(drafts), True), "draft": (num_tokens, False)}
            if num_tokens
            else {"plain": (len(drafts), False)}
        )
        forced = {}
        for name, (num_rows, is_bonus) in plan.items():
            logits = holder.apply_to_logits(torch.zeros(num_rows, VOCAB_SIZE), is_bonus, drafts)
            assert set(logits.unique().tolist()) <= {0.0, 1e9}
            forced[name] = [(row, token) for row, token in logits.nonzero().tolist()]
        return {name: tokens for name, tokens in forced.items() if tokens}


# Where vLLM is right: one section per request, markers that neither overlap nor are drafted, a long end marker not
# begun unforced while speculating, nothing cut, discarded or late while speculating or forcing, a draft somewhere in
# every speculative step, all requests tracked, no long start in an open prompt, no resumption within an end marker.


@dataclass(frozen=True)
class EventTrace:
    """A recipe: what happens in each step. Details follow from the seed."""

    events: tuple[str, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    speculative: bool
    seed: int


EVENTS = ("decode", "decode", "decode", "add", "finish", "swap", "resume", "discard", "cut", "late_ids")


class Server(Both):
    """Requests that say preamble, thoughts and answer, obey what is forced, and are compared in every step."""

    def __init__(self, trace: EventTrace) -> None:
        super().__init__(list(trace.start), list(trace.end), MOST_DRAFTS if trace.speculative else 0)
        self.trace = trace
        self.rng = np.random.default_rng(derive_seed(trace))
        self.num_forced = 0

    def words(self, most: int) -> list[int]:
        """Ordinary ids; those below 10 are kept for markers."""
        drawn: list[int] = self.rng.integers(10, VOCAB_SIZE, size=self.rng.integers(most + 1)).tolist()
        return drawn

    def live(self) -> int:
        """The number of forced tokens that were compared."""
        for event in ("add", *self.trace.events):
            if event == "add" or self.rows:
                getattr(self, event)(int(self.rng.integers(max(1, len(self.rows)))))
            if self.rows:
                discarded = event == "discard" and not self.trace.speculative
                self.say([[] if discarded else ids for ids in self.emitted()])
        return self.num_forced

    # Events.
    def decode(self, row: int) -> None: ...

    def discard(self, row: int) -> None:
        """Without speculation: the tokens of this step are thrown away, as after a part of a prompt."""

    def add(self, row: int) -> None:
        if len(self.rows) == MOST_REQUESTS:
            return
        start, end = list(self.trace.start), list(self.trace.end)
        opening = [*self.words(2), *start, *self.words(4)]
        unsupported = [*opening, *end, *self.words(2)]
        kind = self.rng.integers(3 if len(start) == 1 else 2)
        prompt = (self.words(3), unsupported, [*unsupported, *opening])[kind]
        script = self.words(4) if kind == 2 else opening
        if not (self.trace.speculative and len(end) > 1) and self.rng.random() < 0.5:
            script = [*script, *self.words(4), *end]
        self.rows.append(Request(prompt, int(self.rng.integers(9)), [], [*script, *self.words(20)]))
        self.sync(added=[len(self.rows) - 1])

    def finish(self, row: int) -> None:
        last = len(self.rows) - 1
        self.rows[row] = self.rows[last]
        del self.rows[last]
        if row == last:
            self.sync(removed=[last])
        else:
            self.sync(moved=[(last, row, "UNIDIRECTIONAL")])

    def swap(self, row: int) -> None:
        other = int(self.rng.integers(len(self.rows)))
        if row != other:
            self.rows[row], self.rows[other] = self.rows[other], self.rows[row]
            self.sync(moved=[(row, other, "SWAP")])

    def resume(self, row: int) -> None:
        """Preempted and added again, with a new list as asynchronous scheduling has it."""
        request = self.rows[row]
        in_end_marker = any(request.output[-n:] == list(self.trace.end[:n]) for n in range(1, len(self.trace.end)))
        prompt_spent = (
            len(self.trace.end) > 1 and self.theirs._init_state_entry(request.prompt, request.budget)["in_end"]
        )
        if not (in_end_marker or prompt_spent):
            request.output = list(request.output)
            self.sync(removed=[row])
            self.sync(added=[row])

    def cut(self, row: int) -> None:
        """The last tokens are lost."""
        output = self.rows[row].output
        if not self.trace.speculative and not self.theirs._state[row]["in_end"] and min(output[-2:], default=0) >= 10:
            self.rows[row].script[:0] = output[-2:]
            del output[-2:]

    def late_ids(self, row: int) -> None:
        """Without speculation: ordinary ids of one step arrive one step later."""
        if self.trace.speculative:
            return
        late = self.emitted()
        if self.ours.forced or min(map(min, late)) < 10:
            self.say(late)
            return
        self.say([[-1] for _ in self.rows])
        new = self.emitted()
        for request, ids, more in zip(self.rows, late, new, strict=True):
            request.output[-1:] = [*ids, *more]

    # One step.
    def say(self, emitted: list[list[int]]) -> None:
        for request, ids in zip(self.rows, emitted, strict=True):
            request.output += ids

    def emitted(self) -> list[list[int]]:
        """Compare, then let every request accept drafts until one differs from its script or from what is forced."""
        drafts = [self.drafts(request) for request in self.rows]
        forced: dict[int, Any] = {}
        if not self.trace.speculative or any(drafts) or len(self.rows) == 1:
            self.compare(drafts)
            forced = self.ours.forced
        return [self.spoken(request, drafts[row], dict(forced.get(row, ()))) for row, request in enumerate(self.rows)]

    def drafts(self, request: Request) -> list[int]:
        """Mostly what the script says next; markers are never drafted, nor is anything before the first token."""
        count = int(self.rng.integers(1, MOST_DRAFTS + 1)) if self.trace.speculative and request.output else 0
        guesses = (request.script + [10] * count)[:count]
        return [token if token >= 10 and self.rng.random() < 0.8 else 10 for token in guesses]

    def spoken(self, request: Request, drafts: list[int], forced: dict[int, int]) -> list[int]:
        ids: list[int] = []
        for position in range(len(drafts) + 1):
            if position in forced:
                request.script = []
            ids.append(forced[position] if position in forced else request.script.pop(0) if request.script else 11)
            if position < len(drafts) and drafts[position] != ids[-1]:
                break
        return ids

    def compare(self, drafts: list[list[int]]) -> None:
        theirs, ours = self.step(*drafts)
        assert ours == theirs
        self.num_forced += sum(map(len, ours.values()))
        for row, state in self.states.items():
            self.compare_state(row, state)

    def compare_state(self, row: int, state: dict[str, Any]) -> None:
        """Their fields, where they are not a cache of an earlier step, say what ours say."""
        request, count = self.rows[row], self.ours.think_counts()[row]
        if state["start_thinking"] == -1 or state["end_thinking"] != -1:
            assert count is None
            return
        begin = state["start_thinking"] + len(self.trace.start)
        assert count == len(request.output) + (len(request.prompt) if state["continue_thinking"] else 0) - begin
        forcing = state["in_end"] and state["force_index"]
        token = (*state["force_index"], self.trace.end[state["end_count"]]) if forcing else ()
        assert self.ours.forced.get(row, []) == ([token] if token else [])
        if not state["in_end"]:
            assert state["check_count_down"] <= state["thinking_token_budget"] - count


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=40).map(tuple),
    start=st.sampled_from([(1,), (1, 2), (1, 1, 2)]),
    end=st.sampled_from([(3,), (3, 4), (3, 3, 4)]),
    speculative=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_state_and_forced_tokens_equal_upstream_after_every_event(
    events: tuple[str, ...], start: tuple[int, ...], end: tuple[int, ...], speculative: bool, seed: int
) -> None:
    Server(EventTrace(events, start, end, speculative, seed)).live()


def test_lives_force() -> None:
    """Without this, a harness that never forces anything would pass."""
    for speculative in (False, True):
        assert sum(Server(EventTrace(EVENTS * 3, (1,), (3, 4), speculative, seed)).live() for seed in range(10)) > 40
