"""Calls that hang: the start of each call of the sampler is recorded, and a call that takes too long is ended.

Two guards, one for each kind of hang. A call that runs Python is interrupted in its own process by an alarm, and costs
one check. A call that is stuck in native code cannot be; the process that prints sees that beats stop, and ends the
worker.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

DEFAULT_CALL_TIMEOUT = 300.0
"""Seconds. An interpreted kernel takes seconds for its largest batch; a compiler may take a minute before the first."""

_CAN_ALARM = hasattr(signal, "setitimer")


class SamplerHangs(BaseException):
    """A call of the sampler took longer than the limit.

    Not an `Exception`: a sampler's own `except Exception` must not swallow it, and Hypothesis must not try it again.
    """


class _Pulse:
    """The state of this process."""

    limit: float | None = None
    depth: int = 0
    beat: Callable[[float], None] | None = None


def on_beat(action: Callable[[float], None]) -> None:
    """Call `action` with the time when a call of the sampler begins (`time.time()`), and with 0.0 when it ends."""
    _Pulse.beat = action


def limit_calls(seconds: float | None) -> None:
    """End calls that take longer with `SamplerHangs`; `None` lifts the limit.

    Only the main thread can be interrupted, and only where there are alarms that nothing else uses: without them
    (Windows, pytest-timeout) nothing is done.
    """
    if not _CAN_ALARM or threading.current_thread() is not threading.main_thread():
        return
    if seconds is None and _Pulse.limit is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _Pulse.limit = None
    elif seconds is not None and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, _hangs):
        signal.signal(signal.SIGALRM, _hangs)
        _Pulse.limit = seconds


def call_begins() -> None:
    """A call of the user's code begins; calls may be nested."""
    _Pulse.depth += 1
    if _Pulse.depth == 1:
        _set(time.time(), _Pulse.limit)


def call_ends() -> None:
    """The call that began last is over, however it ended."""
    _Pulse.depth -= 1
    if _Pulse.depth == 0:
        _set(0.0, 0.0 if _Pulse.limit is not None else None)


def _set(beat: float, alarm: float | None) -> None:
    if _Pulse.beat is not None:
        _Pulse.beat(beat)
    if alarm is not None and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, alarm)


def _hangs(number: int, frame: FrameType | None) -> NoReturn:
    raise SamplerHangs(f"the sampler did not answer within {_Pulse.limit:g} s (--call-timeout)")
