"""Correct functions of log-probabilities that rank, add or answer in another way than the specification."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from fairdraw._mutants.logprobs import Drawing, as_sampler
from fairdraw._oracles.logprobs import LogprobsOracle
from fairdraw.contracts import FunctionLogprobsSampler, LogprobsBatch, LogprobsResult, RankTies, logprobs_sampler


class FirstRank(LogprobsOracle):
    """Ranks ties by the first of their ranks, and declares it."""

    rank_ties = RankTies.FIRST


class HighestIdFirst(LogprobsOracle):
    """Lists the highest id of equal tokens first, and declares it."""

    def best(self, logits: Any, number: int) -> Any:
        return len(logits) - 1 - super().best(logits[::-1], number)


class FirstRankHighestId(HighestIdFirst):
    """Both."""

    rank_ties = RankTies.FIRST


class AddsFromTheEnd(LogprobsOracle):
    """Sums in float32, from the last token to the first."""

    def log_softmax(self, logits: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            shifted = np.ascontiguousarray(logits) - logits.max(axis=1, keepdims=True, initial=-np.inf)
            sums = np.exp(shifted[:, ::-1]).sum(axis=1, keepdims=True, dtype=np.float32)
            return (shifted - np.log(sums)).astype(np.float64)


class SubtractsLogSumExp(LogprobsOracle):
    """The maximum is added to the logarithm of the sum, in float64, and both are subtracted at once."""

    def log_softmax(self, logits: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            wide = logits.astype(np.float64)
            largest = wide.max(axis=1, keepdims=True, initial=-np.inf)
            return wide - (largest + np.log(np.exp(wide - largest).sum(axis=1, keepdims=True)))


class RowByRow(LogprobsOracle):
    """Rows are computed one after another."""

    def log_softmax(self, logits: Any) -> Any:
        rows = [super(RowByRow, self).log_softmax(logits[row : row + 1]) for row in range(len(logits))]
        return np.concatenate(rows) if rows else super().log_softmax(logits)


class ColumnByColumn(LogprobsOracle):
    """Returns tensors with other strides."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        turned = (one.t().contiguous().t() for one in (found.token_ids, found.logprobs))
        return dataclasses.replace(found, **dict(zip(("token_ids", "logprobs"), turned, strict=True)))


class IdsOf32Bits(LogprobsOracle):
    """Ids and ranks are int32; values are a part of a wider buffer."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        assert found.ranks is not None
        values = torch.cat([found.logprobs, found.logprobs], dim=1)[:, : found.logprobs.shape[1]]
        return LogprobsResult(found.token_ids.int(), values, found.ranks.int())


_HIGHEST = {"lowest-id-ties": "takes the highest"}

ODD: tuple[FunctionLogprobsSampler, ...] = (
    as_sampler(FirstRank(), Drawing(), "ranks ties first"),
    logprobs_sampler(HighestIdFirst().logprobs, name="highest id first", unsupported=_HIGHEST),
    logprobs_sampler(
        FirstRankHighestId().logprobs, name="first rank, highest id", rank_ties=RankTies.FIRST, unsupported=_HIGHEST
    ),
    as_sampler(AddsFromTheEnd(), Drawing(), "adds from the end"),
    as_sampler(SubtractsLogSumExp(), Drawing(), "subtracts the log-sum-exp"),
    as_sampler(RowByRow(), Drawing(), "row by row"),
    as_sampler(ColumnByColumn(), Drawing(), "column by column"),
    as_sampler(IdsOf32Bits(), Drawing(), "ids of 32 bits"),
)
"""Correct functions of other making."""
