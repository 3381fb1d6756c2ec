"""Calls that hang: the start of each call of the sampler is recorded, and a call that takes too long is ended.

Two guards, one for each kind of hang. A call that runs Python is interrupted in its own process by an alarm, and costs
one check. A call that is stuck in native code cannot be; the process that prints sees that beats stop, and ends the
worker.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import ClassVar, NoReturn

from fairdraw._core.interrupts import Interrupts
from fairdraw._core.last_words import leave_fork

DEFAULT_CALL_TIMEOUT = 300.0
"""Seconds. An interpreted kernel takes seconds for its largest batch; a compiler may take a minute before the first."""

_CAN_ALARM = hasattr(signal, "setitimer")


class SamplerHangs(BaseException):
    """A call of the sampler took longer than the limit.

    Not an `Exception`: a sampler's own `except Exception` must not swallow it, and Hypothesis must not try it again.
    """


class NotCalled(SamplerHangs):
    """A call as large as one that hung or ended its process is not made again."""


Sizes = tuple[int, int, int]
"""Of a call: requests, most drafts of a request, vocabulary; all 0 between calls, and where they are not known."""


class _Pulse:
    """The state of this process."""

    limit: float | None = None
    depth: int = 0
    late: str = ""
    pid: int = 0
    beat: Callable[[float], None] | None = None
    sizes: Sizes = (0, 0, 0)
    tell: Callable[[Sizes], None] | None = None
    fatal: ClassVar[list[Sizes]] = []


def call_is_of(sizes: Sizes) -> None:
    """The call that is made now, or, with zeros, none."""
    _Pulse.sizes = sizes
    if _Pulse.tell is not None:
        _Pulse.tell(sizes)


def on_sizes(action: Callable[[Sizes], None]) -> None:
    """Call `action` with the sizes of each call that begins, and with zeros when it ends."""
    _Pulse.tell = action


_WIDE: Sizes = (128, 32, 32768)
"""Where a larger call does not end, its size may be the reason; of a smaller one it is something else."""


def shun(sizes: Sizes) -> None:
    """Calls that are as large in every way are not made any more in this process, as a wide one did not end."""
    if any(size > wide for size, wide in zip(sizes, _WIDE, strict=True)):
        _Pulse.fatal.append(sizes)


def shun_nothing() -> None:
    """Another sampler is called from now on."""
    _Pulse.fatal.clear()


def shunned(sizes: Sizes) -> Sizes | None:
    """The call that did not end because of which one of these sizes is not made; `None` if it may be made."""
    return next((one for one in _Pulse.fatal if all(a >= b for a, b in zip(sizes, one, strict=True))), None)


def worded_sizes(sizes: Sizes) -> str:
    """The call, for a reader; empty if it is not known.

    Example:
        >>> worded_sizes((501, 0, 32))
        ' in a call of 501 requests with a vocabulary of 32'
    """
    requests, drafts, vocab_size = sizes
    if not any(sizes):
        return ""
    up_to = f", up to {drafts} drafts each," if drafts else ""
    return f" in a call of {requests} request{'s' * (requests != 1)}{up_to} with a vocabulary of {vocab_size}"


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
        _Pulse.pid = os.getpid()
        _set(time.time(), _Pulse.limit)


def call_ends() -> None:
    """The call that began last is over, however it ended. A child that the sampler forked in it ends here.

    Raises:
        Interrupted: If a signal interrupted the run, and the sampler swallowed that.
        SamplerHangs: If the call was too long, and the sampler swallowed that.
    """
    leave_fork(_Pulse.pid)
    _Pulse.depth -= 1
    if _Pulse.depth == 0:
        _set(0.0, 0.0 if _Pulse.limit is not None else None)
        Interrupts.require_none()
        if late := _Pulse.late:
            _Pulse.late = ""
            raise SamplerHangs(late)


def _set(beat: float, alarm: float | None) -> None:
    if _Pulse.beat is not None:
        _Pulse.beat(beat)
    if alarm is not None and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, alarm)


def _hangs(number: int, frame: FrameType | None) -> NoReturn:
    during = worded_sizes(_Pulse.sizes)
    shun(_Pulse.sizes)
    _Pulse.late = f"the sampler did not answer within {_Pulse.limit:g} s{during} (--call-timeout)"
    raise SamplerHangs(_Pulse.late)
