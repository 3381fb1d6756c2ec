"""pytest-benchmark as the harness: it keeps the table and the JSON, the sign test decides.

Only what nothing disturbs is timed. Under xdist, with `--benchmark-disable`, or against another release than the
limits were made for, there is no verdict, and no verdict is never a pass.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression.decision import Decision, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw.perf_regression.decision import Gate
    from fairdraw.perf_regression.findings import Finding
    from fairdraw.perf_regression.limits import CaseLimits
    from fairdraw.perf_regression.rounds import Rounds

__all__ = ["STRICT_VARIABLE", "paired", "settle", "why_not_timed"]

STRICT_VARIABLE = "FAIRDRAW_PERF_STRICT"
"""Set to 1 on main and for releases: then only PASS is green."""

WARM_UP_ROUNDS = 2


def why_not_timed(benchmark: Any, limits: CaseLimits) -> str:  # Any: pytest-benchmark's fixture
    """Why a time taken here and now would mean nothing; empty if it would."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return "tests run in parallel (xdist): workers disturb each other. Run without -n"
    if benchmark is None or benchmark.disabled:
        return "benchmarks are disabled (--benchmark-disable)"
    return limits.reference.problem() if limits.reference else ""


def paired(benchmark: Any, rounds: Rounds, gate: Gate, arms: tuple[str, str]) -> Decision:  # Any: as above
    """Measure up to each look of the gate, and stop at the first that decides.

    The first look is run by pytest-benchmark, so that its table and JSON show the rounds; the verdict, its interval and
    its evidence go to `extra_info`.
    """
    rounds.run(WARM_UP_ROUNDS)
    rounds.found.clear()
    decision = Decision(Verdict.NO_VERDICT, "nothing was measured")
    for look in gate.looks:
        more = look - len(rounds.found)
        if rounds.found:
            rounds.run(more)
        else:
            benchmark.pedantic(rounds.one, rounds=more, iterations=1, warmup_rounds=0)
        decision = decide(rounds.pairs(*arms), gate, num_dropped=rounds.num_dropped)
        if decision.verdict in (Verdict.PASS, Verdict.FAIL):
            break
    benchmark.extra_info["pair"] = {**asdict(decision), "verdict": decision.verdict.value, "limit": gate.limit}
    return decision


def settle(findings: Iterable[Finding]) -> None:
    """Make findings the outcome of a test: FAIL fails; what is not known is a skip, with its reason.

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
    if unknown or not found:
        pytest.skip("; ".join(map(_told, unknown)) or "NO VERDICT: nothing was looked at")


def _told(finding: Finding) -> str:
    value = "" if finding.value is None else f"={finding.value:.6g}"
    return f"{finding.verdict.value}: {finding.case}: {finding.what}{value}, limit {finding.limit}: {finding.reason}"
