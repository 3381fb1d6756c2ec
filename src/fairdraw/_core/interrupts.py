"""Signals that end a run: its results are still reported, whatever else arrives meanwhile."""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from fairdraw._core.last_words import leave_at_once

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU")

_ONE_SECONDS = 2.0
"""Signals within so many seconds are one: GNU timeout sends two, and a terminal that closes sends two kinds."""


class Interrupted(KeyboardInterrupt):
    """The run was interrupted by a signal; the text is its name. It is never an exception of the sampler's."""


class Interrupts:
    """Handles signals that would kill the process: the first one raises `Interrupted`. Use it as a context manager.

    Signals that the user ignores or handles stay as they are. A sampler may swallow the exception, so the end of its
    call raises it again (`require_none`), and so does a later signal. Hypothesis fails if its own code is interrupted:
    the first signal that finds it there waits for the end of the sampler's next call.

    Args:
        exit_code: Of the process after an interrupt, if it ends with this run. Then no later signal gives it another
            one; two seconds after the first a signal ends it at once, as something in it may never end.

    Attributes:
        received: The first signal; empty if none arrived.
    """

    _current: ClassVar[Interrupts | None] = None

    def __init__(self, *, exit_code: int | None = None) -> None:
        self.received, self._since = "", 0.0
        self._is_held, self._exit_code = False, exit_code
        self._before: dict[int, Any] = {}  # Any: as `signal.getsignal`

    def __enter__(self) -> Interrupts:
        """Handle the signals; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._interrupt)
                Interrupts._current = self
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers. After an interrupt the process is about to end, and a late signal must not kill it."""
        for number, handler in self._before.items():
            signal.signal(number, self._leave if self.received and self._exit_code is not None else handler)
            Interrupts._current = None
        if self.received:
            atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in self._before])

    def _leave(self, *_: object) -> None:
        """End the process, whose report was written, unless this signal belongs to the one that was received."""
        if time.monotonic() - self._since >= _ONE_SECONDS:
            leave_at_once(self._exit_code or 0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        is_same = bool(self.received) and time.monotonic() - self._since < _ONE_SECONDS
        must_wait = self._is_held or (not self.received and _is_hypothesis(frame))
        self.received = self.received or signal.Signals(number).name
        if not is_same:
            self._since = time.monotonic()
            if not must_wait:
                raise Interrupted(self.received)

    @classmethod
    @contextmanager
    def held(cls) -> Iterator[None]:
        """Let no signal interrupt the block, which writes results."""
        current = cls._current or Interrupts()
        before, current._is_held = current._is_held, True
        try:
            yield
        finally:
            current._is_held = before

    @classmethod
    def require_none(cls) -> None:
        """Raise `Interrupted` if a signal arrived and the run goes on: it was held, or its exception swallowed."""
        current = cls._current
        if current is not None and current.received and not current._is_held:
            raise Interrupted(current.received)


def _is_hypothesis(frame: FrameType | None) -> bool:
    """Whether code of Hypothesis runs, or what it called, and not a check or a strategy that it called."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in ("hypothesis", "fairdraw"):
            return package == "hypothesis"
        frame = frame.f_back
    return False
