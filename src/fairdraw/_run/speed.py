"""How long a run will take. The sampler is timed first; what each check costs is in a table.

    seconds = calls * per_call + rows * per_row + elements * per_element + the suite's own seconds

`measure` times the sampler (the three numbers of `Speed`). `costs.json` says how many calls, rows and elements each
check has for some numbers of examples or draws, and how long the suite itself takes. `tools/measure_costs.py` writes
that table. `fit` scales a profile down until the run fits into a time budget.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import median
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import AnyCheck, Check, DrawnQuestion, Profile
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.wrapping import Wrapped
from fairdraw._run.runner import one_torch_thread, quiet_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairdraw.protocols import AnySampler

_BUDGET_SHARE = 0.9
"""Of the time budget that is planned. The rest is for what the estimate does not know."""

_LONG = 300.0
"""A run that takes more seconds than this, without a budget, gets a hint how to shorten it."""

_MEASURING, _MEASURING_SHARE = 2.0, 0.03
"""Seconds for timing the sampler, or that part of the time budget. A call that has begun is not interrupted."""


# -- what a check costs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Calls, sizes and seconds.

    Args:
        calls: Of the sampler, or of a session that it opened.
        rows: Of logits, over all calls.
        elements: Logits, over all calls.
        seconds: Of the suite itself, on the machine of the table.
    """

    calls: float = 0.0
    rows: float = 0.0
    elements: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self.numbers, other.numbers, strict=True)))

    def __mul__(self, factor: float) -> Cost:
        return Cost(*(factor * number for number in self.numbers))

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        return self.calls, self.rows, self.elements, self.seconds


@dataclass(frozen=True)
class Costs:
    """The table.

    Args:
        calibration: Seconds of `calibrate`'s work on its machine.
        rows: Key (a check's code, `workload NAME` or `controls CONTRACT`) to its costs at some sizes, ascending.
    """

    calibration: float
    rows: dict[str, list[tuple[float, Cost]]] = field(default_factory=dict)

    def at(self, key: str, size: float) -> Cost | None:
        """The cost at `size`, interpolated and extrapolated linearly; `None` if the table does not have `key`."""
        known = self.rows.get(key)
        if not known:
            return None
        sizes = [one for one, _ in known]
        if size <= sizes[0]:
            return known[0][1]
        if len(known) == 1:
            return known[0][1] * (size / sizes[0])
        right = min(bisect_left(sizes, size), len(known) - 1)
        (low, before), (high, after) = known[right - 1], known[right]
        part = (size - low) / (high - low)
        pairs = zip(before.numbers, after.numbers, strict=True)
        if part > 1:  # costs do not fall with size, though batches of other sizes may need fewer calls
            return Cost(*(b + (part - 1) * max(0.0, b - a) for a, b in pairs))
        return Cost(*(a + part * (b - a) for a, b in pairs))

    def typical(self, contract_codes: Iterable[str], size: float) -> Cost:
        """The median cost of the known checks among those; for a check that is not in the table."""
        known = [cost for code in contract_codes if (cost := self.at(code, size)) is not None]
        columns = list(zip(*(cost.numbers for cost in known), strict=True))
        return Cost(*map(median, columns)) if known else Cost()

    @classmethod
    def from_json(cls, text: str) -> Costs:
        plain = json.loads(text)
        rows: dict[str, list[tuple[float, Cost]]] = defaultdict(list)
        for key, size, *numbers in plain["rows"]:
            rows[key].append((size, Cost(*numbers)))
        return cls(plain["calibration"], {key: sorted(known, key=lambda row: row[0]) for key, known in rows.items()})


@cache
def shipped_costs() -> Costs:
    """The table of this release."""
    return Costs.from_json(resources.files("fairdraw._run").joinpath("costs.json").read_text(encoding="utf-8"))


def workload_key(check: AnyCheck) -> str:
    """The key of the workload that a statistical check draws from and shares with others; empty if it has its own."""
    workload = getattr(check, "workload", None)
    return "" if workload is None else f"workload {workload.name}"


def size_of(check: AnyCheck, sampler: Any, profile: Profile) -> float:
    """The size of a check under `profile`: examples, strata, or draws. Any: of the check's contract."""
    if isinstance(check, Check):
        return profile.examples_for(sampler.capabilities, check.weight)
    workload, strata = getattr(check, "workload", None), getattr(check, "num_strata", None)
    if workload is not None and isinstance(check, DrawnQuestion):
        share = workload.slow_share if sampler.capabilities.slow else workload.share
        return float(round(check.num_draws(sampler, profile) * share))
    return 0.0 if strata is None else float(strata(sampler, profile))


def _open(checks: Iterable[AnyCheck], sampler: Any, reference: Any) -> list[AnyCheck]:
    """Those that will not be skipped."""
    return [check for check in checks if check.why_not(sampler, reference) is None]


def _own_cost(check: AnyCheck, sampler: Any, profile: Profile, costs: Costs, codes: Sequence[str]) -> Cost:
    size = size_of(check, sampler, profile)
    if size == 0:
        return Cost()
    return costs.at(check.code, size) or costs.typical(codes, size)


# -- how fast the sampler is ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """How fast a sampler and this machine are.

    Args:
        per_call, per_row, per_element: Seconds of the sampler.
        suite: The suite's own seconds here, as a multiple of those in the table.
        num_calls: That were timed.
    """

    per_call: float
    per_row: float = 0.0
    per_element: float = 0.0
    suite: float = 1.0
    num_calls: int = 0

    def seconds(self, cost: Cost) -> float:
        sampler = cost.calls * self.per_call + cost.rows * self.per_row + cost.elements * self.per_element
        return sampler + cost.seconds * self.suite


@dataclass(frozen=True)
class Call:
    """One call of a sampler."""

    rows: int
    elements: int
    seconds: float


class Meter:
    """Records every call of the sampler that it wraps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.calls: list[Call] = []
        self._clock = clock

    def wrap(self, sampler: Any) -> Any:  # Any: a sampler of any contract, and the same
        return Wrapped(sampler, self._around)

    def _around(self, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        rows, elements = _size_of_logits(arguments)
        started = self._clock()
        try:
            return _awaited(call())
        finally:
            self.calls.append(Call(rows, elements, self._clock() - started))

    @property
    def seconds(self) -> float:
        return sum(call.seconds for call in self.calls)


def _awaited(answer: Any) -> Any:  # Any: of a call of any contract
    """The answer, once the GPU has it: a call returns when its kernels are queued."""
    if getattr(answer, "is_cuda", False):
        import torch

        torch.cuda.synchronize(answer.device)
    return answer


def _size_of_logits(arguments: tuple[Any, ...]) -> tuple[int, int]:
    """Rows and elements of the logits among `arguments`; zeros if there are none."""
    for argument in arguments:
        for value in (argument, getattr(argument, "target_logits", None), getattr(argument, "logits", None)):
            shape: Sequence[int] = getattr(value, "shape", ())
            if len(shape) == 2:
                return int(shape[0]), int(shape[0]) * int(shape[1])
    return 0, 0


def calibrate(clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of some work like the suite's own: small tensors and arrays, with Python between them."""
    import numpy as np
    import torch

    def work() -> float:
        started = clock()
        for seed in range(150):
            rows = np.random.default_rng(seed).random((8, 64))
            tensor = torch.from_numpy(rows).softmax(dim=-1).cumsum(dim=-1)
            {i: str(value) for i, value in enumerate(tensor[:, -1].tolist() * 8)}
        return clock() - started

    with one_torch_thread():
        work()  # loads what is loaded at first use
        return median(work() for _ in range(20))  # the median: other processes disturb single measurements


def measuring_seconds(budget: float | None) -> float:
    """How long a sampler is timed: longer in a long run, where its kernels may take seconds to compile."""
    return max(_MEASURING, _MEASURING_SHARE * (budget or 0.0))


def measure(
    sampler: AnySampler, checks: Sequence[AnyCheck], *, seconds: float = _MEASURING, costs: Costs | None = None
) -> Speed:
    """Time the sampler on a few cases of the run's own checks: small batches, many rows, and large vocabularies.

    Results of the checks are ignored: a sampler that fails or raises is timed all the same.

    Args:
        checks: Of the run.
        seconds: For calling it; a slow sampler is called once for each of up to four sizes.

    Randomness:
        The cases of seed 0.
    """
    known = costs or shipped_costs()
    kept: list[Call] = []
    with one_torch_thread(), quiet_interpreter():
        for check in _probes(_open(checks, sampler, None), sampler, known):
            if sum(call.seconds for call in kept) > 2 * seconds:
                break  # a sampler that needs seconds for one size is not timed at all of them
            is_slow = bool(kept) and median(call.seconds for call in kept) > _SLOW_CALL
            kept += _timed(check, sampler, _SLOW_PROBE if is_slow else _PROBE, seconds / _MOST_PROBES)
    return _fitted(kept, calibrate() / known.calibration)


_MOST_PROBES = 4
_MOST_COMPILING = 8
"""A first call that took longer, in probes, is not made again."""
_SLOW_CALL = 2e-3
_PROBE, _SLOW_PROBE = Profile("probe", 20, 5, 20_000, 20_000), Profile("probe", 5, 5, 1_500, 1_500)


def _timed(check: AnyCheck, sampler: Any, profile: Profile, seconds: float) -> Sequence[Call]:
    """The steady calls of a check, for some seconds after the first one, whatever it finds."""
    meter, first = Meter(), [0.0]

    def out_of_time() -> bool:
        if len(meter.calls) <= 1:  # the suite prepares what it draws from, and the first call may compile
            first[0] = time.perf_counter()
            return meter.seconds > _MOST_COMPILING * seconds
        return time.perf_counter() >= first[0] + seconds

    with suppress(Exception, SystemExit):  # the run itself will report it
        check.run(meter.wrap(sampler), profile=profile, out_of_time=out_of_time)
    return _steady(meter.calls, repeats=not isinstance(check, Check))


def _steady(calls: Sequence[Call], *, repeats: bool) -> Sequence[Call]:
    """Those that do not load, compile, or touch memory for the first time.

    Args:
        repeats: The run makes calls of these very sizes again and again: the first of each size does not count. Of a
            property, whose cases differ, the first half does not: of the rest some may compile, as in the run itself.
    """
    sizes = [(call.rows, call.elements) for call in calls]
    again = [call for place, call in enumerate(calls) if sizes[place] in sizes[:place]]
    return again if repeats and again else calls[len(calls) // 2 :]


def _probes(checks: Sequence[AnyCheck], sampler: Any, costs: Costs) -> list[AnyCheck]:
    """Two typical properties, and the checks with most rows and most elements per call."""
    found: list[AnyCheck] = []
    properties = [check for check in checks if isinstance(check, Check) and not check.differential]
    by_calls = sorted(properties, key=lambda check: (costs.at(check.code, 20) or Cost()).calls)
    if by_calls:
        found += [by_calls[len(by_calls) // 2], by_calls[len(by_calls) // 4]]
    known = [(check, costs.at(workload_key(check) or check.code, size_of(check, sampler, _PROBE))) for check in checks]
    drawn = [(check, cost) for check, cost in known if cost is not None and cost.calls > 0]
    if drawn:
        found += [
            max(drawn, key=lambda one: one[1].rows / one[1].calls)[0],
            max(drawn, key=lambda one: one[1].elements / one[1].calls)[0],
        ]
    return list(dict.fromkeys(found))


def _fitted(calls: Sequence[Call], suite: float) -> Speed:
    """Non-negative least squares, weighted so that short calls count as much as long ones together."""
    if not calls:
        return Speed(0.0, suite=suite)
    import numpy as np
    from scipy.optimize import nnls

    seconds = np.array([max(call.seconds, 1e-9) for call in calls])  # [num_calls] float64
    sizes = np.array([(1, call.rows, call.elements) for call in calls], dtype=np.float64)  # [num_calls, 3] float64
    scale = np.maximum(sizes.max(axis=0), 1)
    found, _ = nnls(sizes / scale / np.sqrt(seconds)[:, None], np.sqrt(seconds))
    per_call, per_row, per_element = (found / scale).tolist()
    return Speed(per_call, per_row, per_element, suite, len(calls))


# -- how long a run takes ---------------------------------------------------------------------------------------------


def expected_seconds(
    checks: Sequence[AnyCheck],
    sampler: Any,  # Any: of the checks' contract
    profile: Profile,
    speed: Speed,
    *,
    reference: Any = None,
    costs: Costs | None = None,
) -> dict[str, float]:
    """Code to the seconds that the check will take, in one process; 0 for a check that will be skipped.

    Draws that checks share are counted at the first of them.
    """
    known, paid = costs or shipped_costs(), set()
    # An unknown check costs what those of its kind do: sizes of the others are draws or strata, not examples.
    codes = {kind: [check.code for check in checks if isinstance(check, Check) == kind] for kind in (True, False)}
    found = dict.fromkeys((check.code for check in checks), 0.0)
    for check in _open(checks, sampler, reference):
        cost = _own_cost(check, sampler, profile, known, codes[isinstance(check, Check)])
        key = workload_key(check)
        if key and key not in paid:
            paid.add(key)
            cost += known.at(key, size_of(check, sampler, profile)) or Cost()
        found[check.code] = speed.seconds(cost)
    return found


def expected_controls(contract: str, sampler: Any, profile: Profile, speed: Speed, costs: Costs | None = None) -> float:
    """Seconds of the mutation controls, which call mutants of the oracle, not the sampler."""
    # Without distributions there are no draws: the table has one row, of which draws are no multiple.
    draws = profile.draws_for(sampler.capabilities) if CONTRACTS[contract].has_distributions else 0
    cost = (costs or shipped_costs()).at(f"controls {contract}", draws)
    return 0.0 if cost is None else speed.seconds(cost)


def in_order(
    checks: Sequence[AnyCheck],
    sampler: Any,  # Any: of the checks' contract
    profile: Profile,
    speed: Speed,
    *,
    reference: Any = None,
    is_shared: bool = False,
) -> list[AnyCheck]:
    """`checks`, properties before statistics, the cheapest first; those that share draws follow each other.

    Args:
        is_shared: Several workers take them, and nothing ends early: of the statistics the longest come first, or of
            the properties if there are no statistics, so that no worker is left with one when the others are done.
    """
    seconds = expected_seconds(checks, sampler, profile, speed, reference=reference)
    groups: dict[str, float] = defaultdict(float)
    for check in checks:
        groups[workload_key(check) or check.code] += seconds[check.code]

    any_drawn = any(check.suite == "statistical" for check in checks)

    def rank(check: AnyCheck) -> tuple[bool, float, str, str]:
        group, is_drawn = workload_key(check) or check.code, check.suite == "statistical"
        is_last = is_drawn == any_drawn
        return is_drawn, -groups[group] if is_shared and is_last else groups[group], group, check.code

    return sorted(checks, key=rank)


@dataclass(frozen=True)
class Estimate:
    """How long a run will take, in words.

    Args:
        profile: Of the run, scaled down if there is a budget.
        seconds: Expected, of checks and mutation controls.
        budget: In seconds; `None` for none.
    """

    profile: Profile
    seconds: float
    speed: Speed
    budget: float | None = None

    def lines(self) -> list[str]:
        """For the header."""
        timed = f"{self.speed.num_calls} calls of the sampler were timed"
        lines = [f"expected duration: {worded_seconds(self.seconds)}; {timed}"]
        if self.profile.scale < 1:
            part = f"{100 * self.profile.scale:.{2 if self.profile.scale < 0.99 else 3}g} %"
            lines.append(
                f"{worded_seconds(self.budget or 0.0)} left of the time budget: {part} of the examples and draws of "
                f"{self.profile.name}; so this run detects larger differences only"
            )
        elif self.budget is None and self.seconds > _LONG:
            lines.append(
                "shorter: --time-budget SECONDS, a smaller --profile, or Capabilities(slow=True) in the adapter"
            )
        if self.budget is not None and self.seconds > self.budget:
            lines.append("the time budget is too short for all checks: properties come first, some will be undecided")
        return lines


def worded_seconds(seconds: float) -> str:
    """A duration, rounded for a reader.

    Example:
        >>> worded_seconds(41.3), worded_seconds(130), worded_seconds(7200)
        ('41 s', '2 min', '2.0 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(
    checks: Sequence[AnyCheck],
    sampler: Any,  # Any: of the checks' contract
    profile: Profile,
    speed: Speed,
    *,
    budget: float | None = None,
    reference: Any = None,
    workers: int = 1,
) -> Estimate:
    """How long the run will take; with a budget, under the largest part of `profile` that fits.

    Args:
        workers: Processes that share the checks.
    """
    chosen = profile
    if budget is not None:
        chosen = fit(checks, sampler, profile, speed, budget, reference=reference, workers=workers)
    return Estimate(chosen, _total(checks, sampler, chosen, speed, reference, workers), speed, budget)


def _total(
    checks: Sequence[AnyCheck], sampler: Any, profile: Profile, speed: Speed, reference: Any, workers: int
) -> float:
    own = sum(expected_seconds(checks, sampler, profile, speed, reference=reference).values())
    contracts = {check.contract for check in checks}
    return own / workers + sum(expected_controls(contract, sampler, profile, speed) for contract in contracts)


def fit(
    checks: Sequence[AnyCheck],
    sampler: Any,  # Any: of the checks' contract
    profile: Profile,
    speed: Speed,
    budget: float,
    *,
    reference: Any = None,
    workers: int = 1,
) -> Profile:
    """The largest part of `profile` whose checks and mutation controls are expected to fit into `budget` seconds.

    Plans follow from the profile, and so does what the header says that the run can see. `profile` itself if it fits.
    If not even its least draws do, properties get half of the budget; statistical checks have what is left.
    """

    def fits(some: Sequence[AnyCheck], part: Profile, seconds: float) -> bool:
        return _total(some, sampler, part, speed, reference, workers) <= seconds

    if fits(checks, profile, _BUDGET_SHARE * budget):
        return profile
    least = profile.scaled(_LEAST_SCALE)
    some, seconds = checks, _BUDGET_SHARE * budget
    if not fits(checks, least, seconds):
        some, seconds = [check for check in checks if check.suite != "statistical"], 0.5 * budget
    low, high = _LEAST_SCALE, 1.0
    for _ in range(12):  # halves the logarithm of what is left: 0.2 % at the end
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(some, profile.scaled(middle), seconds) else (low, middle)
    return profile.scaled(float(f"{low:.3g}")) if some else least


_LEAST_SCALE = 1e-3
