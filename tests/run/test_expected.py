"""Known failures: xfails are strict, a baseline turns only new failures red, and no file is guessed at."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from helpers import CHECKS, fairdraw

from fairdraw._core.checks import PROFILES
from fairdraw._mutants.rejection import right
from fairdraw._oracles.rejection import verify
from fairdraw._run.loading import CannotStart, as_sampler
from fairdraw._run.runner import Session, run_check
from fairdraw.adapters import _catalogue
from fairdraw.contracts import Capabilities

pytestmark = pytest.mark.usefixtures("third_party", "no_controls")


def check(factory: str, *options: str) -> Result:
    words = ("check", f"third_party:{factory}", "-k", "REJ101", "--profile", "smoke", *options)
    return fairdraw(*words)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("entry", "profile", "gone"),
    [
        ('"known"', "smoke", False),
        ('"known"', "ci", True),
        ('{reason = "known", cases = 20}', "smoke", True),
        ('{reason = "known", cases = 21}', "smoke", False),
        ('{reason = "known", cases = 100}', "ci", True),
        ('{reason = "known", cases = 101}', "ci", False),
    ],
)
def test_known_failure_is_gone_only_if_the_run_could_have_seen_it(
    tmp_path: Path, entry: str, profile: str, gone: bool
) -> None:
    result = check("make_right", "--profile", profile, "--xfails", written(tmp_path / "x.toml", f"REJ101 = {entry}"))
    assert result.exit_code == int(gone)
    assert ("run 1 of 1 checks, skipped 0: 0 passed, 0 failed, 0 xfailed, 1 xpassed" in result.output) == gone
    assert ("known failures not seen, and not called gone: 1\n" in result.output) == (not gone)
    assert ("; too few to call it gone (it takes " in result.output) == (not gone)


def slow(**fields: Any) -> Any:  # Any: what an adapter declares; a sampler
    return SimpleNamespace(**{**vars(right()), "capabilities": Capabilities(slow=True), "verify": verify, **fields})


@pytest.mark.parametrize(
    ("profile", "known", "status"),
    [
        ("smoke", "rare", "passed"),
        ("ci", "rare", "xpassed"),
        ("ci", {"reason": "rare", "cases": 60}, "passed"),
        ("nightly", {"reason": "rare", "cases": 60}, "xpassed"),
    ],
)
def test_slow_sampler_is_measured_by_its_own_speed(profile: str, known: object, status: str) -> None:
    record = run_check(CHECKS["REJ101"], slow(known_defects={"REJ101": known}), Session(profile=PROFILES[profile]))
    assert record.status == status
    assert ("known failure not seen in" in record.reason) == (status == "passed")


def test_defect_that_the_sampler_declares_fails_without_known_ones() -> None:
    result = check("make_known", "--no-known")
    assert result.exit_code == 1
    assert check("make_known").exit_code == 0


def test_statistical_check_is_measured_by_its_draws() -> None:
    defect = slow(known_defects={"DIST601": "rare"})
    few, many = (run_check(CHECKS["DIST601"], defect, Session(profile=PROFILES[name])) for name in ("smoke", "ci"))
    assert (few.status, many.status) == ("passed", "xpassed")
    assert "draws; too few to call it gone (it takes 4000): rare" in few.reason


def test_failure_that_is_seen_is_expected_whatever_it_takes(tmp_path: Path) -> None:
    entry = 'REJ101 = {reason = "known", cases = 9999}'
    result = check("make_beyond", "--xfails", written(tmp_path / "x.toml", entry))
    assert result.exit_code == 0
    assert "xfailed REJ101 token ids lie in the vocabulary: known" in result.output


@pytest.mark.parametrize("value", [3, "", {"cases": 3}, {"reason": "r", "cases": "3"}, {"reason": "r", "kases": 3}])
def test_sampler_that_declares_no_reason_is_refused(value: object) -> None:
    with pytest.raises(CannotStart, match=r"known_defects\['REJ101'\] (gives no reason|says )"):
        as_sampler(slow(known_defects={"REJ101": value}))


def test_defects_of_a_release_may_say_how_many_cases_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = {"sampler": "rejection/vllm", "name": "n", "checks": ["REJ116"], "reason": "rare", "cases": 60}
    monkeypatch.setattr(_catalogue, "read_defects", lambda package: [defect])
    row = _catalogue.SamplerRow("rejection/vllm", "p", {}, "_m:f", "n")
    assert row.known_defects("0.16.0") == {"REJ116": {"reason": "n: rare", "cases": 60}}


def test_baseline_written_by_a_run_makes_the_next_run_green(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert check("make_beyond", "--write-baseline", str(path)).exit_code == 1
    assert json.loads(path.read_text())["failed"] == {"REJ101": "token ids lie in the vocabulary"}
    result = check("make_beyond", "--baseline", str(path))
    assert result.exit_code == 0
    assert "in the baseline" in result.output


def baseline(path: Path, **changes: Any) -> tuple[str, str]:  # Any: JSON
    """The options that use a baseline of `make_beyond`, with changes."""
    check("make_beyond", "--write-baseline", str(path))
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return "--baseline", str(path)


@pytest.mark.parametrize(
    ("profile", "line"), [("smoke", "stale: in"), ("ci", "known failure not seen; too small a run")]
)
def test_stale_entry_of_the_baseline_is_named(tmp_path: Path, profile: str, line: str) -> None:
    """A smaller run than the baseline's could not have seen the failure."""
    result = check("make_right", *baseline(tmp_path / "b.json", sampler="third_party:make_right", profile=profile))
    assert result.exit_code == 0
    assert f"  REJ101 token ids lie in the vocabulary: {line}" in result.output


def test_baseline_of_another_sampler_is_refused(tmp_path: Path, pytester: pytest.Pytester) -> None:
    options = baseline(tmp_path / "b.json")
    result = check("make_right", *options)
    assert result.exit_code == 2
    refusal = "sampler='third_party:make_beyond', but this run is of 'third_party:make_right'"
    assert refusal in " ".join(result.output.split())
    words = ("--pyargs", "fairdraw", "--sampler", "third_party:make_right", "--fairdraw-baseline", options[1])
    run = pytester.runpytest_inprocess("-p", "fairdraw.pytest_plugin", *words, "-k", "REJ101")
    run.stderr.fnmatch_lines([f"*{refusal}*"])
    assert run.ret != 0


def test_failure_that_looks_different_is_not_in_the_baseline(tmp_path: Path) -> None:
    raised = "sampler raised an exception during REJ101: IndexError"
    result = check("make_beyond", *baseline(tmp_path / "b.json", failed={"REJ101": raised}))
    assert result.exit_code == 1
    assert f"note: the baseline knows another failure of this check: {raised}" in result.output
    assert "crash file: " in result.output


def test_baseline_of_another_release_says_so(tmp_path: Path) -> None:
    changes = {"suite_version": "0.0.1", "name": "beyond 1.0", "failed": {"REJ101": ""}}
    result = check("make_beyond", *baseline(tmp_path / "b.json", **changes))
    assert result.exit_code == 0
    assert "in the baseline, which is of fairdraw 0.0.1 and beyond 1.0" in result.output
