"""INCONCLUSIVE warns: under a real pytest, with the options and the fixture of `perf_regression/`."""

from __future__ import annotations

import pytest

from fairdraw.perf_regression._benching import STRICT_VARIABLE
from fairdraw.perf_regression._named import import_path

TESTS = """
from fairdraw.perf_regression._decision import Decision, Interval, Verdict
from fairdraw.perf_regression._findings import Finding, from_decision

PASSED = Finding("penalties.step", "time", Verdict.PASS, 0.5, 1.0)
NEAR = Decision(Verdict.INCONCLUSIVE, "limit 1.05 lies within [0.98, 1.12]", Interval(1.02, 0.98, 1.12))

def test_near(verdicts):
    verdicts([PASSED, from_decision("sampling.step", NEAR, 1.05)])

def test_kept(verdicts):
    verdicts([PASSED])

def test_unknown(verdicts):
    verdicts([PASSED, Finding("thinking.step", "time", Verdict.NO_VERDICT, reason="not measured")])
"""
TOLD = (
    "INCONCLUSIVE: sampling.step: time of ours / reference=1.02 (0.98 to 1.12), limit 1.05: "
    "limit 1.05 lies within [0.98, 1.12]"
)


@pytest.fixture
def gate(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests whose ini makes errors of warnings, as this project's does."""
    monkeypatch.setenv(STRICT_VARIABLE, "0")
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    monkeypatch.setenv("PYTEST_PLUGINS", "fairdraw.perf_regression.conftest")
    monkeypatch.setenv("PYTHONPATH", import_path())
    return pytester


def test_inconclusive_is_a_skip_and_one_line_among_the_warnings(gate: pytest.Pytester) -> None:
    ran = gate.runpytest_subprocess("-rs")
    ran.assert_outcomes(passed=1, skipped=2, warnings=1)
    ran.stdout.fnmatch_lines(["*::test_near", f"*.py:8: InconclusiveWarning: {TOLD.replace('[', '[[]')}"])
    assert f": {TOLD}\n" in ran.stdout.str()  # the reason of the skip, which is the same sentence


def test_inconclusive_is_red_if_only_passes_are_green(gate: pytest.Pytester) -> None:
    ran = gate.runpytest_subprocess("--perf-strict")
    ran.assert_outcomes(passed=1, failed=2)
    assert f"AssertionError: {TOLD}\n" in ran.stdout.str()


def test_inconclusive_is_red_if_warnings_are_asked_to_be_errors(gate: pytest.Pytester) -> None:
    ran = gate.runpytest_subprocess("-W", "error")
    ran.assert_outcomes(passed=1, failed=1, skipped=1)
    assert f"InconclusiveWarning: {TOLD}" in ran.stdout.str()
