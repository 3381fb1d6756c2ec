"""The header says what a verdict rests on; a summary is green only if something was measured that can fail."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from fairdraw._core.failures import FailureReport
from fairdraw._report.causes import find_causes
from fairdraw._report.summary import (
    Header,
    Summary,
    broken_texts,
    failure_text,
    progress_line,
)
from fairdraw._report.verdict import GREEN, NOTHING_RUN, RED
from fairdraw._run.controls import Control
from fairdraw._run.runner import CheckRecord

if TYPE_CHECKING:
    from fairdraw._run.runner import Status

CAUGHT, MISSED = Control("drops the tail", "REJ101", caught=True), Control("swaps rows", "REJ302", caught=False)
HEADER = Header("stranger:make", "cpu", "ci", 7, "vllm 0.22.0", {"properties": 2})


def record(status: Status, reason: str = "", code: str = "REJ101") -> CheckRecord:
    return CheckRecord(
        code, "ids lie in the vocabulary", "properties", "rejection", status, reason, cases=10, seconds=0.5
    )


@pytest.mark.parametrize(
    ("statuses", "controls", "exit_code", "verdict"),
    [
        (["passed"], [], GREEN, "GREEN"),
        (["passed", "skipped"], [CAUGHT], GREEN, "GREEN"),
        (["xfailed"], [CAUGHT], GREEN, "known failures: 1"),
        (["passed", "failed"], [CAUGHT], RED, "RED: checks failed: 1"),
        (["passed", "error"], [CAUGHT], RED, "RED: checks that ended in an exception: 1"),
        (["passed", "xpassed"], [CAUGHT], RED, "RED: known failures gone: 1"),
        (["passed"], [CAUGHT, MISSED], RED, "RED: mutants missed"),
        (["skipped", "skipped"], [CAUGHT], NOTHING_RUN, "NOTHING MEASURED: every check was skipped"),
        ([], [CAUGHT], NOTHING_RUN, "NOTHING MEASURED: no check was run"),
    ],
    ids=["pass", "skip", "known", "broken", "raised", "known gone", "control missed", "all skipped", "none"],
)
def test_verdict_follows_from_records_and_controls(
    statuses: list[Status], controls: list[Control], exit_code: int, verdict: str
) -> None:
    summary = Summary([record(status) for status in statuses], controls)
    assert summary.exit_code == exit_code
    assert verdict in summary.verdict
    assert summary.lines()[-1] == summary.verdict


def test_skips_are_grouped_by_reason_and_counted() -> None:
    unsupported = [record("skipped", "ragged is unsupported: fixed shapes") for _ in range(3)]
    lines = Summary([record("skipped", "greedy is unsupported: never"), *unsupported, record("passed")]).lines()
    assert lines[0] == "1 run: 1 passed, 0 failed, 0 xfailed, 4 skipped"
    assert lines[1:3] == [
        "  skipped 3: ragged is unsupported: fixed shapes",
        "  skipped 1: greedy is unsupported: never",
    ]


def test_summary_counts_controls_and_cases_and_names_the_missed() -> None:
    text = "\n".join(Summary([record("passed"), record("passed")], [CAUGHT, MISSED]).lines())
    assert "mutation controls: 1/2 caught at this run's numbers" in text
    assert "missed: swaps rows was not caught by REJ302" in text
    assert "cases used: 20 in 1.0 s of checks" in text


def test_summary_names_every_known_defect() -> None:
    lines = Summary([record("xfailed", "https://example.org/1"), record("passed")]).lines()
    assert "  xfailed REJ101 ids lie in the vocabulary: https://example.org/1" in lines


def test_header_says_what_the_verdict_rests_on() -> None:
    text = "\n".join(HEADER.lines())
    for fact in (
        "stranger:make on cpu",
        "torch ",
        "triton ",
        "numpy ",
        "hypothesis ",
        "python ",
        "seed 7",
        "profile ci",
    ):
        assert fact in text
    assert "checks: properties 2" in text
    assert "alpha, TV and power: no statistical checks in this run" in text
    assert "reference: vllm 0.22.0" in text


def test_progress_line_tells_cases_or_the_reason_of_a_skip() -> None:
    assert progress_line(record("passed")) == "passed       REJ101 ids lie in the vocabulary (10 cases, 0.5 s)"
    assert progress_line(record("skipped", "why")) == "skipped      REJ101 ids lie in the vocabulary (why)"


def test_exception_that_ends_many_checks_is_told_once() -> None:
    failure_report = FailureReport("REJ100", "sampler raised an exception", "meaning", "IndexError: lane out of range")
    records = [
        dataclasses.replace(record("error", code=code), failure_report=failure_report)
        for code in ("REJ101", "REJ102", "REJ103")
    ]
    (text,) = broken_texts(find_causes(records))
    assert text.endswith("note: the same in 2 more checks: REJ102, REJ103")


def test_broken_promises_are_told_one_by_one() -> None:
    failure_report = FailureReport("REJ101", "ids lie in the vocabulary", "meaning", "emitted 7")
    records = [
        dataclasses.replace(record("failed", code=code), failure_report=failure_report) for code in ("REJ101", "REJ102")
    ]
    assert len(broken_texts(find_causes([*records, record("passed")]))) == 2


def test_defect_that_is_gone_is_told_with_its_remedy() -> None:
    text = failure_text(dataclasses.replace(record("xpassed", "https://example.org/1"), source="xfails.toml"))
    assert "known defect" in text
    assert "https://example.org/1" in text
    assert text.endswith("remove REJ101 from xfails.toml")


def test_failure_report_that_one_example_decides_is_told_first() -> None:
    failure_report = FailureReport("REJ101", "ids lie in the vocabulary", "meaning", "emitted 7")
    distribution = dataclasses.replace(
        record("failed", code="DIST101"), suite="statistical", failure_report=failure_report
    )
    example = dataclasses.replace(record("failed"), failure_report=failure_report)
    summary = Summary([distribution, record("passed", code="REJ100"), example])
    assert [cause.told.code for cause in summary.causes] == ["REJ101", "DIST101"]
    assert summary.lines()[-2] == "start with REJ101 ids lie in the vocabulary: fairdraw explain REJ101"


def test_green_run_has_nowhere_to_start() -> None:
    assert not any(line.startswith("start with") for line in Summary([record("passed")]).lines())


def test_summary_says_what_each_declined_capability_costs() -> None:
    unsupported = "explicit-noise is unsupported: the kernel draws inside"
    skipped = dataclasses.replace(record("skipped", unsupported), needs=("explicit-noise", "reference-race"))
    other = dataclasses.replace(record("skipped", "ragged is unsupported: never"), needs=("ragged", "explicit-noise"))
    lines = Summary([skipped, other, record("passed")]).lines()
    assert "not asked: 2 of 3 checks; explicit-noise unsupported: 2, ragged unsupported: 1" in lines


def test_missing_capability_comes_with_the_line_that_does_not_support_it() -> None:
    failure_report = FailureReport("REJ201", "greedy requests equal argmax decoding", "meaning", "emitted 7")
    greedy = [
        dataclasses.replace(record("failed", code=code), failure_report=failure_report, needs=("greedy",))
        for code in ("REJ201", "REJ202")
    ]
    summary = Summary([*greedy, record("passed")])
    assert '    "greedy": "say why",  # broken: REJ201, REJ202; then not asked: 2' in summary.lines()
    (text,) = broken_texts(summary.causes)
    assert "note: needs greedy, which the sampler may never have promised; broken, too: REJ202" in text


def test_lone_property_beside_many_distributions_is_named_apart() -> None:
    failure_report = FailureReport(
        "DIST203", "recovered tokens do not depend on the rejected draft", "meaning", "TV 0.17"
    )
    distributions = [
        dataclasses.replace(record("failed", code=code), suite="statistical", failure_report=failure_report)
        for code in ("DIST203", "DIST213", "DIST101")
    ]
    lone = dataclasses.replace(record("failed", code="REJ112"), failure_report=failure_report)
    line = Summary([lone, *distributions]).lines()[-2]
    assert line.startswith("start with DIST203 recovered tokens do not")
    assert line.endswith("fairdraw explain DIST203; apart from it: REJ112")


def test_distribution_that_rests_on_a_broken_one_says_so() -> None:
    failure_report = FailureReport("DIST301", "rows of one call are independent", "meaning", "TV 0.17")
    distributions = [
        dataclasses.replace(
            record("failed", code=code), suite="statistical", failure_report=failure_report, depends_on=others
        )
        for code, others in (("DIST102", ()), ("DIST301", ("DIST102",)))
    ]
    assert (
        "note: broken, too: DIST102. A wrong distribution of single rows" in broken_texts(find_causes(distributions))[1]
    )
