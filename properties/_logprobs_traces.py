"""Traces of log-probabilities: every row of every call is compared with the specification, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core.logprobs_harness import Returned, call_logprobs
from fairdraw._oracles.logprobs import exact_logits, exact_scores, tolerance
from fairdraw.properties._traces import WrongRow, trace_check
from fairdraw.protocols import NOT_EMITTED, Capability, LogprobsBatch, LogprobsSampler, RankTies, rank_ties_of
from fairdraw.strategies.logprobs import LogprobsTrace, logprobs_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one call that are read, and what came back for them."""

    batch: LogprobsBatch
    seen: Returned

    @cached_property
    def places(self) -> Ints:  # [num_read] int64
        """Rows that are read: of requests that ask, and with a token."""
        asked = np.array([number is not None for number in self.batch.row_logprobs], dtype=bool)
        return np.flatnonzero(asked & (self.batch.token_ids.cpu().numpy() != NOT_EMITTED))

    @cached_property
    def tokens(self) -> Ints:  # [num_read] int64
        return np.asarray(self.batch.token_ids.cpu().numpy()[self.places].astype(np.int64))

    @cached_property
    def is_listed(self) -> Flags:  # [num_read, 1 + N] bool
        """Which columns the request asks for; the first holds the emitted token."""
        numbers = self.batch.row_logprobs
        wanted = np.array([numbers[place] or 0 for place in self.places.tolist()], dtype=np.int64)
        return np.asarray(np.arange(self.ids.shape[1]) <= wanted[:, None])

    @cached_property
    def logits(self) -> NDArray[np.float32]:  # [num_read, vocab_size] float32
        return exact_logits(self.batch)[self.places]

    @cached_property
    def scores(self) -> NDArray[np.float64]:  # [num_read, vocab_size] float64
        return exact_scores(self.batch)[self.places]

    @cached_property
    def slack(self) -> NDArray[np.float64]:  # [num_read, vocab_size] float64
        return np.zeros_like(self.scores) if self.batch.wants_logits else tolerance(self.logits)

    @cached_property
    def ids(self) -> Ints:  # [num_read, 1 + N] int64
        return np.asarray(self.seen.token_ids[self.places])

    @cached_property
    def values(self) -> NDArray[np.float32]:  # [num_read, 1 + N] float32
        return np.asarray(self.seen.logprobs[self.places])

    @cached_property
    def is_distribution(self) -> Flags:  # [num_read] bool
        return np.asarray(np.isfinite(self.logits.max(axis=1, initial=-np.inf)))

    def at(self, numbers: NDArray[Any]) -> NDArray[Any]:  # [num_read, vocab_size] any -> [num_read, 1 + N] any
        """Return the numbers of the listed tokens."""
        return np.asarray(np.take_along_axis(numbers, np.clip(self.ids, 0, numbers.shape[1] - 1), axis=1))


def _faults(rows: _Rows, sampler: LogprobsSampler) -> Iterator[tuple[Flags, str]]:  # [num_read] bool
    """Yield which rows are wrong, and how, the plainest first."""
    listed, own, size = rows.is_listed, rows.is_distribution, rows.logits.shape[1]
    yield rows.ids[:, 0] != rows.tokens, "another token stands in the first column"
    yield (listed & ((rows.ids < 0) | (rows.ids >= size))).any(axis=1), "an id lies outside of the vocabulary"
    ordered = np.sort(np.where(listed, rows.ids, -2 - np.arange(listed.shape[1]))[:, 1:], axis=1)
    yield (ordered[:, 1:] == ordered[:, :-1]).any(axis=1), "an id is listed twice"
    exact = rows.at(rows.scores)
    with np.errstate(invalid="ignore"):
        far = (rows.values != exact) & ~(np.abs(rows.values - exact) <= rows.at(rows.slack))
        rising = np.diff(rows.values[:, 1:], axis=1) > 0
    yield own & (far & listed).any(axis=1), "a value is further from the exact one than rounding explains"
    has_nan = np.asarray(np.isnan(rows.logits).any(axis=1))
    odd = ~np.isnan(rows.values) & ~(np.isneginf(rows.values) & ~has_nan[:, None])
    is_score = not rows.batch.wants_logits
    yield ~own & is_score & (odd & listed).any(axis=1), "there is no distribution, and a value is a number"
    yield own & (rising & listed[:, 2:]).any(axis=1), "the list is not sorted"
    yield own & _is_better_missing(rows, sampler), "a token that is not listed is better than one that is"
    if rows.seen.ranks is not None:
        low, high = _rank_bounds(rows, sampler)
        ranks = rows.seen.ranks[rows.places]
        yield own & ~((low <= ranks) & (ranks <= high)), "the rank is another"


def _is_better_missing(rows: _Rows, sampler: LogprobsSampler) -> Flags:  # [num_read] bool
    """Return which rows leave out a token that is better than a listed one."""
    is_in, columns = np.zeros(rows.logits.shape, dtype=bool), rows.is_listed[:, 1:]
    row, column = np.nonzero(columns)
    is_in[row, np.clip(rows.ids[row, column + 1], 0, rows.logits.shape[1] - 1)] = True
    kept, left = np.where(is_in, rows.logits, np.inf), np.where(is_in, -np.inf, rows.logits)
    best, worst = left.argmax(axis=1)[:, None], kept.argmin(axis=1)[:, None]
    score, slack = (
        [np.take_along_axis(one, place, axis=1)[:, 0] for place in (best, worst)] for one in (rows.scores, rows.slack)
    )
    with np.errstate(invalid="ignore"):
        is_clear = score[0] - score[1] > slack[0] + slack[1]
    may_differ = is_clear | (Capability.EXACT_RANKS in sampler.capabilities)
    return np.asarray(columns.any(axis=1) & (left.max(axis=1) > kept.min(axis=1)) & may_differ)


def _rank_bounds(rows: _Rows, sampler: LogprobsSampler) -> tuple[Ints, Ints]:  # each [num_read] int64
    """Return the smallest and the largest right rank; they differ only if ranks are those of rounded values."""
    token = rows.tokens[:, None]
    if Capability.EXACT_RANKS in sampler.capabilities or rows.batch.wants_logits:
        mine = np.take_along_axis(rows.logits, token, axis=1)
        larger, as_large = (rows.logits > mine).sum(axis=1), (rows.logits >= mine).sum(axis=1)
        rank = as_large if rank_ties_of(sampler) is RankTies.LAST else 1 + larger
        return rank, rank
    score, slack = (np.take_along_axis(one, token, axis=1) for one in (rows.scores, rows.slack))
    spread = slack + rows.slack
    return 1 + (rows.scores > score + spread).sum(axis=1), (rows.scores >= score - spread).sum(axis=1)


def every_row_of_a_trace_has_its_own_log_probabilities(sampler: LogprobsSampler, trace: LogprobsTrace) -> None:
    """In calls of every size and vocabulary, each row has the values, the list and the rank of its own logits.

    Stages, dtypes, strides, types of ids, lengths of lists, rows of a request and rows without a token change from
    call to call, in every pair. Suspect rows that are computed in chunks, an index of requests that slips behind one
    of many rows or of none, a last tile, ids or counts of 16 bits, and what an earlier call left in a buffer.
    """
    for call, batch in trace.batches(sampler.device):
        before = {name: tensor.clone() for name, tensor in batch.tensors().items()}
        rows = _Rows(batch, call_logprobs(sampler, batch))
        for is_wrong, effect in _faults(rows, sampler) if len(rows.places) else ():
            if is_wrong.any():
                row, size = int(rows.places[np.flatnonzero(is_wrong)[0]]), len(batch.token_ids)
                how = f"{int(is_wrong.sum())} of {size} rows are wrong like it; {batch.stage}, {batch.logits.dtype}"
                raise WrongRow(f"row {row}: {effect} ({how})", call.number, row)
        for name, tensor in batch.tensors().items():
            if not torch.equal(tensor.nan_to_num(nan=7e4), before[name].nan_to_num(nan=7e4)):
                raise WrongRow(f"the function wrote into {name}, which it is given to read", call.number, 0)


TRACES = (trace_check("LPR201", "logprobs", logprobs_trace, every_row_of_a_trace_has_its_own_log_probabilities),)
