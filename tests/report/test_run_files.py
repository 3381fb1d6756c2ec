"""A run as files: every line obeys the shipped schema, whichever way in wrote it, and says by which release."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest
from helpers import ask, fairdraw
from jsonschema import Draft202012Validator

from fairdraw import __version__
from fairdraw._core.checks import PROFILES
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.failures import FailureReport
from fairdraw._report.files import RunFiles, run_lines, schema_text
from fairdraw._report.summary import Header, Summary
from fairdraw._run.controls import Control
from fairdraw._run.crash import read_crash
from fairdraw._run.loading import SUITES, CannotStart, load_sampler
from fairdraw._run.runner import CheckRecord, Status

# Loaded before pytester takes a snapshot of sys.modules: torch cannot be imported twice.
load_sampler("rejection/torch")

SCHEMA = json.loads(schema_text())
HEADER = Header("third_party:make", "cpu", "ci", 7, "vllm 0.22.0", {"properties": 1})
FAILURE_REPORT = FailureReport("REJ101", "ids lie in the vocabulary", "meaning", "effect", notes=("one", "two"))
FAILED = CheckRecord(
    "REJ101", FAILURE_REPORT.title, "properties", "rejection", "failed", "", 3, 0.1234, FAILURE_REPORT, trace="secret"
)


def read(path: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def require_valid(lines: Iterable[dict[str, Any]]) -> None:  # Any: JSON
    """Every line obeys the schema, and has no field that the schema does not describe."""
    validator = Draft202012Validator(SCHEMA)
    for line in lines:
        validator.validate(line)
        assert set(line) == set(SCHEMA["$defs"][line["kind"]]["properties"])


def test_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(fairdraw("schema").output) == SCHEMA


def test_words_of_the_schema_are_those_of_the_suite() -> None:
    header, check = SCHEMA["$defs"]["header"]["properties"], SCHEMA["$defs"]["check"]["properties"]
    assert header["profile"]["enum"] == list(PROFILES)
    assert check["suite"]["enum"] == list(SUITES)
    assert check["contract"]["enum"] == list(CONTRACTS)
    assert check["status"]["enum"] == list(get_args(Status))
    assert set(SCHEMA["$defs"]["failure_report"]["properties"]) == {
        field.name for field in dataclasses.fields(FailureReport)
    }


def test_every_kind_of_line_obeys_the_schema() -> None:
    passed = dataclasses.replace(FAILED, status="passed", failure_report=None)
    controls = [Control("drops the tail", "DIST101", caught=True, distance=0.02), Control("swaps", "REJ101", False)]
    lines = json.loads(json.dumps(list(run_lines(HEADER, Summary([FAILED, passed], controls)))))
    require_valid(lines)
    assert [line["kind"] for line in lines] == ["header", "check", "check", "control", "control", "summary"]
    assert "secret" not in json.dumps(lines)


def test_schema_refuses_what_is_no_line() -> None:
    (header, *_) = run_lines(HEADER, Summary([]))
    for wrong in ({}, {"kind": "other"}, {**header, "seed": "7"}, {**header, "kind": "check"}):
        assert not Draft202012Validator(SCHEMA).is_valid(wrong)


def test_record_comes_back_from_json() -> None:
    again = CheckRecord.from_json(json.loads(json.dumps(FAILED.to_json())))
    assert again == dataclasses.replace(FAILED, seconds=0.123, trace="")


def test_file_that_cannot_be_written_after_all_is_one_sentence(tmp_path: Path) -> None:
    files = RunFiles({"json": Path("/dev/full")})
    files.require_writable()
    with pytest.raises(CannotStart, match=r"^/dev/full cannot be written: No space left on device\."):
        files.write(HEADER, Summary([FAILED]))


@pytest.mark.usefixtures("third_party", "no_controls")
class TestCommandLine:
    def test_written_files_obey_the_schema_and_say_the_version(self, tmp_path: Path) -> None:
        words = "check third_party:make_beyond -k REJ10 --profile smoke --write-baseline base.json --html run.html"
        assert fairdraw(*words.split(), "--json", "run.jsonl").exit_code == 1
        lines = read(tmp_path / "run.jsonl")
        require_valid(lines)
        assert lines[0]["sampler"] == "third_party:make_beyond (beyond)"
        assert (lines[1]["code"], lines[1]["status"]) == ("REJ101", "failed")
        assert lines[1]["failure_report"]["crash_file"].startswith(".fairdraw")
        assert lines[-1]["exit_code"] == 1
        crash = read_crash(tmp_path / lines[1]["failure_report"]["crash_file"])
        base = json.loads((tmp_path / "base.json").read_text())
        assert lines[0]["suite_version"] == base["suite_version"] == crash.suite_version == __version__
        assert f"<dt>fairdraw</dt><dd>{__version__}</dd>" in (tmp_path / "run.html").read_text()


class TestPytest:
    FILES = ("--fairdraw-json=run.jsonl", "--fairdraw-html=run.html", "--junitxml=junit.xml")

    @pytest.fixture(autouse=True)
    def folder(self, third_party: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nested runs start in pytester's folder and find the third party's module."""
        monkeypatch.chdir(pytester.path)

    def run(self, pytester: pytest.Pytester, factory: str, *options: str) -> pytest.RunResult:
        words = ("--fairdraw-profile", "smoke", "--sampler", f"third_party:{factory}", *options)
        return ask(pytester, *words, codes=("REJ101", "REJ103"))

    def test_files_are_written_whole(self, pytester: pytest.Pytester) -> None:
        assert self.run(pytester, "make_beyond", *self.FILES).ret == 1
        lines = read(pytester.path / "run.jsonl")
        require_valid(lines)
        assert [line["kind"] for line in lines] == ["header", "check", "check", "summary"]
        assert {line["code"] for line in lines[1:-1]} == {"REJ101", "REJ103"}
        page = (pytester.path / "run.html").read_text()
        broken = next(line for line in lines if line.get("status") == "failed")
        for word in (broken["failure_report"]["command"], lines[0]["sampler"], "checks failed", __version__):
            assert word in page
        found = [p.get("value") for p in ElementTree.parse(pytester.path / "junit.xml").iter("property")]
        assert found.count(__version__) == 2  # one of each test

    def test_file_that_cannot_be_written_is_refused_before_workers_start(self, pytester: pytest.Pytester) -> None:
        result = self.run(pytester, "make_right", "--fairdraw-json=absent/run", "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*--fairdraw-json=absent/run cannot be written: no such folder.*"])
        assert "workers" not in result.stdout.str()

    def test_file_that_cannot_be_written_after_all_is_reported(self, pytester: pytest.Pytester) -> None:
        result = self.run(pytester, "make_right", "--fairdraw-json=/dev/full")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stdout.fnmatch_lines(["/dev/full cannot be written: No space left on device.*"])
