"""A crash file names code. Code that a foreign file names is shown, and runs only if the user allows it."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers import fairdraw

from fairdraw._run.crash import Crash, write_crash
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw.strategies import RejectionCase, RequestRecipe

pytestmark = pytest.mark.usefixtures("third_party")
load_sampler("rejection/torch")  # once: torch cannot be imported twice

CASE = RejectionCase(vocab_size=2, requests=(RequestRecipe(),)).to_json()
CRASH = Crash("mypkg.evil:make", None, "REJ101", "rejection", CASE, 7, "request 0 emitted 3, outside [0, 3)")
EVIL = "from pathlib import Path\nPath('HARM').touch()\ndef make(): Path('HARM').touch()\n"

SAMPLER = "Add -y to run it, or --sampler SPEC to run another."
REFERENCE = "Add -y to run it, or --reference SPEC to run another."
NAMES = {
    "kills the process": "os:abort",
    "runs programs": "subprocess:run",
    "side effect at import": "mypkg.evil:make",
    "a path": "/etc/passwd",
    "a path upwards": "../../evil.py:make",
    "empty": "",
    "no module": ":",
    "very long": "a" * 100_000 + ":make",
    "not ASCII": "p\u0430\u202eckage:m\u0430ke\u2028",
    "shell": "$(touch HARM); `touch HARM` && touch HARM | 'x' \"y\"",
    "terminal": "\x1b[2J\x1b]0;title\x07evil:make\r\n",
    "almost built in": "torch:make",
    "half a character": "\ud800:make",
}
"""What a file may name as its sampler though it is none, or none of fairdraw's."""


@pytest.fixture(autouse=True)
def evil(third_party: Path) -> Path:
    (third_party / "mypkg").mkdir()
    (third_party / "mypkg" / "__init__.py").touch()
    (third_party / "mypkg" / "evil.py").write_text(EVIL)
    for name in ("mypkg", "mypkg.evil"):
        sys.modules.pop(name, None)
    return third_party


def foreign(folder: Path, **changes: Any) -> str:  # Any: fields of a crash
    """Write a file as it comes out of somebody's CI, and return its path."""
    return str(write_crash(folder / ".fairdraw" / "crashes", dataclasses.replace(CRASH, **changes)))


def replay(*words: str) -> Result:
    return fairdraw("replay", *words)


def require_refused(result: Result, remedy: str) -> str:
    assert result.exit_code == 2, result.output
    _, sentence = result.output.splitlines()  # behind what is being loaded
    assert sentence.endswith(f"which is code: nothing of it was run. {remedy}")
    assert not Path("HARM").exists()
    assert not {"mypkg", "mypkg.evil"} & sys.modules.keys()
    return sentence


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_foreign_name_is_shown_and_not_run(evil: Path, name: str) -> None:
    sentence = require_refused(replay(foreign(evil, sampler=name)), SAMPLER)
    assert sentence.isascii()
    assert sentence.isprintable()
    assert len(sentence) < 500
    plain = ascii(name)[1:-1].replace("\\'", "'")
    words = shlex.split(sentence)  # as a shell reads it: the name is one word, whatever is in it
    shown = words[words.index("sampler") + 1].removesuffix(",")
    assert shown == plain or shown == f"{plain[:100]}... ({len(name)} characters)"


def test_foreign_name_is_not_run_by_its_code_either(evil: Path) -> None:
    foreign(evil)
    require_refused(replay("REJ101"), SAMPLER)


@pytest.mark.parametrize("name", ["os:abort", "mypkg.evil:make"])
def test_foreign_reference_is_not_run(evil: Path, name: str) -> None:
    check = next(check.code for check in all_checks(contract="rejection") if check.differential)
    path = foreign(evil, check=check, sampler="rejection/torch", reference=name)
    assert name in require_refused(replay(path), REFERENCE)
    assert name in require_refused(replay(path, "--sampler", "rejection/torch"), REFERENCE)
    assert replay(path, "--reference", "none").exit_code == 3


def test_empty_sampler_on_the_command_line_is_not_that_of_the_file(evil: Path) -> None:
    result = replay(foreign(evil), "--sampler", "")
    assert result.exit_code == 2
    assert not Path("HARM").exists()


def test_one_foreign_file_among_others_runs_none(evil: Path) -> None:
    own = write_crash(evil / "own", dataclasses.replace(CRASH, sampler="rejection/torch"))
    require_refused(replay(str(own), foreign(evil)), SAMPLER)


def test_person_may_name_a_sampler(evil: Path) -> None:
    result = replay(foreign(evil), "--sampler", "third_party:make_right")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[1:] == ["sampler: third_party:make_right"]
    assert "of mypkg.evil:make" in result.stdout
    assert not Path("HARM").exists()


def test_person_may_allow_what_the_file_names_and_sees_its_name_first(evil: Path) -> None:
    path = write_crash(evil / ".fairdraw" / "crashes", dataclasses.replace(CRASH, sampler="third_party:make_beyond"))
    require_refused(replay(str(path)), SAMPLER)
    result = replay(str(path), "-y")
    assert result.exit_code == 1
    assert result.output.splitlines()[1] == "sampler: third_party:make_beyond"
    assert f"\nreproduce:\nfairdraw replay {path} -y\n" in result.output


def test_effect_of_a_foreign_file_cannot_command_the_terminal(evil: Path) -> None:
    result = replay(foreign(evil, sampler="rejection/torch", effect="\x1b[2Jgone\nRED"))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\\x1b[2Jgone\\nRED" in result.output
