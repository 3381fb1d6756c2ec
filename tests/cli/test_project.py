"""The table `[tool.fairdraw]`: the command line wins, and a wrong table is one sentence with the remedy."""

import json
import re
from pathlib import Path

import pytest
from helpers import fairdraw

pytestmark = pytest.mark.usefixtures("no_controls")
CODES = ("-k", "REJ101", "-k", "REJ201")


@pytest.fixture
def project(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of third-party samplers, and a folder in it, where we are."""
    (third_party / "below").mkdir()
    monkeypatch.chdir(third_party / "below")
    return third_party


def test_table_of_a_folder_above_is_used(project: Path) -> None:
    frozen = {"format": "fairdraw-baseline", "sampler": "third_party:make_beyond", "failed": {"REJ101": ""}}
    (project / "known.json").write_text(json.dumps(frozen))
    (project / "below" / "pyproject.toml").write_text("[project]\nname = 'without a table'\n")
    table = 'sampler = "third_party:make_beyond"\nprofile = "smoke"\nbudget = 40\nbaseline = "known.json"'
    table += '\nunsupported = {greedy = "verified elsewhere"}'
    (project / "pyproject.toml").write_text(f"[tool.fairdraw]\n{table}\n")
    shown = fairdraw("check", *CODES)
    assert shown.exit_code == 0, shown.output
    for part in ("third_party:make_beyond (", "profile smoke", "at most 40 s", "xfailed REJ101", "1 skipped: greedy"):
        assert part in shown.output
    words = ("check", "third_party:make_beyond", "--time-budget", "50", "--unsupported", "greedy=we say so", *CODES)
    shown = fairdraw(*words, "--write-baseline", "new.json")
    assert shown.exit_code == 1, "a baseline that is being written is none that is known"
    assert "at most 50 s" in shown.output
    assert "greedy is unsupported: we say so" in shown.output
    shown = fairdraw("check", "third_party:make_right", *CODES)
    assert shown.exit_code == 0
    assert "profile smoke" in shown.output
    assert "2 passed" in shown.output, "what is unsupported is said of the table's sampler alone"


WRONG = {
    "unknown key": ("profil = 'ci'", r"key='profil', but it must be one of sampler, .*Did you mean profile\?"),
    "sampler is a list": ("sampler = []", r'sampler=\[\], but it must be a name, as in sampler = "pkg'),
    "unknown profile": ("profile = 'fast'", "profile='fast', but it must be one of smoke, ci, nightly"),
    "budget is text": ("budget = '5 min'", "budget='5 min', but it must be a number of seconds"),
    "no reason": ("unsupported = {greedy = ''}", "unsupported=.*but it must be capabilities with a reason each"),
    "unknown capability": ("unsupported = {gready = 'no'}", r"unsupported='gready', .*Did you mean greedy\?"),
    "no TOML": ("sampler =", r"pyproject\.toml cannot be read: Invalid value"),
    "no such sampler": ("sampler = 'third_party:make_rihgt'", r"attribute make_rihgt\. Did you mean make_right\?"),
    "no such baseline": ("sampler = 'third_party:make_right'\nbaseline = 'no.json'", r"no\.json cannot be read"),
    "another contract": (
        "sampler = 'third_party:make_right'\nbaseline = 'sampling.json'",
        r"failed=SAM101, but third_party:make_right is under the rejection contract.*Name an adapter for",
    ),
    "path of a file": ("sampler = 'third_party.py'", r"Did you mean third_party:\w+"),
}


@pytest.mark.parametrize(("table", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_table_is_one_sentence(table: str, sentence: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    frozen = {"format": "fairdraw-baseline", "sampler": "third_party:make_right", "failed": {"SAM101": ""}}
    (project / "sampling.json").write_text(json.dumps(frozen))
    (project / "pyproject.toml").write_text(f"[tool.fairdraw]\n{table}\n")
    shown = fairdraw("check", *CODES)
    assert shown.exit_code == 2
    assert re.search(sentence, shown.output.splitlines()[-1]), shown.output
