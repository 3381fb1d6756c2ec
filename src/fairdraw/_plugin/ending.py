"""How a pytest run ended: which checks were planned, which were run, and what stopped the rest.

A missing check must not look like a pass. A worker of xdist that dies, a signal, `-x` and a plugin that times a test
out all leave tests without a record. They are counted here, and named where pytest says which test it was.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from fairdraw._report.verdict import Scope
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord, unfinished

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    import pytest


class Ending:
    """The tests that run a check on a sampler: planned, and done."""

    def __init__(self) -> None:
        self.planned: set[str] = set()
        self.signal = ""
        self.num_marked = 0
        self._done: set[str] = set()

    def plan(self, node_ids: Iterable[str]) -> None:
        """These tests are to be run. All workers of xdist plan the same ones."""
        self.planned.update(node_ids)

    def watch(self, report: pytest.TestReport, *, has_records: bool) -> CheckRecord | None:
        """Note the result of a test. A check that failed without a record gets an incomplete one."""
        node_id = report.nodeid
        if has_records or node_id in self._done:
            self._done.add(node_id)
            return None
        if report.skipped and report.when == "setup" and node_id in self.planned:  # by a mark of the user's
            self.planned.discard(node_id)
            self.num_marked += 1
            return None
        if not report.failed or (self.planned and node_id not in self.planned):
            return None
        check = next((check for check in all_checks() if check.id in node_id), None)
        if check is None:
            return None
        self.planned.add(node_id)
        self._done.add(node_id)
        return unfinished(check, "", _first_line(report.longreprtext))

    def scope(self, narrowed: str, outside: str) -> Scope:
        """What the verdict needs."""
        marked = f"{self.num_marked} checks skipped by marks" if self.num_marked else ""
        words = ", ".join(word for word in (narrowed, marked) if word)
        return Scope(len(self.planned - self._done), words, self.signal, outside)


def _first_line(text: str) -> str:
    """The line of a failure's text that says what happened. Pytest marks the exception with an E."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return next(iter([*marked, *lines[-1:]]), "the test ended without a result")


def is_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether a person interrupted the run. xdist and `-x` raise subclasses of their own."""
    return excinfo.type is KeyboardInterrupt


class SignalsInterrupt:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that results are written. Without this, pytest would just die.

    Args:
        received: The first signal. Later ones change nothing.
    """

    def __init__(self) -> None:
        self.received = ""
        self._before: dict[int, signal.Handlers] = {}

    def begin(self) -> None:
        """Handle signals that have no handler. Only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                self._before[number] = signal.SIG_DFL
                signal.signal(number, self._interrupt)

    def end(self) -> None:
        """Restore them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = signal.Signals(number).name
            raise KeyboardInterrupt(self.received)
