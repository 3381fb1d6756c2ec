"""Wrong planners of the logits-plan contract, one fault each."""

from fairdraw._mutants import _logits_plans, _logits_processors, _logits_wide
from fairdraw._mutants._logits_mutant import OraclePlanner
from fairdraw._mutants._mutant import Mutant, mutants_in
from fairdraw._oracles.logits_plan import LogitsPlanOracle

MUTANTS: tuple[Mutant, ...] = (
    *mutants_in(vars(_logits_processors), vars(_logits_plans)),
    *_logits_wide.MUTANTS,
)


def right() -> OraclePlanner:
    """The specification as a planner: every mutant without its fault."""
    return OraclePlanner("oracle", LogitsPlanOracle)
