"""What a verdict says of records that a front end cannot easily bring about."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers import PLUGIN, fairdraw

from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.failures import FailureReport
from fairdraw._report.summary import Summary
from fairdraw._report.verdict import (
    GREEN,
    INCOMPLETE,
    NOT_JUDGED,
    NOTHING_RUN,
    RED,
    Scope,
    Verdict,
    combined,
    verdict_of,
)
from fairdraw._run.controls import Control, Untried
from fairdraw._run.loading import SUITES, CannotStart, all_checks, as_sampler
from fairdraw._run.runner import CheckRecord, Status
from fairdraw.contracts import rejection_sampler


def record(code: str, status: Status = "passed", contract: str = "rejection", **changes: str) -> CheckRecord:
    suite = "statistical" if code.startswith("DIST") else "properties"
    made = CheckRecord(code, "title", suite, contract, status, sampler="mine")
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # fields of strings


def known_exception(code: str) -> CheckRecord:
    return dataclasses.replace(
        record(code, "xfailed"), failure_report=FailureReport("REJ100", "raised", "meaning", "IndexError")
    )


BOTH = [record("REJ101"), record("DIST101")]


def test_contracts_say_whether_they_have_distributions() -> None:
    for contract in CONTRACTS.values():
        suites = {check.suite for check in all_checks(contract=contract.name)}
        assert contract.has_distributions == ("statistical" in suites)
        assert suites <= set(SUITES)


def test_function_that_is_given_its_tokens_has_no_distribution_to_judge() -> None:
    reason = "drawn-tokens is unsupported: it is given its tokens"
    skipped = record("DIST951", "skipped", "logprobs", reason=reason)
    verdict = verdict_of([record("LPR101", contract="logprobs"), skipped])
    assert verdict.exit_code == GREEN
    assert "distributions not judged: drawn-tokens is unsupported" in verdict.text


def test_known_exception_is_no_judgement() -> None:
    verdict = verdict_of([record("REJ101"), known_exception("DIST101")])
    assert verdict.exit_code == NOT_JUDGED
    assert "distributions not judged: all 1 checks were skipped or known to raise" in verdict.text
    assert verdict_of([known_exception("REJ101"), known_exception("DIST101")]).exit_code == NOTHING_RUN


def test_known_failure_is_a_judgement() -> None:
    assert verdict_of([record("REJ101"), record("DIST101", "xfailed")]).exit_code == GREEN


def test_control_whose_process_is_lost_is_not_green() -> None:
    summary = Summary(BOTH, [Control("drops the tail", "DIST101", caught=False, untried=Untried.LOST)])
    assert summary.exit_code == INCOMPLETE
    assert "the process was lost in 1 mutation controls" in summary.verdict


@pytest.mark.parametrize(
    ("total", "narrowed", "text"),
    [
        (2, "", "GREEN: 1 property check and 1 distribution check passed"),
        (9, "", "GREEN: 1 property check and 1 distribution check passed; 2 of 9 checks"),
        (9, "-k 101", "GREEN: 1 property check and 1 distribution check passed; 2 of 9 checks: -k 101"),
        (2, "-k 101", "GREEN: 1 property check and 1 distribution check passed, of those selected: -k 101"),
    ],
)
def test_green_verdict_says_how_many_checks_were_left_out(total: int, narrowed: str, text: str) -> None:
    assert verdict_of(BOTH, scope=Scope(narrowed=narrowed, totals={"rejection": total})).text == text


def test_checks_of_each_sampler_are_counted() -> None:
    twice = [*BOTH, *BOTH, *(dataclasses.replace(one, sampler="other") for one in BOTH)]
    assert verdict_of(twice, scope=Scope(totals={"rejection": 2})).text.endswith("checks passed")
    assert verdict_of(twice[:-1], scope=Scope(totals={"rejection": 2})).text.endswith("; 3 of 4 checks)")


def test_incomplete_run_names_what_else_makes_it_red() -> None:
    dead, gone = record("REJ102", "incomplete"), record("REJ103", "xpassed")
    assert verdict_of([*BOTH, dead, gone]).text.endswith("known failures gone: 1")


def test_red_comes_before_checks_that_were_not_run() -> None:
    verdict = verdict_of([record("REJ101", "failed")], scope=Scope(not_run=5))
    assert (verdict.exit_code, verdict.text) == (RED, "RED: checks failed: 1; checks not run: 5")


@pytest.mark.parametrize(
    ("codes", "num_named", "exit_code", "text"),
    [
        ([0, 0], 2, GREEN, "GREEN: 2 of 2 samplers (a, b)"),
        ([0, 1], 2, RED, "RED: 1 of 2 samplers (b); GREEN: 1 of 2 samplers (a)"),
        ([11, 1], 2, RED, "RED: 1 of 2 samplers (b); INCOMPLETE: 1 of 2 samplers (a)"),
        ([0, 10], 2, NOT_JUDGED, "GREEN IN PART: 1 of 2 samplers (b); GREEN: 1 of 2 samplers (a)"),
        ([0], 2, INCOMPLETE, "INCOMPLETE; GREEN: 1 of 2 samplers (a); not run: 1 of 2 samplers"),
    ],
)
def test_worst_of_several_samplers_decides(codes: list[int], num_named: int, exit_code: int, text: str) -> None:
    verdicts = {name: Verdict(code, "") for name, code in zip("ab", codes, strict=False)}
    assert combined(verdicts, num_named) == Verdict(exit_code, text)


def test_each_sampler_of_a_run_must_be_judged() -> None:
    other = record("REJ101", sampler="other")
    skipped = record("DIST101", "skipped", sampler="other", reason="no noise")
    verdict = verdict_of([*BOTH, other, skipped])
    assert verdict.exit_code == NOT_JUDGED
    assert "other (rejection): all 1 checks were skipped: no noise" in verdict.text


def test_contracts_without_distributions_are_named_beside_others() -> None:
    verdict = verdict_of([*BOTH, record("PEN101", contract="penalties")])
    assert verdict.exit_code == GREEN
    assert verdict.text == (
        "GREEN: 2 property checks and 1 distribution check passed (no distributions to judge: penalties)"
    )


def test_sampler_without_any_kind_of_drafts_is_refused() -> None:
    unsupported = {"dense-drafts": "none", "one-hot-drafts": "none"}
    with pytest.raises(CannotStart, match="it must support one of them"):
        as_sampler(rejection_sampler(lambda batch, noise: batch.draft_token_ids, name="mine", unsupported=unsupported))


def test_run_of_nothing_leaves_no_older_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.jsonl").write_text('{"verdict": "GREEN"}\n')
    result = fairdraw("check", "rejection/oracle", "-k", "no such check", "--json=run.jsonl")
    assert result.exit_code == NOTHING_RUN
    *_, last = (json.loads(line) for line in Path("run.jsonl").read_text().splitlines())
    assert last["exit_code"] == NOTHING_RUN


SKIPPING = """
import pytest
from fairdraw._oracles.rejection import verify
import fairdraw

def skips(batch, noise):
    if batch.vocab_size > 3:
        pytest.{outcome}("not here")
    return verify(batch, noise)

@fairdraw.parametrize_with_checks([fairdraw.rejection_sampler(skips)])
def test_mine(sampler, check):
    check(sampler)
"""


@pytest.mark.parametrize("outcome", ["skip", "xfail", "exit"])
def test_sampler_cannot_take_a_check_out_of_the_run(pytester: pytest.Pytester, outcome: str) -> None:
    """`pytest.skip` in a sampler is an exception of the sampler's, whatever pytest makes of it elsewhere."""
    pytester.makepyfile(SKIPPING.format(outcome=outcome))
    result = pytester.runpytest_inprocess(*PLUGIN, "-k", "REJ101", "--fairdraw-profile=smoke")
    assert result.ret == RED
    result.stdout.fnmatch_lines(["REJ100 sampler raised an exception*", "RED: checks that ended in an exception: 1"])
