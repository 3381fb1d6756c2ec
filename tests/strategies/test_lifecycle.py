"""The lifecycle machine: event traces are data, rows follow vLLM, reads are counted, our scanners pass."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from fairdraw._core.checks import Profile
from fairdraw._core.failures import CapabilityUnsupported, CaseRaised, CheckFailure
from fairdraw._mutants.penalties import MUTANTS, right
from fairdraw.adapters import load
from fairdraw.adapters._runtime import quiet_imports
from fairdraw.contracts import Capabilities, Markers, Move, RequestParams, ThinkingSession
from fairdraw.properties.penalties import CHECKS as PENALTIES
from fairdraw.properties.thinking_budget import CHECKS as THINKING
from fairdraw.strategies._lifecycle_events import EVENT_KINDS, event_from_json
from fairdraw.strategies._lifecycle_traces import EventfulBatch
from fairdraw.strategies._serving_batch import CountedTokens, ServingBatch
from fairdraw.strategies.lifecycle import (
    Add,
    Cut,
    Decode,
    Draft,
    EventTrace,
    Finish,
    PenaltiesTrace,
    Repair,
    Swap,
    ThinkingTrace,
)
from odd.penalties import ODD as ODD_PENALTIES

SMALL = Profile("small", 30, 30)
TRACE = PenaltiesTrace(
    (Add((1,), presence=0.5), Add(held=True), Draft(((3, 4), ())), Decode((5, None), (1,), late=True), Repair()),
    vocab_size=9,
)
PADDED = load("penalties/padded")  # `make check` runs our other scanners, beside those of vLLM


def test_padded_scanner_passes_every_check() -> None:
    for check in PENALTIES:
        if check.why_not(PADDED) is None:
            assert check.run(PADDED, profile=SMALL.scaled(0.3)) > 30


def upstream(contract: str) -> Any:
    with quiet_imports():
        pytest.importorskip("vllm")
    return load(f"{contract}/vllm", "cpu")


def test_upstream_is_compared_where_it_forces() -> None:
    """Without this, event traces in which nothing is ever forced would pass."""
    forced = 0

    class Counting:
        name, device, contract = "counting", "cpu", "thinking_budget"
        capabilities = load("thinking_budget/torch").capabilities

        def open_thinking(self, markers: Markers) -> ThinkingSession:
            session = load("thinking_budget/torch").open_thinking(markers)
            inner = session.forced

            def counted(batch: Any) -> Any:
                nonlocal forced
                found = inner(batch)
                forced += sum(map(len, found.values()))
                return found

            session.forced = counted  # type: ignore[method-assign]
            return session

    check = next(c for c in THINKING if c.differential)
    check.run(Counting(), profile=Profile("counting", 100, 100), reference=upstream("thinking_budget"))
    assert forced > 100, forced


def test_unsupported_check_of_vllm_is_skipped() -> None:
    with pytest.raises(CapabilityUnsupported, match="searches the whole output"):
        next(c for c in THINKING if c.code == "THK103").run(upstream("thinking_budget"))


def test_trace_prints_as_code_that_builds_it() -> None:
    names = {**EVENT_KINDS, "PenaltiesTrace": PenaltiesTrace, "ThinkingTrace": ThinkingTrace}
    assert eval(repr(TRACE), dict(names)) == TRACE
    assert "held=False" not in repr(TRACE)


@pytest.mark.parametrize("trace", [TRACE, ThinkingTrace((Add(budget=0),), end=(2, 3), watch="reading")])
def test_trace_survives_json(trace: EventTrace) -> None:
    assert EventTrace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


def test_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of Add"):
        event_from_json({"event": "Explode"})


def test_trace_is_played_again_without_a_search() -> None:
    assert TRACE.play(right()) == 5
    wrong = next(mutant for mutant in MUTANTS if mutant.name == "does not take back a cut").make()
    with pytest.raises(CheckFailure, match="bonus row 0"):
        PenaltiesTrace((Add(output=(1, 2), frequency=0.5), Cut())).play(wrong)


def test_failing_check_carries_a_trace_that_fails_alone() -> None:
    check = next(check for check in PENALTIES if check.code == "PEN101")
    wrong = next(mutant for mutant in MUTANTS if mutant.name == "ignores a swap").make()
    with pytest.raises(CheckFailure) as caught:
        check.run(wrong, profile=SMALL)
    trace = caught.value.case
    with pytest.raises(CheckFailure):
        check.on_case(wrong, trace)
    assert any(isinstance(event, Swap) for event in trace.events)
    assert caught.value.tried > 0


def test_last_requests_move_into_rows_that_nobody_took() -> None:
    batch = ServingBatch(8)
    for _ in range(4):
        batch.add(RequestParams(), (), ())
    batch.take_changes()
    for row in (0, 1):
        batch.remove(row)
    batch.add(RequestParams(), (), ())
    changes = batch.take_changes()
    assert [added.row for added in changes.added] == [0]
    assert [(source, target) for source, target, _ in changes.moved] == [(3, 1)]
    assert changes.removed == ()
    Finish(2).apply(batch)
    Swap(0, 1).apply(batch)
    changes = batch.take_changes()
    assert changes.removed == (2,)
    assert [tuple(moved) for moved in changes.moved] == [(0, 1, Move.SWAP)]
    assert not batch.take_changes()


def test_late_ids_replace_placeholders_and_may_be_fewer() -> None:
    batch = ServingBatch(8)
    for event in (Add(), Draft(((3, 4),)), Decode((5,), (1,), late=True)):
        event.apply(batch)
    output = batch.requests[0].output_token_ids
    assert output == [-1, -1, -1]
    Repair().apply(batch)
    assert output == [3, 5]


@pytest.mark.parametrize("read", [list, np.array, sorted, lambda t: [*t], lambda t: t[:], lambda t: t.count(1)])
def test_every_way_to_read_tokens_is_counted(read: Any) -> None:
    tokens = CountedTokens(range(50))
    read(tokens)
    assert tokens.num_read >= 50


# One token a step


class _Shown(EventfulBatch):
    """Notes what a scanner is shown in each step."""

    def __init__(self) -> None:
        super().__init__(ServingBatch(9), one_token=True)
        self.shown: list[list[list[int]]] = []

    def step(self) -> None:
        super().step()
        requests = self.batch.batch().requests
        assert not any(request.draft_token_ids for request in requests)
        self.shown.append([list(request.output_token_ids) for request in requests])


def test_scanner_without_several_tokens_is_shown_one_known_token_a_step() -> None:
    events = (
        *(Add((1,), (2, -1)), Add(held=True), Draft(((3, 4), ())), Decode((5, None), (1,), late=True), Repair()),
        *(Finish(held=True), Decode((6,)), Swap(), Cut()),
    )
    trace, batch = PenaltiesTrace(events, vocab_size=9, one_token=True), _Shown()
    for event in events:
        batch.apply(event)
    first, last = [2, 0, 3, 5, 0], [0, 0, 0, 0, 6, 0, 0]
    assert batch.shown[:3] == [[first[:1]], [first[:2], []], [first[:3], [0]]]
    assert batch.shown[3:] == [[first[:4], [0, 0]], [first, [0, 0, 0]], *([last[:size]] for size in (4, 5, 6, 7))]
    assert trace.play(right()) == len(events)
    assert {type(event) for event in trace.events} == {Add, Decode, Finish, Swap}


def test_scanner_that_counts_a_token_a_step_fails_if_it_does_not_say_so() -> None:
    odd = next(subject for subject in ODD_PENALTIES if subject.name == "counts the last token")
    with pytest.raises(CheckFailure):
        PENALTIES[0].run(dataclasses.replace(odd, capabilities=Capabilities()), profile=SMALL)


def test_buffer_that_is_not_repaired_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairdraw.sampler_impl._scanners.padded_outputs._repair", lambda row, output_token_ids: None)
    with pytest.raises((CheckFailure, CaseRaised)):
        next(check for check in PENALTIES if check.code == "PEN101").run(PADDED, profile=Profile("mutant", 400, 400))
