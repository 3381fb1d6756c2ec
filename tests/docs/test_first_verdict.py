"""docs/first-verdict.md can be followed: its files, its diffs and its commands lead from red to green."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from helpers import fairdraw
from manual import newcomer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-verdict.md").read_text()
CODE = "REJ107"
"""The check that the page replays. The page runs every check; here this is enough."""


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page, with what commands of fairdraw print in this process; others are left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setattr("fairdraw._cli.job.mutants_of", lambda *_: [])

    def run(command: str) -> str:
        for path in tmp_path.glob("*.py"):  # every command is a process
            sys.modules.pop(path.stem, None)
        program, *words = shlex.split(command)
        if program != "fairdraw":
            return ""
        short = ["-k", CODE] if words[0] == "check" else []
        return fairdraw(*words, *short).output

    return str(newcomer.Newcomer(tmp_path, run).follow(PAGE))


def test_page_leads_from_red_to_green(followed: str) -> None:
    verdicts = re.findall(r"^(?:RED|FAILED|FIXED|GREEN)\b", followed, flags=re.MULTILINE)
    assert verdicts == ["RED", "FAILED", "FIXED", "GREEN"]


def test_page_was_followed_to_the_end() -> None:
    assert re.search(r"^Followed by `tools/pages\.py newcomer` on \d{4}-\d\d-\d\d ", PAGE, flags=re.MULTILINE)
    verdicts = re.findall(r"^(RED|FAILED|FIXED|GREEN)\b", PAGE, flags=re.MULTILINE)
    assert verdicts == ["RED", "FAILED", "FIXED", "GREEN"]
    assert not re.search(r"/(tmp|home|root|work)/", PAGE)


def test_first_verdict_took_three_minutes_at_most() -> None:
    assert newcomer.first_verdict(PAGE)[1] <= 180


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
