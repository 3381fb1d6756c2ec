"""Mutation controls say what this run could have caught: its numbers, seed, speed, capabilities and budget."""

import dataclasses
from typing import Any

import pytest
from helpers import CHECKS
from hypothesis import strategies as st

from fairdraw._core.checks import PROFILES, AnyCheck, Check
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.failures import CheckFailure
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants.rejection import right
from fairdraw._report.summary import Summary
from fairdraw._report.verdict import GREEN, RED
from fairdraw._run.controls import (
    Control,
    Planned,
    Untried,
    controls_lines,
    mutants_for,
    mutants_of,
    plan_control,
    property_mutants,
    run_control,
)
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.contracts import Capabilities, Capability
from fairdraw.statistical import test_filters, test_grammar, test_logprobs, test_rejection, test_sampling, test_server

PASSED = CheckRecord("REJ101", "ids lie in the vocabulary", "properties", "rejection", "passed", cases=10)
SMOKE, CI = Session(profile=PROFILES["smoke"]), Session()


@dataclasses.dataclass
class Counting:
    """A stand-in for a sampler; the check below counts on it."""

    name: str = "counting"
    device: str = "cpu"
    capabilities: Capabilities = dataclasses.field(default_factory=Capabilities)
    seen: list[int] = dataclasses.field(default_factory=list)


def failing_after(num_cases: int | None) -> Planned:
    """A mutant that its check fails at the case of that number; `None`: never."""

    def body(sampler: Any, case: int) -> None:  # Any: Counting, or what stands before it
        sampler.seen.append(case)
        if num_cases is not None and len(sampler.seen) >= num_cases:
            raise CheckFailure("seen", evidence="counted")

    def cases(_: Capabilities) -> st.SearchStrategy[int]:
        return st.integers(0, 10**9)

    check = Check("REJ101", "counts", "", "rejection", "properties", (), cases, body)
    return Planned(Mutant("fails late", "", ("REJ101",), Counting), check)


SLOW = Counting(capabilities=Capabilities(slow=True))


@pytest.mark.parametrize(
    ("num_cases", "session", "sampler", "expected"),
    [
        (10, SMOKE, Counting(), "caught"),
        (50, SMOKE, Counting(), "weak"),
        (50, CI, Counting(), "caught"),
        (50, CI, SLOW, "weak"),
        (200, CI, Counting(), "blind"),
        (None, SMOKE, Counting(), "blind"),
        (None, Session(seed=5), Counting(), "blind"),
        (None, CI, Counting(), "blind"),
    ],
)
def test_control_has_the_numbers_of_its_run(
    num_cases: int | None, session: Session, sampler: Counting, expected: str
) -> None:
    control = run_control(failing_after(num_cases), sampler, session)
    words = {"caught": control.caught, "weak": control.weak, "blind": control.is_blind}
    assert [word for word, holds in words.items() if holds] == [expected]


def test_weak_control_is_reported_and_not_red() -> None:
    summary = Summary([PASSED], [run_control(failing_after(50), Counting(), SMOKE)])
    text = "\n".join(summary.lines())
    assert summary.exit_code == GREEN
    assert "mutation controls (rejection): 0/1 caught at this run's numbers" in text
    assert "1 not shown, as this run or the sampler has too little to show them: fails late (REJ101)" in text


def test_blind_control_is_red_in_smoke_too() -> None:
    summary = Summary([PASSED], [run_control(failing_after(None), Counting(), SMOKE)])
    assert summary.exit_code == RED
    assert "blind check: REJ101 does not catch the mutant 'fails late'" in "\n".join(summary.lines())


def test_mutant_that_raises_is_missed_and_the_report_says_so() -> None:
    def body(sampler: Any, case: int) -> None:  # Any: Counting, or what stands before it
        raise ZeroDivisionError

    planned = failing_after(None)
    wrong = dataclasses.replace(planned, check=dataclasses.replace(planned.check, body=body))
    text = "\n".join(controls_lines([run_control(wrong, Counting(), SMOKE)]))
    assert "blind check: REJ101 does not catch the mutant 'fails late' as it raised ZeroDivisionError" in text


def test_control_that_needs_what_the_sampler_lacks_is_not_tried() -> None:
    sampler, planned = Counting(), failing_after(None)
    mutant = dataclasses.replace(planned.mutant, needs=(Capability.EXPLICIT_NOISE,))
    assert not plan_control(mutant, [planned.check], sampler, SMOKE).untried
    lacking = Counting(capabilities=Capabilities({Capability.EXPLICIT_NOISE: "it has none"}))
    assert plan_control(mutant, [planned.check], lacking, SMOKE).untried == Untried.SKIPPED


@pytest.mark.parametrize("session", [SMOKE, CI, Session(seed=5)])
def test_control_gets_the_very_cases_of_the_sampler(session: Session) -> None:
    planned, asked, beside = failing_after(None), Counting(), Counting()
    planned.check.run(asked, profile=session.profile, seed=session.seed)
    mutant = dataclasses.replace(planned.mutant, make=lambda: beside)
    run_control(dataclasses.replace(planned, mutant=mutant), asked, session)
    assert beside.seen[: len(asked.seen)] == asked.seen


def test_control_is_given_no_case_that_the_sampler_does_not_support() -> None:
    capabilities: list[Capabilities] = []

    def cases(can: Capabilities) -> st.SearchStrategy[int]:
        capabilities.append(can)
        return st.integers(0, 10**9)

    planned = failing_after(3)
    limited = Counting(capabilities=Capabilities({Capability.RAGGED: "fixed shapes"}, slow=True))
    check = dataclasses.replace(planned.check, cases=cases)  # type: ignore[type-var]  # a Check
    assert run_control(dataclasses.replace(planned, check=check), limited, SMOKE).caught
    assert [(Capability.RAGGED in can, can.slow) for can in capabilities] == [(False, True)]


# -- untried


def test_without_time_it_is_named() -> None:
    control = run_control(failing_after(10), Counting(), Session(ends_at=0.0))
    assert (control.untried, control.is_missed) == (Untried.OUT_OF_TIME, False)
    assert controls_lines([control]) == [
        "mutation controls (rejection): none of 1 tried",
        "  1 not tried, the time budget ended: fails late (REJ101)",
    ]


def controls_for(checks: tuple[AnyCheck, ...], sampler: Any, session: Session) -> list[Planned]:  # Any: of any contract
    return [plan_control(mutant, checks, sampler, session) for mutant in mutants_of(checks)]


def test_fault_too_small_for_the_draws_is_named() -> None:
    planned = controls_for(all_checks("statistical", "rejection"), right(), SMOKE)
    small = [one for one in planned if one.untried == Untried.TOO_SMALL]
    assert {one.mutant.name for one in small} >= {"temperature two percent off", "one uniform per request"}
    line = controls_lines([run_control(one, right(), SMOKE) for one in small])[1]
    assert "not tried, below this run's resolution: " in line
    assert "temperature two percent off (DIST111 takes 500000 draws)" in line


def test_check_that_is_skipped_is_no_control() -> None:
    unsupported = dataclasses.replace(right(), capabilities=Capabilities({Capability.SEEDED_NOISE: "draws nothing"}))
    planned = controls_for(all_checks("properties", "rejection"), unsupported, CI)
    assert any(one.untried == Untried.SKIPPED and "seeded-noise" in one.detail for one in planned)
    assert all(one.untried or one.check.why_not(unsupported) is None for one in planned)


def test_next_check_is_asked_where_the_first_is_skipped() -> None:
    checks = all_checks("properties", "rejection")
    first = next(check for check in checks if check.needs)
    second = next(check for check in checks if not check.needs and not check.differential)
    unsupported = dataclasses.replace(right(), capabilities=Capabilities({first.needs[0]: "has none"}))
    planned = plan_control(Mutant("two", "", (first.code, second.code), right), checks, unsupported, CI)
    assert (planned.check.code, planned.untried) == (second.code, "")


@pytest.mark.parametrize("reference", [None, dataclasses.replace(right(), name="reference")])
def test_differential_is_a_control_only_with_a_reference(reference: Any) -> None:  # Any: a sampler or None
    session = Session(reference=reference)
    planned = controls_for(all_checks("properties", "rejection"), right(), session)
    differentials = [one for one in planned if one.check.differential]
    assert differentials
    assert {bool(one.untried) for one in differentials} == {reference is None}


def test_check_that_this_machine_skips_is_no_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ulimit -d`: rows cannot lie 2**31 elements apart, and a mutant that is wrong only there is not missed."""
    monkeypatch.setattr("fairdraw.strategies._cases.reserved", lambda *_: None)
    check = CHECKS["GRM118"]
    sampler = load_part(CONTRACTS[check.contract].right)()
    record = run_check(check, sampler, SMOKE)
    assert record.status == "skipped"
    controls = [run_control(planned, sampler, SMOKE) for planned in controls_for((check,), sampler, SMOKE)]
    assert {(control.untried, control.detail) for control in controls} == {(Untried.SKIPPED, record.reason)}


def test_files_carry_counts_and_reasons() -> None:
    controls = [Control("a", "REJ101", True), Control("b", "REJ102", False, weak=True)]
    controls.append(Control("c", "DIST101", False, untried=Untried.OUT_OF_TIME))
    said = Summary([PASSED], controls).to_json()
    assert said["controls"] == {"tried": 2, "caught": 1, "weak": 1, "untried": {"the time budget ended": 1}}
    assert said["missed_controls"] == []


def test_many_names_are_counted() -> None:
    lines = controls_lines([Control(f"m{i}", "REJ101", False, untried=Untried.SKIPPED) for i in range(20)])
    assert lines[1].endswith("m7 (REJ101); and 12 more (see --json or --html)")


@pytest.mark.parametrize("contract", CONTRACTS)
def test_pytest_tries_every_mutant_that_the_command_tries(contract: str) -> None:
    command = {(m.name, m.caught_by[0]) for m in mutants_for(contract)}
    drawing = (test_rejection, test_sampling, test_logprobs, test_grammar, test_filters, test_server)
    modules = (property_mutants(), *(tuple(module.MUTANTS) for module in drawing))
    assert command <= {(m.name, m.caught_by[0]) for mutants in modules for m in mutants}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_property_has_a_mutant(contract: str) -> None:
    named = {mutant.caught_by[0] for mutant in mutants_for(contract)}
    assert {check.code for check in all_checks("properties", contract) if not check.differential} <= named


@pytest.mark.usefixtures("third_party")  # a subprocess finds this fairdraw
def test_pytest_covers_the_contract_of_the_sampler(pytester: pytest.Pytester) -> None:
    result = _under_pytest(pytester, "-k", "PEN112")
    assert "mutation controls (penalties): " in result.stdout.str()
    assert "rejection" not in "".join(line for line in result.stdout.lines if "mutation controls" in line)


def test_mutant_that_smoke_is_too_weak_for_xfails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_weak="""
        from fairdraw.adapters import load
        from fairdraw._mutants._mutant import Mutant

        def test_weak(fairdraw_control, monkeypatch):
            import fairdraw._plugin.run as run
            from fairdraw._run.controls import Control
            weak = Control("fails late", "REJ101", False, contract="rejection", weak=True)
            monkeypatch.setattr(run, "run_control", lambda *_: weak)
            fairdraw_control(Mutant("fails late", "", ("REJ101",), lambda: load("rejection/oracle")))
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--fairdraw-profile", "smoke")
    result.assert_outcomes(xfailed=1)
    assert (
        "  1 not shown, as this run or the sampler has too little to show them: fails late (REJ101)"
        in result.stdout.lines
    )


def _under_pytest(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    words = ("--pyargs", "fairdraw.properties", "--sampler", "penalties", "--fairdraw-profile", "smoke")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *words, *options)
