"""How a faulty oracle of the logits-plan contract becomes a mutant."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairdraw._mutants._mutant import Mutant
from fairdraw.protocols import Capabilities, Rounding

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw._oracles.logits_plan import LogitsPlanOracle
    from fairdraw.protocols._logits_plan import LogitsBatch, LogitsSession, PlanSetup


@dataclass(frozen=True)
class _OracleSession:
    oracle: LogitsPlanOracle
    setup: PlanSetup

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        return self.oracle.process(batch, self.setup)


@dataclass(frozen=True)
class OraclePlanner:
    """An oracle, or one with a step overridden, as a planner. Each session has its own, which may remember steps."""

    name: str
    make_oracle: Callable[[], LogitsPlanOracle]
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    contract: Literal["logits_plan"] = "logits_plan"
    rounding: Rounding = Rounding.FREE

    def open_plan(self, setup: PlanSetup) -> LogitsSession:
        return _OracleSession(self.make_oracle(), setup)


def mutant_planner(*caught_by: str) -> Callable[[type[LogitsPlanOracle]], Mutant]:
    """Make a mutant of an oracle with one step overridden; its class name is the name, its docstring the
    description.
    """

    def make_mutant(faulty: type[LogitsPlanOracle]) -> Mutant:
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", faulty.__name__).lower()
        return Mutant(name, inspect.cleandoc(faulty.__doc__ or ""), caught_by, lambda: OraclePlanner(name, faulty))

    return make_mutant
