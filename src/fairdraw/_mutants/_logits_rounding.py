"""Faults close to rounding and ties: each goes a little further than either explains.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step; or the correct edit of a row, the row and its logits.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fairdraw._mutants._logits_mutant import patched_edit, patched_planner
from fairdraw._oracles.logits_bounds import logits_bounds
from fairdraw._oracles.logits_plan import EXCLUDED, FORCED, Edit, Logits, LogitsPlanOracle, Row
from fairdraw.contracts import LogitsBatch, PlanSetup


@patched_planner("process", "PLAN110", "PLAN112")
def is_four_ulps_beyond_rounding(
    answer: Tensor, batch: LogitsBatch, setup: PlanSetup
) -> None:  # [num_rows, vocab_size] float32
    """One token of a row, four units in the last place above what float32 arithmetic in any order could make of it."""
    if answer is not batch.logits:
        for row, bounds in zip(answer.numpy(), logits_bounds(batch, setup, LogitsPlanOracle()), strict=True):
            moved = np.flatnonzero((bounds.may_be.width > 0) & np.isfinite(row) & (bounds.forced is None))
            for token in moved[-1:]:
                row[token] = np.float32(bounds.may_be.high[token]) + 4 * np.spacing(np.abs(row[token]))


@patched_edit("top_k_top_p", "PLAN110", "PLAN112")
def keeps_one_of_the_tied_too_few(cut: Edit, row: Row, logits: Logits) -> None:
    """Top-k drops everything that ties with the last token kept, and that token as well."""
    if not row.is_greedy and 1 < row.params.top_k < row.vocab_size:
        edge = np.sort(logits)[len(logits) - row.params.top_k]
        if np.isfinite(edge) and np.isfinite(logits[logits > edge]).any():
            logits[logits <= edge] = EXCLUDED
    cut(logits)


@patched_edit("top_k_top_p", "PLAN110", "PLAN112")
def top_p_stops_a_token_early(cut: Edit, row: Row, logits: Logits) -> None:
    """The token that crosses top-p is dropped: the tokens kept have less probability than required."""
    cut(logits)
    if not row.is_greedy and row.params.top_p != 1:
        _drop_one_more(logits, ties=True)


@patched_edit("thinking_budget", "PLAN110")
def forces_with_too_small_a_logit(force: Edit, row: Row, logits: Logits) -> None:
    """The forced token is the most probable one, but not the only possible one."""
    others = logits.copy()
    force(logits)
    logits[logits == FORCED] = np.float32(np.max(others, initial=0, where=np.isfinite(others)) + 10)


@patched_edit("thinking_budget", "PLAN110", "PLAN112")
def forces_another_token(force: Edit, row: Row, logits: Logits) -> None:
    """The token is forced in the correct row, but the next id instead of the expected one."""
    marks = np.zeros(len(logits), np.float32)
    force(marks)
    logits[(int(marks.argmax()) + 1) % len(logits)] = FORCED


@patched_edit("min_p", "PLAN110")
def min_p_drops_the_last_token_kept(cut: Edit, row: Row, logits: Logits) -> None:
    """The least probable token above the floor is excluded, too."""
    cut(logits)
    _drop_one_more(logits, ties=False)


def _drop_one_more(logits: Logits, *, ties: bool) -> None:
    """Exclude the least probable token that is left; with `ties` even if all of them tie."""
    kept = np.flatnonzero(np.isfinite(logits))
    if len(kept) > 1 and not np.isnan(logits).any() and (ties or logits[kept].min() < logits[kept].max()):
        logits[kept[logits[kept].argmin()]] = EXCLUDED
