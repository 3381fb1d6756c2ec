"""A shell understands every command that a report prints, and every code that it prints is explained."""

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers import CHECKS, SOURCE, fairdraw, report_of

from fairdraw._core.checks import PROFILES, AnyCheck
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.failures import CheckFailure, FailureReport
from fairdraw._run.failure_reports import RAISED, raised_meanings
from fairdraw._run.loading import SUITES, all_questions, load_sampler
from fairdraw._run.runner import Session, run_check
from fairdraw.statistical._nightly import ledger_check

pytestmark = pytest.mark.usefixtures("third_party", "no_controls")
PACKAGE = SOURCE / "fairdraw"

SPECS = (
    "third_party:make_beyond", "my pkg:make", "pkg.mod:make['a b']", "$(touch HARM);x:`touch HARM`", "it's:m\\ake",
    "",
)  # fmt: skip


def words_of(command: str) -> list[str]:
    """`command` as bash splits it."""
    printed = subprocess.run(
        ["bash", "-c", f'say() {{ printf "%s\\0" "$@"; }}; say {command}'], capture_output=True, text=True, check=True
    ).stdout
    assert not Path("HARM").exists()
    return printed.split("\0")[:-1]


def broken_failure_report(session: Session, check: AnyCheck = CHECKS["REJ101"]) -> FailureReport:
    def body(sampler: object, case: object, reference: object = None) -> None:
        raise CheckFailure("wrong")

    changed: Any = dataclasses.replace(check, body=body)  # type: ignore[type-var]  # Any: a Check
    return report_of(run_check(changed, load_sampler("rejection/torch"), session))


@pytest.mark.parametrize("folder", ["crashes", "my crashes", "a'b [c] $x; `y` \\z"])
@pytest.mark.parametrize("spec", SPECS)
def test_commands_are_pasted_into_a_shell(spec: str, folder: str) -> None:
    failure_report = broken_failure_report(Session(spec, PROFILES["smoke"], 5, crash_folder=Path(folder)))
    assert words_of(failure_report.command) == ["fairdraw", "replay", failure_report.crash_file, "-y"]
    assert Path(failure_report.crash_file).is_file()
    search = ["fairdraw", "check", spec, "-k", "REJ101", "--profile", "smoke", "--seed", "5"]
    assert words_of(failure_report.search) == search


def test_search_of_a_differential_names_the_reference_by_the_program_s_option() -> None:
    check = next(check for check in CHECKS.values() if check.differential and check.contract == "rejection")
    session = Session("a b:c", PROFILES["smoke"], 5, load_sampler("rejection/oracle"), "my ref:make", crash_folder=None)
    own = words_of(broken_failure_report(session, check).command)
    again = f"fairdraw check 'a b:c' -k {check.code} --profile smoke --seed 5 --reference 'my ref:make'"
    assert own == shlex.split(again)
    pytests = words_of(broken_failure_report(dataclasses.replace(session, under_pytest=True), check).command)
    assert pytests[:5] == ["pytest", "--pyargs", "fairdraw", "--sampler", "a b:c"]
    assert pytests[-4:] == ["--fairdraw-seed", "5", "--fairdraw-reference", "my ref:make"]


def test_commands_of_a_run_are_run() -> None:
    """From the terminal to bash and back to the same failure."""
    found = fairdraw("check", "third_party:make_beyond", "-k", "REJ101", "--profile", "smoke")
    lines = found.output.splitlines()
    for label in ("reproduce:", "search again:"):
        program, *words = shlex.split(lines[lines.index(label) + 1])
        again = fairdraw(*words)
        assert (program, again.exit_code) == ("fairdraw", 1), again.output
        assert "REJ101 token ids lie in the vocabulary" in again.output


def test_ledger_is_run_again_with_another_seed(tmp_path: Path) -> None:
    check = ledger_check(tmp_path / "my ledger.json", [], 5)
    failure_report = run_check(
        check, load_sampler("rejection/torch"), Session("rejection/torch", PROFILES["smoke"], 5, crash_folder=None)
    )
    assert failure_report.status == "inconclusive"
    words = ["--only", "statistical", "--profile", "ci", "--seed", "fresh", "--ledger", f"{tmp_path}/my ledger.json"]
    assert [word for option in check.again("ci", 5).items() for word in option] == words


def codes_of_the_source() -> set[str]:
    """Everything in the code of the suite that looks like a code, wherever it is printed from."""
    folders = [PACKAGE, *(PACKAGE / name for name in ("properties", "statistical", "perf_regression", "strategies"))]
    files = {path for folder in folders for path in folder.glob("*.py")} | set(PACKAGE.glob("[!s]*/*.py"))
    return {code for path in files for code in re.findall(r"\b(?:[A-Z]{3,4})[1-9]\d\d\b", path.read_text())}


def test_every_code_that_is_printed_is_explained() -> None:
    codes = codes_of_the_source() | {question.code for question in all_questions()}
    codes |= {contract.raised for contract in CONTRACTS.values()}
    assert {"DIST901", "PEN100", "REJ101"} <= codes
    for code in sorted(codes):
        result = fairdraw("explain", code.lower())
        assert result.exit_code == 0, f"{code}: {result.output}"
        assert result.stdout.startswith(code)


def test_list_names_every_check_and_what_it_needs() -> None:
    shown = fairdraw("list").output
    for word in {question.id for question in all_questions()} | {c.raised for c in CONTRACTS.values()}:
        assert word in shown
    for suite in SUITES:
        own = sum(one.suite == suite and one.contract == "rejection" for one in CHECKS.values())
        assert f"{suite} of the rejection contract: {own} checks" in shown
    assert "needs explicit-noise" in shown
    assert "a reference sampler" in shown
    assert "SAM101" not in fairdraw("list", "--contract", "rejection").output


def test_alone_is_a_command_that_runs_this_check() -> None:
    assert "alone: fairdraw check SPEC -k REJ101\n" in fairdraw("explain", "REJ101").output
    ledger = fairdraw("explain", "DIST901").output
    assert "alone: fairdraw check SPEC --only statistical --seed fresh --ledger FILE\n" in ledger


@pytest.mark.parametrize("contract", CONTRACTS)
def test_explained_exceptions_are_those_of_the_contract(contract: str) -> None:
    output = fairdraw("explain", CONTRACTS[contract].raised).output
    for title, meaning in raised_meanings(contract).items():
        assert title in RAISED
        assert meaning in output
    assert ("max_spec_len + 1" in output) == (contract == "rejection")
