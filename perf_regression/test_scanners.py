"""Our scanners against the real vLLM: time in paired rounds, instructions by valgrind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression._benching import judge_ratio
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._findings import Finding
from fairdraw.perf_regression._instructions import exponent, instructions_per_step
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Callable

    Note = Callable[[list[Finding]], None]

pytestmark = pytest.mark.timing
SCANNERS = ("penalties", "thinking")
NUM_DRAFTS = 3
LENGTHS = (1_000, 32_000)


@pytest.mark.parametrize("num_drafts", [0, NUM_DRAFTS], ids=["", ".drafts"])
@pytest.mark.parametrize("scanner", SCANNERS)
def test_step_costs_a_small_part_of_upstream(benchmark: Any, scanner: str, num_drafts: int, verdicts: Note) -> None:
    arguments = {"scanner": scanner, "num_drafts": num_drafts}
    timed = Timed("fairdraw.perf_regression._timed:scanner_pair", arguments)
    verdicts([judge_ratio(benchmark, f"{scanner}.step{'.drafts' if num_drafts else ''}", timed)])


@pytest.mark.parametrize("scanner", SCANNERS)
def test_instructions_of_a_step_do_not_grow_with_length(scanner: str, verdicts: Note) -> None:
    """Lengths 32 apart; counted, so that there is no error rate."""
    name = f"{scanner}.step.drafts"
    limit = read_limits().cases[name].instructions_exponent_max["L"]
    verdicts([_counted(name, f"fairdraw.perf_regression._scanner_steps:{scanner}_program", limit)])


def _counted(name: str, factory: str, limit: float) -> Finding:
    what = "instructions exponent in length"
    try:
        sizes = {"batch_size": 16, "num_drafts": NUM_DRAFTS}
        with ThreadPoolExecutor(2) as pool:  # counts do not mind
            per_step = pool.map(lambda length: instructions_per_step(factory, length=length, **sizes), LENGTHS)
            found = exponent(dict(zip(LENGTHS, per_step, strict=True)))
    except NoVerdictError as error:
        return Finding(name, what, Verdict.NO_VERDICT, limit=limit, reason=str(error))
    return Finding(name, what, Verdict.PASS if found <= limit else Verdict.FAIL, found, limit, "counted by valgrind")
