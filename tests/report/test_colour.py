"""What a terminal shows, at 80 columns: progress, wrapped text, colours; and what a file gets instead."""

import os
import re
import struct
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest
from click.testing import Result
from helpers import Clock, fairdraw
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from fairdraw._cli.parts import Display
from fairdraw._run.loading import all_checks

pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
pytestmark = pytest.mark.usefixtures("third_party")

PROGRAM = """
import sys, fairdraw._cli.job as job
from fairdraw._cli.main import main
job.mutants_of = lambda *_: []
main(sys.argv[1:])
"""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
ERASE = "\x1b[2K"
"""Erases a line: a bar that moves."""

COLUMNS = 80

BAR = r"third_party:{} checks .*\d/9 \d+ (?:s|min) of about \d+ (?:s|min)  REJ10\d"

FORM = """<style>body {{ margin: 1rem; font: 14px/1.35 monospace; color: {foreground}; background: {background} }}
pre {{ font: inherit }}</style><pre>{code}</pre>"""


def on_terminal(*words: str, **changes: str) -> str:
    """What `fairdraw check` sends to a pseudo-terminal of 80 columns."""
    import fcntl
    import termios

    unset = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM", "COLUMNS", "LINES")
    environment = {**{k: v for k, v in os.environ.items() if k not in unset}, "TERM": "xterm-256color", **changes}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "check", *words], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    sent = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is unsupported
            break
        if not part:
            break
        sent += part
    os.close(ours)
    running.wait()
    return sent.decode()


def displayed(sent: str) -> list[str]:
    """The lines that a terminal shows after `sent`, with their colours."""
    lines, row = [""], 0
    for text, number, what in re.findall(r"([^\x1b\r\n]+|\n|\x1b\[\??([\d;]*)([A-Za-z]))", sent):
        if what == "A":
            row = max(0, row - int(number or 1))
        elif what == "K":
            lines[row] = ""
        elif text == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif what in ("", "m"):
            lines[row] += text
    return lines


def plain(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line).rstrip() for line in lines]


def as_page(lines: list[str]) -> str:
    """A terminal of 80 columns as HTML."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text.from_ansi("\n".join(lines)))
    return console.export_html(theme=MONOKAI, inline_styles=True, code_format=FORM)


@pytest.mark.parametrize(("name", "factory"), [("red", "make_beyond"), ("green", "make_right")])
def test_terminal_of_80_columns(name: str, factory: str, browser: Any) -> None:
    sent = on_terminal(f"third_party:{factory}", "-k", "REJ10", "--profile", "smoke", NO_COLOR="")
    shown = plain(displayed(sent))
    commands = [shown[i + 1] for i, line in enumerate(shown) if line in ("reproduce:", "search again:")]
    assert [line for line in shown if len(line) > COLUMNS and line not in commands] == []
    assert sum(line == "reproduce:" for line in shown) == (3 if name == "red" else 0)
    assert any(line.startswith("failed       REJ101") for line in shown) == (name == "red")
    (verdict,) = (line for line in displayed(sent)[-3:] if plain([line])[0].startswith(name.upper()))
    assert COLOUR.search(verdict)
    frames = [displayed(sent[: found.start()]) for found in re.finditer(re.escape(ERASE), sent)]
    bars = [frame for frame in frames if re.search(BAR.format(factory), plain(frame)[-1])]
    assert bars
    assert max(len(plain(frame)[-1]) for frame in frames) <= COLUMNS
    browser.picture(as_page(displayed(sent)), f"terminal-{name}", 760, height=1000 if name == "red" else 360)
    browser.picture(as_page(bars[-1]), f"terminal-{name}-running", 760, height=360)


def test_no_colour_is_heeded_on_a_terminal() -> None:
    sent = on_terminal("third_party:make_right", "-k", "REJ101", "--profile", "smoke", NO_COLOR="0", FORCE_COLOR="1")
    assert not COLOUR.search(sent)
    assert ERASE in sent
    assert "GREEN" in sent


@pytest.mark.parametrize(
    ("environment", "option", "is_coloured"),
    [
        ({"FORCE_COLOR": ""}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1"}, ["--color=always"], True),
        ({"FORCE_COLOR": "1"}, ["--color=never"], False),
        ({}, ["--color=auto"], False),
    ],
    ids=str,
)
def test_file_is_coloured_on_request_only(
    environment: dict[str, str], option: list[str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output = checked("make_right", *option).output
    assert bool(COLOUR.search(output.rstrip().splitlines()[-1])) == is_coloured
    assert ERASE not in output
    assert "1 passed" in output
    assert "REJ101 token" not in output, "a check that passes has a line only where that is wanted (-v)"


def checked(factory: str, *options: str) -> Result:
    return fairdraw("check", f"third_party:{factory}", "-k", "REJ101", "--profile", "smoke", *options)


def test_quiet_leaves_reports_and_verdict() -> None:
    total = len(all_checks(contract="rejection"))
    green = f"GREEN, distributions not judged: -k REJ101 (1 property check passed; 1 of {total} checks)\n"
    assert checked("make_right", "-q").output == green
    lines = checked("make_beyond", "-q").output.splitlines()
    assert lines[1].startswith("REJ101")
    assert lines[-1] == "RED: checks failed: 1"
    assert not any(line.startswith(("fairdraw 0", "failed  ", "run 1")) for line in lines)


def test_heartbeat_says_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = Display(clock=clock)
    for clock.now in (0.0, 29.0, 30.0, 61.0, 91.0):
        display.show("torch checks", 4, 9, {"REJ101 token ids": 25.0}, 0.0, expected=120.0)
    assert capsys.readouterr().out.splitlines() == [
        "... torch checks: 4 of 9 after 30 s of about 2 min; now: REJ101 token ids (5 s)",
        "... torch checks: 4 of 9 after 2 min of about 2 min; now: REJ101 token ids (66 s)",
    ]
    Display(quiet=True, clock=clock).show("torch checks", 4, 9, {}, 0.0)
    display.say("a line")
    clock.now = 120.0
    display.show("torch checks", 4, 9, {}, 0.0)
    assert capsys.readouterr().out == "a line\n"
