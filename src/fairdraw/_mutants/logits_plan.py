"""Wrong planners of the logits-plan contract, one fault each; and odd ones that are correct."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fairdraw._mutants import _logits_plans, _logits_processors, _logits_rounding, _logits_wide, _odd_plans
from fairdraw._mutants._logits_mutant import OraclePlanner
from fairdraw._mutants._mutant import mutants_in
from fairdraw._oracles.logits_plan import FORCED, Edit, Logits, LogitsPlanOracle, Row
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.protocols import Capabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw._mutants._mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *mutants_in(_logits_processors, _logits_plans, _logits_rounding),
    *_logits_wide.MUTANTS,
)


def right() -> OraclePlanner:
    """The specification as a planner: every mutant without its fault."""
    return OraclePlanner("oracle", LogitsPlanOracle)


class _AlwaysCopies(LogitsPlanOracle):
    """Computes every value correctly, and declares that it copies."""

    def untouched(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return self.copied(logits)


class _WorksInPlace(LogitsPlanOracle):
    """Writes into float32 logits, and declares it."""

    def copied(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return logits.to(torch.float32).contiguous()


class _GoesThroughRowsBackwards(LogitsPlanOracle):
    """The last row first: no row depends on another."""

    def edits(self, name: str, rows: Sequence[Row]) -> list[tuple[int, Edit]]:
        return super().edits(name, rows[::-1])


class _ForcesInEveryRow(LogitsPlanOracle):
    """Each row alone, by its text: also in rows after a draft that is rejected since another token was forced."""

    def thinking_budget(self, row: Row) -> Edit | None:
        setup, budget = row.setup, row.params.thinking_token_budget
        oracle = ThinkingBudgetOracle(setup.start_token_ids, setup.end_token_ids)
        token_id = None if budget is None else oracle.next_token(row.source.prompt_token_ids, row.seen, budget)

        def force(logits: Logits) -> None:
            logits[token_id] = FORCED

        return None if token_id is None else force


_COPIES = Capabilities.of({"copy-free": "copies at every step"})
_IN_PLACE = Capabilities.of({"copy-free": "writes in place", "intact-logits": "writes in place"})
_UNREACHED = Capabilities.of({"unreached-rows": "forces in every row"})

ODD_BUT_RIGHT: tuple[OraclePlanner, ...] = (
    OraclePlanner("always copies", _AlwaysCopies, capabilities=_COPIES),
    OraclePlanner("works in place", _WorksInPlace, capabilities=_IN_PLACE),
    OraclePlanner("goes through rows backwards", _GoesThroughRowsBackwards),
    OraclePlanner("forces in every row", _ForcesInEveryRow, capabilities=_UNREACHED),
    *_odd_plans.ODD_BUT_RIGHT,
)
"""Correct planners of other making, with the capabilities that they do not support."""
