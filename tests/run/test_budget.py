"""Time budgets: no call starts after the end, failures are kept, and undecided checks are reported once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import CHECKS, Clock, fairdraw, report_of

from fairdraw import adapters
from fairdraw._core.budget import (
    ENDED,
    SHRINKING_LEAST,
    SHRINKING_SECONDS,
    SHRINKING_SHARE,
    BudgetEnded,
    Deadline,
    budget_report,
    guarded,
    undecided_by_budget,
    until_shrunk,
)
from fairdraw._core.checks import PROFILES, AnyCheck, Profile
from fairdraw._core.failures import CheckFailure, Inconclusive
from fairdraw._core.release import install
from fairdraw._core.wrapping import Wrapped, unwrapped
from fairdraw._run.loading import CannotStart, require_extra
from fairdraw._run.runner import CheckRecord, Session, run_check


def ticking(spec: str, clock: Clock, seconds: float = 1.0) -> Any:
    """The sampler `spec`, whose calls take `seconds` each by `clock`."""

    def around(call: Any, arguments: tuple[Any, ...]) -> Any:
        clock.now += seconds
        clock.calls += 1
        return call()

    return Wrapped(adapters.load(spec, "cpu"), around)


def asked(check: AnyCheck, sampler: Any, clock: Clock, budget: float, profile: Profile = PROFILES["ci"]) -> int:
    return check.run(sampler, profile=profile, seed=3, out_of_time=Deadline(budget, clock))


# -- no call begins after the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("rejection/torch", "REJ101"), ("rejection/torch", "REJ106"), ("rejection/torch", "DIST101"),
        ("rejection/torch", "DIST602"), ("sampling", "SAM101"),
        ("sampling", "DIST701"), ("logits_plan", "PLAN101"), ("penalties", "PEN101"),
        ("thinking_budget", "THK101"), ("logprobs", "LPR101"),
    ],
)  # fmt: skip
def test_no_call_begins_after_the_end_and_the_check_is_undecided(spec: str, code: str) -> None:
    clock = Clock()
    with pytest.raises(Inconclusive, match=f"^{ENDED}: "):
        asked(CHECKS[code], ticking(spec, clock), clock, 5.5)
    assert clock.calls == 6


def test_property_says_how_many_cases_were_tried() -> None:
    clock = Clock()
    with pytest.raises(Inconclusive, match=r"^the time budget ended: \d+ of 100 cases tried$") as caught:
        asked(CHECKS["REJ101"], ticking("rejection/torch", clock), clock, 5.5)
    assert caught.value.tried == clock.calls == 6


def test_without_a_budget_the_sampler_is_called_as_it_is() -> None:
    sampler = adapters.load("rejection/torch", "cpu")
    assert guarded(sampler, Deadline(None)) is sampler
    assert unwrapped(guarded(sampler, lambda: False)) is sampler


def test_budget_changes_no_verdict_and_no_case() -> None:
    clock = Clock()
    found = [
        asked(CHECKS["REJ101"], ticking("rejection/torch", clock), clock, end, PROFILES["smoke"]) for end in (1e9, 1e6)
    ]
    assert (
        found == [CHECKS["REJ101"].run(adapters.load("rejection/torch", "cpu"), profile=PROFILES["smoke"], seed=3)] * 2
    )


def test_look_that_was_cut_is_not_counted() -> None:
    """Draws judged are those of whole looks, whenever the clock stops."""
    sampling_plan = CHECKS["DIST101"].sampling_plan(adapters.load("rejection/torch", "cpu"), PROFILES["smoke"])  # type: ignore[attr-defined]
    clock = Clock()
    with pytest.raises(Inconclusive) as caught:
        asked(CHECKS["DIST101"], ticking("rejection/torch", clock), clock, 4.5, PROFILES["smoke"])
    tried = caught.value.tried
    assert clock.calls == 5
    assert tried == 2 * sampling_plan.draws_per_checkpoint  # of two calls each; the fifth call is lost


def test_checks_of_one_workload_share_its_draws_under_a_budget() -> None:
    clock = Clock()
    sampler = ticking("rejection/torch", clock)
    asked(CHECKS["DIST101"], sampler, clock, 1e9, PROFILES["smoke"])
    drawn = clock.calls
    asked(CHECKS["DIST102"], sampler, clock, 1e9, PROFILES["smoke"])
    assert clock.calls == drawn


# -- what was found is kept -------------------------------------------------------------------------------------------


CALL_SECONDS = 2**-6


class Greedy:
    """Emits the first draft token of everybody, whatever was drawn."""

    def __init__(self, clock: Clock) -> None:
        inner = adapters.load("rejection/torch", "cpu")
        self.name, self.device, self.capabilities = "greedy", "cpu", inner.capabilities
        self._inner, self._clock = inner, clock

    def verify(self, batch: Any, noise: Any) -> Any:
        self._clock.now += CALL_SECONDS
        self._clock.calls += 1
        answer = self._inner.verify(batch, noise)
        answer[:, 1:] = -1
        return answer


def test_remark_is_a_note_of_the_failure_report() -> None:
    clock = Clock()
    sampler = Greedy(clock)
    clock_end = 49 * CALL_SECONDS

    class Timed:
        def __getattr__(self, name: str) -> Any:
            return getattr(CHECKS["REJ116"], name)

        def run(self, *arguments: Any, out_of_time: Any, **named: Any) -> int:
            return CHECKS["REJ116"].run(*arguments, out_of_time=Deadline(clock_end, clock), **named)

    record = run_check(Timed(), sampler, Session(crash_folder=None))  # type: ignore[arg-type]
    assert record.status == "failed"
    assert any("shrinking was cut" in note for note in report_of(record).notes)


def test_shrinking_has_a_share_of_the_time_that_is_left() -> None:
    clock = Clock()
    assert Deadline(100, clock).part(SHRINKING_SHARE).ends_at == 5
    clock.now = 90
    assert Deadline(100, clock).part(SHRINKING_SHARE).ends_at == 90.5
    assert Deadline(None, clock).part(SHRINKING_SHARE).ends_at is None
    assert isinstance(soon := until_shrunk(Deadline(None, clock)), Deadline)
    assert soon.ends_at == clock() + SHRINKING_SECONDS
    for end, expected in ((1000, 90 + SHRINKING_SECONDS), (130, 90 + SHRINKING_LEAST), (92, 92)):
        assert isinstance(soon := until_shrunk(Deadline(end, clock)), Deadline)
        assert soon.ends_at == expected


class Forgetful:
    """Penalises nothing."""

    name, device, contract = "forgetful", "cpu", "penalties"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.capabilities = adapters.load("penalties", "cpu").capabilities

    def open_penalties(self, vocab_size: int) -> Forgetful:
        return self

    def sync(self, changes: Any) -> None:
        pass

    def penalise(self, logits: Any, batch: Any) -> Any:
        self._clock.now += CALL_SECONDS
        self._clock.calls += 1
        return logits

    penalise_drafts = penalise


@pytest.mark.parametrize(("code", "make"), [("REJ116", Greedy), ("PEN101", Forgetful)])
def test_failure_is_reported_though_shrinking_was_cut(code: str, make: Callable[[Clock], Any]) -> None:
    clock = Clock()
    with pytest.raises(CheckFailure) as whole:
        asked(CHECKS[code], make(clock), clock, 1e9)
    needed = clock.calls
    clock = Clock()
    with pytest.raises(CheckFailure) as cut:
        asked(CHECKS[code], make(clock), clock, (needed - 1) * CALL_SECONDS)
    assert clock.calls < needed
    assert "shrinking was cut" in cut.value.remarks[0]
    assert not whole.value.remarks
    assert len(repr(whole.value.case)) <= len(repr(cut.value.case))
    with pytest.raises(CheckFailure):
        CHECKS[code].on_case(make(Clock()), cut.value.case)


def test_share_that_is_off_decides_though_the_budget_ended() -> None:
    clock = Clock()
    with pytest.raises(CheckFailure, match="of the strata"):
        asked(CHECKS["DIST601"], Greedy(clock), clock, 3.5)


# -- the report -----------------------------------------------------------------------------------------------------


def undecided(code: str, detail: str) -> CheckRecord:
    return CheckRecord(code, "some title", "properties", "rejection", "inconclusive", reason=f"{ENDED}: {detail}")


def test_one_report_for_all_that_is_undecided() -> None:
    session = Session(ends_at=0.0, crash_folder=None)
    sampler = adapters.load("rejection/torch", "cpu")
    never = [run_check(CHECKS[code], sampler, session) for code in ("REJ101", "DIST101", "DIST601")]
    records = [undecided("REJ103", "37 of 100 cases tried"), *never]
    assert all(map(undecided_by_budget, records))
    assert budget_report(records) == [
        "the time budget ended: 4 checks have no verdict",
        "  never began: REJ101, DIST101, DIST601",
        "  cut: REJ103 (37 of 100 cases tried)",
    ]


def test_other_undecided_checks_are_not_of_the_budget() -> None:
    powerless = CheckRecord("DIST101", "t", "statistical", "rejection", "inconclusive", reason="no power")
    assert not undecided_by_budget(powerless)
    assert budget_report([powerless]) == []


def test_long_report_is_cut() -> None:
    records = [undecided(f"REJ{i}", "this check had not begun") for i in range(100, 141)]
    assert budget_report(records)[1].endswith("and 29 more")


def test_end_is_no_exception_that_a_check_could_take_for_an_answer() -> None:
    assert not issubclass(BudgetEnded, Exception)


# -- refused before the run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("check", "rejection/torch", "--pictures", "new"), "matplotlib"),
        (("bench", "rejection/torch", "--plots", "new"), "matplotlib"),
    ],
)
def test_missing_extra_is_refused_before_anything_runs(
    arguments: tuple[str, ...], module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    monkeypatch.setattr("fairdraw._cli.job.load_sampler", None)  # is not called
    result = fairdraw(*arguments)
    assert result.exit_code == 2, result.output
    assert f"{arguments[2]}: {module} cannot be imported" in result.output
    assert install("fairdraw[report]") in result.output
    assert not list(tmp_path.iterdir())


def test_extra_that_is_there_is_not_refused() -> None:
    require_extra("--html", "json")
    with pytest.raises(CannotStart, match="no_such_module"):
        require_extra("--html", "no_such_module")
