"""The plugin: silent unless used, never green without a measurement, and the same under xdist."""

import shlex
from fnmatch import fnmatch
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import ASK, PLUGIN, ask

from fairdraw._core.checks import PROFILES
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.loading import SUITES, all_checks, load_sampler
from fairdraw.pytest_plugin import PROFILE_WORDS, SUITE_WORDS

# Loaded before pytester takes a snapshot of sys.modules: torch cannot be imported twice.
CHECKS = all_checks(contract="rejection")
load_sampler("rejection/torch")

OPTIONS = (*PLUGIN, "--fairdraw-profile", "smoke")


@pytest.fixture(autouse=True)
def folder(third_party: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested runs start in pytester's folder and find the third party's module."""
    monkeypatch.chdir(pytester.path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def asked(pytester: pytest.Pytester, *options: str, codes: tuple[str, ...] = ("REJ101",)) -> pytest.RunResult:
    return ask(pytester, "--fairdraw-profile", "smoke", *options, codes=codes)


def test_words_of_options_are_those_of_the_suite() -> None:
    assert list(SUITE_WORDS) == list(SUITES)
    assert list(PROFILE_WORDS) == list(PROFILES)


# -- silence


def test_nothing_is_said_without_our_options_or_checks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(): pass")
    # In a process of its own, loaded as a user has it: by entry point where fairdraw is installed.
    installed = any(plugin.value == "fairdraw.pytest_plugin" for plugin in entry_points(group="pytest11"))
    result = pytester.runpytest_subprocess(*([] if installed else ["-p", "fairdraw.pytest_plugin"]))
    assert result.ret == 0
    said = [line for line in result.outlines if not line.startswith(("plugins:", "rootdir:"))]
    assert "fairdraw" not in "\n".join(said)


def test_collecting_loads_no_sampler(pytester: pytest.Pytester) -> None:
    result = asked(pytester, "--sampler", "third_party:make_boom", "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_rejection?REJ101 token ids lie in the vocabulary?"])


def test_known_failure_is_xfailed_with_its_reason(pytester: pytest.Pytester) -> None:
    result = asked(pytester, "--sampler", "third_party:make_known", "-rx")
    assert result.ret == 0
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["  xfailed REJ101 *: one beyond the end, https://example.org/1"])


# -- header


def test_default_sampler_is_named_as_such(pytester: pytest.Pytester) -> None:
    result = asked(pytester)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*: sampler rejection/torch (the default; choose with --sampler) on *"])
    assert f"seed {DEFAULT_SEED}" in result.stdout.str()


# -- verdict


def test_failure_is_the_report_and_nothing_else(pytester: pytest.Pytester) -> None:
    result = asked(pytester, "--sampler", "third_party:make_beyond")
    assert result.ret == 1
    lines = result.stdout.lines
    start = next(i for i, line in enumerate(lines) if line.startswith("REJ101"))
    labels = [line.partition(":")[0] for line in lines[start : start + 11]]
    fields = ["meaning", "usually", "effect", "evidence", "smallest example", "reproduce", "crash file"]
    command, search = labels.pop(7), labels.pop(8)
    fields.insert(6, "search again")
    assert labels == ["REJ101 token ids lie in the vocabulary", *fields]
    assert command.startswith("fairdraw replay .fairdraw/crashes/REJ101-")
    assert search.startswith("pytest --pyargs fairdraw --sampler third_party")
    assert lines[start + 11].startswith("=")
    assert "RED: checks failed: 1" in lines
    for noise in ("Traceback", "Failing test case", "Falsifying", "hypothesis.", "runner.py"):
        assert noise not in "\n".join(line for line in lines if not line.startswith(("plugins:", "  versions:")))


@pytest.mark.parametrize("option", ["-vv", "--full-trace"])
def test_traceback_is_shown_on_request(pytester: pytest.Pytester, option: str) -> None:
    result = asked(pytester, "--sampler", "third_party:make_raising", option)
    result.stdout.fnmatch_lines(
        [
            "*REJ100 sampler raised an exception during REJ101",
            "*Captured traceback call*",
            "*third_party.py*in raising*",
            "IndexError: lane out of range",
        ]
    )


def test_checks_skipped_by_a_mark_are_not_green(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ask="import pytest\npytestmark = pytest.mark.skip\n" + ASK.format(codes=("REJ101",)))
    result = pytester.runpytest_inprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "NOTHING MEASURED: no check was run" in result.stdout.lines


def test_checks_of_other_suites_are_left_out_on_request(pytester: pytest.Pytester) -> None:
    other = "CHECKS = tuple(dataclasses.replace(check, suite='statistical') for check in CHECKS)\n\n@pytest"
    source = ASK.format(codes=("REJ101",))
    pytester.makepyfile(test_ask=source, test_other="import dataclasses\n" + source.replace("@pytest", other))
    result = pytester.runpytest_inprocess(*OPTIONS, "--fairdraw-only", "properties")
    result.assert_outcomes(passed=1, deselected=1)


def test_verdict_counts_what_a_conftest_leaves_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_collection_modifyitems(items): del items[1:]")
    result = asked(pytester, "--sampler", "third_party:make_right", codes=("REJ101", "REJ103"))
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"GREEN, *(1 property check passed; 1 of {len(CHECKS)} checks)"])


def test_green_checks_do_not_hide_other_failures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_other="def test_other(): assert False")
    result = asked(pytester)
    assert result.ret == 1
    assert "NOT GREEN: pytest ended with TESTS_FAILED, see above" in result.stdout.lines


def test_missed_control_is_not_green(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_control="""
        from fairdraw._mutants._mutant import Mutant
        from fairdraw.adapters import load

        def test_mutant_is_caught(fairdraw_control):
            fairdraw_control(Mutant("no fault at all", "", ("REJ101",), lambda: load("rejection/oracle")))
        """
    )
    result = asked(pytester)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "the mutant 'no fault at all' was not caught by REJ101",
            "mutation controls (rejection): 0/1 caught at this run's numbers in * s",
            "  blind check: REJ101 does not catch the mutant 'no fault at all'",
            "RED: mutants missed*: 1",
        ]
    )
    without = pytester.runpytest_inprocess(*OPTIONS, "--fairdraw-no-controls")
    assert without.ret == 0
    without.stdout.fnmatch_lines(["GREEN*; whether the checks can fail was not tried: --fairdraw-no-controls"])


def test_first_failure_ends_the_run_where_asked(pytester: pytest.Pytester) -> None:
    result = asked(pytester, "--sampler", "third_party:make_beyond", "-x", codes=("REJ101", "REJ103"))
    result.stdout.fnmatch_lines(["RED: checks failed: 1; checks not run: 1"])


# -- mistakes


def test_unknown_reference_is_a_usage_error(pytester: pytest.Pytester) -> None:
    code = next(check.code for check in CHECKS if check.differential)
    result = asked(pytester, "--sampler", "third_party:make_right", "--fairdraw-reference", "oracel", codes=(code,))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*Did you mean rejection/oracle*"])


# -- the decorator


DECORATED = """
import fairdraw, third_party

@fairdraw.parametrize_with_checks([third_party.{factory}()])
def test_sampler(sampler, check):
    check(sampler)
"""


def decorated(pytester: pytest.Pytester, factory: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(DECORATED.format(factory=factory))
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def test_there_is_one_test_per_sampler_and_check(pytester: pytest.Pytester) -> None:
    shown = decorated(pytester, "make_right", "--collect-only", "-q").stdout.str()
    for check in CHECKS:
        assert f"::test_sampler[right-{check.id}]" in shown


def test_correct_sampler_is_green_without_the_option(pytester: pytest.Pytester) -> None:
    result = decorated(pytester, "make_right", "-k", "REJ101")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["fairdraw 0.1.0: sampler right on cpu", "*", "GREEN, distributions not judged: -k REJ101 *"]
    )


def test_report_repeats_the_very_test(pytester: pytest.Pytester) -> None:
    result = decorated(pytester, "make_beyond", "-k", "REJ101", "--fairdraw-seed", "5")
    assert result.ret == 1
    lines = result.stdout.lines
    command = shlex.split(lines[lines.index("reproduce:") + 1])
    assert command[0] == "pytest"
    assert fnmatch(command[1], "test_*.py::test_sampler[[]beyond-REJ101 *]")
    assert command[2:] == ["--fairdraw-profile", "smoke", "--fairdraw-seed", "5"]
    assert pytester.runpytest_inprocess(*OPTIONS, *command[1:]).ret == 1
    result.stdout.fnmatch_lines(
        ["note: to replay this case alone: fairdraw replay * --sampler SPEC, where SPEC is pkg.module:factory *"]
    )


# -- j unit


def test_code_and_status_are_properties(pytester: pytest.Pytester) -> None:
    asked(pytester, "--sampler", "third_party:make_beyond", "--junitxml", "junit.xml")
    tree = ElementTree.parse(pytester.path / "junit.xml")
    properties = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert properties["fairdraw.check.code"] == "REJ101"
    assert properties["fairdraw.check.status"] == "failed"
    (failure,) = tree.iter("failure")
    assert (failure.text or "").startswith("REJ101")


# -- xdist


def test_unknown_sampler_is_a_usage_error_before_workers_start(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ask=ASK.format(codes=("REJ101",)))
    result = pytester.runpytest_subprocess(*OPTIONS, "--sampler", "oracel", "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*Did you mean rejection/oracle*"])
    assert "workers" not in result.stdout.str()
