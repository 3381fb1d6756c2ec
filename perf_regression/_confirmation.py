"""A timing that fails is repeated in fresh processes: it stays a FAIL only if every one of them repeats it.

The rounds of one process share properties of that process: where its memory lies, its hash seed, the CPU on which it
started. The sign test bounds differences between rounds, not between processes, so a process that is slow as a whole
fails in every round. A FAIL is therefore a claim about one process until others confirm it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from fairdraw.perf_regression._decision import Decision, Verdict
from fairdraw.perf_regression._named import NoVerdictError, call_fresh, load
from fairdraw.perf_regression._rounds import Rounds

NUM_ROUNDS = 20
TIMEOUT_SECONDS = 300
RATIO = "fairdraw.perf_regression._confirmation:median_ratio"


@dataclass(frozen=True)
class Timed:
    """Rounds that any process can measure, because the function that makes them has a name.

    Args:
        factory: `package.module:function`; called with `arguments`, which are JSON, it returns `Rounds`.
        statistic: `package.module:function`, from measured rounds to the number that the limit is about.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON
    statistic: str = RATIO

    def rounds(self) -> Rounds:
        """Return rounds to measure in this process."""
        rounds: Rounds = load(self.factory)(**self.arguments)
        return rounds

    def in_fresh_process(self) -> float:
        """Return the statistic of rounds that a fresh process measures.

        Raises:
            NoVerdictError: If the process fails, or does not answer within five minutes.
        """
        printed = call_fresh(
            f"{__name__}:_measure",
            {**asdict(self), "num_rounds": NUM_ROUNDS},
            purpose=self.factory,
            timeout=TIMEOUT_SECONDS,
            not_inherited={"PYTHONHASHSEED"},
        )
        return float(json.loads(printed[-1]))


def _measure(num_rounds: int, **timed: Any) -> float:  # Any: the fields of `Timed`
    """Runs in the fresh process."""
    rounds = Timed(**timed).rounds()
    rounds.warm_up()
    rounds.run(num_rounds)
    return float(load(timed["statistic"])(rounds))


def median_ratio(rounds: Rounds) -> float:
    """Return the median ratio of the first arm to the second.

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
    """Return `decision`, unless it is a FAIL that a fresh process does not repeat: INCONCLUSIVE then.

    Args:
        again: Measures, in a fresh process, the number that the limit is about.
        at_least: The limit is a lower limit.

    Error rates:
        This only turns FAIL into INCONCLUSIVE, so the only error that grows is a missed failure: a sampler that exceeds
        its limit by less than processes differ (2 %, one standard deviation, on a machine with five times more to do
        than it has cores: `samples_processes.json`) may be missed. A FAIL that cannot be measured again stays a FAIL.
    """
    if decision.verdict is not Verdict.FAIL:
        return decision
    values: list[str] = []
    for _ in range(num_processes):
        try:
            value = again()
        except NoVerdictError as error:
            return replace(decision, reason=f"{decision.reason}; not measured again: {error}")
        values.append(f"{value:.4g}")
        if value >= limit if at_least else value <= limit:
            reason = f"{decision.reason}, but a fresh process keeps it: {', '.join(values)}"
            return replace(decision, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return replace(decision, reason=f"{decision.reason}; {num_processes} fresh processes: {', '.join(values)}")
