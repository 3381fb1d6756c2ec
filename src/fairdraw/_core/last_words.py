"""Ends of a process that raise no exception: a sampler may end the process that has to say the verdict.

`os._exit(0)`, `os.execv` and a C library's `exit(0)` end a run with exit code 0 and without a verdict. While a command
or the pytest plugin holds the last words, they are said first, and the exit code is theirs. A native `_exit` is a
system call and cannot be seen here; in a worker process it costs one check, as every other end does.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Say = Callable[[str], int]

_REAL = {name: getattr(os, name) for name in ("_exit", "abort", "execv", "execve") if hasattr(os, name)}
"""The functions of `os` that end a process. All others of the `exec` family call these."""


class _Held:
    """The state of this process: who says the last words, the newest at the end."""

    says: ClassVar[list[Say]] = []
    pid: ClassVar[int] = 0


@contextmanager
def last_words(say: Say) -> Iterator[None]:
    """While the block runs, call `say` before anything ends this process, and end it with the code that `say` returns.

    Args:
        say: Gets what ended the process, in words. A block inside another has its own.
    """
    is_first = not _Held.says
    _Held.says.append(say)
    _Held.pid = os.getpid()
    remove = _watch() if is_first else None
    try:
        yield
    finally:
        if say in _Held.says:
            _Held.says.remove(say)
        if remove is not None:
            remove()


class Streams:
    """Standard output and error of this process as they are now, whatever a sampler in it does to them."""

    def __init__(self) -> None:
        self._objects = sys.stdout, sys.stderr
        self._copies: dict[int, int] = {}
        for descriptor in (1, 2):
            with suppress(OSError):  # closed from the beginning
                self._copies[descriptor] = os.dup(descriptor)

    def restore(self) -> None:
        """Undo redirections and open again what was closed."""
        for descriptor, copy in self._copies.items():
            with suppress(OSError):
                os.dup2(copy, descriptor)
        sys.stdout, sys.stderr = (
            os.fdopen(number, "w", closefd=False) if stream is not None and stream.closed else stream
            for number, stream in enumerate(self._objects, 1)
        )

    def close(self) -> None:
        """Give up the copies."""
        for copy in self._copies.values():
            os.close(copy)


def leave_at_once(code: int) -> None:
    """End this process as `os._exit` does, with nothing said."""
    _REAL["_exit"](code)


def leave_fork(pid: int) -> None:
    """End this process at once if it is a fork of process `pid`: it must neither go on with the run nor report it."""
    if os.getpid() != pid:
        leave_at_once(0)


def _leave(how: str) -> None:
    """Say the last words and end the process; nothing in a child that the sampler forked, or if nobody holds them."""
    if not _Held.says or os.getpid() != _Held.pid:
        return
    say, code = _Held.says[-1], 1
    _Held.says.clear()
    try:
        code = say(how)
        sys.stdout.flush()
    except BaseException:  # the process ends in any case
        traceback.print_exc()
    sys.stderr.flush()
    leave_at_once(code)


def _watch() -> Callable[[], None]:
    """Let every end of the process be announced. The result undoes that."""
    for name in _REAL:
        setattr(os, name, _announced(name))
    undo_c = _watch_c_library() if os.name == "posix" else lambda: None

    def undo() -> None:
        for name, real in _REAL.items():
            setattr(os, name, real)
        atexit.unregister(undo)
        undo_c()

    atexit.register(undo)
    return undo


def _announced(name: str) -> Callable[..., None]:
    def ends(*arguments: object, **named: object) -> None:
        _leave(f"os.{name}({', '.join(map(repr, arguments[:1]))})")  # without an environment
        _REAL[name](*arguments, **named)

    return ends


def _watch_c_library() -> Callable[[], None]:
    """Be called by C's `exit`. The result undoes that, and must be called before the interpreter is gone."""
    import ctypes  # every pytest imports this module; few watch

    library = ctypes.CDLL(None)
    owner = ctypes.create_string_buffer(1)  # its address is the key under which the callback is removed again
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: _leave("a C library's exit()"))
    try:
        library["__cxa_atexit"](callback, None, owner)
    except AttributeError:  # a C library without it
        return lambda: None

    def undo() -> None:
        library["__cxa_finalize"](owner)
        _callbacks.remove(callback)

    _callbacks.append(callback)  # a collected one would be called all the same
    return undo


_callbacks: list[object] = []
