"""Rounds: every arm is measured once per round, next to the others, in one process and on one clock.

Two arms run as ABBA, three as a cyclic Latin square, with a fresh random start for each block. Drift of the machine
then cancels, and no arm always runs after the same other arm.

    block of 2     A B | B A            block of 3     B C A | C A B | A B C

A disturbed round is dropped as a whole, because dropping one arm would unbalance the order. Watches say what disturbed
it: a watch is called when a round begins, and what it returns is called when the round ends and gives the reason.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from fairdraw._core.seeds import derive_seed

Clock = Callable[[Callable[[], object], int], float]
"""Seconds per call of so many calls."""
Watch = Callable[[], Callable[[], str]]

SHORT_SAMPLE_SECONDS = 1e-3
"""Below this, one involuntary context switch is a large part of a sample. Above it, pairing cancels the effect."""


@dataclass(frozen=True)
class Round:
    """One sample of each arm, in seconds per call."""

    seconds: dict[str, float]
    problem: str = ""
    """Why the round does not count; empty if it does."""


def orders(names: Sequence[str], seed: int) -> Iterator[tuple[str, ...]]:
    """Return endless orders of arms: blocks of all rotations, each block with a random start."""
    rng = random.Random(seed)
    while True:
        start = rng.randrange(len(names))
        for shift in range(len(names)):
            first = (start + shift) % len(names)
            yield tuple(names[first:]) + tuple(names[:first])


def cpu_clock(step: Callable[[], object], inner: int) -> float:
    """Return seconds per call of `inner` calls in a row."""
    return _timed(step, inner, time.perf_counter)


def thread_clock(step: Callable[[], object], inner: int) -> float:
    """Time as `cpu_clock` does, but count only the seconds for which this thread had a core.

    For code of one thread that waits for nothing. On a machine with six times more to do than it has cores, ten per
    cent more work is detected with this clock, and mostly not with the other (`samples_busy.json`).
    """
    return _timed(step, inner, time.thread_time)


def _timed(step: Callable[[], object], inner: int, now: Callable[[], float]) -> float:
    begin = now()
    for _ in range(inner):
        step()
    return (now() - begin) / inner


def after_own_step(advance: Callable[[], object], clock: Clock = cpu_clock) -> Clock:
    """Times a step that finds the caches as the same arm's previous step left them, as in a server.

    Args:
        advance: What happens between two steps, untimed.
    """

    def timed(step: Callable[[], object], inner: int) -> float:
        advance()
        step()
        advance()
        return clock(step, inner)

    return timed


def calibrate(steps: Mapping[str, Callable[[], object]], at_least: float, clock: Clock = cpu_clock) -> int:
    """Return the calls per sample, shared by all arms, with which the fastest arm's sample lasts `at_least` seconds.

    It is measured twice before it is believed, because first calls are slow.
    """
    inner = 1
    while True:
        shortest = min(clock(step, inner) * inner for step in steps.values())
        if shortest >= at_least and min(clock(step, inner) * inner for step in steps.values()) >= at_least:
            return inner
        inner = max(inner + 1, min(inner * 10, round(1.2 * inner * at_least / max(shortest, 1e-9))))


def watch_garbage() -> Callable[[], str]:
    """Watch Python's garbage collections. `Rounds` switches them off, but a step may switch them on or run one."""
    before = _collections()
    return lambda: "garbage was collected" if _collections() > before else ""


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


class Rounds:
    """Measures rounds and keeps them.

    Args:
        steps: What each arm does.
        inner: Calls per sample.
        clock: Seconds per call of `inner` calls.
        drop_switched: Whether a context switch within a short sample disturbs its round; not with `thread_clock`.
        watches: What else disturbs a round, beside a garbage collection.
    """

    def __init__(
        self,
        steps: Mapping[str, Callable[[], object]],
        *,
        inner: int = 1,
        clock: Clock = cpu_clock,
        drop_switched: bool = True,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.steps = dict(steps)
        self.inner = inner
        self.found: list[Round] = []
        self._clock = clock
        self._drop_switched = drop_switched
        self._watches = (watch_garbage, *watches)
        self._orders = orders(sorted(self.steps), derive_seed("order of arms", *sorted(self.steps)))

    def warm_up(self, num_rounds: int = 2) -> None:
        """Measure rounds and discard them. The garbage of setting up is collected before."""
        gc.collect()
        before = len(self.found)
        self.run(num_rounds)
        del self.found[before:]

    def run(self, num_rounds: int) -> list[Round]:
        """Measure this many more rounds without garbage collection; returns all rounds so far."""
        with _no_garbage_collection():
            for _ in range(num_rounds):
                self.one()
        return self.found

    def one(self) -> Round:
        """Measure one round."""
        seconds: dict[str, float] = {}
        problem, endings = "", [watch() for watch in self._watches]
        for name in next(self._orders):
            before = involuntary_switches()
            seconds[name] = self._clock(self.steps[name], self.inner)
            switched = involuntary_switches() - before
            if self._drop_switched and switched and seconds[name] * self.inner < SHORT_SAMPLE_SECONDS:
                problem = f"{name}: {switched} context switches"
        problems = [problem, *(ending() for ending in endings)]
        self.found.append(Round({name: seconds[name] for name in self.steps}, next(filter(None, problems), "")))
        return self.found[-1]

    def pairs(self, ours: str, reference: str) -> list[tuple[float, float]]:
        """Return seconds of two arms in all valid rounds."""
        return [(valid.seconds[ours], valid.seconds[reference]) for valid in self.found if not valid.problem]

    def medians(self) -> dict[str, float]:
        """Return seconds per call of each arm: the median of all valid rounds, or the last round if none is valid."""
        valid = [found.seconds for found in self.found if not found.problem] or [self.found[-1].seconds]
        return {name: median(seconds[name] for seconds in valid) for name in self.steps}

    @property
    def num_dropped(self) -> int:
        return sum(bool(found.problem) for found in self.found)


def involuntary_switches() -> int:
    """Count how often the system has interrupted this thread so far; 0 where nothing counts it."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    except (ImportError, AttributeError):
        return 0


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
