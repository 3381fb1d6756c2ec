"""A FAIL is confirmed by fresh processes: with recorded samples, which need no clock, and with real processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression._confirmation import Timed, confirmed, median_ratio
from fairdraw.perf_regression._decision import Decision, Gate, Verdict, decide
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = Path(__file__).parents[2] / "perf_regression" / "records"
ROUNDS = json.loads((RECORDS / "samples_busy.json").read_text(encoding="utf-8"))["series"]
PROCESSES = json.loads((RECORDS / "samples_processes.json").read_text(encoding="utf-8"))["ratios"]
GATE = Gate(1.03, alpha=0.001)
FAILED = Decision(Verdict.FAIL, "at least 1.09, limit 1.03")
HERE = Path(__file__).stem


def failed_by_rounds(series: int) -> Decision:
    """A recorded run of the gate on ten per cent more work."""
    decision = decide([(ours, other) for ours, other in ROUNDS["slower thread"][series]["pairs"][:40]], GATE)
    assert decision.verdict is Verdict.FAIL
    return decision


def recorded(kind: str, first: int) -> Callable[[], float]:
    """Recorded fresh processes in turn, from `first` on, with all cores busy."""
    ratios = PROCESSES[kind]
    coming = iter(ratios[first:] + ratios[:first])
    return lambda: next(coming)


@pytest.mark.parametrize("first", range(20))
def test_ten_per_cent_more_work_is_caught_in_spite_of_confirmation(first: int) -> None:
    decision = confirmed(failed_by_rounds(first % 10), GATE.limit, recorded("slower", first), 3)
    assert decision.verdict is Verdict.FAIL
    assert "3 fresh processes: 1." in decision.reason


@pytest.mark.parametrize("first", range(20))
def test_unlucky_process_alone_does_not_fail(first: int) -> None:
    """The first process found ten per cent; fresh ones, which do the same work as the reference, are asked."""
    decision = confirmed(failed_by_rounds(first % 10), GATE.limit, recorded("aa", first), 3)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "but a fresh process keeps it" in decision.reason


def test_one_fresh_process_would_not_do() -> None:
    """Among twenty recorded processes that do the same work as the reference, one is beyond the limit as a whole."""
    unlucky = max(range(20), key=lambda i: float(PROCESSES["aa"][i]))
    assert confirmed(FAILED, GATE.limit, recorded("aa", unlucky), 1).verdict is Verdict.FAIL
    assert confirmed(FAILED, GATE.limit, recorded("aa", unlucky), 3).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - {Verdict.FAIL}, key=lambda one: one.value))
def test_only_failures_are_measured_again(verdict: Verdict) -> None:
    decision = Decision(verdict, "as measured")
    assert confirmed(decision, 1.0, recorded("aa", 0), 3) is decision


def test_least_value_is_confirmed_from_below() -> None:
    assert confirmed(FAILED, 0.8, lambda: 0.7, 3, at_least=True).verdict is Verdict.FAIL
    assert confirmed(FAILED, 0.8, lambda: 0.9, 3, at_least=True).verdict is Verdict.INCONCLUSIVE


def test_failure_that_cannot_be_measured_again_stays() -> None:
    def again() -> float:
        raise NoVerdictError("the process died")

    decision = confirmed(FAILED, 1.0, again, 3)
    assert (decision.verdict, decision.reason) == (
        Verdict.FAIL,
        f"{FAILED.reason}; not measured again: the process died",
    )


def test_disturbed_rounds_have_no_ratio() -> None:
    rounds = Rounds({"ours": list, "reference": list}, clock=lambda step, inner: 1.0, watches=[lambda: lambda: "no"])
    rounds.run(3)
    with pytest.raises(NoVerdictError, match="all rounds were disturbed"):
        median_ratio(rounds)


def twice_the_work(process: int) -> Rounds:
    """Called by name in a fresh process. Time is made up, so that the answer is exact."""
    assert os.getpid() != process
    cost = {"ours": 2.0, "reference": 1.0}
    print("what is measured may print")
    return Rounds({name: (lambda name=name: name) for name in cost}, clock=lambda step, inner: cost[str(step())])


def test_fresh_process_measures_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert Timed(f"{HERE}:twice_the_work", {"process": os.getpid()}).in_fresh_process() == pytest.approx(2.0)


def test_process_that_fails_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(NoVerdictError, match="failed in a fresh process: TypeError"):
        Timed(f"{HERE}:twice_the_work", {"colour": "red"}).in_fresh_process()
