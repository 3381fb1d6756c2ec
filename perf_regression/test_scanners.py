"""Our scanners against the real vLLM: time in paired rounds, instructions by valgrind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression import _scanner_arms as arms
from fairdraw.perf_regression._scanner_steps import Outputs
from fairdraw.perf_regression.benching import paired, why_not_timed
from fairdraw.perf_regression.decision import Decision, Verdict
from fairdraw.perf_regression.findings import Finding, from_decision
from fairdraw.perf_regression.instructions import exponent, instructions_per_step
from fairdraw.perf_regression.limits import read_limits
from fairdraw.perf_regression.named import NoVerdictError
from fairdraw.perf_regression.rounds import Rounds, after_own_step, thread_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    Note = Callable[[list[Finding]], None]

pytestmark = pytest.mark.timing
MAKE = {"penalties": arms.penalties_arms, "thinking": arms.thinking_arms}
BATCH_SIZE, LENGTH, NUM_DRAFTS = 64, 4000, 3
SHORT, LONG = 1_000, 32_000


def grown(num_drafts: int, length: int) -> Outputs:
    outputs = Outputs(BATCH_SIZE, num_drafts, max_length=2 * length)
    outputs.grow(length - 1)
    outputs.advance()
    return outputs


@pytest.mark.parametrize("num_drafts", [0, NUM_DRAFTS], ids=["", ".drafts"])
@pytest.mark.parametrize("scanner", MAKE)
def test_step_costs_a_small_part_of_upstream(benchmark: Any, scanner: str, num_drafts: int, verdicts: Note) -> None:
    name = f"{scanner}.step{'.drafts' if num_drafts else ''}"
    limits = read_limits()
    case, gate = limits.cases[name], limits.gate(limits.cases[name], "cpu")
    decision = Decision(Verdict.NO_VERDICT, why_not_timed(benchmark, case))
    if decision.reason:
        benchmark.pedantic(lambda: None)
    else:
        arms.require_upstream()
        outputs = grown(num_drafts, LENGTH)
        both = {arm: step for arm, step in MAKE[scanner](outputs).items() if arm in ("ours", "vllm")}
        clock = after_own_step(outputs.advance, thread_clock)
        decision = paired(benchmark, Rounds(both, clock=clock, drop_switched=False), gate, ("ours", "vllm"))
    verdicts([from_decision(name, decision, gate.limit)])


@pytest.mark.parametrize("scanner", MAKE)
def test_instructions_of_a_step_do_not_grow_with_length(scanner: str, verdicts: Note) -> None:
    """Lengths 32 apart; counted, so that there is no error rate."""
    name = f"{scanner}.step.drafts"
    limit = read_limits().cases[name].instructions_exponent_max
    assert limit is not None
    verdicts([_counted(name, f"fairdraw.perf_regression._scanner_steps:{scanner}_program", limit)])


def _counted(name: str, factory: str, limit: float) -> Finding:
    what = "instructions exponent in length"
    try:
        sizes = {"batch_size": 16, "num_drafts": NUM_DRAFTS}
        found = exponent({length: instructions_per_step(factory, length=length, **sizes) for length in (SHORT, LONG)})
    except NoVerdictError as error:
        return Finding(name, what, Verdict.NO_VERDICT, limit=limit, reason=str(error))
    return Finding(name, what, Verdict.PASS if found <= limit else Verdict.FAIL, found, limit, "counted by valgrind")
