"""pytest-benchmark as the harness: it keeps the table and the JSON, the sign test decides.

A FAIL is confirmed by fresh processes before it is told. Only what nothing disturbs is timed: under xdist, with
`--benchmark-disable`, or against another release than the limits were made for, there is no verdict, and no verdict is
never a pass.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression._confirmation import confirmed
from fairdraw.perf_regression._decision import Decision, Verdict, decide
from fairdraw.perf_regression._findings import Finding, InconclusiveWarning, from_decision
from fairdraw.perf_regression._limits import LimitsError, read_limits
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._scaling import decide_exponent, decide_fixed_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairdraw.perf_regression._confirmation import Timed
    from fairdraw.perf_regression._decision import Gate
    from fairdraw.perf_regression._limits import CaseLimits
    from fairdraw.perf_regression._rounds import Rounds

__all__ = [
    "STRICT_VARIABLE",
    "judge_fixed_share",
    "judge_growth",
    "judge_ratio",
    "judge_workspace",
    "paired",
    "settle",
    "why_not_timed",
]

NUM_ROUNDS = 80
"""Of sizes, which are compared at one look."""

STRICT_VARIABLE = "FAIRDRAW_PERF_STRICT"
"""Set to 1 (or by `--perf-strict`) on main and for releases: then only PASS is green."""


def why_not_timed(benchmark: Any, limits: CaseLimits) -> str:  # Any: pytest-benchmark's fixture
    """Why a time taken here and now would mean nothing; empty if it would."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return "tests run in parallel (xdist): workers disturb each other. Run without -n"
    if benchmark is None or benchmark.disabled:
        return "benchmarks are disabled (--benchmark-disable)"
    return limits.reference.problem() if limits.reference else ""


def judge_ratio(benchmark: Any, name: str, timed: Timed) -> Finding:  # Any: as above
    """The ratio of a case's two arms against its limit; a FAIL is confirmed in fresh processes.

    The verdict, its interval and its evidence go to `extra_info` of pytest-benchmark.
    """
    limits = read_limits()
    case = limits.cases[name]
    return _judged_ratio(benchmark, case, limits.gate(case, "cpu"), timed, "time of ours / reference")


def judge_workspace(benchmark: Any, name: str, timed: Timed) -> Finding:  # Any: as above
    """As `judge_ratio`, on a GPU: our step with a workspace, against the same without."""
    limits = read_limits()
    case = limits.cases[name]
    gate = limits.gate(case, "gpu", "workspace_ratio_max")
    return _judged_ratio(benchmark, case, gate, timed, "time with / without workspace")


def _judged_ratio(benchmark: Any, case: CaseLimits, gate: Gate, timed: Timed, what: str) -> Finding:  # Any: as above
    decision = Decision(Verdict.NO_VERDICT, why_not_timed(benchmark, case))
    if decision.reason:
        benchmark.pedantic(lambda: None)
    else:
        decision = _measured(benchmark, timed, gate)
        decision = confirmed(decision, gate.limit, timed.in_fresh_process, read_limits().confirm_processes)
    benchmark.extra_info["pair"] = {**asdict(decision), "verdict": decision.verdict.value, "limit": gate.limit}
    return from_decision(case.name, decision, gate.limit, what)


def judge_growth(name: str, axis: str, timed: Timed) -> Finding:
    """Exponents of the rounds' sizes against the case's limit for this axis; a FAIL is confirmed in fresh processes."""
    limits = read_limits()
    limit, what = limits.cases[name].time_exponent_max[axis], f"time exponent in {axis}"
    return _judged(name, what, timed, limit, lambda rounds: decide_exponent(rounds, limit, limits.alpha))


def judge_fixed_share(name: str, timed: Timed) -> Finding:
    """The part of the time that is the same for every vocabulary."""
    limits = read_limits()
    limit = limits.cases[name].fixed_share_max
    if limit is None:
        raise LimitsError(f"judge_fixed_share: case={name!r} has no fixed_share_max. Add it to the limits.")
    return _judged(name, "fixed share", timed, limit, lambda rounds: decide_fixed_share(rounds, limit, limits.alpha))


def _judged(name: str, what: str, timed: Timed, limit: float, decide: Callable[[Rounds], Decision]) -> Finding:
    try:
        rounds = timed.rounds()
        rounds.warm_up()
        rounds.run(NUM_ROUNDS)
        decision = confirmed(decide(rounds), limit, timed.in_fresh_process, read_limits().confirm_processes)
    except NoVerdictError as error:
        decision = Decision(Verdict.NO_VERDICT, str(error))
    return from_decision(name, decision, limit, what)


def _measured(benchmark: Any, timed: Timed, gate: Gate) -> Decision:  # Any: as above
    try:
        return paired(benchmark, timed.rounds(), gate)
    except NoVerdictError as error:
        return Decision(Verdict.NO_VERDICT, str(error))


def paired(benchmark: Any, rounds: Rounds, gate: Gate) -> Decision:  # Any: as above
    """Measure the first arm and the second up to each look of the gate, and stop at the first that decides.

    The first look is run by pytest-benchmark, so that its table and JSON show the rounds.
    """
    rounds.warm_up()
    decision = Decision(Verdict.NO_VERDICT, "nothing was measured")
    for look in gate.looks:
        more = look - len(rounds.found)
        if rounds.found:
            rounds.run(more)
        else:
            benchmark.pedantic(rounds.one, rounds=more, iterations=1, warmup_rounds=0)
        decision = decide(rounds.pairs(*rounds.steps), gate, num_dropped=rounds.num_dropped)
        if decision.verdict in (Verdict.PASS, Verdict.FAIL):
            break
    return decision


def settle(findings: Iterable[Finding]) -> None:
    """Make findings the outcome of a test: FAIL fails; what is not known is a skip, with its reason.

    INCONCLUSIVE is a warning, too: a skip is easily overlooked, and this one says that a limit is near.

    Raises:
        AssertionError: If a limit is broken, or under `FAIRDRAW_PERF_STRICT=1` not known to be kept.
    """
    __tracebackhide__ = True
    found = list(findings)
    wanted = {Verdict.PASS} if os.environ.get(STRICT_VARIABLE) == "1" else set(Verdict) - {Verdict.FAIL}
    broken = [finding for finding in found if finding.verdict not in wanted]
    if broken:
        raise AssertionError("\n".join(_told(finding) for finding in broken))
    unknown = [finding for finding in found if finding.verdict is not Verdict.PASS]
    for finding in unknown:
        if finding.verdict is Verdict.INCONCLUSIVE:
            warnings.warn(_told(finding), InconclusiveWarning, stacklevel=3)  # at the test, which called the fixture
    if unknown or not found:
        pytest.skip("; ".join(map(_told, unknown)) or "NO VERDICT: nothing was looked at")


def _told(finding: Finding) -> str:
    value = "" if finding.value is None else f"={finding.value:.6g}"
    if finding.low is not None and finding.high is not None:
        value += f" ({finding.low:.4g} to {finding.high:.4g})"
    return f"{finding.verdict.value}: {finding.case}: {finding.what}{value}, limit {finding.limit}: {finding.reason}"
