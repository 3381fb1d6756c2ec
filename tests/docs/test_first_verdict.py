"""Every way to a first verdict can be followed: files, diffs and commands of the manual lead from red to green."""

import _ctypes
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import fairdraw
from manual import newcomer
from servers.process import free_port

WAYS = newcomer.ways()
NEEDS = {"JAX": "jax", "C": "cc", "Triton": "triton"}
NOT_HERE = ("python3", ".", "pip")
"""Commands that install; what they bring is there."""


def replayed(way: str) -> str:
    """Return the code that the manual says to replay."""
    (code,) = set(re.findall(r"^\$ fairdraw replay (\w+) -y", WAYS[way], flags=re.MULTILINE))
    return code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_controls: None) -> Iterator[Path]:
    """An empty folder; a server that is left there is ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    yield tmp_path
    for left in tmp_path.glob("*.pid"):
        os.kill(int(left.read_text()), signal.SIGTERM)


@pytest.mark.parametrize("way", WAYS)
def test_way_leads_from_red_to_green(way: str, folder: Path) -> None:
    """Commands of fairdraw run in this process. The manual runs every check; here the one that it replays is enough."""
    need = NEEDS.get(way, "torch")
    if not (shutil.which(need) or importlib.util.find_spec(need)):
        pytest.skip(f"{need} is not installed")

    def run(command: str) -> str:
        for path in folder.glob("*.py"):  # every command is a process, with its own copy of a library
            library = getattr(sys.modules.pop(path.stem, None), "library", None)
            if library is not None:
                _ctypes.dlclose(library._handle)
        program, *words = shlex.split(command)
        if program == "fairdraw":
            return fairdraw(*words, *(["-k", replayed(way)] if words[0] == "check" else [])).output
        if program not in NOT_HERE:
            subprocess.run(["bash", "-c", command], check=True)
        if program == "kill":
            (folder / "server.pid").unlink()
        return ""

    followed = newcomer.Newcomer(folder, run).follow(re.sub(r"\b8000\b", str(free_port()), WAYS[way]))
    assert [one for one in newcomer.verdicts(followed) if one != "FAILED"] == ["RED", "FIXED", "GREEN"], followed
    assert newcomer.times(followed)["code"] == replayed(way)


def test_every_way_was_followed_to_the_end() -> None:
    """Every way led to a verdict in three minutes of one processor, and its first report was at the fault."""
    record = newcomer.recorded()
    assert list(record) == list(WAYS)
    ended = {way: [one for one in row["verdicts"] if one != "FAILED"] for way, row in record.items()}
    assert ended == {way: ["RED", "FIXED", "GREEN"] for way in WAYS}
    assert {way: row["code"] for way, row in record.items()} == {way: replayed(way) for way in WAYS}
    assert [way for way, row in record.items() if row["cpu_s"] > 180] == []


def test_page_has_what_was_printed() -> None:
    page = WAYS[newcomer.PADDED]
    assert newcomer.verdicts(page) == ["RED", "FAILED", "FIXED", "GREEN"]
    assert not re.search(r"/(tmp|home|root|work)/", page)


@pytest.mark.parametrize(
    ("text", "diff", "sentence"),
    [("a\nb\n", "-c\n+d\n", "has 0 places"), ("a\na\n", "-a\n+d\n", "has 2 places")],
    ids=["absent", "twice"],
)
def test_diff_without_its_one_place_is_refused(tmp_path: Path, text: str, diff: str, sentence: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(newcomer.Stuck, match=sentence):
        newcomer.patch(tmp_path / "file", diff)
    assert (tmp_path / "file").read_text() == text
