"""How long a run will take: the fit, the table, the order of checks, and profiles that shrink to a budget."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairdraw import _adapters as adapters
from fairdraw._core.budget import ENDED
from fairdraw._core.checks import PROFILES, DistributionCase, Profile
from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.crash import read_crash
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw._run.speed import (
    Call,
    Cost,
    Costs,
    Estimate,
    Meter,
    Speed,
    _fitted,
    calibrate,
    estimate,
    expected_controls,
    expected_seconds,
    fit,
    in_order,
    measure,
    measuring_seconds,
    shipped_costs,
    size_of,
    workload_key,
)

CI, SMOKE = PROFILES["ci"], PROFILES["smoke"]
CHECKS = {check.code: check for check in all_checks(contract="rejection")}
FEW = [CHECKS[code] for code in ("DIST101", "DIST102", "DIST601", "REJ101", "REJ103")]
DRAWING = workload_key(CHECKS["DIST101"])
TABLE = Costs(
    0.1,
    {
        "REJ101": [(20, Cost(20, 60, 600, 0.2)), (100, Cost(100, 300, 3000, 1.0))],
        "REJ103": [(20, Cost(40, 60, 600, 0.1)), (100, Cost(200, 300, 3000, 0.5))],
        "DIST101": [(1000, Cost(0, 0, 0, 0.1))],
        "DIST102": [(1000, Cost(0, 0, 0, 0.1))],
        "DIST601": [(8, Cost(20, 160, 1280, 0.1))],
        DRAWING: [(1000, Cost(64, 1000, 8000, 0.5)), (500_000, Cost(64, 500_000, 4_000_000, 10.0))],
        "controls rejection": [(2000, Cost(seconds=1.0)), (50_000, Cost(seconds=2.0))],
    },
)


class Sleepy:
    """The plain sampler, a while later."""

    name, device = "sleepy", "cpu"

    def __init__(self, seconds: float = 0.0) -> None:
        self._inner, self._seconds = adapters.load("rejection/torch", "cpu"), seconds
        self.capabilities, self.calls = self._inner.capabilities, 0

    def verify(self, batch: Any, noise: Any) -> Any:
        self.calls += 1
        time.sleep(self._seconds)
        return self._inner.verify(batch, noise)


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairdraw._run.speed.shipped_costs", lambda: TABLE)


# -- the table --------------------------------------------------------------------------------------------------------


def test_costs_lie_on_a_line_between_measured_sizes_and_beyond() -> None:
    assert TABLE.at("REJ101", 60) == Cost(60, 180, 1800, pytest.approx(0.6))
    assert TABLE.at("REJ101", 200) == Cost(200, 600, 6000, pytest.approx(2.0))
    assert TABLE.at("REJ101", 2) == TABLE.at("REJ101", 20)
    assert TABLE.at("NEW101", 20) is None


def test_check_that_the_table_does_not_know_costs_what_others_do() -> None:
    seconds = expected_seconds([*FEW, CHECKS["REJ102"]], Sleepy(), SMOKE, Speed(0.1))
    assert seconds["REJ103"] >= seconds["REJ102"] >= seconds["REJ101"] > 0


def test_unknown_distribution_check_does_not_cost_an_example_per_draw() -> None:
    """On a GPU 80 hours were expected of six of them, which took a minute."""
    seconds = expected_seconds([*FEW, CHECKS["DIST103"]], Sleepy(), CI, Speed(1e-3))
    assert seconds["DIST103"] <= max(seconds["DIST102"], seconds["DIST601"])


def test_shipped_table_knows_the_shipped_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """New checks cost what others do until tools/measure_costs.py is run again; most must be known."""
    monkeypatch.undo()
    shipped, codes = shipped_costs(), [check.code for check in all_checks()]
    assert sum(code in shipped.rows for code in codes) >= 0.8 * len(codes)
    workloads = {key for check in all_checks() if (key := workload_key(check))}
    assert sum(key in shipped.rows for key in workloads) >= 0.8 * len(workloads)


def test_checks_of_one_workload_pay_for_its_draws_once() -> None:
    speed = Speed(0.0, 1e-3)
    both = expected_seconds([CHECKS["DIST101"], CHECKS["DIST102"]], Sleepy(), CI, speed)
    assert both["DIST101"] == pytest.approx(6 * 510 + both["DIST102"], rel=0.1)  # six shares of the draws
    assert expected_seconds([CHECKS["DIST102"]], Sleepy(), CI, speed)["DIST102"] == both["DIST101"]


def test_skipped_check_takes_no_time() -> None:
    class Lacking(Sleepy):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities = type(self.capabilities)(unsupported={"dense-drafts": "none here"})

    assert expected_seconds(FEW, Lacking(), CI, Speed(1.0))["DIST101"] == 0


# -- the sampler is timed ---------------------------------------------------------------------------------------------


def test_fit_finds_seconds_per_call_row_and_element() -> None:
    sizes = [(1, 8), (4, 32), (64, 512), (256, 2048), (16, 16 * 32768), (8, 64), (32, 32 * 32768)]
    calls = [Call(rows, elements, 1e-3 + 2e-5 * rows + 3e-9 * elements) for rows, elements in sizes]
    speed = _fitted(calls, suite=1.0)
    assert (speed.per_call, speed.per_row, speed.per_element) == pytest.approx((1e-3, 2e-5, 3e-9), rel=1e-3)
    assert _fitted([], suite=2.0) == Speed(0.0, suite=2.0)


def test_sleeping_sampler_is_timed_within_the_seconds_given() -> None:
    sampler = Sleepy(0.05)
    speed = measure(sampler, FEW, seconds=0.4)
    assert speed.seconds(Cost(calls=1, rows=8, elements=64)) == pytest.approx(0.05, rel=0.5)
    assert 3 <= sampler.calls <= 14


def test_compilation_at_the_first_call_of_a_size_is_not_taken_for_speed() -> None:
    """As on a GPU: 80 hours were expected of a run that took 91 seconds."""

    class Compiles(Sleepy):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: set[Any] = set()

        def verify(self, batch: Any, noise: Any) -> Any:
            size = batch.target_logits.shape
            time.sleep(0.0 if size in self.sizes else 0.6)
            self.sizes.add(size)
            return super().verify(batch, noise)

    drawn = Cost(calls=10, rows=160_000, elements=1_280_000)
    steady, compiling = (measure(sampler, [CHECKS["DIST101"]], seconds=1.0) for sampler in (Sleepy(), Compiles()))
    assert compiling.seconds(drawn) < 3 * steady.seconds(drawn)


def test_long_run_measures_for_longer() -> None:
    assert measuring_seconds(None) == measuring_seconds(10.0) < measuring_seconds(2700.0) == 81


def test_nearly_all_of_a_profile_is_not_written_as_a_power_of_ten() -> None:
    lines = Estimate(CI.scaled(0.998), 500.0, Speed(0.0), budget=400.0).lines()
    assert "99.8 % of the examples" in lines[1]


def test_sampler_that_raises_is_timed_all_the_same() -> None:
    class Raising(Sleepy):
        def verify(self, batch: Any, noise: Any) -> Any:
            self.calls += 1
            raise SystemExit(3)

    sampler = Raising()
    assert measure(sampler, FEW, seconds=0.1).per_call < 0.1
    assert sampler.calls > 0


def test_meter_sees_sessions() -> None:
    meter = Meter()
    check = next(check for check in all_checks(contract="logits_plan") if check.code == "PLAN101")
    check.run(meter.wrap(adapters.load("logits_plan", "cpu")), profile=Profile("tiny", 3, 3))
    assert any(call.rows and call.elements for call in meter.calls)
    assert meter.seconds > 0


def test_calibration_is_a_short_positive_time() -> None:
    assert 0 < calibrate() < 5


# -- order ------------------------------------------------------------------------------------------------------------


def test_properties_come_first_and_the_cheapest_of_them() -> None:
    ordered = [check.code for check in in_order(FEW, Sleepy(), SMOKE, Speed(1e-4))]
    assert ordered == ["REJ103", "REJ101", "DIST601", "DIST101", "DIST102"]
    slow = [check.code for check in in_order(FEW, Sleepy(), SMOKE, Speed(1.0))]
    assert slow[:2] == ["REJ101", "REJ103"]  # twice the calls
    assert slow.index("DIST102") == slow.index("DIST101") + 1  # of one workload


def test_workers_begin_with_the_longest_statistics() -> None:
    ordered = [check.code for check in in_order(FEW, Sleepy(), SMOKE, Speed(1e-4), is_shared=True)]
    assert ordered == ["REJ103", "REJ101", "DIST101", "DIST102", "DIST601"]


def test_workers_begin_with_the_longest_properties_if_there_are_no_statistics() -> None:
    properties = [check for check in FEW if check.suite != "statistical"]
    ordered = [check.code for check in in_order(properties, Sleepy(), SMOKE, Speed(1e-4), is_shared=True)]
    assert ordered == ["REJ101", "REJ103"]


# -- profiles shrink --------------------------------------------------------------------------------------------------


def test_profile_shrinks_to_the_budget_and_no_further_than_needed() -> None:
    sampler, speed = Sleepy(), Speed(0.02, 1e-4)
    chosen = fit(FEW, sampler, CI, speed, 30.0)
    assert 0 < chosen.scale < 1
    total = estimate(FEW, sampler, chosen, speed).seconds
    assert 20 < total <= 0.9 * 30
    assert fit(FEW, sampler, CI, speed, 1e6) is CI


def test_least_profile_still_compares_something() -> None:
    least = fit(FEW, Sleepy(), CI, Speed(100.0), 1.0)
    assert (least.examples, least.draws) == (2, 1000)
    assert least.examples_for(Sleepy().capabilities, 0.1) == 2


def test_properties_have_half_of_a_budget_that_is_too_short_for_statistics() -> None:
    speed = Speed(0.05)  # 6.4 s for the calls of DIST101 alone, however few its draws
    chosen = fit(FEW, Sleepy(), CI, speed, 7.0)
    seconds = expected_seconds(FEW, Sleepy(), chosen, speed)
    assert seconds["REJ101"] + seconds["REJ103"] <= 3.5
    assert sum(seconds.values()) > 7


def test_claims_follow_from_the_smaller_profile() -> None:
    sampler, check = Sleepy(), CHECKS["DIST101"]
    part = CI.scaled(0.05)
    whole, less = (check.plans(sampler, profile, 3) for profile in (CI, part))  # type: ignore[attr-defined]
    assert all(less[name].discrepancy > whole[name].discrepancy for name in whole)
    assert size_of(check, sampler, part) == size_of(check, sampler, CI) / 20


def test_estimate_says_how_long_and_what_it_costs() -> None:
    whole = Estimate(CI, 20.0, Speed(0.1, num_calls=7))
    assert whole.lines() == ["expected duration: 20 s; 7 calls of the sampler were timed"]
    long = Estimate(CI, 2000.0, Speed(0.1, num_calls=7)).lines()
    assert long[0].startswith("expected duration: 33 min")
    assert "--time-budget" in long[1]
    assert "slow=True" in long[1]
    shrunk = Estimate(CI.scaled(0.12), 55.0, Speed(0.1), budget=60.0).lines()
    assert shrunk[1].startswith("60 s left of the time budget: 12 % of the examples and draws of ci")
    assert "some will be undecided" in Estimate(CI.scaled(0.001), 99.0, Speed(0.1), budget=60.0).lines()[-1]


def test_nothing_shrinks_without_a_budget() -> None:
    assert estimate(FEW, Sleepy(), CI, Speed(100.0)).profile is CI


# -- replay -----------------------------------------------------------------------------------------------------------


def test_crash_file_of_a_smaller_profile_replays_the_same_draws(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = SMOKE.scaled(0.5)

    class Wrong(Sleepy):
        def verify(self, batch: Any, noise: Any) -> Any:
            answer = super().verify(batch, noise)
            answer[:, 1:] = -1
            return answer

    record = run_check(CHECKS["DIST101"], Wrong(), Session("mine:make", part, 7))
    assert record.failure_report is not None
    crash = read_crash(tmp_path / record.failure_report.crash_file)
    case = crash.rebuild("statistical")
    assert case == DistributionCase("smoke", 25_000, 0.5)
    assert case.build() == part
    again = run_check(CHECKS["DIST101"], Wrong(), Session("mine:make", case.build(), crash.seed))
    assert again.failure_report is not None
    assert (again.failure_report.effect, again.failure_report.evidence) == (
        record.failure_report.effect,
        record.failure_report.evidence,
    )
    assert (
        record.failure_report.command == f"fairdraw replay {record.failure_report.crash_file}"
    )  # the search would try a whole profile


def test_older_crash_files_load() -> None:
    assert DistributionCase.from_json({"profile": "ci", "num_draws": 500_000}).build() is CI
    assert "scale" not in DistributionCase("ci", 500_000).to_json()
    for scale in (0, 2, "0.5", True):
        with pytest.raises((TypeError, ValueError), match="DistributionCase: scale="):
            DistributionCase("ci", 5, scale).build()  # type: ignore[arg-type]


def test_sleeping_sampler_ends_within_its_budget() -> None:
    """The whole path: measured, shrunk, ordered, cut; late by one call at most."""
    sampler, budget, started = Sleepy(0.05), 3.0, time.time()
    speed = measure(sampler, FEW, seconds=0.4)
    planned = estimate(FEW, sampler, SMOKE, speed, budget=budget - (time.time() - started))
    session = Session(None, planned.profile, crash_folder=None, ends_at=started + budget)
    records = [run_check(check, sampler, session) for check in in_order(FEW, sampler, planned.profile, speed)]
    assert time.time() - started < budget + 1.5
    assert {record.code for record in records if record.status == "passed"} >= {"REJ101"}
    assert all(record.reason.startswith((ENDED, "the ")) for record in records if record.status == "inconclusive")


@pytest.mark.parametrize("contract", [name for name in CONTRACTS if name != "server"])
def test_controls_of_every_contract_are_expected_to_take_a_while_and_not_minutes(contract: str) -> None:
    """Draws are no measure of controls that draw nothing: a run of half a minute was announced as one of 18."""
    sampler = adapters.load(CONTRACTS[contract].default)
    seconds = [expected_controls(contract, sampler, profile, Speed(0.0), shipped_costs()) for profile in (SMOKE, CI)]
    assert all(0 < one < 120 for one in seconds)
    assert CONTRACTS[contract].has_distributions or len(set(seconds)) == 1
