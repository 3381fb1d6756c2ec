"""Fresh processes: what they are given, how they fail, and how they confirm a FAIL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression import _confirmation as confirmation
from fairdraw.perf_regression._compiled import compile_groups
from fairdraw.perf_regression._confirmation import Timed, confirmed, median_ratio
from fairdraw.perf_regression._counts import Launch
from fairdraw.perf_regression._decision import Decision, Gate, Verdict, decide
from fairdraw.perf_regression._named import NoVerdictError, call_fresh, load
from fairdraw.perf_regression._rounds import Rounds

if TYPE_CHECKING:
    Plant = Callable[[str], None]

RECORDS = Path(__file__).parents[2] / "perf_regression" / "records"
ROUNDS = json.loads((RECORDS / "samples_busy.json").read_text(encoding="utf-8"))["series"]
PROCESSES = json.loads((RECORDS / "samples_processes.json").read_text(encoding="utf-8"))["ratios"]
GATE = Gate(1.03, alpha=0.001)
FAILED = Decision(Verdict.FAIL, "at least 1.09, limit 1.03")


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """A module called `program`, with the program that a test gives it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(program: str) -> None:
        (tmp_path / "program.py").write_text(program, encoding="utf-8")

    return write


@pytest.mark.parametrize("name", ["no.such.module:thing", "fairdraw:thing", "fairdraw"])
def test_name_that_cannot_be_loaded_has_no_verdict(name: str) -> None:
    with pytest.raises(NoVerdictError):
        load(name)


def test_fresh_process_gets_arguments_environment_and_answers(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("import os\ndef f(x):\n    print('may print')\n    return [x, 'SHAPE' in os.environ, os.environ['COLOUR']]")
    monkeypatch.setenv("SHAPE", "round")
    monkeypatch.setenv("COLOUR", "red")
    printed = call_fresh("program:f", {"x": {"y": 3}}, purpose="the step", timeout=60, not_inherited={"SHAPE"})
    assert json.loads(printed[-1]) == [{"y": 3}, False, "red"]


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise ValueError('no such device')", "ValueError: no such device"),
        ("raise SystemExit(3)", "exit status 3, no message"),
    ],
    ids=["with a message", "without a message"],
)
def test_fresh_process_that_fails_has_no_verdict(plant: Plant, ending: str, message: str) -> None:
    """Whatever it has printed before."""
    plant(f"def f():\n    print('0.7')\n    {ending}")
    with pytest.raises(NoVerdictError, match=rf"^the step failed in a fresh process: {message}$"):
        call_fresh("program:f", {}, purpose="the step", timeout=60)


def test_failure_whose_confirmation_does_not_end_stays(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("import time\ndef rounds():\n    time.sleep(600)")
    monkeypatch.setattr(confirmation, "TIMEOUT_SECONDS", 0.2)
    decision = confirmed(FAILED, 1.0, Timed("program:rounds").in_fresh_process, 3)
    assert decision.verdict is Verdict.FAIL
    assert decision.reason.endswith("not measured again: program:rounds failed in a fresh process: no end after 0.2 s")


ROUNDS_OF_TWICE_THE_WORK = """
from fairdraw.perf_regression._rounds import Rounds
import os
def rounds(process):
    assert os.getpid() != process
    cost = {"ours": 2.0, "reference": 1.0}
    print("what is measured may print")
    return Rounds({name: (lambda name=name: name) for name in cost}, clock=lambda step, inner: cost[step()])
"""


def test_fresh_process_measures_by_name(plant: Plant) -> None:
    """Time is made up, so that the answer is exact."""
    plant(ROUNDS_OF_TWICE_THE_WORK)
    assert Timed("program:rounds", {"process": os.getpid()}).in_fresh_process() == pytest.approx(2.0)
    with pytest.raises(NoVerdictError, match="failed in a fresh process: TypeError"):
        Timed("program:rounds", {"colour": "red"}).in_fresh_process()


def failed_by_rounds(series: int) -> Decision:
    """A recorded run of the gate on ten per cent more work."""
    decision = decide([(ours, other) for ours, other in ROUNDS["slower thread"][series]["pairs"][:40]], GATE)
    assert decision.verdict is Verdict.FAIL
    return decision


def recorded(kind: str, first: int) -> Callable[[], float]:
    """Recorded fresh processes in turn, from `first` on, with all cores busy."""
    coming = iter(PROCESSES[kind][first:] + PROCESSES[kind][:first])
    return lambda: next(coming)


@pytest.mark.parametrize(
    ("kind", "verdict", "reason"),
    [("slower", Verdict.FAIL, "3 fresh processes: 1."), ("aa", Verdict.INCONCLUSIVE, "but a fresh process keeps it")],
    ids=["ten per cent more work", "the same work in an unlucky first process"],
)
def test_failure_stays_only_if_fresh_processes_repeat_it(kind: str, verdict: Verdict, reason: str) -> None:
    for first in range(20):
        decision = confirmed(failed_by_rounds(first % 10), GATE.limit, recorded(kind, first), 3)
        assert decision.verdict is verdict
        assert reason in decision.reason


def test_one_fresh_process_would_not_be_enough() -> None:
    """Among twenty recorded processes that do the same work as the reference, one is beyond the limit as a whole."""
    unlucky = max(range(20), key=lambda i: float(PROCESSES["aa"][i]))
    assert confirmed(FAILED, GATE.limit, recorded("aa", unlucky), 1).verdict is Verdict.FAIL
    assert confirmed(FAILED, GATE.limit, recorded("aa", unlucky), 3).verdict is Verdict.INCONCLUSIVE


def test_only_failures_are_measured_again() -> None:
    for verdict in set(Verdict) - {Verdict.FAIL}:
        decision = Decision(verdict, "as measured")
        assert confirmed(decision, 1.0, recorded("aa", 0), 3) is decision


def test_lower_limit_is_confirmed_from_below() -> None:
    assert confirmed(FAILED, 0.8, lambda: 0.7, 3, at_least=True).verdict is Verdict.FAIL
    assert confirmed(FAILED, 0.8, lambda: 0.9, 3, at_least=True).verdict is Verdict.INCONCLUSIVE


def test_disturbed_rounds_have_no_ratio() -> None:
    rounds = Rounds({"ours": list, "reference": list}, clock=lambda step, inner: 1.0, watches=[lambda: lambda: "no"])
    rounds.run(3)
    with pytest.raises(NoVerdictError, match="all rounds were disturbed"):
        median_ratio(rounds)


def test_kernel_that_does_not_compile_or_not_in_time_has_no_verdict() -> None:
    with pytest.raises(NoVerdictError, match=r"^compiling kernels for sm_90 failed in a fresh process: no end after"):
        compile_groups({}, timeout=0.01)
    with pytest.raises(NoVerdictError, match=r"ModuleNotFoundError: No module named 'nowhere'"):
        compile_groups({"": [Launch("nowhere", "no_kernel", {}, {})]})
