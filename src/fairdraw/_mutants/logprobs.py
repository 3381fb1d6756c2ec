"""Wrong functions of the log-probabilities contract, one fault each; many were found in real engines."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._mutants._lanes import LANE_FAULTS, LaneFault, lane_mutants, racing
from fairdraw._mutants._mutant import Mutant, mutant_as, name_of
from fairdraw._mutants.sampling_distributions import DistributionTokenSampler
from fairdraw._oracles.logprobs import LogprobsOracle, log_softmax
from fairdraw.protocols import (
    ALL_LOGPROBS,
    NOT_EMITTED,
    FunctionLogprobsSampler,
    LogprobsBatch,
    LogprobsResult,
    RankTies,
    logprobs_sampler,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import SamplingBatch, SamplingNoise

_VOCABULARY_OF_16_BITS = 1 << 16


class Drawing(DistributionTokenSampler):
    """Draws tokens, and returns the distribution that they were drawn from."""

    def answer(self, batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult:
        drawn = self.draft(batch, noise)
        with np.errstate(divide="ignore"):
            scores = torch.from_numpy(np.log(drawn.draft_probs.double().numpy()).astype(np.float32))  # type: ignore[union-attr]
        order = torch.argsort(scores, dim=1, descending=True, stable=True)
        ids = torch.cat([drawn.token_ids[:, None], order], dim=1)
        return LogprobsResult(ids, scores.gather(1, ids))


def as_sampler(oracle: Any, drawing: Drawing, name: str) -> FunctionLogprobsSampler:  # Any: a LogprobsOracle
    """An oracle under the contract."""
    return logprobs_sampler(oracle.logprobs, drawing=drawing.answer, name=name, rank_ties=oracle.rank_ties)


def right() -> FunctionLogprobsSampler:
    """The specification: what every mutant would be without its fault."""
    return as_sampler(LogprobsOracle(), Drawing(), "oracle")


class _FirstRank(LogprobsOracle):
    """Ranks ties by the first of their ranks, and declares it."""

    rank_ties = RankTies.FIRST


class _HighestIdFirst(LogprobsOracle):
    """Of equal tokens lists the highest id first, and declares it."""

    def best(self, logits: Any, number: int) -> Any:
        return len(logits) - 1 - super().best(logits[::-1], number)


class _FirstRankHighestId(_HighestIdFirst):
    """Both."""

    rank_ties = RankTies.FIRST


class _AddsFromTheEnd(LogprobsOracle):
    """Sums in float32, from the last token to the first."""

    def log_softmax(self, logits: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            shifted = np.ascontiguousarray(logits) - logits.max(axis=1, keepdims=True, initial=-np.inf)
            sums = np.exp(shifted[:, ::-1]).sum(axis=1, keepdims=True, dtype=np.float32)
            return (shifted - np.log(sums)).astype(np.float64)


class _SubtractsLogSumExp(LogprobsOracle):
    """The maximum is added to the logarithm of the sum, in float64, and both are subtracted at once."""

    def log_softmax(self, logits: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            wide = logits.astype(np.float64)
            largest = wide.max(axis=1, keepdims=True, initial=-np.inf)
            return wide - (largest + np.log(np.exp(wide - largest).sum(axis=1, keepdims=True)))


class _RowByRow(LogprobsOracle):
    """Rows are computed one after another."""

    def log_softmax(self, logits: Any) -> Any:
        rows = [super(_RowByRow, self).log_softmax(logits[row : row + 1]) for row in range(len(logits))]
        return np.concatenate(rows) if rows else super().log_softmax(logits)


class _ColumnByColumn(LogprobsOracle):
    """Returns tensors with other strides."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        turned = (one.t().contiguous().t() for one in (found.token_ids, found.logprobs))
        return dataclasses.replace(found, **dict(zip(("token_ids", "logprobs"), turned, strict=True)))


class _IdsOf32Bits(LogprobsOracle):
    """Ids and ranks are int32; values are a part of a wider buffer."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        assert found.ranks is not None
        values = torch.cat([found.logprobs, found.logprobs], dim=1)[:, : found.logprobs.shape[1]]
        return LogprobsResult(found.token_ids.int(), values, found.ranks.int())


ODD_BUT_RIGHT: tuple[FunctionLogprobsSampler, ...] = (
    as_sampler(_FirstRank(), Drawing(), "ranks ties first"),
    logprobs_sampler(
        _HighestIdFirst().logprobs, name="highest id first", unsupported={"lowest-id-ties": "takes the highest"}
    ),
    logprobs_sampler(
        _FirstRankHighestId().logprobs,
        name="first rank, highest id",
        rank_ties=RankTies.FIRST,
        unsupported={"lowest-id-ties": "takes the highest"},
    ),
    as_sampler(_AddsFromTheEnd(), Drawing(), "adds from the end"),
    as_sampler(_SubtractsLogSumExp(), Drawing(), "subtracts the log-sum-exp"),
    as_sampler(_RowByRow(), Drawing(), "row by row"),
    as_sampler(_ColumnByColumn(), Drawing(), "column by column"),
    as_sampler(_IdsOf32Bits(), Drawing(), "ids of 32 bits"),
)
"""Correct functions of other making."""


def _fresh(faulty: type[Any]) -> FunctionLogprobsSampler:  # Any: a LogprobsOracle or a Drawing
    """Return a faulty oracle with what draws rightly, or the right oracle with what draws wrongly."""
    made, name = faulty(), name_of(faulty)
    return as_sampler(LogprobsOracle(), made, name) if isinstance(made, Drawing) else as_sampler(made, Drawing(), name)


_mutant = partial(mutant_as, _fresh)


# -- what an answer is ------------------------------------------------------------------------------------------------


@_mutant("LPR101")
class PutsTheBestTokenFirst(LogprobsOracle):
    """The first column is the most probable token, whatever was emitted."""

    def ids(self, logits: Any, token: int, number: int) -> Any:
        return np.concatenate([self.best(logits, 1), self.best(logits, number)])


@_mutant("LPR201")
class PadsWithMinusOne(LogprobsOracle):
    """Behind the last token that is possible, the list is filled with id -1."""

    def best(self, logits: Any, number: int) -> Any:
        ids = super().best(logits, number)
        return np.where(logits[ids] == -np.inf, -1, ids)


@_mutant("LPR201")
class ListsTheBestTokenTwice(LogprobsOracle):
    """Two tiles were merged, and the candidate on their edge was counted in both."""

    def best(self, logits: Any, number: int) -> Any:
        ids = super().best(logits, number)
        return np.concatenate([ids[:1], ids])[:number]


@_mutant("LPR201")
class ListsInTheOrderOfIds(LogprobsOracle):
    """The right tokens, unsorted."""

    def best(self, logits: Any, number: int) -> Any:
        return np.sort(super().best(logits, number))


@_mutant("LPR201")
class TakesTheEmittedTokenOut(LogprobsOracle):
    """The emitted token stands in the first column, so the list goes without it, and with one more."""

    def ids(self, logits: Any, token: int, number: int) -> Any:
        others = [one for one in self.best(logits, number + 1) if one != token]
        return np.concatenate([[token], [*others, token][:number]]).astype(np.int64)


@_mutant("LPR201")
class HasTwoFormulas(LogprobsOracle):
    """The emitted token's value is computed from its probability, those of the list from the logits."""

    def values(self, scores: Any, ids: Any) -> Any:
        found = super().values(scores, ids)
        with np.errstate(divide="ignore", over="ignore"):
            found[0] = np.log(np.exp(found[0], dtype=np.float32), dtype=np.float32)
        return found


@_mutant("LPR201")
class ListsTheHighestOfEqualIds(LogprobsOracle):
    """Of equal tokens the last one comes first."""

    def best(self, logits: Any, number: int) -> Any:
        return len(logits) - 1 - super().best(logits[::-1], number)


@_mutant("LPR201")
class WritesIntoTheLogits(LogprobsOracle):
    """A log-softmax in place, where the logits are float32."""

    def stage_logits(self, batch: LogprobsBatch) -> Any:
        logits = super().stage_logits(batch).copy()
        batch.stage_logits.sub_(1.0)
        return logits


# -- rows without a distribution, batches without rows ----------------------------------------------------------------


@_mutant("LPR201")
class TakesNanForMinusInfinity(LogprobsOracle):
    """`nan_to_num` before the softmax."""

    def log_softmax(self, logits: Any) -> Any:
        return log_softmax(np.where(np.isnan(logits), np.float32(-np.inf), logits))


@_mutant("LPR201")
class SpreadsEmptyRows(LogprobsOracle):
    """Nothing is possible, so everything is: an epsilon under the logarithm."""

    def log_softmax(self, logits: Any) -> Any:
        empty = np.isneginf(logits).all(axis=1, keepdims=True)
        return log_softmax(np.where(empty, np.float32(0), logits))


@_mutant("LPR201")
class HasOneMaximumForAllRows(LogprobsOracle):
    """The maximum that is subtracted is that of the batch; it does not matter until a row holds a NaN."""

    def log_softmax(self, logits: Any) -> Any:
        return log_softmax(logits) + 0 * np.max(np.where(np.isinf(logits), 0, logits), initial=0)


@_mutant("LPR201")
class MakesARowOfNone(LogprobsOracle):
    """An empty batch is padded to one row, and stays it."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        if len(found.token_ids):
            return found
        ids, values = (torch.zeros((1, *one.shape[1:]), dtype=one.dtype) for one in (found.token_ids, found.logprobs))
        return LogprobsResult(ids, values, torch.zeros(1, dtype=torch.int64))


@_mutant("LPR201")
class FreesItsBufferForNoRows(LogprobsOracle):
    """After an empty batch the values of the next one are not written."""

    was_empty = False

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        if self.was_empty and len(found.logprobs):
            found.logprobs.zero_()
        self.was_empty = not len(found.logprobs)
        return found


@_mutant("LPR201")
class CountsARowForEveryRequest(LogprobsOracle):
    """A request without a row is given the last one of the request before it."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        if 0 in batch.num_rows and len(found.logprobs):
            found.logprobs[-1] = 0
        return found


@_mutant("LPR201")
class LeavesOutRequestsWithoutRows(LogprobsOracle):
    """How many each row asks for is looked up by a count of the requests that have rows."""

    def numbers(self, batch: LogprobsBatch) -> list[int | None]:
        asked = [batch.vocab_size if one == ALL_LOGPROBS else one for one in batch.num_logprobs]
        counts = [count for count in batch.num_rows if count]
        return [one for one, count in zip(asked, counts, strict=False) for _ in range(count)]


@_mutant("LPR201")
class KeepsTheSumOfTheChunkBefore(LogprobsOracle):
    """Rows are normalised in chunks of 256; the first row of a chunk is divided by the sum of the row before it."""

    def log_softmax(self, logits: Any) -> Any:
        found = super().log_softmax(logits)
        for first in range(256, len(logits), 256):
            found[first] += found[first - 1].max() - logits[first - 1].max() - found[first].max() + logits[first].max()
        return found


@_mutant("LPR201")
class ListsTwentyInOrder(LogprobsOracle):
    """Behind the twentieth place ids follow as they come."""

    def best(self, logits: NDArray[np.float32], number: int) -> NDArray[np.int64]:
        ranked = super().best(logits, number)
        return np.concatenate([ranked[:20], np.sort(ranked[20:])])


# -- values -----------------------------------------------------------------------------------------------------------


@_mutant("LPR201")
class ReturnsProcessedForRaw(LogprobsOracle):
    """Float32 logits were not copied before they were processed, and raw values are computed afterwards."""

    def stage_logits(self, batch: LogprobsBatch) -> Any:
        if batch.logits.dtype == torch.float32:
            batch = batch.replace(stage=batch.stage.replace("raw", "processed"))
        return super().stage_logits(batch)


@_mutant("LPR201")
class ReturnsRawForProcessed(LogprobsOracle):
    """The word is accepted, and nothing else is done about it."""

    def stage_logits(self, batch: LogprobsBatch) -> Any:
        return super().stage_logits(batch.replace(stage=batch.stage.replace("processed", "raw")))


@_mutant("LPR201")
class CountsInBits(LogprobsOracle):
    """Logarithms to base 2, as kernels compute them, are returned as they are."""

    def log_softmax(self, logits: Any) -> Any:
        return log_softmax(logits) * np.log2(np.e)


@_mutant("LPR201")
class IsSixteenUlpsOff(LogprobsOracle):
    """Each value is off by a little more than float32 arithmetic explains."""

    def log_softmax(self, logits: Any) -> Any:
        exact = log_softmax(logits)
        return exact - 2.0**-24 * (96 + 4 * np.abs(np.where(np.isfinite(exact), exact, 0)))


@_mutant("LPR201")
class NormalisesLogits(LogprobsOracle):
    """Logits are returned less their maximum."""

    def scores(self, batch: LogprobsBatch, logits: Any) -> Any:
        if not batch.wants_logits or not logits.size:
            return super().scores(batch, logits)
        with np.errstate(invalid="ignore"):
            return logits - logits.max(axis=1, keepdims=True)


@_mutant("LPR201")
class CastsLogitsToBfloat16(LogprobsOracle):
    """The buffer of returned logits has the model's dtype."""

    def scores(self, batch: LogprobsBatch, logits: Any) -> Any:
        found = super().scores(batch, logits)
        return torch.from_numpy(found).bfloat16().float().numpy() if batch.wants_logits else found


@_mutant("LPR201")
class ComputesInTheModelsDtype(LogprobsOracle):
    """`log_softmax` without `dtype=float32`."""

    def scores(self, batch: LogprobsBatch, logits: Any) -> Any:
        found = super().scores(batch, logits)
        return found if batch.wants_logits else torch.from_numpy(found).to(batch.logits.dtype).float().numpy()


@_mutant("LPR201")
class RoundsTheLogSumExp(LogprobsOracle):
    """`logit - logsumexp`, the latter in float32."""

    def log_softmax(self, logits: Any) -> Any:
        exact = log_softmax(logits)
        with np.errstate(invalid="ignore"):
            best = exact.max(axis=1, keepdims=True, initial=-np.inf)
            top = logits.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64)
            return logits.astype(np.float64) - (top - best).astype(np.float32)


@_mutant("LPR201")
class HasIdsOf16Bits(LogprobsOracle):
    """Ids of the list are kept in 16 bits."""

    def best(self, logits: Any, number: int) -> Any:
        return super().best(logits, number) % _VOCABULARY_OF_16_BITS


@_mutant("LPR201")
class LosesTheLastTile(LogprobsOracle):
    """The sum leaves out what is behind the last full tile of 8192 tokens; smaller vocabularies are one tile."""

    def log_softmax(self, logits: Any) -> Any:
        size, exact = logits.shape[1], log_softmax(logits)
        kept = size // 8192 * 8192
        if not kept or not logits.size:
            return exact
        with np.errstate(divide="ignore", invalid="ignore"):
            return exact - np.log(np.exp(exact[:, :kept]).sum(axis=1, keepdims=True))


@_mutant("LPR201")
class AddsUpOneByOne(LogprobsOracle):
    """The sum of a row is added up in float32, token by token."""

    def log_softmax(self, logits: Any) -> Any:
        if not logits.size:
            return log_softmax(logits)
        with np.errstate(invalid="ignore", divide="ignore"):
            shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
            total = np.cumsum(np.exp(shifted).astype(np.float32), axis=1, dtype=np.float32)[:, -1:]
            return shifted - np.log(total.astype(np.float64))


@_mutant("LPR201")
class NormalisesBeforeTheMask(LogprobsOracle):
    """Excluded tokens get -inf, and the others keep the probability that they had in the whole vocabulary."""

    def scores(self, batch: LogprobsBatch, logits: Any) -> Any:
        found = super().scores(batch, logits)
        if batch.stage != "processed_logprobs":
            return found
        raw = super().scores(batch.replace(stage="raw_logprobs"), batch.logits.float().cpu().numpy())
        return np.where(np.isneginf(logits), -np.inf, raw).astype(np.float32)


@_mutant("LPR201")
class ReturnsAFiniteFloor(LogprobsOracle):
    """-9999 in the place of -inf, so that it can be written as JSON."""

    def values(self, scores: Any, ids: Any) -> Any:
        return np.maximum(super().values(scores, ids), np.float32(-9999))


# -- ranks ------------------------------------------------------------------------------------------------------------


@_mutant("LPR201")
class RanksFromZero(LogprobsOracle):
    """The most probable token has rank 0."""

    def rank(self, logits: Any, token: int) -> int:
        return super().rank(logits, token) - 1


@_mutant("LPR201")
class RanksTiesFirst(LogprobsOracle):
    """Counts larger tokens where those as large are to be counted, too."""

    def rank(self, logits: Any, token: int) -> int:
        return 1 + int((logits > logits[token]).sum())


@_mutant("LPR136")
class CountsPaddedColumns(LogprobsOracle):
    """Lanes behind the end of the vocabulary are loaded as -inf, and count if the token has -inf, too."""

    def rank(self, logits: Any, token: int) -> int:
        padding = -len(logits) % 8192
        return super().rank(logits, token) + (padding if logits[token] == -np.inf else 0)


@_mutant("LPR201")
class CountsIn16Bits(LogprobsOracle):
    """The rank is an int16."""

    def rank(self, logits: Any, token: int) -> int:
        return int(np.array(super().rank(logits, token)).astype(np.int16))


@_mutant("LPR201")
class CountsInBfloat16(LogprobsOracle):
    """Ones are added up in the model's dtype, which has eight bits."""

    def rank(self, logits: Any, token: int) -> int:
        return int(torch.tensor(super().rank(logits, token)).bfloat16())


@_mutant("LPR201")
class RanksRoundedLogprobs(LogprobsOracle):
    """Ranks count log-probabilities in float32, of which many are equal where logits are not."""

    def rank(self, logits: Any, token: int) -> int:
        scores = log_softmax(logits[None])[0].astype(np.float32)
        return int((scores >= scores[token]).sum())


@_mutant("LPR201")
class RanksAmongTheListed(LogprobsOracle):
    """The rank of a token that is not listed is the length of the list."""

    number = 0

    def ids(self, logits: Any, token: int, number: int) -> Any:
        self.number = number
        return super().ids(logits, token, number)

    def rank(self, logits: Any, token: int) -> int:
        return min(super().rank(logits, token), max(1, self.number))


# -- relations --------------------------------------------------------------------------------------------------------


@_mutant("LPR141")
class NormalisesOverTheListed(LogprobsOracle):
    """Probabilities of the listed tokens are made to sum to 1."""

    def values(self, scores: Any, ids: Any) -> Any:
        found = super().values(scores, ids)
        with np.errstate(over="ignore"):
            total = np.exp(found[1:].astype(np.float64)).sum()
        return found if len(found) < 2 or not total > 0 else (found - np.log(total)).astype(np.float32)


@_mutant("LPR142")
class RoundsToTheBatch(LogprobsOracle):
    """A sum is added up in an order that depends on the number of rows: the last bit moves."""

    def scores(self, batch: LogprobsBatch, logits: Any) -> Any:
        found = super().scores(batch, logits)
        return np.nextafter(found, np.float32(0)) if len(logits) > 1 and not batch.wants_logits else found


@_mutant("LPR201")
class RepeatsTheFirstRowsOfALastChunk(LogprobsOracle):
    """Rows from the eighth on are computed in a second chunk, which is given the tokens of the first."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        if len(found.logprobs) > 8:
            found.logprobs[8:] = found.logprobs[: len(found.logprobs) - 8][: len(found.logprobs[8:])].clone()
        return found


@_mutant("LPR201", "LPR142")
class SortsRequestsByWhatTheyAskFor(LogprobsOracle):
    """Rows are sorted for one launch per number, and the answers are not put back."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        numbers = [-1 if number is None else number for number in batch.row_logprobs]
        order = torch.from_numpy(np.argsort(numbers, kind="stable"))
        return dataclasses.replace(found, logprobs=found.logprobs[order])


@_mutant("LPR201")
class ShiftsRowsOfDrafts(LogprobsOracle):
    """The value of a row with drafts is that of the position behind it."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found, first = super().logprobs(batch), 0
        values = found.logprobs.clone()
        for count in batch.num_rows:
            if count > 1:
                values[first : first + count - 1] = found.logprobs[first + 1 : first + count]
            first += count
        return dataclasses.replace(found, logprobs=values)


@_mutant("LPR201")
class CompactsRowsThatAsk(LogprobsOracle):
    """Rows are compacted to those that ask; the index of the answer is not."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        asking = [row for row, number in enumerate(batch.row_logprobs) if number is not None]
        values = torch.zeros_like(found.logprobs)
        values[: len(asking)] = found.logprobs[asking]
        return dataclasses.replace(found, logprobs=values)


@_mutant("LPR201")
class TakesZeroForNone(LogprobsOracle):
    """`if num_logprobs:`"""

    def numbers(self, batch: LogprobsBatch) -> list[int | None]:
        return [number or None for number in batch.row_logprobs]


@_mutant("LPR201")
class ListsTwentyAtMost(LogprobsOracle):
    """A limit of the server that is applied to -1, without a word."""

    def numbers(self, batch: LogprobsBatch) -> list[int | None]:
        asked = [batch.num_logprobs[request] for request in batch.row_requests]
        return [5 if one == -1 else number for one, number in zip(asked, batch.row_logprobs, strict=True)]


@_mutant("LPR201")
class AddsToItsWorkspace(LogprobsOracle):
    """A counter in the workspace is not cleared."""

    calls = 0

    def rank(self, logits: Any, token: int) -> int:
        return super().rank(logits, token) + self.calls

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        self.calls += 1
        return found


@_mutant("LPR201")
class KeepsTheWidestBuffer(LogprobsOracle):
    """Rows are read from a buffer of the largest call, with its width as stride, once there was a larger one."""

    width = 0

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found, rows = super().logprobs(batch), len(batch.token_ids)
        if 0 < rows < self.width:
            found.logprobs[rows - 1] = 0.5
        self.width = max(self.width, rows)
        return found


@_mutant("LPR201")
class ReadsIdsOf32BitsAsPairs(LogprobsOracle):
    """A kernel loads ids as 64 bits, whatever they are."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        if batch.token_ids.dtype == torch.int32 and len(batch.token_ids):
            first = batch.token_ids[::2].repeat_interleave(2)[: len(batch.token_ids)]
            batch = batch.replace(token_ids=torch.where(first == NOT_EMITTED, batch.token_ids, first))
        return super().logprobs(batch)


@_mutant("LPR201")
class AssumesRowsLieTogether(LogprobsOracle):
    """The next row begins `vocab_size` elements later."""

    def stage_logits(self, batch: LogprobsBatch) -> Any:
        logits = batch.stage_logits
        if logits.is_contiguous() or logits.stride(0) > 1 << 20:
            return super().stage_logits(batch)
        flat = logits.as_strided((logits.shape[0], logits.shape[1]), (logits.shape[1], 1))
        return flat.float().nan_to_num(posinf=9.0).numpy().copy()


@_mutant("LPR201")
class AssumesIdsLieTogether(LogprobsOracle):
    """The next row's id is the next number in memory."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        ids = batch.token_ids.as_strided(batch.token_ids.shape, (1,))
        return super().logprobs(batch.replace(token_ids=ids.where(ids < batch.vocab_size, 0)))


@_mutant("LPR201")
class WritesWhereNothingWasEmitted(LogprobsOracle):
    """The row of id -1 is computed, too, and written to the place before."""

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        found = super().logprobs(batch)
        rows = [row for row, token in enumerate(batch.token_ids.tolist()) if token == NOT_EMITTED and row]
        for row in rows:
            found.logprobs[row - 1, 0] = batch.logits[row, -1]
        return found


# -- a function that draws --------------------------------------------------------------------------------------------


@_mutant("LPR161")
class ReturnsRawBesideDrawnTokens(Drawing):
    """Filters decide about the token, and the distribution without them is returned, less what they excluded."""

    def returned(self, batch: SamplingBatch, distribution: Any) -> Any:
        return np.where(distribution > 0, self.softmax(batch), 0)


@_mutant("DIST951")
class ReturnsTheDistributionBeforeTheTemperature(Drawing):
    """Log-probabilities are those of temperature 1, whatever the token was drawn at."""

    def returned(self, batch: SamplingBatch, distribution: Any) -> Any:
        plain = np.exp(log_softmax(batch.logits.float().numpy()))
        return np.where(distribution > 0, plain, 0) / np.where(distribution > 0, plain, 0).sum(axis=1, keepdims=True)


@_mutant("DIST952", "DIST951")
class ReturnsAUniformDistribution(Drawing):
    """Everything that is possible is returned as equally probable, whatever the token was drawn from."""

    def returned(self, batch: SamplingBatch, distribution: Any) -> Any:
        return (distribution > 0) / (distribution > 0).sum(axis=1, keepdims=True)


@_mutant("DIST952")
class DrawsLessFromTheEnd(Drawing):
    """The last sixteenth of the vocabulary is drawn half as often as what is returned says."""

    def distribution(self, batch: SamplingBatch) -> Any:
        return self._right(batch) * self._weights(batch.vocab_size)

    def returned(self, batch: SamplingBatch, distribution: Any) -> Any:
        return self._right(batch)

    def _right(self, batch: SamplingBatch) -> NDArray[np.float64]:  # [batch_size, vocab_size] float64
        return super().distribution(batch)

    def _weights(self, size: int) -> NDArray[np.float64]:  # [vocab_size] float64
        return np.where(np.arange(size) < size - size // 16, 1.0, 0.5)


@_mutant("LPR162")
class ReturnsARawValueWithTheToken(Drawing):
    """The token comes with its log-probability at temperature 1, the list with those that it was drawn from."""

    def answer(self, batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult:
        found = super().answer(batch, noise)
        plain = torch.from_numpy(log_softmax(batch.logits.float().numpy()).astype(np.float32))
        found.logprobs[:, :1] = plain.gather(1, found.token_ids[:, :1])
        return found


def _lanes(fault: LaneFault) -> FunctionLogprobsSampler:
    return as_sampler(LogprobsOracle(), racing(Drawing, fault)(), fault.name)


MUTANTS = (
    *(value for value in list(vars().values()) if isinstance(value, Mutant)),
    *lane_mutants(_lanes, "DIST952", "DIST952", faults=LANE_FAULTS),
    *lane_mutants(_lanes, "DIST953", "DIST953", min_draws=500_000),
)
