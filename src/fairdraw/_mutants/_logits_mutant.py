"""How a faulty oracle of the logits-plan contract becomes a mutant."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from fairdraw._mutants._mutant import Mutant, mutant_as, name_of, patching
from fairdraw._oracles.logits_plan import Edit, Logits, LogitsPlanOracle, Row
from fairdraw.contracts import LogitsPolicy, SessionSampler, logits_planner, policy_of


@dataclass(frozen=True)
class OraclePlanner(SessionSampler):
    """An oracle, or one with a step overridden, as a planner. Each session has its own, which may remember steps.

    Args:
        done: What it does, if it is not what it declares.
    """

    contract: str = "logits_plan"
    done: LogitsPolicy | None = None

    def open_session(self, setting: Any) -> Any:  # Any: a PlanSetup, and a session
        oracle: LogitsPlanOracle = self.function()
        policy = self.done or policy_of(self, LogitsPolicy)
        oracle.policy, oracle.arithmetic = policy, copy(oracle.arithmetic)
        oracle.arithmetic.policy = policy.penalties
        return logits_planner(oracle.process).open_session(setting)


def mutant_planner(*caught_by: str, **declared: Any) -> Callable[[type[LogitsPlanOracle]], Mutant]:
    """Make a mutant of an oracle with one step overridden; its class name is the name, its docstring the description.

    Args:
        declared: Any: fields of OraclePlanner.
    """

    def make_mutant(faulty: type[LogitsPlanOracle]) -> Mutant:
        planner = OraclePlanner(name_of(faulty), faulty, **declared)
        return mutant_as(lambda _: planner, *caught_by)(faulty)

    return make_mutant


patched_planner = patching(mutant_planner, LogitsPlanOracle)


def patched_edit(step: str, *caught_by: str) -> Callable[[Callable[[Edit, Row, Logits], None]], Mutant]:
    """Return a decorator: it makes a mutant by a function that edits the logits where a step has an edit of a row.

    The function gets the right edit, the row and its logits.
    """

    def make(body: Callable[[Edit, Row, Logits], None]) -> Mutant:
        def edited(right: LogitsPlanOracle, row: Row) -> Edit | None:
            edit = getattr(right, step)(row)
            return None if edit is None else partial(body, edit, row)

        return patched_planner(step, *caught_by)(wraps(body)(edited))

    return make
