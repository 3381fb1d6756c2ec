"""The time budget of a run: where the clock is read, and the report of checks that were left undecided.

The clock is read before every call of the sampler, by a wrapper around it (`guarded`), so that code that counts or
compares need not know about time. A call that has begun is never interrupted: a run ends late by at most one call.

A check that was cut is inconclusive. Its reason begins with `ENDED`, so that all of them are reported together
(`undecided_by_budget`, `budget_report`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from fairdraw._core.failures import Inconclusive
from fairdraw._core.wrapping import Wrapped

T = TypeVar("T")
OutOfTime = Callable[[], bool]

ENDED = "the time budget ended"
"""How the reason of every check that the budget left undecided begins."""

LEFT_OUT = "left out, as the time of this profile ended"
"""The reason of every check that a profile's own limit leaves out; a limit of the user leaves it undecided."""

SHRINKING_SHARE = 0.05
"""Of the time that is left when a check fails, for making its example small: forty failing checks spend 87 % of it."""


SHRINKING_LEAST = 5.0
"""But so many seconds, if they are left: most cases are small after one, and a small one is worth another check."""

SHRINKING_SECONDS = 20.0
"""And at most so many, with or without a budget: a case of a thousand requests takes minutes to become small."""

SHRINKING_WAS_CUT = "shrinking was cut, as it took long: this example failed, and a smaller one may fail, too"
"""A remark on a failure."""


class BudgetEnded(BaseException):
    """The time budget ended before a call of the sampler.

    Not an `Exception`: a check must not take it for a result of the sampler, nor Hypothesis for a failure to shrink.
    """


def cut_short(detail: str, tried: int = 0) -> Inconclusive:
    """The exception of a check that the time budget left undecided.

    Args:
        detail: How far it came.
        tried: Cases tried, or draws counted.
    """
    error = Inconclusive(f"{ENDED}: {detail}")
    error.tried = tried
    return error


@dataclass
class FirstPart:
    """A check's first turn: it tries a tenth, and all of it if that is quick; then it makes room for the others.

    The clock is read between cases, or between checkpoints. What comes before the end of the first is not counted:
    there the suite prepares what it draws from, and the sampler compiles.

    Args:
        share: Of the cases or draws, at least.
        seconds: At least, after the first case or checkpoint.
        part: How far it came.
        was_stopped: Whether it made room.
    """

    clock: Callable[[], float] = time.time
    share: float = 0.1
    seconds: float = 0.1
    part: float = 0.0
    was_stopped: bool = False
    _began: float = field(default_factory=time.time)
    _first: tuple[float, float] = (0.0, 0.0)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._began = self._last = self.clock()

    def enough(self, part: float) -> bool:
        """Whether to stop now, when `part` of the cases or draws has been tried."""
        self.part, self._last = part, self.clock()
        if not self._first[0]:
            self._first = (part, self._last)
        self.was_stopped = part >= self.share and self._last - self._first[1] >= self.seconds
        return self.was_stopped

    @property
    def whole(self) -> float:
        """Seconds that all of it takes at the pace of the part behind the first case, which may compile."""
        first, at = self._first
        if self.part > first:
            return (self._last - at) / (self.part - first)
        return (self._last - self._began) / self.part if self.part else 0.0


@dataclass(frozen=True)
class Deadline:
    """Whether the time budget has ended; call it.

    Args:
        ends_at: By `clock`; `None` for no budget.
        clock: `time.time` by default, which processes share.
        first: Of a check that may stop before.
    """

    ends_at: float | None
    clock: Callable[[], float] = time.time
    first: FirstPart | None = None

    def __call__(self) -> bool:
        return self.ends_at is not None and self.clock() >= self.ends_at

    def part(self, share: float) -> Deadline:
        """The deadline of something that may take `share` of the time that is left."""
        if self.ends_at is None:
            return self
        now = self.clock()
        return Deadline(now + share * max(0.0, self.ends_at - now), self.clock)


def until_shrunk(out_of_time: OutOfTime) -> OutOfTime:
    """The end of shrinking a case that just failed.

    A plain function does not say how much time is left, and stays as it is.
    """
    if not isinstance(out_of_time, Deadline):
        return out_of_time
    now, part, ends_at = out_of_time.clock(), out_of_time.part(SHRINKING_SHARE).ends_at, out_of_time.ends_at
    latest = now + SHRINKING_SECONDS
    if part is not None and ends_at is not None:
        latest = min(latest, ends_at, max(part, now + SHRINKING_LEAST))
    return Deadline(latest, out_of_time.clock)


def is_enough(out_of_time: OutOfTime, part: float) -> bool:
    """Whether a check that has tried `part` of its cases or draws makes room for the others now."""
    first = out_of_time.first if isinstance(out_of_time, Deadline) else None
    return first is not None and first.enough(part)


def until_enough(planned: Sequence[T], work_of: Callable[[T], float], out_of_time: OutOfTime) -> Iterator[T]:
    """Yield what is planned; in a first turn under a limit no more than it takes to time it.

    Args:
        work_of: How long one takes, beside the others.
    """
    ends = list(accumulate(map(work_of, planned)))
    for number, one in enumerate(planned):
        if number and not is_endless(out_of_time) and is_enough(out_of_time, ends[number - 1] / ends[-1]):
            return
        yield one


def is_cut(out_of_time: OutOfTime) -> bool:
    """Whether a check ended before its plan: time is out, or it made room for the others."""
    first = out_of_time.first if isinstance(out_of_time, Deadline) else None
    return out_of_time() or (first is not None and first.was_stopped)


def is_endless(out_of_time: OutOfTime) -> bool:
    """Whether there is no budget; a plain function may be one."""
    return isinstance(out_of_time, Deadline) and out_of_time.ends_at is None


# -- the sampler, wrapped ---------------------------------------------------------------------------------------------


def guarded(sampler: Any, out_of_time: OutOfTime) -> Any:  # Any: a sampler of any contract, and the same
    """`sampler`, which raises `BudgetEnded` instead of a call when time is out; itself if there is no budget."""
    if sampler is None or is_endless(out_of_time):
        return sampler

    def around(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if out_of_time():
            raise BudgetEnded
        return call()

    return Wrapped(sampler, around)


# -- the report -----------------------------------------------------------------------------------------------------


class _Record(Protocol):
    """What is read of a `CheckRecord`, which is defined in a layer above."""

    @property
    def code(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...


def undecided_by_budget(record: _Record) -> bool:
    """Whether the check has no verdict because the time budget ended."""
    return record.status == "inconclusive" and record.reason.startswith(ENDED)


_NEVER_BEGAN = "this check had not begun"


def before_it_began() -> Inconclusive:
    """The exception of a check that was not started."""
    return cut_short(_NEVER_BEGAN)


def budget_report(records: Iterable[_Record]) -> list[str]:
    """One report for all checks that the time budget left undecided, as lines; empty if there are none."""
    cut = [record for record in records if undecided_by_budget(record)]
    if not cut:
        return []
    begun = [record for record in cut if not record.reason.endswith(_NEVER_BEGAN)]
    waiting = [record.code for record in cut if record not in begun]
    lines = [f"{ENDED}: {len(cut)} {'check has' if len(cut) == 1 else 'checks have'} no verdict"]
    if waiting:
        lines.append(f"  never began: {_listed(waiting)}")
    return lines + [f"  cut: {record.code} ({record.reason.removeprefix(f'{ENDED}: ')})" for record in begun]


_MOST_CODES = 12


def _listed(codes: Sequence[str]) -> str:
    """The first codes, and how many more there are."""
    more = len(codes) - _MOST_CODES
    return ", ".join(codes[:_MOST_CODES]) + (f" and {more} more" if more > 0 else "")
