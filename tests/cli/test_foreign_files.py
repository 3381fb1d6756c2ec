"""A crash file names code. Code that a foreign file names is shown, and runs only if the user allows it."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fairdraw._cli.main import main
from fairdraw._core import signature as _signature
from fairdraw._run.crash import Crash, read_crash, write_crash
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw.strategies import RejectionCase, RequestRecipe

if TYPE_CHECKING:
    from click.testing import Result

pytestmark = pytest.mark.usefixtures("third_party")
load_sampler("rejection/torch")  # once: torch cannot be imported twice

CRASH = Crash(
    sampler="mypkg.evil:make",
    reference=None,
    check="REJ101",
    contract="rejection",
    case=RejectionCase(vocab_size=2, requests=(RequestRecipe(),)).to_json(),
    seed=7,
    effect="request 0 emitted 3, outside [0, 3)",
)
EVIL = "from pathlib import Path\nPath('HARM').touch()\ndef make(): Path('HARM').touch()\n"

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
    """A file as it comes out of somebody's CI: signed by them, if at all."""
    content = json.loads(dataclasses.replace(CRASH, **changes).text())
    path = folder / ".fairdraw" / "crashes" / "REJ101-foreign.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, "signature": "0" * 64}))
    return str(path)


def replay(*words: str) -> Result:
    return CliRunner().invoke(main, ["replay", *words])


def require_refused(result: Result, remedy: str) -> str:
    assert result.exit_code == 2, result.output
    (sentence,) = result.output.splitlines()
    assert sentence.endswith(f"nothing of it was run. {remedy}.")
    assert not Path("HARM").exists()
    assert not {"mypkg", "mypkg.evil"} & sys.modules.keys()
    return sentence


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_foreign_name_is_shown_and_not_run(evil: Path, name: str) -> None:
    sentence = require_refused(replay(foreign(evil, sampler=name)), "Add --sampler SPEC")
    assert sentence.isascii()
    assert sentence.isprintable()
    assert len(sentence) < 500
    plain = ascii(name)[1:-1].replace("\\'", "'")
    words = shlex.split(sentence)  # as a shell reads it: the name is one word, whatever is in it
    shown = words[words.index("sampler") + 1].removesuffix(",")
    assert shown == plain or shown == f"{plain[:100]}... ({len(name)} characters)"


def test_foreign_name_is_not_run_by_its_code_either(evil: Path) -> None:
    foreign(evil)
    require_refused(replay("REJ101"), "Add --sampler SPEC")


@pytest.mark.parametrize("name", ["os:abort", "mypkg.evil:make"])
def test_foreign_reference_is_not_run(evil: Path, name: str) -> None:
    check = next(check.code for check in all_checks(contract="rejection") if check.differential)
    path = foreign(evil, check=check, sampler="rejection/torch", reference=name)
    assert name in require_refused(replay(path), "Add --reference SPEC, or none")
    assert name in require_refused(replay(path, "--sampler", "rejection/torch"), "Add --reference SPEC, or none")
    assert replay(path, "--reference", "none").exit_code == 3


def test_empty_sampler_on_the_command_line_is_not_that_of_the_file(evil: Path) -> None:
    result = replay(foreign(evil), "--sampler", "")
    assert result.exit_code == 2
    assert not Path("HARM").exists()


def test_one_foreign_file_among_own_ones_runs_none(evil: Path) -> None:
    own = write_crash(evil / "own", dataclasses.replace(CRASH, sampler="third_party:make_right"))
    (evil / "third_party.py").write_text("raise SystemExit('was imported')")
    require_refused(replay(str(own), foreign(evil)), "Add --sampler SPEC")


def test_person_may_name_a_sampler(evil: Path) -> None:
    result = replay(foreign(evil), "--sampler", "third_party:make_right")
    assert result.exit_code == 0, result.output
    assert result.stderr == "sampler: third_party:make_right\n"
    assert "of mypkg.evil:make" in result.stdout
    assert not Path("HARM").exists()


def test_own_file_runs_and_shows_the_name_first(evil: Path) -> None:
    path = write_crash(evil / ".fairdraw" / "crashes", dataclasses.replace(CRASH, sampler="third_party:make_beyond"))
    result = replay(str(path))
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == "sampler: third_party:make_beyond"


def test_file_that_was_changed_is_foreign(evil: Path) -> None:
    path = write_crash(evil, dataclasses.replace(CRASH, sampler="third_party:make_right"))
    path.write_text(path.read_text().replace("third_party:make_right", "mypkg.evil:make"))
    require_refused(replay(str(path)), "Add --sampler SPEC")


def test_file_of_another_folder_is_foreign(evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There another module may have that name."""
    path = write_crash(evil, CRASH)
    elsewhere = evil / "elsewhere"
    shutil.copytree(evil / "mypkg", elsewhere / "mypkg")
    monkeypatch.chdir(elsewhere)
    require_refused(replay(str(path)), "Add --sampler SPEC")


def test_archive_cannot_bring_its_key(evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything below the folder is somebody else's, signed where they had the same folder."""
    with monkeypatch.context() as theirs:
        theirs.setenv("XDG_STATE_HOME", str(evil / ".fairdraw"))
        path = write_crash(evil / ".fairdraw" / "crashes", CRASH)
        assert read_crash(path).is_own()
    assert list((evil / ".fairdraw" / "fairdraw").iterdir())
    require_refused(replay(str(path)), "Add --sampler SPEC")


def test_same_failure_seen_here_makes_a_copied_file_one_s_own(evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as theirs:
        theirs.setenv("XDG_STATE_HOME", str(evil / "theirs"))
        path = write_crash(evil / "crashes", CRASH)
    assert not read_crash(path).is_own()
    assert write_crash(evil / "crashes", CRASH) == path
    assert read_crash(path).is_own()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


class TestKey:
    @pytest.fixture(autouse=True)
    def state(self, evil: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_STATE_HOME", str(evil / "state"))
        return evil / "state"

    def test_key_is_made_once_for_its_owner_alone(self, state: Path) -> None:
        first = _signature.sign("text")
        key = state / "fairdraw" / "key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert _signature.sign("text") == first
        assert _signature.is_signed("text", first)
        assert not _signature.is_signed("texts", first)
        assert not _signature.is_signed("text", "")
        assert not _signature.is_signed("text", "é")
        assert [file.name for file in key.parent.iterdir()] == ["key"]

    def test_key_that_others_may_read_is_not_used(self, state: Path) -> None:
        signature = _signature.sign("text")
        (state / "fairdraw" / "key").chmod(0o644)
        assert not _signature.is_signed("text", signature)
        assert _signature.sign("text") == ""

    @pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
    def test_damaged_key_is_not_used(self, state: Path, content: bytes) -> None:
        _signature.sign("text")
        (state / "fairdraw" / "key").write_bytes(content)
        assert _signature.sign("text") == ""

    def test_account_without_a_place_for_a_key_writes_files_without_signature(self, evil: Path, state: Path) -> None:
        state.write_text("a file")
        path = write_crash(evil / "crashes", CRASH)
        assert not read_crash(path).is_own()
        require_refused(replay(str(path)), "Add --sampler SPEC")

    def test_state_that_is_no_absolute_path_is_not_used(self, evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "state")
        monkeypatch.setenv("HOME", str(evil / "home"))
        assert _signature.sign("text")
        assert (evil / "home" / ".local" / "state" / "fairdraw" / "key").is_file()
        assert not os.path.exists("state")

    def test_processes_that_race_make_one_key(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other process links its key between our look and ours."""
        first = _signature._made_key()
        assert _signature._made_key() == first
        assert [file.name for file in (state / "fairdraw").iterdir()] == ["key"]


def test_effect_of_a_foreign_file_cannot_command_the_terminal(evil: Path) -> None:
    result = replay(foreign(evil, sampler="rejection/torch", effect="\x1b[2Jgone\nRED"))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\\x1b[2Jgone\\nRED" in result.output
