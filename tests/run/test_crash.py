"""Crash files survive: written once, never overwritten, refused with one sentence if they cannot be replayed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fairdraw import __version__
from fairdraw._run.crash import Crash, CrashFileError, read_crash, write_crash
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

CASE = RejectionCase(vocab_size=3, requests=(RequestRecipe(drafts=(DraftRecipe(uniform="zero"),)), RequestRecipe()))
CRASH = Crash("third_party:make", None, "REJ101", "rejection", CASE.to_json(), 7, "request 0 emitted 3, outside [0, 3)")


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


def test_crash_file_never_overwrites_another_file(tmp_path: Path) -> None:
    path = write_crash(tmp_path, CRASH)
    path.write_text("notes of mine")
    with pytest.raises(FileExistsError):
        write_crash(tmp_path, CRASH)
    assert path.read_text() == "notes of mine"


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
