"""A timing gate that fails is asked again, in fresh processes: it stays a FAIL only if every one of them repeats it.

The rounds of one process share what that process is: where its memory lies, its hash seed, the CPU it began on. The
sign test bounds what differs between rounds, and knows nothing of what differs between processes; a process that is
unlucky as a whole fails every round. So a FAIL is a claim about one process until others have made it, too.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from fairdraw.perf_regression._decision import Decision, Verdict
from fairdraw.perf_regression._fresh import run_fresh
from fairdraw.perf_regression._named import NoVerdictError, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairdraw.perf_regression._rounds import Rounds

__all__ = ["RATIO", "Timed", "confirmed", "median_ratio"]

NUM_ROUNDS = 20
TIMEOUT_SECONDS = 300
RATIO = "fairdraw.perf_regression._confirmation:median_ratio"


@dataclass(frozen=True)
class Timed:
    """Rounds that any process can measure, because what makes them has a name.

    Args:
        factory: `package.module:function`; called with `arguments`, which are JSON, it returns `Rounds`.
        statistic: `package.module:function`, from measured rounds to the number that the limit is about.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON
    statistic: str = RATIO

    def rounds(self) -> Rounds:
        """To be measured in this process."""
        rounds: Rounds = load(self.factory)(**self.arguments)
        return rounds

    def in_fresh_process(self) -> float:
        """The statistic of rounds measured elsewhere.

        Raises:
            NoVerdictError: If the process fails, or has no answer after five minutes.
        """
        printed = run_fresh(
            "fairdraw.perf_regression._measured",
            *(self.factory, json.dumps(dict(self.arguments)), self.statistic, str(NUM_ROUNDS)),
            purpose=self.factory,
            timeout=TIMEOUT_SECONDS,
            not_inherited={"PYTHONHASHSEED"},
        )
        return float(json.loads(printed.splitlines()[-1]))


def median_ratio(rounds: Rounds) -> float:
    """Of the first arm to the second.

    Raises:
        NoVerdictError: If no round counts.
    """
    logs = [math.log(ours / other) for ours, other in rounds.pairs(*rounds.steps)]
    if not logs:
        raise NoVerdictError("all rounds were disturbed")
    return math.exp(median(logs))


def confirmed(
    decision: Decision, limit: float, again: Callable[[], float], num_processes: int, *, at_least: bool = False
) -> Decision:
    """`decision`, unless it is a FAIL that a fresh process does not repeat: INCONCLUSIVE then.

    Args:
        again: The number that the limit is about, measured in a fresh process.
        at_least: The limit is a least value.

    Error rates:
        Only ever turns FAIL into INCONCLUSIVE, so no error rate grows but that of not failing: a sampler that is beyond
        its limit by less than processes differ (2 %, one standard deviation, on a machine with five times more to do
        than it has cores: `samples_processes.json`) may be let off. One that cannot be measured again stays failed.
    """
    if decision.verdict is not Verdict.FAIL:
        return decision
    told: list[str] = []
    for _ in range(num_processes):
        try:
            value = again()
        except NoVerdictError as error:
            return replace(decision, reason=f"{decision.reason}; not measured again: {error}")
        told.append(f"{value:.4g}")
        if value >= limit if at_least else value <= limit:
            reason = f"{decision.reason}, but a fresh process keeps it: {', '.join(told)}"
            return replace(decision, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return replace(decision, reason=f"{decision.reason}; {num_processes} fresh processes: {', '.join(told)}")
