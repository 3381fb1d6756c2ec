"""Known failures: xfails are strict, a baseline turns only new failures red, and no file is guessed at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fairdraw.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("stranger")


def check(factory: str, *options: str) -> Result:
    words = ("check", f"stranger:{factory}", "-k", "REJ101", "--profile", "smoke", *options)
    return CliRunner().invoke(main, words)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_failure_named_in_the_xfails_file_is_expected(tmp_path: Path) -> None:
    result = check("make_beyond", "--xfails", written(tmp_path / "x.toml", 'REJ101 = "known, see issue 7"'))
    assert result.exit_code == 0
    assert "known, see issue 7" in result.output


def test_xfail_that_passes_is_red(tmp_path: Path) -> None:
    result = check("make_right", "--xfails", written(tmp_path / "x.toml", 'REJ101 = "known"'))
    assert result.exit_code == 1
    assert "known failures gone: 1" in result.output
    assert f"remove REJ101 from {tmp_path / 'x.toml'}" in result.output


def test_baseline_written_by_a_run_makes_the_next_run_green(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert check("make_beyond", "--write-baseline", str(path)).exit_code == 1
    assert json.loads(path.read_text())["failed"] == ["REJ101"]
    result = check("make_beyond", "--baseline", str(path))
    assert result.exit_code == 0
    assert "in the baseline" in result.output


def test_stale_entry_of_the_baseline_is_named(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    check("make_beyond", "--write-baseline", str(path))
    result = check("make_right", "--baseline", str(path))
    assert result.exit_code == 0
    assert "stale: in the baseline, and it passes" in result.output


def test_baseline_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("mine")
    result = check("make_beyond", "--write-baseline", str(path))
    assert (result.exit_code, path.read_text()) == (2, "mine")
    assert "is not overwritten" in result.output


@pytest.mark.parametrize(
    ("option", "content", "sentence"),
    [
        ("--xfails", "REJ101", "is not TOML"),
        ("--xfails", 'REJ101 = ""', "gives no reason for REJ101"),
        ("--xfails", 'REJ999 = "why"', "names REJ999, which is no check"),
        ("--baseline", "{", "is not JSON"),
        ("--baseline", '{"format": "other"}', "is no baseline of fairdraw"),
        ("--baseline", '{"format": "fairdraw-baseline", "failed": ["REJ999"]}', "names REJ999, which is no check"),
    ],
)
def test_foreign_file_is_refused_in_one_sentence(tmp_path: Path, option: str, content: str, sentence: str) -> None:
    result = check("make_right", option, written(tmp_path / "file", content))
    assert result.exit_code == 2
    assert sentence in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("option", ["--xfails", "--baseline"])
def test_missing_file_is_refused(tmp_path: Path, option: str) -> None:
    result = check("make_right", option, str(tmp_path / "absent"))
    assert result.exit_code == 2
    assert "cannot be read: No such file or directory" in result.output


def test_pytest_takes_the_same_files(pytester: pytest.Pytester, tmp_path: Path) -> None:
    xfails = written(tmp_path / "x.toml", 'REJ101 = "known"')
    pytester.makepyfile(
        """
        import pytest
        from fairdraw.loading import all_checks

        @pytest.mark.parametrize("check", [c for c in all_checks() if c.code == "REJ101"], ids=str)
        def test_rejection(check, fairdraw_run):
            fairdraw_run(check)
        """
    )
    options = ("--sampler", "stranger:make_beyond", "--fairdraw-profile", "smoke", "--fairdraw-xfails", xfails)
    pytester.runpytest_inprocess("-p", "fairdraw.pytest_plugin", *options).assert_outcomes(xfailed=1)
