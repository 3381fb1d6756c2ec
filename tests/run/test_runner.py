"""Whatever a sampler does becomes a record, with a command to run next."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers import python, report_of

import fairdraw
from fairdraw._core.checks import PROFILES
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.loading import CannotStart, all_checks, load_reference, load_sampler
from fairdraw._run.runner import CheckRecord, Session, check_sampler, parse_seed, replay_case, run_check
from fairdraw.strategies import RejectionCase, RequestRecipe

pytestmark = pytest.mark.usefixtures("third_party")

CHECKS = {check.code: check for check in all_checks(contract="rejection")}
IDS = CHECKS["REJ101"]
DIFFERENTIAL = next(check for check in CHECKS.values() if check.differential)


def run_on(factory: str, **changes: object) -> CheckRecord:
    """One check on a sampler of the third party's."""
    spec = f"third_party:{factory}"
    session = dataclasses.replace(Session(spec, PROFILES["smoke"]), **changes)  # type: ignore[arg-type]
    return run_check(IDS, load_sampler(spec), session)


# -- records


def test_right_sampler_passes_on_counted_cases() -> None:
    record = run_on("make_right")
    assert (record.status, record.cases, record.failure_report) == ("passed", PROFILES["smoke"].examples, None)
    assert record.seconds > 0


def test_failed_check_becomes_a_failure_report() -> None:
    record = run_on("make_beyond")
    assert record.status == "failed"
    assert (report_of(record).code, report_of(record).title) == (IDS.code, IDS.title)
    assert report_of(record).meaning == " ".join(IDS.meaning.split("\n\n")[0].split())
    assert "[0, 1)" in report_of(record).effect
    assert report_of(record).evidence == "one example decides"


def test_smallest_example_can_be_pasted() -> None:
    record = run_on("make_beyond")
    case = eval(report_of(record).example, {"RejectionCase": RejectionCase, "RequestRecipe": RequestRecipe})
    again = replay_case(IDS, load_sampler("third_party:make_beyond"), case, Session(crash_folder=None))
    assert again.status == "failed"


def test_exception_that_ends_two_checks_is_stored_once(third_party: Path) -> None:
    session, sampler = (
        Session("third_party:make_raising", PROFILES["smoke"]),
        load_sampler("third_party:make_raising"),
    )
    records = [run_check(CHECKS[code], sampler, session) for code in ("REJ101", "REJ103")]
    assert [record.status for record in records] == ["error", "error"]
    assert len({report_of(record).crash_file for record in records if record.failure_report is not None}) == 1
    assert len(list((third_party / ".fairdraw" / "crashes").iterdir())) == 1


def test_sampler_that_changes_its_mind_is_reported() -> None:
    record = run_on("make_unsteady")
    assert record.status == "failed"
    assert "[0, " in report_of(record).effect
    assert "keeps state between calls" in report_of(record).notes[0]


def test_declined_capability_is_a_skip_with_its_reason() -> None:
    check = next(c for c in CHECKS.values() if c.suite == "properties" and "explicit-noise" in c.needs)
    record = run_check(check, load_sampler("third_party:make_unsupported"), Session())
    assert (record.status, record.cases) == ("skipped", 0)
    assert record.reason == "explicit-noise is unsupported: the kernel draws inside"


def test_known_defect_is_xfailed_with_its_reason_and_without_crash_file(third_party: Path) -> None:
    record = run_on("make_known")
    assert (record.status, record.reason) == ("xfailed", "one beyond the end, https://example.org/1")
    assert not record.is_broken
    assert report_of(record).crash_file == ""
    assert not (third_party / ".fairdraw").exists()


def test_known_defect_is_gone_where_its_stored_case_passes() -> None:
    case = eval(
        run_on("make_beyond").failure_report.example, {"RejectionCase": RejectionCase, "RequestRecipe": RequestRecipe}
    )  # type: ignore[union-attr]
    session = Session(profile=PROFILES["smoke"], crash_folder=None)
    assert replay_case(IDS, load_sampler("third_party:make_mended"), case, session).status == "xpassed"


def test_same_seed_finds_the_same_example() -> None:
    first, second = run_on("make_raising", seed=3), run_on("make_raising", seed=3)
    assert first.failure_report == second.failure_report


# -- loading


def test_reference_can_be_named_or_switched_off() -> None:
    reference, said = load_reference("rejection/oracle", [DIFFERENTIAL])
    assert said == reference.name == "rejection/oracle"
    assert load_reference("none", [DIFFERENTIAL]) == (None, "none, as asked")


def test_reference_is_loaded_only_for_differentials() -> None:
    assert load_reference(None, [IDS]) == (None, "not needed by these checks")


def test_named_reference_that_no_check_can_compare_with_is_refused() -> None:
    with pytest.raises(CannotStart, match=r"nothing can be compared in REJ421\. Use rejection/vllm, or none\.$"):
        load_reference("rejection/counter", [DIFFERENTIAL])


def test_cases_of_a_differential_need_nothing_that_its_reference_lacks() -> None:
    drawn: list[fairdraw.Capabilities] = []

    def cases(can: fairdraw.Capabilities) -> Any:  # Any: a strategy
        drawn.append(can)
        return DIFFERENTIAL.cases(can)

    limited = load_sampler("rejection/oracle")
    vars(limited)["capabilities"] = fairdraw.Capabilities.of({"greedy": "never", "top-k": "never"})
    check = dataclasses.replace(DIFFERENTIAL, cases=cases)
    check.run(load_sampler("rejection/torch"), profile=PROFILES["smoke"], reference=limited)
    assert {"greedy", "top-k"} <= set(drawn[0].unsupported)


def test_check_sampler_returns_a_record_of_every_check_and_writes_nothing(
    third_party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairdraw._run.runner.all_checks", lambda only=None, contract=None: (IDS, DIFFERENTIAL))
    records = fairdraw.check_sampler(load_sampler("third_party:make_beyond"), profile="smoke")
    assert [(record.code, record.status) for record in records] == [
        ("REJ101", "failed"),
        (DIFFERENTIAL.code, "skipped"),
    ]
    assert not (third_party / ".fairdraw").exists()


def test_check_sampler_refuses_unknown_words_and_objects() -> None:
    right = load_sampler("rejection/oracle")
    with pytest.raises(ValueError, match=r"profile='huge'.*smoke, ci, nightly"):
        check_sampler(right, profile="huge")
    with pytest.raises(ValueError, match=r"only='speed'.*properties"):
        check_sampler(right, only="speed")
    with pytest.raises(CannotStart, match="sampler=int, which has no name, device, capabilities"):
        check_sampler(3)  # type: ignore[arg-type]


def test_seed_is_a_number_or_fresh() -> None:
    assert parse_seed("12") == 12
    assert parse_seed("fresh") != parse_seed("fresh")
    with pytest.raises(ValueError, match=r"'new' is no seed\. Use an integer, or the word fresh"):
        parse_seed("new")


def test_default_seed_is_fixed_within_a_release() -> None:
    assert int(python("from fairdraw._run.runner import DEFAULT_SEED; print(DEFAULT_SEED)")) == DEFAULT_SEED
