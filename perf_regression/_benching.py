"""From something timed to a finding. `fairdraw bench` and the tests of this folder decide with the same functions.

A limit is decided in four steps: measure rounds, apply the sign test, confirm a FAIL in fresh processes, and name the
finding. Whatever cannot be measured has no verdict, and no verdict is never a pass.

Under pytest, pytest-benchmark keeps its table and JSON. A time taken under xdist, with `--benchmark-disable` or against
another release than the limits were made for would mean nothing, so there is no verdict then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fairdraw.perf_regression._confirmation import Timed, confirmed
from fairdraw.perf_regression._decision import Decision, Gate, Verdict, decide
from fairdraw.perf_regression._findings import Finding, from_decision
from fairdraw.perf_regression._limits import CaseLimits, LimitsError, read_limits
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds
from fairdraw.perf_regression._scaling import decide_exponent, decide_fixed_share

NUM_ROUNDS = 80
"""Of sizes, which are compared once."""


def decided(
    case: str,
    what: str,
    timed: Timed,
    limit: float,
    measure: Callable[[Rounds], Decision],
    *,
    num_processes: int,
    make: Callable[[], Rounds] | None = None,
    at_least: bool = False,
) -> tuple[Finding, Rounds | None]:
    """Decide here, and confirm a FAIL in `num_processes` fresh processes: the finding, and the rounds if there are any.

    Args:
        measure: Measures the rounds and compares them with the limit.
        make: Makes the rounds in this process; `timed.rounds` if `None`.
        at_least: The limit is a lower limit.
    """
    rounds = None
    try:
        rounds = (make or timed.rounds)()
        decision = measure(rounds)
        decision = confirmed(decision, limit, timed.in_fresh_process, num_processes, at_least=at_least)
    except NoVerdictError as error:
        decision = Decision(Verdict.NO_VERDICT, str(error))
    return from_decision(case, decision, limit, what), rounds


def measured(rounds: Rounds, gate: Gate, benchmark: Any = None) -> Decision:  # Any: pytest-benchmark's fixture
    """Measure up to each checkpoint of the gate, and stop at the first that decides.

    The rounds up to the first checkpoint are run by pytest-benchmark if it is given, so that its table and JSON show
    them.
    """
    rounds.warm_up()
    decision = Decision(Verdict.NO_VERDICT, "nothing was measured")
    for look in gate.looks:
        more = look - len(rounds.found)
        if benchmark is not None and not rounds.found:
            benchmark.pedantic(rounds.one, rounds=more, iterations=1, warmup_rounds=0)
        else:
            rounds.run(more)
        decision = decide(rounds.pairs(*rounds.steps), gate, num_dropped=rounds.num_dropped)
        if decision.verdict in (Verdict.PASS, Verdict.FAIL):
            break
    return decision


def why_not_timed(benchmark: Any, limits: CaseLimits) -> str:  # Any: pytest-benchmark's fixture
    """Say why a time taken here and now would mean nothing; empty if it would mean something."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return "tests run in parallel (xdist): workers disturb each other. Run without -n"
    if benchmark.disabled:
        return "benchmarks are disabled (--benchmark-disable)"
    return limits.reference_problem()


def judge_ratio(benchmark: Any, name: str, timed: Timed, device: str = "cpu") -> Finding:  # Any: as above
    """Judge the ratio of a case's two arms, on a `cpu` or a `gpu`.

    The verdict, its interval and its evidence go to `extra_info` of pytest-benchmark.
    """
    limits = read_limits()
    case = limits.cases[name]
    gate = limits.gate(case, device)

    def make() -> Rounds:
        if problem := why_not_timed(benchmark, case):
            benchmark.pedantic(lambda: None)  # a fixture that is not used is an error
            raise NoVerdictError(problem)
        return timed.rounds()

    finding, rounds = decided(
        case.name,
        "time of ours / reference",
        timed,
        gate.limit,
        lambda rounds: measured(rounds, gate, benchmark),
        num_processes=limits.confirm_processes,
        make=make,
    )
    counts = {"num_rounds": len(rounds.found), "num_dropped": rounds.num_dropped} if rounds else {}
    benchmark.extra_info["pair"] = {**asdict(finding), "verdict": finding.verdict.value, **counts}
    return finding


def judge_growth(name: str, axis: str, timed: Timed) -> Finding:
    """Judge the exponents of the rounds' sizes; without an axis the part of the time that is the same for all sizes."""
    limits = read_limits()
    case = limits.cases[name]
    limit = case.time_exponent_max[axis] if axis else case.fixed_share_max
    if limit is None:
        raise LimitsError(f"judge_growth: case={name!r} has no fixed_share_max. Add it to the limits.")

    def measure(rounds: Rounds) -> Decision:
        rounds.warm_up()
        rounds.run(NUM_ROUNDS)
        return (decide_exponent if axis else decide_fixed_share)(rounds, limit, limits.alpha)

    what = f"time exponent in {axis}" if axis else "fixed share"
    return decided(name, what, timed, limit, measure, num_processes=limits.confirm_processes)[0]


def judge_roofline(case: str, timed: Timed, limit: float, alpha: float, num_processes: int) -> Finding:
    """Judge the part of the copy bandwidth that a step reaches, with a cold L2."""
    from fairdraw.perf_regression._device_time import decide_roofline, require_cold_clock

    def make() -> Rounds:
        require_cold_clock()
        return timed.rounds()

    def measure(rounds: Rounds) -> Decision:
        return decide_roofline(rounds, limit, alpha)

    what = "part of the copy bandwidth"
    return decided(case, what, timed, limit, measure, num_processes=num_processes, make=make, at_least=True)[0]
