"""Faults close to rounding and ties: each goes a little further than either explains.

Each function stands for one step of the oracle, with that step's arguments; `right` has the correct steps.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fairdraw._mutants._logits_mutant import patched_planner
from fairdraw._oracles.logits_bounds import logits_bounds
from fairdraw._oracles.logits_plan import EXCLUDED, FORCED, Edit, Logits, LogitsPlanOracle, Row
from fairdraw.contracts import LogitsBatch, PlanSetup


@patched_planner("process", "PLAN110", "PLAN112")
def is_four_ulps_beyond_rounding(
    right: LogitsPlanOracle, batch: LogitsBatch, setup: PlanSetup
) -> Tensor:  # [num_rows, vocab_size] float32
    """One token of a row, four units in the last place above what float32 arithmetic in any order could make of it."""
    processed = right.process(batch, setup)
    if processed is not batch.logits:
        for row, bounds in zip(processed.numpy(), logits_bounds(batch, setup, LogitsPlanOracle()), strict=True):
            moved = np.flatnonzero((bounds.may_be.width > 0) & np.isfinite(row) & (bounds.forced is None))
            for token in moved[-1:]:
                row[token] = np.float32(bounds.may_be.high[token]) + 4 * np.spacing(np.abs(row[token]))
    return processed


@patched_planner("top_k_top_p", "PLAN110", "PLAN112")
def keeps_one_of_the_tied_too_few(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """Top-k drops everything that ties with the last token kept, and that token as well."""
    cut = right.top_k_top_p(row)
    top_k = row.params.top_k
    if cut is None or row.is_greedy or not 1 < top_k < row.vocab_size:
        return cut

    def strictly(logits: Logits) -> None:
        edge = np.sort(logits)[len(logits) - top_k]
        if np.isfinite(edge) and np.isfinite(logits[logits > edge]).any():
            logits[logits <= edge] = EXCLUDED
        cut(logits)

    return strictly


@patched_planner("top_k_top_p", "PLAN110", "PLAN112")
def top_p_stops_a_token_early(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """The token that crosses top-p is dropped: the tokens kept have less probability than required."""
    cut = right.top_k_top_p(row)
    return cut if cut is None or row.is_greedy or row.params.top_p == 1 else _dropping_one_more(cut, ties=True)


@patched_planner("thinking_budget", "PLAN110")
def forces_with_too_small_a_logit(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """The forced token is the most probable one, but not the only possible one."""
    force = right.thinking_budget(row)
    if force is None:
        return None

    def weakly(logits: Logits) -> None:
        others = logits.copy()
        force(logits)
        logits[logits == FORCED] = np.float32(np.max(others, initial=0, where=np.isfinite(others)) + 10)

    return weakly


@patched_planner("thinking_budget", "PLAN110", "PLAN112")
def forces_another_token(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """The token is forced in the correct row, but the next id instead of the expected one."""
    force = right.thinking_budget(row)
    if force is None:
        return None

    def beside(logits: Logits) -> None:
        marks = np.zeros(len(logits), np.float32)
        force(marks)
        logits[(int(marks.argmax()) + 1) % len(logits)] = FORCED

    return beside


@patched_planner("min_p", "PLAN110")
def min_p_drops_the_last_token_kept(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """The least probable token above the floor is excluded, too."""
    cut = right.min_p(row)
    return None if cut is None else _dropping_one_more(cut, ties=False)


def _dropping_one_more(cut: Edit, *, ties: bool) -> Edit:
    """A filter that also excludes the least probable token that `cut` keeps; with `ties` even if all of them tie."""

    def drop(logits: Logits) -> None:
        cut(logits)
        kept = np.flatnonzero(np.isfinite(logits))
        if len(kept) > 1 and not np.isnan(logits).any() and (ties or logits[kept].min() < logits[kept].max()):
            logits[kept[logits[kept].argmin()]] = EXCLUDED

    return drop
