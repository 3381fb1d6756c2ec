"""The script that runs vLLM's own tests: what it counts, what it prints, and what makes it fail. Without a network."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from records import upstream_tests as upstream

FILE = upstream.FILES[0]
CALLS = {"rejection": {"ours": 9, "options synthetic_mode": 1}}


def run(**outcomes: str) -> dict[str, Any]:
    """What one run leaves behind: outcomes by test of one file."""
    named = {f"tests/{FILE}::{test}": outcome for test, outcome in outcomes.items()}
    return {"outcomes": named, "calls": CALLS, "missing": []}


SAME = run(one="passed", two="failed", three="skipped")


def conducted(
    plain: dict[str, Any], ours: dict[str, Any], place: Path, patch: pytest.MonkeyPatch, *options: str
) -> int:
    """The exit code; nothing is fetched, installed or run."""
    patch.setattr(upstream, "fetched", lambda release: place)
    patch.setattr(upstream, "install", lambda release, folder: None)
    patch.setattr(upstream, "arm", lambda name, *_: {"plain": plain, "ours": ours}[name])
    patch.setattr(upstream, "RECORD", place / "record.json")
    return upstream.main(["0.22.0", *options])


def test_same_outcomes_are_counted_recorded_and_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conducted(SAME, SAME, tmp_path, monkeypatch) == 0
    assert f"| 0.22.0 | `{FILE}` | 1 | 1 | 1 | 0 | 0 |" in capsys.readouterr().out
    (release,) = json.loads((tmp_path / "record.json").read_text())["releases"]
    assert (release["vllm"], release["differences"]) == ("0.22.0", [])
    page = upstream.markdown([release])
    assert "Calls that ours served: 0.22.0: rejection 9 of 10." in page


def test_test_that_ends_otherwise_is_named_and_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = run(one="failed", two="failed")
    assert conducted(SAME, ours, tmp_path, monkeypatch, "-k", "anything") == 1
    printed = capsys.readouterr().out
    assert f"DIFFERS tests/{FILE}::one: passed with vLLM's, failed with ours" in printed
    assert f"DIFFERS tests/{FILE}::three: skipped with vLLM's, None with ours" in printed
    assert not (tmp_path / "record.json").exists()


def test_explained_difference_is_named_and_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (test, why), *_ = upstream.EXPLAINED.items()
    plain, ours = run(**{test: "passed"}), run(**{test: "failed"})
    assert conducted(plain, ours, tmp_path, monkeypatch) == 0
    assert f"explained tests/{FILE}::{test}: passed with vLLM's, failed with ours. {why}" in capsys.readouterr().out
    releases = json.loads((tmp_path / "record.json").read_text())["releases"]
    assert f"Explained: `{test}`: {why}." in upstream.markdown(releases)


def test_only_the_tests_of_the_archive_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "vllm-1"
    for name in ("tests/v1/test_a.py", "vllm/v1/a.py"):
        (source / name).parent.mkdir(parents=True)
        (source / name).touch()

    def download(release: str, place: Path, **_: str) -> Path:
        with tarfile.open(place / "vllm-1.tar.gz", "w:gz") as packed:
            packed.add(source, "vllm-1")
        return place / "vllm-1.tar.gz"

    monkeypatch.setattr(upstream, "ROOT", tmp_path)
    monkeypatch.setattr(upstream, "download", download)
    place = upstream.fetched("1")
    assert [str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()] == ["tests/v1/test_a.py"]
