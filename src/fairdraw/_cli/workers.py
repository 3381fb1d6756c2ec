"""Processes that run the pieces of a job, and what becomes of a piece whose process dies or hangs.

Worker processes hold the sampler. The process that prints only waits for them. So a sampler that kills its process,
hangs or exhausts the memory costs one check, which is named. A fresh worker goes on with the rest.

Nothing here blocks. Generators yield `None` while there is nothing new; `wait_for` waits for all of them. So several
samplers can be run side by side. Each worker has one sampler, so samplers cannot influence each other.

With no workers at all (`-n 0`) everything is done in this process: for debuggers, and for samplers that are known.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import operator
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fairdraw._cli.job import COMPARED, LEDGER, Bench, Job, Plan
from fairdraw._core import pulse
from fairdraw._core.budget import undecided_by_budget
from fairdraw._core.checks import PROFILES
from fairdraw._core.last_words import Streams, leave_fork
from fairdraw._run import pace
from fairdraw._run.controls import Control, Untried
from fairdraw._run.loading import CannotStart, all_checks
from fairdraw._run.runner import CheckRecord

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields while there is nothing new, and returns the result."""

Answered = tuple[Any, Any]  # Any: the argument of a bench's method, and what the method returns
GroupOf = Callable[[Any], Any]  # Any: such an argument, and its group

_MOST_LOST = 4
"""Processes in a row that may be lost before the rest is given up. A sampler may kill every one of them."""

_GRACE_SECONDS = 10.0
"""Added to the time limit of a call, so that the alarm in the worker comes first. It costs one check and no process."""

_STARTING_SECONDS = 600.0
"""How long a worker may take to load the sampler. Compilers and model weights are slow."""


def _own(argument: Any) -> Any:  # Any: as above
    """Return a group of its own."""
    return argument


class Crew(ABC):
    """What runs a job, and in which order: a first turn of every check, the forecast, and what is left.

    Args:
        clock: `time.time`, which processes share.
    """

    def __init__(self, job: Job, number: int, clock: Callable[[], float] = time.time) -> None:
        self._job, self.number, self._clock = job, number, clock
        self._began = clock()
        self._done: dict[int, Control] = {}
        self._undecided: set[str] = set()
        self._begun: dict[str, pace.Begun] = {}

    @abstractmethod
    def _spread(self, what: str, arguments: Iterable[Any], group_of: GroupOf = _own) -> Iterator[Answered | None]:
        """Arguments and their answers, as they come; `None` if there is none; `_Lost` for an answer that never comes.

        Args:
            group_of: Arguments of one group share work, so one worker takes all of them where possible.
        """

    def _ask(self, what: str, argument: Any = None) -> Steps[Any]:  # Any: as `_spread`
        """One order, and its answer; raises `_Lost` or `CannotStart`."""
        answer = None
        for found in self._spread(what, [argument], lambda _: COMPARED):
            if found is None:
                yield
            else:
                _, answer = found
        if isinstance(answer, _Lost):
            raise answer
        return answer

    def plan(self) -> Steps[Plan]:
        """Load the sampler and list what is to be done. A profile's own limit begins then.

        Raises:
            CannotStart: If the job cannot be done, or its process dies.
        """
        try:
            yield from self._ask("load")
            found: Plan = yield from self._ask("plan", (1.0, frozenset()))
        except _Lost as lost:
            raise CannotStart(f"sampler {self._job.spec!r} could not be loaded: {lost}.") from None
        now, own = self._clock(), PROFILES[self._job.profile].seconds
        ends_at = self._job.ends_at
        if ends_at is None and own is not None and found.is_timed:
            ends_at = now + own * found.crowding
        limited = dataclasses.replace(found, limit=pace.Limit.of(now, ends_at))
        if ends_at is None or not found.is_timed:
            return limited
        seconds = ends_at - self._began
        return limited.announced(pace.worded_limit(seconds, self._job.profile, found.crowding), seconds)

    def records(self, plan: Plan) -> Iterator[CheckRecord | Plan | None]:
        """Records, spread over the workers, and the plan once more when it is known what the checks take.

        The ledger needs the draws of all of them and comes last.
        """
        checks, limit = [piece for piece in plan.pieces if piece != LEDGER], plan.limit
        if plan.is_timed and (limit.run is not None or len(checks) >= _WORTH_TIMING):
            for _ in self._controls(plan, range(0, len(plan.controls), pace.TENTH)) if limit.run is None else ():
                yield None
            codes = pace.by_turns(checks, plan.groups, has_limit=limit.run is not None)
            quick = limit.quick(self._clock(), len(codes))
            turns = [pace.Turn(code, ends_at=limit.first, quick=quick) for code in codes]
            yield from self._take_turns(plan, turns)
            begun = pace.with_guesses(list(self._begun.values()))
            plan = yield from self._forecast(plan, begun)
            yield plan
            longest_first = limit.run is None and self.number > 1
            again = pace.second_turns(begun, plan.groups, plan.scale, longest_first=longest_first)
            checks = [one.record.code for one in again]
            yield from (self._closed(one.record) for one in begun if one.record.code not in checks)
        yield from self._take_turns(plan, [pace.Turn(code, plan.scale, limit.checks) for code in checks])
        if LEDGER in plan.pieces:
            yield from self._take_turns(plan, [pace.Turn(LEDGER, plan.scale, limit.checks)])
        if self._undecided and plan.is_timed:
            yield (yield from self._again(plan, plan.scale, plan.header.duration))

    def _again(self, plan: Plan, scale: float, words: str) -> Steps[Plan]:
        """The plan with a header that claims what is judged, and no more."""
        found: Plan = yield from self._ask("plan", (scale, frozenset(self._undecided)))
        return dataclasses.replace(found, limit=plan.limit).announced(words, plan.seconds)

    def begun(self) -> list[CheckRecord]:
        """What failed in a first turn, if an interrupt takes the second one. What passed in part is not done."""
        return [one.record for one in self._begun.values() if one.record.status == "failed"]

    def _take_turns(self, plan: Plan, turns: Sequence[pace.Turn]) -> Iterator[CheckRecord | None]:
        """The records of checks that are done. A property that is cut in its second turn keeps its first one."""
        for found in self._spread("run", turns, plan.group_of):
            if found is None:
                yield None
                continue
            turn, answer = found
            if isinstance(answer, _Lost):
                self._begun.pop(turn.what, None)
                yield _unfinished(turn.what, plan, str(answer))
            elif answer.is_open and turn.quick:
                self._begun[turn.what] = answer
                yield None
            else:
                before = (self._begun.get(turn.what) or answer).record
                yield self._closed(before if answer.is_open and before.status == "passed" else answer.record)

    def _closed(self, record: CheckRecord) -> CheckRecord:
        self._begun.pop(record.code, None)
        if undecided_by_budget(record):
            self._undecided.add(record.code)
        return pace.closed(record, is_own_limit=self._job.ends_at is None)

    def _forecast(self, plan: Plan, begun: Sequence[pace.Begun]) -> Steps[Plan]:
        """The plan with what the first turns showed."""
        profile, now, limit = self._job.profile, self._clock(), plan.limit
        workers = max(1, self.number)
        if limit.checks is not None:
            scale = pace.scale_for(begun, plan.groups, limit.checks - now, workers)
            if scale == 1:
                return plan
            words = f"{plan.header.duration}; {pace.worded_scale(scale, profile)}"
            return (yield from self._again(plan, scale, words))
        seconds = now - self._began + sum(pace.seconds_left(begun, plan.groups).values()) / workers
        if self._done:
            seconds += sum(one.seconds for one in self._done.values()) * (pace.TENTH - 1) / workers
        return plan.announced(pace.worded_forecast(seconds, profile), seconds)

    def controls(self, plan: Plan) -> Iterator[Control | None]:
        """The result of each mutation control. Those of checks that the time left undecided say nothing of this run."""
        yield from self._done.values()
        for number, control in enumerate(plan.controls):
            if number not in self._done and control.code in self._undecided:
                self._done[number] = dataclasses.replace(control, untried=Untried.OUT_OF_TIME)
                yield self._done[number]
        yield from self._controls(plan, [number for number in range(len(plan.controls)) if number not in self._done])

    def _controls(self, plan: Plan, numbers: Iterable[int]) -> Iterator[Control | None]:
        turns = [pace.Turn(number, plan.scale, plan.limit.run) for number in numbers]
        for found in self._spread("control", turns, plan.group_of):
            if found is None:
                yield None
                continue
            turn, control = found
            self._done[turn.what] = plan.controls[turn.what] if isinstance(control, _Lost) else control
            yield self._done[turn.what]

    def draw_pictures(self, folder: Path, plan: Plan) -> Steps[list[Path]]:
        try:
            written: list[Path] = yield from self._ask("draw_pictures", (folder, plan.scale))
        except _Lost as lost:
            raise CannotStart(f"pictures could not be drawn: {lost}.") from None
        return written

    @abstractmethod
    def running(self) -> dict[Any, float]:  # Any: a piece, or the number of a mutation control
        """What runs now, and since when, by `time.monotonic`."""

    @abstractmethod
    def signs(self) -> list[Any]:  # Any: what `connection.wait` takes
        """One of these is ready as soon as there is something new."""

    @abstractmethod
    def close(self) -> None:
        """End every process at once."""


_WORTH_TIMING = 9
"""Fewer checks have no first turns, unless there is a limit: they are done about as soon as the forecast would be."""


def _named(argument: Any) -> Any:  # Any: as `Crew._spread`
    return argument.what if isinstance(argument, pace.Turn) else argument


class Here(Crew):
    """Runs the job in this process. Nothing protects it from the sampler."""

    def __init__(self, job: Job, call_timeout: float, clock: Callable[[], float] = time.time) -> None:
        super().__init__(job, 1, clock)
        pulse.limit_calls(call_timeout)
        self._bench: Bench | None = None
        self._streams = Streams()
        self._running: dict[Any, float] = {}

    def _spread(self, what: str, arguments: Iterable[Any], group_of: GroupOf = _own) -> Iterator[Answered | None]:
        for argument in arguments:
            self._running = {_named(argument): time.monotonic()}
            yield None  # the display shows what runs now
            try:
                self._bench = self._bench or Bench(self._job, self._clock)
                method = getattr(self._bench, what)
                found = method() if argument is None else method(argument)
            finally:
                self._streams.restore()
            yield argument, found

    def running(self) -> dict[Any, float]:
        return self._running

    def signs(self) -> list[Any]:
        return []

    def close(self) -> None:
        pulse.limit_calls(None)
        self._streams.close()


# -- in the worker --------------------------------------------------------------------------------------------------

_Order = tuple[int, str, Any]  # Any: its number, a method of `Bench` and its argument
_Answer = tuple[int, int, bool, Any]  # Any: process, number, whether it went well, and the result or why not


_Shared = tuple[Any, Any]  # Any: of ctypes; when the current call began, and its sizes


def _work(pipe: Connection, job: Job, shared: _Shared, call_timeout: float, fatal: tuple[pulse.Sizes, ...]) -> None:
    """Execute orders until the pipe closes. Ctrl-C and hang-ups are handled by the printing process."""
    beat, sizes = shared
    for name in ("SIGINT", "SIGHUP"):  # a terminal sends them to every process of the run
        signal.signal(getattr(signal, name, signal.SIGINT), signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _reuse_large_blocks()
    pulse.limit_calls(call_timeout)
    pulse.on_sizes(lambda now: operator.setitem(sizes, slice(None), now))
    for one in fatal:
        pulse.shun(one)
    bench, own = None, os.getpid()
    while True:
        try:
            number, order, argument = cast("_Order", pipe.recv())
        except EOFError:
            return
        try:
            if bench is None:
                bench = Bench(job)
                gc.freeze()  # torch and the checks stay: the collector need not go through them again and again
                beat.value = 0.0
                pulse.on_beat(lambda began: setattr(beat, "value", began))
            method = getattr(bench, order)
            answer = True, method() if argument is None else method(argument)
            if order == "plan":
                gc.freeze()  # as above, with the reference
        except CannotStart as error:
            answer = False, str(error)
        leave_fork(own)  # the pipe is the parent's: a child would take the orders of the worker
        pipe.send((own, number, *answer))


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt`."""


def _reuse_large_blocks() -> None:
    """Keep up to 512 MiB of freed memory: pages that are mapped anew cost a sixth of the time of wide vocabularies."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**29)


def _leave_with_parent() -> None:
    """End this worker when the process that started it ends, however it ended."""
    if (parent := parent_process()) is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


# -- in the process that prints -------------------------------------------------------------------------------------


class _Lost(Exception):
    """A worker ended; the text says how.

    Args:
        sizes: Of the call that it was in.
    """

    def __init__(self, text: str, sizes: pulse.Sizes = (0, 0, 0)) -> None:
        super().__init__(text)
        self.sizes = sizes


class _NotAnswered(Exception):
    """Something else than the answer arrived: another process, or an older order."""


class _Worker:
    """One process, which executes one order at a time.

    Args:
        call_timeout: Seconds after which a call of the sampler counts as hanging.
        fatal: Sizes of calls that ended a process.
    """

    def __init__(self, job: Job, call_timeout: float, fatal: Sequence[pulse.Sizes] = ()) -> None:
        context = get_context("spawn")  # forking would copy the threads of whatever is loaded here
        self._call_timeout, self._number = call_timeout, 0
        self._beat = context.Value("d", -time.time(), lock=False)  # below zero: since then the sampler is loaded
        self._sizes = context.Array("q", 3, lock=False)
        self.pipe, theirs = context.Pipe()
        given = (theirs, job, (self._beat, self._sizes), call_timeout, tuple(fatal))
        self._process = context.Process(target=_work, args=given, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def signs(self) -> list[Any]:  # Any: what `connection.wait` takes
        """One of these is ready when the worker answered or ended."""
        return [self.pipe, self._process.sentinel]

    def order(self, what: str, argument: Any = None) -> None:  # Any: of the bench's method
        self.since = time.monotonic()
        self._number += 1
        self._beat.value = min(0.0, self._beat.value)  # no call of an earlier order is meant
        with contextlib.suppress(OSError):  # it died waiting; `answer` says so
            self.pipe.send((self._number, what, argument))

    def require_trace(self) -> None:
        """Raise `_Lost` if the process ended, or if a call of the sampler or its loading takes too long.

        A child that the sampler forked keeps pipe and sentinel open after its parent died, so the exit code is read.
        """
        if self._process.exitcode is not None:
            raise self._lost()
        began = self._beat.value
        limit, what = self._call_timeout + _GRACE_SECONDS, "did not answer"
        if began < 0:
            limit, what = _STARTING_SECONDS, "was not loaded"
        if began and time.time() - abs(began) > limit:
            self.end()
            raise self._lost(f"the sampler {what} within {limit:g} s; its process was ended")

    def _lost(self, how: str = "") -> _Lost:
        """What to raise now; the text names the call that was made."""
        requests, drafts, vocab_size = self._sizes
        sizes = (requests, drafts, vocab_size)
        return _Lost((how or _cause_of_death(self._process.exitcode)) + pulse.worded_sizes(sizes), sizes)

    def answer(self) -> Any:  # Any: what the bench's method returns
        """The answer, which is ready or will never come.

        Raises:
            _Lost: If the process ended.
            CannotStart: If the bench cannot do it.
            _NotAnswered: If what arrived is not the answer.
        """
        try:
            pid, number, went_well, result = cast("_Answer", self.pipe.recv())
        except (EOFError, OSError):
            self._process.join()
            raise self._lost() from None
        if (pid, number) != (self._process.pid, self._number):
            raise _NotAnswered
        if not went_well:
            raise CannotStart(result)
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


class Workers(Crew):
    """Runs the job in processes, each with the sampler loaded. Results do not depend on how many there are.

    A piece whose process is lost becomes an `incomplete` record.

    Args:
        number: Processes that may be used now.
    """

    def __init__(self, job: Job, number: int, call_timeout: float) -> None:
        super().__init__(job, number)
        self._call_timeout = call_timeout
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Any] = {}  # Any: the argument of the order
        self._homes: dict[Any, _Worker] = {}  # Any: as `_spread`
        self._num_lost = 0
        self._fatal: list[pulse.Sizes] = []

    def controls(self, plan: Plan) -> Iterator[Control | None]:
        self._num_lost = 0  # the sampler is not called any more
        return super().controls(plan)

    def running(self) -> dict[Any, float]:
        return {_named(argument): worker.since for worker, argument in self._busy.items()}

    def signs(self) -> list[Any]:
        return [sign for worker in self._busy for sign in worker.signs]

    def close(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.end()
        self._idle.clear()
        self._busy.clear()

    def _spread(self, what: str, arguments: Iterable[Any], group_of: GroupOf = _own) -> Iterator[Answered | None]:
        waiting = deque(arguments)
        while waiting or self._busy:
            while waiting and len(self._busy) < self.number and self._num_lost < _MOST_LOST:
                worker = self._free({group_of(argument) for argument in waiting})
                argument = _take(waiting, group_of, self._homes, worker)
                self._homes[group_of(argument)] = worker
                self._busy[worker] = argument
                worker.order(what, argument)
            if not self._busy:
                lost = _Lost(f"not run: the last {self._num_lost} processes of this sampler were lost")
                yield waiting.popleft(), lost
                continue
            answers: list[Answered | None] = list(self._answers())
            yield from answers or [None]

    def _free(self, groups: set[Any]) -> _Worker:  # Any: as `_spread`
        """An idle worker, one that has begun one of the groups if there is any; a new one if none is idle."""
        if not self._idle:
            return _Worker(self._job, self._call_timeout, self._fatal)
        at_home = [worker for worker in self._idle if any(self._homes.get(group) is worker for group in groups)]
        worker = (at_home or self._idle)[-1]
        self._idle.remove(worker)
        return worker

    def _answers(self) -> Iterator[Answered]:
        """What is ready now."""
        ready = set(connection.wait(self.signs(), timeout=0))
        for worker in list(self._busy):
            try:
                if not ready.intersection(worker.signs):
                    worker.require_trace()
                    continue
                answer = worker.answer()
                self._idle.append(worker)
                self._num_lost = 0
            except _NotAnswered:
                continue
            except _Lost as lost:
                self._num_lost += 1
                self._fatal.append(lost.sizes)
                answer = lost
            yield self._busy.pop(worker), answer


def _take(waiting: deque[T], group_of: GroupOf, homes: Mapping[Any, _Worker], worker: _Worker) -> T:
    """Remove the next argument: of a group that this worker has begun, else of one that nobody has, else the first."""
    owners = [homes.get(group_of(argument)) for argument in waiting]
    index = owners.index(worker) if worker in owners else owners.index(None) if None in owners else 0
    argument = waiting[index]
    del waiting[index]
    return argument


def _unfinished(piece: str, plan: Plan, reason: str) -> CheckRecord:
    """The record of a piece whose process is lost. Only here does this process load the checks."""
    if piece == LEDGER:
        raise CannotStart(f"{LEDGER} was not entered: {reason}.")
    check = next(check for check in all_checks() if check.code == piece)
    return CheckRecord.of(check, plan.sampler_name, "incomplete", reason=reason)


def open_crew(job: Job, num_workers: int, call_timeout: float) -> Crew:
    """Workers for `job`; none if `num_workers` is 0.

    Args:
        call_timeout: Seconds after which one call of the sampler counts as hanging.
    """
    return Workers(job, num_workers, call_timeout) if num_workers else Here(job, call_timeout)


def wait_for(crews: Iterable[Crew]) -> None:
    """Wait until there is something new, for a second at most; not at all for what runs in this process."""
    if signs := [sign for crew in crews for sign in crew.signs()]:
        connection.wait(signs, timeout=1.0)
