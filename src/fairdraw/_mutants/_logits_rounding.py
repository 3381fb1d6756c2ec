"""Faults close to rounding and ties: each goes a little further than either explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._mutants._logits_mutant import mutant_planner
from fairdraw._oracles.logits_bounds import logits_bounds
from fairdraw._oracles.logits_plan import EXCLUDED, FORCED, Edit, Logits, LogitsPlanOracle, Row

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols._logits_plan import LogitsBatch, PlanSetup


@mutant_planner("PLAN110", "PLAN112")
class IsFourUlpsBeyondRounding(LogitsPlanOracle):
    """One token of a row, four units in the last place above what float32 arithmetic in any order could make of it."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        processed = super().process(batch, setup)
        if processed is not batch.logits:
            for row, bounds in zip(processed.numpy(), logits_bounds(batch, setup, LogitsPlanOracle()), strict=True):
                moved = np.flatnonzero((bounds.may_be.width > 0) & np.isfinite(row) & (bounds.forced is None))
                for token in moved[-1:]:
                    row[token] = np.float32(bounds.may_be.high[token]) + 4 * np.spacing(np.abs(row[token]))
        return processed


@mutant_planner("PLAN110", "PLAN112")
class KeepsOneOfTheTiedTooFew(LogitsPlanOracle):
    """Top-k drops everything that ties with the last token kept, and that token as well."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        cut = super().top_k_top_p(row)
        top_k = row.params.top_k
        if cut is None or row.is_greedy or not 1 < top_k < row.vocab_size:
            return cut

        def strictly(logits: Logits) -> None:
            edge = np.sort(logits)[len(logits) - top_k]
            if np.isfinite(edge) and np.isfinite(logits[logits > edge]).any():
                logits[logits <= edge] = EXCLUDED
            cut(logits)

        return strictly


@mutant_planner("PLAN110", "PLAN112")
class TopPStopsATokenEarly(LogitsPlanOracle):
    """The token that crosses top-p is dropped: the tokens kept have less probability than required."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        cut = super().top_k_top_p(row)
        return cut if cut is None or row.is_greedy or row.params.top_p == 1 else _dropping_one_more(cut, ties=True)


@mutant_planner("PLAN110")
class ForcesWithTooSmallALogit(LogitsPlanOracle):
    """The forced token is the most probable one, but not the only possible one."""

    def thinking_budget(self, row: Row) -> Edit | None:
        force = super().thinking_budget(row)
        if force is None:
            return None

        def weakly(logits: Logits) -> None:
            others = logits.copy()
            force(logits)
            logits[logits == FORCED] = np.float32(np.max(others, initial=0, where=np.isfinite(others)) + 10)

        return weakly


@mutant_planner("PLAN110", "PLAN112")
class ForcesAnotherToken(LogitsPlanOracle):
    """The token is forced in the correct row, but the next id instead of the expected one."""

    def thinking_budget(self, row: Row) -> Edit | None:
        force = super().thinking_budget(row)
        if force is None:
            return None

        def beside(logits: Logits) -> None:
            marks = np.zeros(len(logits), np.float32)
            force(marks)
            logits[(int(marks.argmax()) + 1) % len(logits)] = FORCED

        return beside


@mutant_planner("PLAN110")
class MinPDropsTheLastTokenKept(LogitsPlanOracle):
    """The least probable token above the floor is excluded, too."""

    def min_p(self, row: Row) -> Edit | None:
        cut = super().min_p(row)
        return None if cut is None else _dropping_one_more(cut, ties=False)


def _dropping_one_more(cut: Edit, *, ties: bool) -> Edit:
    """A filter that also excludes the least probable token that `cut` keeps; with `ties` even if all of them tie."""

    def drop(logits: Logits) -> None:
        cut(logits)
        kept = np.flatnonzero(np.isfinite(logits))
        if len(kept) > 1 and not np.isnan(logits).any() and (ties or logits[kept].min() < logits[kept].max()):
            logits[kept[logits[kept].argmin()]] = EXCLUDED

    return drop
