"""Rounds of adjacent arms, in one process, on one clock.

Two arms run as ABBA, three as a cyclic Latin square, with a fresh random start for each block: drift cancels, and no
arm is always the one after a heavy neighbour.

    block of 2     A B | B A            block of 3     B C A | C A B | A B C

Garbage is collected between rounds only. What spoils a round stands in `validity`.
"""

from __future__ import annotations

import gc
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.seeds import derive_seed
from fairdraw.perf_regression._validity import watch_garbage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fairdraw.perf_regression._validity import Watch

    Clock = Callable[[Callable[[], object], int], float]

__all__ = [
    "Round",
    "Rounds",
    "after_another_arm",
    "after_own_step",
    "calibrate",
    "cpu_clock",
    "involuntary_switches",
    "no_garbage_collection",
    "orders",
    "thread_clock",
]

SHORT_SAMPLE_SECONDS = 1e-3
"""Below this one involuntary context switch is a large part of a sample; above it pairing takes care."""


@dataclass(frozen=True)
class Round:
    """One sample of each arm, in seconds per call."""

    seconds: dict[str, float]
    problem: str = ""
    """Why it does not count; empty if it does."""

    def pair(self, ours: str, reference: str) -> tuple[float, float]:
        return self.seconds[ours], self.seconds[reference]


def orders(names: Sequence[str], seed: int) -> Iterator[tuple[str, ...]]:
    """Endless orders of arms: blocks of all rotations, each block with a start of its own."""
    rng = random.Random(seed)
    while True:
        start = rng.randrange(len(names))
        for shift in range(len(names)):
            first = (start + shift) % len(names)
            yield tuple(names[first:]) + tuple(names[:first])


def cpu_clock(step: Callable[[], object], inner: int) -> float:
    """Seconds per call of `inner` calls in a row."""
    begin = time.perf_counter()
    for _ in range(inner):
        step()
    return (time.perf_counter() - begin) / inner


def thread_clock(step: Callable[[], object], inner: int) -> float:
    """As `cpu_clock`, but seconds for which this thread had a core: what neighbours take away is not charged.

    For code of one thread that waits for nothing. On a machine with six times more to do than it has cores, ten per
    cent more work is seen with this clock, and mostly not with the other (`samples_busy.json`).
    """
    begin = time.thread_time()
    for _ in range(inner):
        step()
    return (time.thread_time() - begin) / inner


def after_own_step(advance: Callable[[], object], clock: Clock = cpu_clock) -> Clock:
    """Times a step that finds the caches as the same arm's step before left them, as in a server that runs this code.

    Args:
        advance: What happens between two steps, untimed.
    """

    def timed(step: Callable[[], object], inner: int) -> float:
        advance()
        step()
        advance()
        return clock(step, inner)

    return timed


def after_another_arm(advance: Callable[[], object], clock: Clock = cpu_clock) -> Clock:
    """Times a step that finds the caches as another arm left them: the worst there is, as upstream reads everything."""

    def timed(step: Callable[[], object], inner: int) -> float:
        advance()
        return clock(step, inner)

    return timed


def calibrate(steps: Mapping[str, Callable[[], object]], at_least: float, clock: Clock = cpu_clock) -> int:
    """The inner count, shared by all arms, with which the fastest arm's sample lasts `at_least` seconds.

    Measured again before it is believed: the first calls of anything are slow.
    """
    inner = 1
    while True:
        shortest = min(clock(step, inner) * inner for step in steps.values())
        if shortest >= at_least and min(clock(step, inner) * inner for step in steps.values()) >= at_least:
            return inner
        inner = max(inner + 1, min(inner * 10, round(1.2 * inner * at_least / max(shortest, 1e-9))))


class Rounds:
    """Measures rounds and keeps them.

    Args:
        steps: What each arm does; `advance` runs before each round, untimed, and is where a batch grows.
        inner: Calls per sample.
        clock: Seconds per call of `inner` calls.
        drop_switched: Whether a context switch within a short sample spoils its round; not with `thread_clock`.
        watches: What else spoils a round, beside garbage that is collected in it.
    """

    def __init__(
        self,
        steps: Mapping[str, Callable[[], object]],
        *,
        inner: int = 1,
        advance: Callable[[], object] | None = None,
        clock: Clock = cpu_clock,
        drop_switched: bool = True,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.steps = dict(steps)
        self._watches = (watch_garbage, *watches)
        self._drop_switched = drop_switched
        self.inner = inner
        self.found: list[Round] = []
        self._advance = advance or (lambda: None)
        self._clock = clock
        self._orders = orders(sorted(self.steps), derive_seed("order of arms", *sorted(self.steps)))

    def warm_up(self, num_rounds: int = 2) -> None:
        """Rounds that nobody keeps."""
        before = len(self.found)
        self.run(num_rounds)
        del self.found[before:]

    def run(self, num_rounds: int) -> list[Round]:
        """Measure so many rounds more; all rounds so far."""
        with no_garbage_collection():
            for _ in range(num_rounds):
                self.one()
        return self.found

    def one(self) -> Round:
        """Measure one round."""
        self._advance()
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
        """Seconds of two arms in all valid rounds."""
        return [valid.pair(ours, reference) for valid in self.found if not valid.problem]

    @property
    def num_dropped(self) -> int:
        return sum(bool(found.problem) for found in self.found)


def involuntary_switches() -> int:
    """How often this thread was put aside so far; 0 where nobody counts."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    except (ImportError, AttributeError):
        return 0


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, and not again before the end."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
