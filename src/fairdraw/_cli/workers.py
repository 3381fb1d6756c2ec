"""Processes that do a job's pieces, and what becomes of a piece whose process dies or hangs.

The sampler lives in workers; the process that prints only waits for them. So a sampler that kills its process, hangs or
exhausts the memory costs one check, which is named; a fresh worker goes on with the rest.

With no workers at all (`-n 0`) everything is done in this process: for debuggers, and for samplers that are known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING, Any, Protocol, cast

from fairdraw._cli.job import LEDGER, Bench, Job, Pace, Plan
from fairdraw._core import pulse
from fairdraw._run.loading import CannotStart, all_checks
from fairdraw._run.runner import unfinished

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from fairdraw._run.controls import Control
    from fairdraw._run.runner import CheckRecord

__all__ = ["Crew", "Here", "open_crew"]

_MOST_LOST = 4
"""Processes in a row that may be lost before the rest is given up: a sampler may kill every one of them."""

_GRACE_SECONDS = 10.0
"""Added to the time of a call, so that the alarm in the worker comes first: it costs one check and no process."""

_STARTING_SECONDS = 600.0
"""How long a worker may take to load the sampler: compilers and model weights are slow, and rightly so."""


class Crew(Protocol):
    """Who does a job. Pieces are done one after the other or side by side; what is found does not depend on it."""

    def plan(self) -> Plan:
        """Load the sampler and say what is to be done.

        Raises:
            CannotStart: If the job cannot be done, or its process dies.
        """
        ...

    def records(self, pieces: Sequence[str]) -> Iterator[CheckRecord]:
        """A record of every piece, as soon as it is there."""
        ...

    def controls(self, planned: Sequence[Control]) -> Iterator[Control]:
        """What became of each mutation control."""
        ...

    def draw_pictures(self, folder: Path) -> list[Path]:
        """Pictures of what was drawn."""
        ...

    def close(self) -> None:
        """End every process at once."""
        ...


class Here:
    """The job in this process: nothing protects it from the sampler."""

    def __init__(self, job: Job, call_timeout: float) -> None:
        pulse.limit_calls(call_timeout)
        self._job = job

    def plan(self) -> Plan:
        self._bench = Bench(self._job)
        self._bench.adopt(self._bench.time_sampler(1))
        return self._bench.plan()

    def records(self, pieces: Sequence[str]) -> Iterator[CheckRecord]:
        return map(self._bench.run, pieces)

    def controls(self, planned: Sequence[Control]) -> Iterator[Control]:
        return map(self._bench.control, range(len(planned)))

    def draw_pictures(self, folder: Path) -> list[Path]:
        return self._bench.draw_pictures(folder)

    def close(self) -> None:
        pulse.limit_calls(None)


def open_crew(job: Job, num_workers: int, call_timeout: float) -> Crew:
    """Workers for `job`; none if `num_workers` is 0.

    Args:
        call_timeout: Seconds after which one call of the sampler counts as hanging.
    """
    return Workers(job, num_workers, call_timeout) if num_workers else Here(job, call_timeout)


# -- in the worker --------------------------------------------------------------------------------------------------

_Order = tuple[str, Any]  # Any: a method of `Bench` and its argument
_Answer = tuple[bool, Any]  # Any: whether it went well, and the result or the sentence that refuses


def _work(
    pipe: Connection,
    job: Job,
    pace: Pace | None,
    beat: Any,  # Any: a shared double of ctypes
    call_timeout: float,
) -> None:
    """Do what is ordered until the pipe closes. Ctrl-C goes to the printing process, which decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    pulse.limit_calls(call_timeout)
    pulse.on_beat(lambda began: setattr(beat, "value", began))
    bench: Bench | None = None
    while True:
        try:
            order, argument = cast("_Order", pipe.recv())
        except EOFError:
            return
        try:
            if bench is None:
                bench = Bench(job)
                if pace is not None:
                    bench.adopt(pace)
            method = getattr(bench, order)
            pipe.send((True, method() if argument is None else method(argument)))
        except CannotStart as error:
            pipe.send((False, str(error)))


def _leave_with_parent() -> None:
    """A worker does not outlive the process that started it, however that one ended."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


# -- in the process that prints -------------------------------------------------------------------------------------


class _Lost(Exception):
    """A worker is gone; the text says how."""


class _Refused(Exception):
    """A worker lives and cannot do the job; the text says why."""


class _Worker:
    """One process. It does what is ordered, one order at a time.

    Args:
        call_timeout: Seconds after which a call of the sampler counts as hanging.
    """

    def __init__(self, job: Job, pace: Pace | None, call_timeout: float) -> None:
        context = get_context("spawn")  # forking would copy the threads of whatever is loaded here
        self._limit, self._call_timeout = _STARTING_SECONDS, call_timeout
        self._beat = context.Value("d", time.time(), lock=False)
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, job, pace, self._beat, call_timeout), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def signs(self) -> list[Any]:  # Any: what `connection.wait` takes
        """Something is ready when it answered or ended."""
        return [self.pipe, self._process.sentinel]

    def order(self, what: str, argument: Any = None) -> None:  # Any: of the bench's method
        self._beat.value = time.time() if self._limit == _STARTING_SECONDS else 0.0
        with contextlib.suppress(OSError):  # it died waiting; `answer` says so
            self.pipe.send((what, argument))

    def require_trace(self) -> None:
        """Raise `_Lost` if the process ended, or a call of the sampler or its loading lasts too long.

        A child that the sampler forked keeps pipe and sentinel open after its parent died: the exit code tells.
        """
        if self._process.exitcode is not None:
            raise _Lost(_cause_of_death(self._process.exitcode))
        began = self._beat.value
        if began and time.time() - began > self._limit:
            self.end()
            raise _Lost(f"the sampler did not answer within {self._limit:g} s; its process was ended")

    def answer(self) -> Any:  # Any: what the bench's method returns
        """The answer, which is there or will never come.

        Raises:
            _Lost: If the process ended.
            _Refused: If the bench cannot do it.
        """
        try:
            went_well, result = cast("_Answer", self.pipe.recv())
        except (EOFError, OSError):
            self._process.join()
            raise _Lost(_cause_of_death(self._process.exitcode)) from None
        if not went_well:
            raise _Refused(result)
        self._limit = self._call_timeout + _GRACE_SECONDS
        return result

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _cause_of_death(exit_code: int | None) -> str:
    """How a process ended, as a person says it."""
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        why = {"SIGKILL": "; the system may have run out of memory", "SIGSEGV": ": a crash in native code"}
        return f"its process was killed by {name}{why.get(name, '')}"
    return f"its process ended with exit code {exit_code}"


class Workers:
    """Processes, each with the sampler loaded. A piece whose process is lost becomes an `incomplete` record."""

    def __init__(self, job: Job, number: int, call_timeout: float) -> None:
        self._job, self._number, self._call_timeout = job, number, call_timeout
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Any] = {}  # Any: the argument of the order
        self._num_lost = 0
        self._pace: Pace | None = None

    def plan(self) -> Plan:
        try:
            self._ask("load")
            pace = self._timed()
            self._ask("adopt", pace)
            found = cast("Plan", self._ask("plan"))
            self._pace = pace
            self._name = found.sampler_name
            return found
        except _Lost as lost:
            raise CannotStart(f"sampler {self._job.spec!r} could not be loaded: {lost}.") from None

    def _timed(self) -> Pace:
        """The pace of the sampler; one that does not survive being timed is run all the same, check by check."""
        try:
            return cast("Pace", self._ask("time_sampler", self._number))
        except _Lost as lost:
            self._num_lost = 0
            return Pace(words=(f"the sampler could not be timed: {lost}",))

    def records(self, pieces: Sequence[str]) -> Iterator[CheckRecord]:
        """Checks first, spread over the workers; the ledger needs the draws of all of them and is the last."""
        for own in ([piece for piece in pieces if piece != LEDGER], [piece for piece in pieces if piece == LEDGER]):
            for piece, record in self._spread("run", own):
                yield self._unfinished(piece, str(record)) if isinstance(record, _Lost) else record

    def controls(self, planned: Sequence[Control]) -> Iterator[Control]:
        self._num_lost = 0  # the sampler is not called any more
        for number, control in self._spread("control", range(len(planned))):
            yield planned[number] if isinstance(control, _Lost) else control

    def draw_pictures(self, folder: Path) -> list[Path]:
        try:
            return cast("list[Path]", self._ask("draw_pictures", folder))
        except _Lost as lost:
            raise CannotStart(f"pictures could not be drawn: {lost}.") from None

    def close(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.end()
        self._idle.clear()
        self._busy.clear()

    def _ask(self, what: str, argument: Any = None) -> Any:  # Any: as `_Worker.order`, as `_Worker.answer`
        """One order, and its answer; raises `_Lost` or `CannotStart`."""
        ((_, answer),) = self._spread(what, [argument])
        if isinstance(answer, _Lost):
            raise answer
        return answer

    def _spread(self, what: str, arguments: Iterable[Any]) -> Iterator[tuple[Any, Any]]:  # Any: as `_Worker.order`
        """Arguments and their answers, as they come; `_Lost` stands for an answer that will never come."""
        waiting = deque(arguments)
        while waiting or self._busy:
            while waiting and len(self._busy) < self._number and self._num_lost < _MOST_LOST:
                worker = self._idle.pop() if self._idle else _Worker(self._job, self._pace, self._call_timeout)
                self._busy[worker] = waiting.popleft()
                worker.order(what, self._busy[worker])
            if not self._busy:
                yield (
                    waiting.popleft(),
                    _Lost(f"not run: the last {self._num_lost} processes of this sampler were lost"),
                )
            yield from self._answers()

    def _answers(self) -> Iterator[tuple[Any, Any]]:  # Any: as `_spread`
        """What is ready now; waits a second for it."""
        ready = set(connection.wait([sign for worker in self._busy for sign in worker.signs], timeout=1.0))
        for worker in list(self._busy):
            try:
                if not ready.intersection(worker.signs):
                    worker.require_trace()
                    continue
                answer = worker.answer()
                self._idle.append(worker)
                self._num_lost = 0
            except _Lost as lost:
                self._num_lost += 1
                answer = lost
            except _Refused as refusal:
                raise CannotStart(str(refusal)) from None
            yield self._busy.pop(worker), answer

    def _unfinished(self, piece: str, reason: str) -> CheckRecord:
        """The record of a piece whose process is lost; the checks are loaded here only for this."""
        if piece == LEDGER:
            raise CannotStart(f"{LEDGER} was not entered: {reason}.")
        check = next(check for check in all_checks() if check.code == piece)
        return unfinished(check, self._name, reason)
