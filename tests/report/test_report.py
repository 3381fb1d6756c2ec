"""The header says how to interpret the verdict; a summary is green only if something was measured that can fail."""

import ast
import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from fairdraw._core.failures import FailureReport
from fairdraw._report.causes import find_causes
from fairdraw._report.summary import Header, Summary, broken_texts, failure_text, progress_line, start_of_run, wrapped
from fairdraw._report.verdict import GREEN, NOTHING_RUN, RED
from fairdraw._run.controls import Control, Untried
from fairdraw._run.runner import CheckRecord, Status

CAUGHT, MISSED = Control("drops the tail", "REJ101", caught=True), Control("swaps rows", "REJ310", caught=False)
HEADER = Header("third_party:make", "cpu", "ci", 7, "vllm 0.22.0", {"properties": 2})


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
    unsupported = [record("skipped", "ragged is unsupported: fixed") for _ in range(3)]
    lines = Summary([record("skipped", "greedy is unsupported: never"), *unsupported, record("passed")]).lines()
    assert lines[0] == "run 1 of 5 checks, skipped 4: 1 passed, 0 failed, 0 xfailed"
    assert lines[1:3] == ["  3 skipped: ragged is unsupported: fixed", "  1 skipped: greedy is unsupported: never"]
    many = [record(status, f"{n}") for n in range(40) for status in ("skipped", "xfailed", "passed")]
    untried = [Control("drops the tail", "REJ101", caught=False, untried=why) for why in Untried]
    log = [*HEADER.lines(), *Summary(many, [CAUGHT, *untried]).lines()]
    assert len(log) <= 30 - 4, "a log has room for no more, and progress takes some lines"


def test_summary_counts_controls_and_cases_and_names_the_missed() -> None:
    text = "\n".join(Summary([record("passed"), record("passed")], [CAUGHT, MISSED]).lines())
    assert "mutation controls: 1/2 caught at this run's numbers" in text
    assert "blind check: REJ310 does not catch the mutant 'swaps rows'" in text
    assert "cases used: 20 in 1.0 s of checks" in text
    assert "start with" not in text, "nothing failed"


def test_header_says_what_the_verdict_rests_on() -> None:
    text = "\n".join(HEADER.lines())
    packages = ("torch ", "triton ", "numpy ", "hypothesis ", "python ")
    for fact in ("third_party:make on cpu", *packages, "seed 7", "profile ci"):
        assert fact in text
    assert "checks: properties 2" in text
    assert "error rates: no statistical checks in this run" in text
    assert "reference: vllm 0.22.0" in text


def test_progress_line_says_cases_or_the_reason_of_a_skip_and_the_effect_of_a_failure() -> None:
    assert progress_line(record("passed")) == "passed       REJ101 ids lie in the vocabulary (10 cases, 0.5 s)"
    assert progress_line(record("skipped", "why")) == "skipped      REJ101 ids lie in the vocabulary (why)"
    failed = dataclasses.replace(record("failed"), failure_report=EMITTED)
    assert progress_line(failed) == "failed       REJ101 ids lie in the vocabulary\n  emitted 7"


EMITTED = FailureReport("REJ101", "ids lie in the vocabulary", "meaning", "emitted 7")
CODE = "smallest example: RejectionCase(vocab_size=4, requests=(RequestRecipe(token={}), RequestRecipe()))"


def test_text_is_wrapped_at_words_and_what_is_pasted_is_not() -> None:
    command = "fairdraw replay " + "x" * 90
    text = f"meaning: {'word ' * 40}\nreproduce:\n{command}\n{CODE.format(1)}"
    lines = wrapped(text, 80).split("\n")
    assert command in lines
    assert max(len(line) for line in lines if line != command) <= 80
    code = "\n".join(lines[lines.index(command) + 1 :]).removeprefix("smallest example: ")
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(CODE.format(1).removeprefix("smallest example: ")))


def test_code_whose_strings_would_break_is_not_wrapped() -> None:
    code = CODE.format("'" + "a b " * 20 + "'")
    assert wrapped(code, 80) == code


def test_run_knows_its_date_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", start_of_run()[0])
    monkeypatch.chdir(tmp_path)
    assert start_of_run()[1] == ""
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], check=True)
    assert re.fullmatch(r"[0-9a-f]{12}", start_of_run()[1])


def test_known_failure_is_named_and_one_that_is_gone_is_reported_with_its_remedy() -> None:
    lines = Summary([record("xfailed", "https://example.org/1"), record("passed")]).lines()
    assert "  xfailed REJ101 ids lie in the vocabulary: https://example.org/1" in lines
    text = failure_text(dataclasses.replace(record("xpassed", "https://example.org/1"), source="xfails.toml"))
    assert "a known failure did not occur in 10 cases" in text
    assert "https://example.org/1" in text
    assert text.endswith("remove REJ101 from xfails.toml")


def test_failure_that_one_example_decides_is_reported_first() -> None:
    distribution = dataclasses.replace(record("failed", code="DIST101"), suite="statistical", failure_report=EMITTED)
    example = dataclasses.replace(record("failed"), failure_report=EMITTED)
    summary = Summary([distribution, record("passed", code="REJ100"), example])
    assert [cause.reported.code for cause in summary.causes] == ["REJ101", "DIST101"]
    assert summary.lines()[-2] == "start with REJ101 ids lie in the vocabulary: fairdraw explain REJ101"


def test_summary_says_what_each_unsupported_capability_costs() -> None:
    unsupported = "explicit-noise is unsupported: the kernel draws inside"
    skipped = dataclasses.replace(record("skipped", unsupported), needs=("explicit-noise", "reference-race"))
    other = dataclasses.replace(record("skipped", "ragged is unsupported: never"), needs=("ragged", "explicit-noise"))
    lines = Summary([skipped, other, record("passed")]).lines()
    assert lines[1] == "2 of 3 checks skipped as unsupported (explicit-noise: 2, ragged: 1)"
    assert lines[2:4] == [f"  1 skipped: {unsupported}", "  1 skipped: ragged is unsupported: never"]


def test_lone_property_beside_many_distributions_is_named_separately() -> None:
    failure_report = FailureReport("DIST203", "recovered tokens do not depend on the draft", "meaning", "TV 0.17")
    distributions = [
        dataclasses.replace(record("failed", code=code), suite="statistical", failure_report=failure_report)
        for code in ("DIST203", "DIST213", "DIST101")
    ]
    lone = dataclasses.replace(record("failed", code="REJ112"), failure_report=failure_report)
    line = Summary([lone, *distributions]).lines()[-2]
    assert line.startswith("start with DIST203 recovered tokens do not")
    assert line.endswith("fairdraw explain DIST203; probably another fault: REJ112")


def test_distribution_that_rests_on_a_failed_one_says_so() -> None:
    failure_report = FailureReport("DIST322", "calls are independent at every distance", "meaning", "TV 0.17")
    distributions = [
        dataclasses.replace(
            record("failed", code=code), suite="statistical", failure_report=failure_report, depends_on=others
        )
        for code, others in (("DIST102", ()), ("DIST322", ("DIST102",)))
    ]
    text = broken_texts(find_causes(distributions))[1]
    assert "note: also failed: DIST102. What it reports breaks this check, too" in text
