"""How a run spends its time: first turns, the forecast, limits that are kept by asking less, and what is said of it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers import CHECKS, Clock, report_of

from fairdraw import adapters
from fairdraw._cli.job import Job, Plan
from fairdraw._cli.workers import Here
from fairdraw._core.budget import ENDED, LEFT_OUT, FirstPart
from fairdraw._core.checks import PROFILES, DistributionCase, Profile
from fairdraw._report.verdict import GREEN, Scope, verdict_of
from fairdraw._run import pace
from fairdraw._run.controls import Untried
from fairdraw._run.crash import read_crash
from fairdraw._run.pace import Begun, Limit, by_turns, closed, scale_for, second_turns, seconds_left, with_guesses
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.strategies._trace_plans import flat_traces

CI, SMOKE = PROFILES["ci"], PROFILES["smoke"]
GROUPS = {"DIST1": "rows", "DIST2": "rows", "DIST3": "pairs"}


class Sleepy:
    """The plain sampler, a while later by the clock."""

    name, device = "sleepy", "cpu"

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._inner: Any = adapters.load("rejection/torch", "cpu")
        self._clock, self._seconds = clock, seconds
        self.capabilities, self.calls = self._inner.capabilities, 0

    def verify(self, batch: Any, noise: Any) -> Any:
        self.calls += 1
        self._clock.now += self._seconds
        return self._inner.verify(batch, noise)


def begun(code: str, part: float = 0.1, whole: float = 10.0, status: Any = "passed", reason: str = "") -> Begun:
    suite = "statistical" if code.startswith("DIST") else "properties"
    return Begun(CheckRecord(code, "title", suite, "rejection", status, reason=reason), part, whole, is_open=True)


# -- a first turn -----------------------------------------------------------------------------------------------------


def test_first_turn_is_a_tenth_at_least_and_all_that_is_quick() -> None:
    clock = Clock(1000.0)
    slow, quick = FirstPart(clock), FirstPart(clock)
    for part in (0.0, 0.05):
        assert not slow.enough(part)
        clock.now += 1.0
    assert slow.enough(0.1)
    assert slow.was_stopped
    assert slow.whole == pytest.approx(20.0)  # a twentieth a second
    assert not any(quick.enough(part / 20) for part in range(21))


def test_compilation_in_the_first_case_is_not_taken_for_speed() -> None:
    clock = Clock(1000.0)
    first = FirstPart(clock)
    for part, seconds in ((0.0, 60.0), (0.1, 0.5), (0.2, 0.0)):
        first.enough(part)
        clock.now += seconds
    assert first.whole == pytest.approx(5.0)


@pytest.mark.parametrize(("contract", "code"), [("rejection", "REJ101"), ("sampling", "SAM101")])
def test_part_of_a_profile_is_the_first_cases_of_the_whole(contract: str, code: str) -> None:
    """Time changes how much is tried, and never what: a scaled profile once drew other cases."""
    check, sampler = CHECKS[code], adapters.load(f"{contract}/torch", "cpu")

    def tried(profile: Profile) -> list[str]:
        cases: list[str] = []
        noting = dataclasses.replace(check, body=lambda sampler, case: cases.append(repr(case)))
        noting.run(sampler, profile=profile, seed=3)
        return cases

    whole, part = tried(SMOKE), tried(SMOKE.scaled(0.3))
    assert len(whole) == 20
    assert part == whole[:6]


def test_part_of_the_draws_is_the_first_checkpoints_of_the_whole() -> None:
    sampler, part = adapters.load("rejection/torch", "cpu"), SMOKE.scaled(0.25)
    check: Any = CHECKS["DIST111"]
    assert check.sampling_plan(sampler, part) is check.sampling_plan(sampler, SMOKE)
    most = check.sampling_plan(sampler, SMOKE).num_checkpoints
    (_, plans), (few, less) = (check.planned(sampler, profile, 3) for profile in (SMOKE, part))
    assert few == pytest.approx(most / 4, abs=1)
    assert all(less[name].discrepancy > plans[name].discrepancy for name in plans)
    flat, first = ([*flat_traces(lambda *of, **_: of[1:4], sampler, one, 3)] for one in (SMOKE, SMOKE.scaled(0.4)))
    assert (len(flat), first) == (3, flat[:1])


def test_check_whose_part_would_show_nothing_draws_the_whole() -> None:
    sampler = adapters.load("sampling/counter", "cpu")
    check: Any = CHECKS["DIST775"]
    assert check.planned(sampler, SMOKE.scaled(0.2), 3)[0] == check.planned(sampler, SMOKE, 3)[0]


@pytest.mark.parametrize("code", ["REJ101", "DIST101", "THK101", "REJ701", "DIST691"])
def test_first_turn_leaves_the_rest_to_a_second_one(code: str) -> None:
    clock = Clock(1000.0)
    contract = CHECKS[code].contract
    inner = adapters.load("rejection/torch" if contract == "rejection" else contract, "cpu")
    first = FirstPart(clock, seconds=0.0)
    session = Session("s", SMOKE, ends_at=clock.now + 1e6, clock=clock, first=first, crash_folder=None)
    record = run_check(CHECKS[code], inner, session)
    assert first.was_stopped
    assert 0.1 <= first.part < 0.6
    whole = run_check(CHECKS[code], inner, Session("s", SMOKE, crash_folder=None))
    assert 0 < record.cases < whole.cases
    assert whole.status == "passed"


# -- the forecast -----------------------------------------------------------------------------------------------------


def test_properties_begin_anew_and_draws_go_on_and_are_paid_for_once() -> None:
    ones = [begun("REJ1"), begun("DIST1", part=0.2), begun("DIST2", part=0.25, whole=2.0), begun("DIST3")]
    assert seconds_left(ones, GROUPS) == {"REJ1": 10.0, "DIST1": 7.5, "DIST2": 0.0, "DIST3": 9.0}
    assert seconds_left(ones, GROUPS, 0.1) == {"REJ1": 0.0, "DIST1": 0.0, "DIST2": 0.0, "DIST3": 0.0}


def test_scale_is_the_largest_that_fits_and_one_check_cannot_be_shared() -> None:
    ones = [begun("REJ1"), begun("DIST3")]
    assert scale_for(ones, GROUPS, 100.0, 1) == 1.0
    few, many = (scale_for(ones, GROUPS, 10.0, workers) for workers in (1, 2))
    assert 0.4 < few < many < 1
    assert sum(seconds_left(ones, GROUPS, few).values()) <= 8.5
    assert scale_for([begun("DIST3")], GROUPS, 5.0, 8) == scale_for([begun("DIST3")], GROUPS, 5.0, 1)
    assert scale_for(ones, GROUPS, 0.0, 1) <= 0.1


def test_check_that_came_nowhere_is_expected_to_take_what_the_others_do() -> None:
    ones = [begun("REJ3", 0.0, 0.0), begun("REJ1", whole=4.0), begun("REJ2", whole=8.0)]
    assert [with_guesses(ones[:number])[0].whole for number in (1, 3)] == [0.0, 6.0]  # the median


def test_cheapest_come_first_under_a_limit_and_the_longest_if_workers_share_without_one() -> None:
    ones = [begun("REJ1", whole=30.0), begun("DIST1", status="inconclusive"), begun("DIST3", whole=2.0)]
    for first, order in ((False, ["DIST3", "DIST1", "REJ1"]), (True, ["REJ1", "DIST1", "DIST3"])):
        assert [one.record.code for one in second_turns(ones, GROUPS, 1.0, longest_first=first)] == order
    assert [one.record.code for one in second_turns(ones, GROUPS, 0.1, longest_first=False)] == ["DIST1"]


def test_first_turns_keep_workloads_together_and_mix_suites_under_a_limit() -> None:
    codes = ["REJ1", "REJ2", "REJ3", "DIST3", "DIST1", "DIST2"]
    assert by_turns(codes, GROUPS, has_limit=False) == ["REJ1", "REJ2", "REJ3", "DIST3", "DIST1", "DIST2"]
    mixed = by_turns(codes, GROUPS, has_limit=True)
    assert mixed.index("DIST2") == mixed.index("DIST1") + 1
    assert mixed[0] == "REJ1"
    assert mixed.index("DIST3") < mixed.index("REJ2") < mixed.index("DIST1") < mixed.index("REJ3")


def test_words() -> None:
    assert pace.worded_limit(44.6, "smoke", 1.1).startswith("expected duration: at most 45 s; smoke asks less")
    assert pace.worded_limit(109, "smoke", 2.4).startswith("expected duration: at most 2 min beside busy processes;")
    assert "first 12% of the cases and draws of smoke" in pace.worded_scale(0.12, "smoke")
    assert pace.worded_forecast(120.0, "ci") == "expected duration: 2 min, by a tenth of every check"
    assert pace.worded_forecast(3000.0, "ci").endswith("for less: --time-budget SECONDS or --profile smoke")
    assert "--profile smoke" not in pace.worded_forecast(3000.0, "smoke")


# -- a limit ----------------------------------------------------------------------------------------------------------


def test_limit_keeps_time_for_second_turns_and_controls() -> None:
    limit = Limit.of(100.0, 200.0)
    assert 100 < limit.first < limit.checks < 200 == limit.run
    assert Limit.of(100.0, None) == Limit()
    assert limit.quick(100.0, 2) > 10
    assert limit.quick(100.0, 10_000) == Limit().quick(100.0, 2) == 0.1


def test_mutant_of_a_check_that_was_left_out_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the run would claim to have been able to find it."""
    job = Job("slow", "smoke", "properties", reference="none", keywords=("REJ101", "REJ107"))
    _, crew = slow_crew(monkeypatch, 30.0, job)
    plan = planned(crew)
    records = {found.code: found for found in crew.records(plan) if isinstance(found, CheckRecord)}
    late = {code for code, record in records.items() if record.reason == LEFT_OUT}
    assert late
    found = {control.code: control for control in crew.controls(plan) if control is not None}
    crew.close()
    assert {code for code, control in found.items() if control.untried == Untried.OUT_OF_TIME} >= late & set(found)


def test_own_limit_is_longer_beside_busy_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 45 seconds by the clock, nothing was left for distributions beside four of them."""
    job = Job("slow", "smoke", reference="none", keywords=("REJ101",))
    assert planned(slow_crew(monkeypatch, 0.0, job, "100 150 7")[1]).limit.run == 1000 + 2.5 * (SMOKE.seconds or 0)


def slow_crew(monkeypatch: pytest.MonkeyPatch, seconds: float, job: Job, times: str = "") -> tuple[Clock, Here]:
    """A crew of slow calls, and the clock that only these move."""
    clock = Clock(1000.0)
    monkeypatch.setattr("fairdraw._cli.job.load_sampler", lambda *_: Sleepy(clock, seconds))
    monkeypatch.setattr("fairdraw._cli.job.times_of_this_process", lambda: times)
    return clock, Here(job, 300.0, clock)


def planned(crew: Here) -> Plan:
    """The plan, once it is there."""
    planning = crew.plan()
    while True:
        try:
            next(planning)
        except StopIteration as end:
            return end.value


def results(monkeypatch: pytest.MonkeyPatch, seconds: float, job: Job) -> tuple[Clock, list[CheckRecord], Plan]:
    """What a run of slow calls finds."""
    clock, crew = slow_crew(monkeypatch, seconds, job)
    plan, records = planned(crew), []
    for found in crew.records(plan):
        if isinstance(found, Plan):
            plan = found
        elif found is not None:
            records.append(found)
    crew.close()
    return clock, records, plan


def test_smoke_on_a_sampler_of_50_ms_ends_in_time_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict in 590 seconds, with the hint to use a smaller profile, which there is not."""
    keywords = ("REJ1", "REJ2", "REJ3", "DIST1", "DIST2", "DIST3", "DIST6")
    clock, records, plan = results(monkeypatch, 0.05, Job("slow", "smoke", reference="none", keywords=keywords))
    assert clock.now - 1000 <= SMOKE.seconds
    assert {record.code for record in records} == set(plan.pieces)
    assert {record.status for record in records} == {"passed", "skipped"}
    tried = [record for record in records if record.status == "passed"]
    for suite in ("properties", "statistical"):
        all_of_suite = sum(record.suite == suite for record in records)
        assert sum(record.suite == suite for record in tried) >= all_of_suite / 2
    assert plan.scale < 1
    assert "time was short" in plan.header.duration
    found = verdict_of(records, scope=Scope(scale=plan.scale))
    assert found.exit_code == GREEN
    assert "left out for want of time: " in found.text
    assert f"; long ones tried up to {plan.scale:.0%} of the profile" in found.text
    assert f"{sum(r.suite == 'statistical' for r in tried)} of " in found.text


def test_users_own_budget_leaves_checks_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("slow", "smoke", "properties", reference="none", keywords=("REJ1",), ends_at=1002.0)
    clock, records, _ = results(monkeypatch, 0.05, job)
    assert clock.now - 1000 <= 2.05
    late = [record for record in records if record.status == "inconclusive"]
    assert late
    assert all(record.reason.startswith(ENDED) for record in late)


def test_fast_sampler_tries_the_whole_profile_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("fast", "smoke", "properties", reference="none", keywords=("REJ10",))
    _, records, plan = results(monkeypatch, 1e-4, job)
    assert plan.scale == 1
    session = Session("fast", SMOKE, crash_folder=None)
    alone = [run_check(CHECKS[r.code], adapters.load("rejection/torch", "cpu"), session) for r in records]
    assert [(r.status, r.cases) for r in records] == [(r.status, r.cases) for r in alone]


def test_run_without_a_limit_announces_a_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    keywords = ("REJ101", "REJ102", "REJ103", "REJ104", "REJ105", "REJ106", "REJ107", "REJ108", "REJ109", "REJ11")
    clock, records, plan = results(monkeypatch, 0.05, Job("s", "ci", "properties", reference="none", keywords=keywords))
    assert {record.status for record in records} <= {"passed", "skipped"}
    taken = clock.now - 1000
    assert taken / 1.5 <= plan.seconds <= 1.5 * taken
    assert plan.header.duration.startswith("expected duration: ")


def test_only_the_profiles_own_limit_skips_what_it_leaves_out() -> None:
    late = CheckRecord("REJ1", "t", "properties", "rejection", "inconclusive", reason=f"{ENDED}: 0 of 20 cases tried")
    assert closed(late, is_own_limit=True).reason == LEFT_OUT
    assert closed(late, is_own_limit=True).status == "skipped"
    assert closed(late, is_own_limit=False) is late
    failed = CheckRecord("REJ1", "t", "properties", "rejection", "failed")
    assert closed(failed, is_own_limit=True) is failed


# -- replay -----------------------------------------------------------------------------------------------------------


def test_crash_file_of_part_of_a_profile_replays_the_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = SMOKE.scaled(0.5)

    class Wrong(Sleepy):
        def verify(self, batch: Any, noise: Any) -> Any:
            answer = super().verify(batch, noise)
            answer[:, 1:] = -1
            return answer

    wrong = Wrong(Clock(1000.0), 0.0)
    record = run_check(CHECKS["DIST101"], wrong, Session("mine:make", part, 7))
    crash = read_crash(tmp_path / report_of(record).crash_file)
    case = crash.rebuild("statistical")
    assert case == DistributionCase("smoke", 25_000, 0.5)
    assert case.build() == part
    again = run_check(CHECKS["DIST101"], wrong, Session("mine:make", case.build(), crash.seed))
    then, now = report_of(record), report_of(again)
    assert (now.effect, now.evidence) == (then.effect, then.evidence)
    assert then.command == f"fairdraw replay {then.crash_file} -y", "the search would try a whole profile"


def test_older_crash_files_load() -> None:
    assert DistributionCase.from_json({"profile": "ci", "num_draws": 500_000}).build() == CI
    assert "scale" not in DistributionCase("ci", 500_000).to_json()
    for scale in (0, 2, "0.5", True):
        with pytest.raises((TypeError, ValueError), match="DistributionCase: scale="):
            DistributionCase("ci", 5, scale).build()  # type: ignore[arg-type]


def test_least_profile_still_compares_something() -> None:
    least = CI.scaled(1e-4)
    capabilities = adapters.load("rejection/torch", "cpu").capabilities
    assert (least.examples_for(capabilities, 1.0), least.draws_for(capabilities)) == (2, 1000)
    assert least.whole == CI == Profile("ci", 100, 25)
