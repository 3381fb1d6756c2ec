"""Colours are for terminals, and `NO_COLOR` (https://no-color.org) and `FORCE_COLOR` are heeded."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
pytestmark = pytest.mark.usefixtures("stranger")

PROGRAM = """
import fairdraw._cli.check as check_cli
from fairdraw._cli.main import main
check_cli.controls_for = lambda *_: []
main(["check", "stranger:make_right", "-k", "REJ101", "--profile", "smoke"])
"""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
BAR = "\x1b[2K"
"""Erases a line: a bar that moves."""


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM")}
    return {**kept, "TERM": "xterm-256color", **changes}


def on_terminal(**changes: str) -> str:
    """What a pseudo-terminal is sent."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment(**changes), stdin=theirs, stdout=theirs, stderr=theirs
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
    assert running.wait() == 0, sent.decode()
    return sent.decode()


def into_pipe(**changes: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(**changes), capture_output=True, text=True, check=True
    )
    return done.stdout


def verdict(text: str) -> str:
    return text.rstrip().splitlines()[-1]


def test_terminal_gets_colours_and_a_bar() -> None:
    text = on_terminal(NO_COLOR="")  # an empty value counts for nothing
    assert COLOUR.search(verdict(text))
    assert BAR in text


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"NO_COLOR": "0", "FORCE_COLOR": "1"}], ids=str)
def test_no_colour_is_heeded_on_a_terminal(changes: dict[str, str]) -> None:
    text = on_terminal(**changes)
    assert not COLOUR.search(text)
    assert verdict(text).startswith("GREEN")


def test_pipe_gets_plain_text() -> None:
    assert "\x1b" not in into_pipe(FORCE_COLOR="")


def test_forced_colours_come_without_a_bar() -> None:
    text = into_pipe(FORCE_COLOR="1")
    assert COLOUR.search(verdict(text))
    assert BAR not in text
    assert "passed       REJ101" in text
