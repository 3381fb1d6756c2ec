"""How a run spends its time: first turns of every check, a forecast, and a limit that is kept by asking less.

In its first turn a check tries a tenth of its cases or draws, under a limit as much as it takes to time it, and all of
them if that is quick (`FirstPart`). Most checks are done then. What the others still take follows from how far they
came. Without a limit they are run as a whole, and the forecast is announced. With a limit they are run in part: the
first cases and the first draws of the same profile, so that time changes how much is tried and never what.

A quarter of a limit is kept for the mutation controls, and of the rest first turns have seven tenths. A profile's own
limit is longer beside busy processes (`crowding`), so that the run asks about as much there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from fairdraw._core.budget import LEFT_OUT, undecided_by_budget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairdraw._run.runner import CheckRecord

TENTH = 10
"""Of the mutation controls of a run without a limit every tenth is tried first, so that the forecast knows them."""

_CHECKS_SHARE, _FIRST_SHARE = 0.75, 0.7
_MARGIN = 0.85
"""Of the time that is left, for what the forecast does not know."""
_LEAST = 0.01
_QUICK = 0.1


@dataclass(frozen=True)
class Turn:
    """What a worker is to do now.

    Args:
        what: The code of a check, or the number of a mutation control.
        scale: The part of the profile.
        ends_at: When time is out, by `time.time()`; `None` for no limit.
        quick: In a first turn, seconds for which a check goes on beyond a tenth before it makes room for the others; 0
            in any other turn.
    """

    what: str | int
    scale: float = 1.0
    ends_at: float | None = None
    quick: float = 0.0


@dataclass(frozen=True)
class Begun:
    """What a turn brought.

    Args:
        part: Of the cases or draws that the profile has for it.
        whole: Seconds that all of them take; 0 if unknown.
        is_open: The check has not tried all of them, and another turn may try more.
    """

    record: CheckRecord
    part: float = 1.0
    whole: float = 0.0
    is_open: bool = False


@dataclass(frozen=True)
class Limit:
    """When the parts of a run have to end, by one clock; `None` for never.

    Args:
        first: First turns.
        checks: Checks.
        run: The run, with its mutation controls.
    """

    first: float | None = None
    checks: float | None = None
    run: float | None = None

    def quick(self, now: float, num_checks: int) -> float:
        """Seconds that each check may go on in its first turn: few checks have time to be done at once."""
        return _QUICK if self.first is None else max(_QUICK, (self.first - now) / (2 * num_checks))

    @classmethod
    def of(cls, now: float, ends_at: float | None) -> Limit:
        """The limit of a run whose sampler is loaded `now`."""
        if ends_at is None:
            return cls()
        checks = now + _CHECKS_SHARE * (ends_at - now)
        return cls(now + _FIRST_SHARE * (checks - now), checks, ends_at)


def by_turns(codes: Sequence[str], groups: Mapping[str, str], *, has_limit: bool) -> list[str]:
    """Order first turns: checks that share draws follow each other; under a limit, both suites advance side by side.

    Args:
        codes: Of the checks.
        groups: Code to the workload of a statistical check.
    """
    drawn = sorted((code for code in codes if code in groups), key=lambda code: (groups[code], code))
    others = [code for code in codes if code not in groups]
    if not has_limit:
        return others + drawn
    first = {groups[code]: place for place, code in reversed(list(enumerate(drawn)))}
    places = {code: place / len(others) for place, code in enumerate(others)}
    places |= {code: first[groups[code]] / len(drawn) for code in drawn}
    return sorted(others + drawn, key=places.__getitem__)


def with_guesses(begun: Sequence[Begun]) -> list[Begun]:
    """Return them with a guess for checks that did not come far enough to be timed: they take what the others do."""
    known = [one.whole for one in begun if one.whole]
    return [one if one.whole else replace(one, whole=median(known) if known else 0.0) for one in begun]


def seconds_left(begun: Sequence[Begun], groups: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
    """Forecast the seconds of the next turn of each open check; checks of one workload pay for its draws once.

    A property begins anew, and does not if it has tried as much already; draws are continued.
    """
    drawn: dict[str, list[Begun]] = defaultdict(list)
    found = {}
    for one in begun:
        code = one.record.code
        if code in groups:
            drawn[groups[code]].append(one)
        else:
            found[code] = scale * one.whole if scale > one.part else 0.0
    for own in drawn.values():
        found |= dict.fromkeys((one.record.code for one in own), 0.0)
        furthest = max(one.part for one in own)
        found[own[0].record.code] = max(one.whole for one in own) * max(0.0, scale - furthest)
    return found


def scale_for(begun: Sequence[Begun], groups: Mapping[str, str], seconds: float, workers: int) -> float:
    """The largest part of the profile whose open checks are expected to end in time, rounded down to two digits."""

    def fits(scale: float) -> bool:
        costs = seconds_left(begun, groups, scale).values()
        return max(sum(costs) / workers, max(costs, default=0.0)) <= _MARGIN * seconds

    if fits(1.0):
        return 1.0
    low, high = _LEAST, 1.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return max(_LEAST, int(100 * low) / 100)


def second_turns(
    begun: Sequence[Begun], groups: Mapping[str, str], scale: float, *, longest_first: bool
) -> list[Begun]:
    """Order the open checks that are to try more than they have; draws are to be judged in any case."""
    costs, of_groups = seconds_left(begun, groups, scale), defaultdict[str, float](float)
    for code, seconds in costs.items():
        of_groups[groups.get(code, code)] += seconds

    def rank(one: Begun) -> tuple[float, str, str]:
        group = groups.get(one.record.code, one.record.code)
        return -of_groups[group] if longest_first else of_groups[group], group, one.record.code

    is_done = {one.record.code for one in begun if one.record.status == "passed" and scale <= one.part}
    is_done |= {one.record.code for one in begun if one.record.status == "failed" and scale == 1}
    return sorted((one for one in begun if one.record.code not in is_done), key=rank)


def closed(record: CheckRecord, *, is_own_limit: bool) -> CheckRecord:
    """The record of a check that has no turn any more; what a profile's own limit leaves out is skipped by name."""
    if is_own_limit and undecided_by_budget(record):
        return replace(record, status="skipped", reason=LEFT_OUT)
    return record


def worded_seconds(seconds: float) -> str:
    """A duration, rounded for a reader.

    Example:
        >>> worded_seconds(41.3), worded_seconds(130), worded_seconds(7200)
        ('41 s', '2 min', '2.0 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def worded_limit(seconds: float, profile: str, crowding: float) -> str:
    """What a header says before the first turns, if there is a limit."""
    where = " beside busy processes" if crowding >= _CROWDED else ""
    asked = f"{profile} asks less of a slow sampler, and says so"
    return f"expected duration: at most {worded_seconds(seconds)}{where}; {asked}"


_MOST_CROWDED, _CROWDED = 3.0, 1.25
"""A limit is at most so many times as long, and a header tells of it from the second on."""


def crowding(times: str) -> float:
    """How many times as long a process takes because it waits for a processor; 1 if the system does not say.

    Args:
        times: Nanoseconds that it ran, and waited to run.

    Example:
        >>> crowding("1000 1500 7"), crowding("1000 9000 7"), crowding("")
        (2.5, 3.0, 1.0)
    """
    ran, waited, *_ = [*map(int, times.split()), 1, 0]
    return min(_MOST_CROWDED, 1 + waited / max(1, ran))


def times_of_this_process() -> str:
    """What Linux says of the main thread; nothing on other systems."""
    path = Path("/proc/self/schedstat")
    return path.read_text(encoding="ascii") if path.exists() else ""


_LONG = 300.0
"""A run that takes more seconds than this gets a hint how to shorten it."""


def worded_forecast(seconds: float, profile: str) -> str:
    """What a run without a limit says once every check has had its first turn."""
    smaller = " or --profile smoke" if profile != "smoke" else ""
    hint = f"; for less: --time-budget SECONDS{smaller}" if seconds > _LONG else ""
    return f"expected duration: {worded_seconds(seconds)}, by a tenth of every check{hint}"


def worded_scale(scale: float, profile: str) -> str:
    """What a header says if the time was not enough for the whole profile."""
    return (
        f"time was short: checks that take long try the first {scale:.0%} of the cases and draws of {profile}, so this "
        "run detects larger differences only; for more: --time-budget SECONDS"
    )


def workload_key(check: object) -> str:
    """The key of the workload that a statistical check draws from and shares with others; empty if it has its own."""
    workload = getattr(check, "workload", None)
    return "" if workload is None else f"workload {workload.name}"
