"""Signals at every moment, in every way a process is started: what was found is reported, and a report is whole."""

from __future__ import annotations

import functools
import signal
from itertools import product
from typing import TYPE_CHECKING

from attacks.rules import Attack
from attacks.verdicts import victim, words

if TYPE_CHECKING:
    from collections.abc import Iterator

SENT = {
    "SIGINT": ("SIGINT",),
    "SIGTERM": ("SIGTERM",),
    "SIGHUP": ("SIGHUP",),
    "two SIGTERM": ("SIGTERM", "SIGTERM"),
    "two SIGINT": ("SIGINT", "SIGINT"),
    "SIGTERM and SIGINT": ("SIGTERM", "SIGINT"),
    "SIGCONT": ("SIGCONT",),
    "SIGWINCH": ("SIGWINCH",),
    "SIGXCPU": ("SIGXCPU",),
}
MOMENTS = {
    "while it is made": {"at_start": "act()"},
    "in the first call": {"when": "calls == 1"},
    "in the second check": {},
    "in a thread": {"at_start": "threading.Timer(0.3, act).start()"},
    "at the end": {"at_start": "import atexit; atexit.register(act)"},
}
STARTS = ("terminal", "nohup", "background", "no children", "blocked")
HARMLESS = {"SIGCONT", "SIGWINCH"}


def start(how: str) -> None:
    """Take the signals that a process finds when it is started so."""
    ignored = {"nohup": ("SIGHUP",), "background": ("SIGINT", "SIGHUP"), "no children": ("SIGCHLD",)}.get(how, ())
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD"):
        default = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
        signal.signal(getattr(signal, name), signal.SIG_IGN if name in ignored else default)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM] if how == "blocked" else [])


def attacks() -> Iterator[Attack]:
    """Yield all of this group: every pair of signal, moment and way, with the starts in turn."""
    for number, (sent, moment, way) in enumerate(product(SENT, MOMENTS, ("-n 0", "pytest", "-n 1"))):
        for how in (STARTS[number % len(STARTS)], "terminal")[: 2 if sent == "two SIGTERM" else 1]:
            # A worker acts on the process that prints, as a user does.
            act = "; ".join(f"os.kill(int(os.environ['ATTACKED']), signal.{one})" for one in SENT[sent])
            yield Attack(
                "signals",
                f"{sent} {moment}, {way}, {how}",
                words(way),
                victim(f"{act}; time.sleep(0.1)", **MOMENTS[moment]),
                may_be_green=True,
                must_not_be_red=True,
                prepare=functools.partial(start, how),
                may_die=sent == "SIGXCPU" or moment == "at the end",
            )
