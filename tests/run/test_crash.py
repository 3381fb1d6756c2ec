"""Crash files survive: written once, never overwritten, refused with one sentence if they cannot be replayed."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw import __version__
from fairdraw._run.crash import FORMAT_VERSION, Crash, CrashFileError, read_crash, write_crash
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

if TYPE_CHECKING:
    from pathlib import Path

CASE = RejectionCase(vocab_size=3, requests=(RequestRecipe(drafts=(DraftRecipe(uniform="zero"),)), RequestRecipe()))
CRASH = Crash(
    sampler="third_party:make",
    reference=None,
    check="REJ101",
    contract="rejection",
    case=CASE.to_json(),
    seed=7,
    effect="request 0 emitted 3, outside [0, 3)",
)


def stored(folder: Path, **changes: Any) -> Path:  # Any: JSON
    """A crash file with some of its fields replaced; `...` drops one."""
    path = write_crash(folder, CRASH)
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))
    return path


def test_crash_file_rebuilds_the_case(tmp_path: Path) -> None:
    crash = read_crash(write_crash(tmp_path, CRASH))
    assert dataclasses.replace(crash, case={}) == dataclasses.replace(CRASH, case={})
    assert crash.rebuild() == CASE
    assert crash.suite_version == __version__


def test_crash_folder_is_made(tmp_path: Path) -> None:
    path = write_crash(tmp_path / "a" / "b", CRASH)
    assert path.parent == tmp_path / "a" / "b"
    assert path.name.startswith("REJ101-")


def test_same_crash_is_stored_once(tmp_path: Path) -> None:
    assert write_crash(tmp_path, CRASH) == write_crash(tmp_path, CRASH)
    assert write_crash(tmp_path, dataclasses.replace(CRASH, effect="another")) != write_crash(tmp_path, CRASH)
    assert len(list(tmp_path.iterdir())) == 2


def test_crash_file_never_overwrites_another_file(tmp_path: Path) -> None:
    path = write_crash(tmp_path, CRASH)
    path.write_text("notes of mine")
    with pytest.raises(FileExistsError):
        write_crash(tmp_path, CRASH)
    assert path.read_text() == "notes of mine"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[1, 2]", "it is not a crash file of fairdraw"),
        (b"{}", "it is not a crash file of fairdraw"),
        (b'{"format": "other", "format_version": 1}', "it is not a crash file of fairdraw"),
        (b'{"format": "fairdraw-crash"}', "it is not a crash file of fairdraw"),
        (b'{"format": "fairdraw-crash", "format_version": 1}', "it is damaged: .*missing"),
    ],
    ids=["empty", "binary", "list", "no format", "foreign format", "no version", "no fields"],
)
def test_foreign_file_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(CrashFileError, match=sentence):
        read_crash(tmp_path / "file.json")


def test_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = stored(tmp_path, format_version=FORMAT_VERSION + 1, suite_version="9.0", case={"world": "new"}, more=1)
    with pytest.raises(CrashFileError, match=rf"format is {FORMAT_VERSION + 1}, newer than {FORMAT_VERSION}.*9\.0"):
        read_crash(path)


@pytest.mark.parametrize("changes", [{"effect": ...}, {"unknown": 1}, {"seed": "7"}, {"case": None}])
def test_damaged_file_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:  # Any: JSON
    with pytest.raises(CrashFileError, match=f"it is damaged: .*{next(iter(changes))}"):
        read_crash(stored(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"vocab_size": "many"}, {"vocab_size": 0}, {"vocab_size": 10**15}, {"layout": 3, "dtype": "float99"}, {"odd": 1}],
    ids=["no number", "zero", "beyond memory", "unknown dtype", "unknown field"],
)
def test_case_that_cannot_be_built_is_refused(changes: dict[str, Any]) -> None:  # Any: JSON
    crash = dataclasses.replace(CRASH, case={**CRASH.case, **changes})
    with pytest.raises(CrashFileError, match="its case cannot be built"):
        crash.rebuild()
