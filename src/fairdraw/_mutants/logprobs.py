"""Wrong functions of the log-probabilities contract, one fault each; many were found in real engines.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._mutants._lanes import LANE_FAULTS, LaneFault, lane_mutants, racing
from fairdraw._mutants._mutant import Memory, as_if_dense, mutant_as, mutants_in, name_of, patching
from fairdraw._mutants.sampling_distributions import DistributionTokenSampler
from fairdraw._oracles.logprobs import LogprobsOracle, log_softmax
from fairdraw.contracts import ALL_LOGPROBS, NOT_EMITTED, FunctionLogprobsSampler, LogprobsResult, logprobs_sampler
from fairdraw.contracts import LogprobsBatch as Batch

if TYPE_CHECKING:
    from fairdraw.contracts import SamplingBatch, SamplingNoise

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


def _fresh(faulty: type[Any]) -> FunctionLogprobsSampler:  # Any: a LogprobsOracle or a Drawing
    """Return a faulty oracle with what draws rightly, or the right oracle with what draws wrongly."""
    made, name = faulty(), name_of(faulty)
    return as_sampler(LogprobsOracle(), made, name) if isinstance(made, Drawing) else as_sampler(made, Drawing(), name)


_mutant = partial(mutant_as, _fresh)
_patched, _drawing = patching(_mutant, LogprobsOracle), patching(_mutant, Drawing)


# -- what an answer is ------------------------------------------------------------------------------------------------


@_patched("ids", "LPR101")
def puts_the_best_token_first(right: LogprobsOracle, logits: Any, token: int, number: int) -> Any:
    """The first column is the most probable token, whatever was emitted."""
    return np.concatenate([right.best(logits, 1), right.best(logits, number)])


@_patched("best", "LPR201")
def pads_with_minus_one(answer: Any, logits: Any, number: int) -> Any:
    """Behind the last token that is possible, the list is filled with id -1."""
    return np.where(logits[answer] == -np.inf, -1, answer)


@_patched("best", "LPR201")
def lists_the_best_token_twice(answer: Any, logits: Any, number: int) -> Any:
    """Two tiles were merged, and the candidate on their edge was counted in both."""
    return np.concatenate([answer[:1], answer])[:number]


@_patched("best", "LPR201")
def lists_in_the_order_of_ids(right: LogprobsOracle, logits: Any, number: int) -> Any:
    """The right tokens, unsorted."""
    return np.sort(right.best(logits, number))


@_patched("ids", "LPR201")
def takes_the_emitted_token_out(right: LogprobsOracle, logits: Any, token: int, number: int) -> Any:
    """The emitted token stands in the first column, so the list goes without it, and with one more."""
    others = [one for one in right.best(logits, number + 1) if one != token]
    return np.concatenate([[token], [*others, token][:number]]).astype(np.int64)


@_patched("values", "LPR201")
def has_two_formulas(answer: Any, scores: Any, ids: Any) -> None:
    """The emitted token's value is computed from its probability, those of the list from the logits."""
    with np.errstate(divide="ignore", over="ignore"):
        answer[0] = np.log(np.exp(answer[0], dtype=np.float32), dtype=np.float32)


@_patched("best", "LPR201")
def lists_the_highest_of_equal_ids(right: LogprobsOracle, logits: Any, number: int) -> Any:
    """Lists the last of equal tokens first."""
    return len(logits) - 1 - right.best(logits[::-1], number)


@_patched("stage_logits", "LPR201")
def writes_into_the_logits(right: LogprobsOracle, batch: Batch) -> Any:
    """A log-softmax in place, where the logits are float32."""
    logits = right.stage_logits(batch).copy()
    batch.stage_logits.sub_(1.0)
    return logits


# -- rows without a distribution, batches without rows ----------------------------------------------------------------


@_patched("log_softmax", "LPR201")
def takes_nan_for_minus_infinity(right: LogprobsOracle, logits: Any) -> Any:
    """`nan_to_num` before the softmax."""
    return log_softmax(np.where(np.isnan(logits), np.float32(-np.inf), logits))


@_patched("log_softmax", "LPR201")
def spreads_empty_rows(right: LogprobsOracle, logits: Any) -> Any:
    """Nothing is possible, so everything is: an epsilon under the logarithm."""
    empty = np.isneginf(logits).all(axis=1, keepdims=True)
    return log_softmax(np.where(empty, np.float32(0), logits))


@_patched("log_softmax", "LPR201")
def has_one_maximum_for_all_rows(right: LogprobsOracle, logits: Any) -> Any:
    """The maximum that is subtracted is that of the batch; it does not matter until a row holds a NaN."""
    return log_softmax(logits) + 0 * np.max(np.where(np.isinf(logits), 0, logits), initial=0)


@_patched("logprobs", "LPR201")
def makes_a_row_of_none(answer: LogprobsResult, batch: Batch) -> LogprobsResult:
    """An empty batch is padded to one row, and stays it."""
    if len(answer.token_ids):
        return answer
    ids, values = (torch.zeros((1, *one.shape[1:]), dtype=one.dtype) for one in (answer.token_ids, answer.logprobs))
    return LogprobsResult(ids, values, torch.zeros(1, dtype=torch.int64))


@_patched("logprobs", "LPR201")
def frees_its_buffer_for_no_rows(answer: LogprobsResult, batch: Batch, *, kept: Memory) -> None:
    """After an empty batch the values of the next one are not written."""
    if kept.get("was_empty"):
        answer.logprobs.zero_()
    kept["was_empty"] = not len(answer.logprobs)


@_patched("logprobs", "LPR201")
def counts_a_row_for_every_request(answer: LogprobsResult, batch: Batch) -> None:
    """A request without a row is given the last one of the request before it."""
    if 0 in batch.num_rows and len(answer.logprobs):
        answer.logprobs[-1] = 0


@_patched("numbers", "LPR201")
def leaves_out_requests_without_rows(right: LogprobsOracle, batch: Batch) -> list[int | None]:
    """How many each row asks for is looked up by a count of the requests that have rows."""
    asked = [batch.vocab_size if one == ALL_LOGPROBS else one for one in batch.num_logprobs]
    counts = [count for count in batch.num_rows if count]
    return [one for one, count in zip(asked, counts, strict=False) for _ in range(count)]


@_patched("log_softmax", "LPR201")
def keeps_the_sum_of_the_chunk_before(answer: Any, logits: Any) -> None:
    """Rows are normalised in chunks of 256; the first row of a chunk is divided by the sum of the row before it."""
    for first in range(256, len(logits), 256):
        answer[first] += answer[first - 1].max() - logits[first - 1].max() - answer[first].max() + logits[first].max()


@_patched("best", "LPR201")
def lists_twenty_in_order(answer: NDArray[np.int64], logits: NDArray[np.float32], number: int) -> NDArray[np.int64]:
    """Behind the twentieth place ids follow as they come."""
    return np.concatenate([answer[:20], np.sort(answer[20:])])


# -- values -----------------------------------------------------------------------------------------------------------


@_patched("stage_logits", "LPR201")
def returns_processed_for_raw(right: LogprobsOracle, batch: Batch) -> Any:
    """Float32 logits were not copied before they were processed, and raw values are computed afterwards."""
    if batch.logits.dtype == torch.float32:
        batch = batch.replace(stage=batch.stage.replace("raw", "processed"))
    return right.stage_logits(batch)


@_patched("stage_logits", "LPR201")
def returns_raw_for_processed(right: LogprobsOracle, batch: Batch) -> Any:
    """The word is accepted, and nothing else is done about it."""
    return right.stage_logits(batch.replace(stage=batch.stage.replace("processed", "raw")))


@_patched("log_softmax", "LPR201")
def counts_in_bits(right: LogprobsOracle, logits: Any) -> Any:
    """Logarithms to base 2, as kernels compute them, are returned as they are."""
    return log_softmax(logits) * np.log2(np.e)


@_patched("log_softmax", "LPR201")
def is_sixteen_ulps_off(right: LogprobsOracle, logits: Any) -> Any:
    """Each value is off by a little more than float32 arithmetic explains."""
    exact = log_softmax(logits)
    return exact - 2.0**-24 * (96 + 4 * np.abs(np.where(np.isfinite(exact), exact, 0)))


@_patched("scores", "LPR201")
def normalises_logits(answer: Any, batch: Batch, logits: Any) -> Any:
    """Logits are returned less their maximum."""
    with np.errstate(invalid="ignore"):
        return logits - logits.max(axis=1, keepdims=True) if batch.wants_logits else answer


@_patched("scores", "LPR201")
def casts_logits_to_bfloat16(answer: Any, batch: Batch, logits: Any) -> Any:
    """The buffer of returned logits has the model's dtype."""
    return torch.from_numpy(answer).bfloat16().float().numpy() if batch.wants_logits else answer


@_patched("scores", "LPR201")
def computes_in_the_models_dtype(answer: Any, batch: Batch, logits: Any) -> Any:
    """`log_softmax` without `dtype=float32`."""
    return answer if batch.wants_logits else torch.from_numpy(answer).to(batch.logits.dtype).float().numpy()


@_patched("log_softmax", "LPR201")
def rounds_the_log_sum_exp(right: LogprobsOracle, logits: Any) -> Any:
    """`logit - logsumexp`, the latter in float32."""
    exact = log_softmax(logits)
    with np.errstate(invalid="ignore"):
        best = exact.max(axis=1, keepdims=True, initial=-np.inf)
        top = logits.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64)
        return logits.astype(np.float64) - (top - best).astype(np.float32)


@_patched("best", "LPR201")
def has_ids_of16_bits(right: LogprobsOracle, logits: Any, number: int) -> Any:
    """Ids of the list are kept in 16 bits."""
    return right.best(logits, number) % _VOCABULARY_OF_16_BITS


@_patched("log_softmax", "LPR201")
def loses_the_last_tile(answer: Any, logits: Any) -> Any:
    """The sum leaves out what is behind the last full tile of 8192 tokens; smaller vocabularies are one tile."""
    kept = logits.shape[1] // 8192 * 8192
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.log(np.exp(answer[:, :kept]).sum(axis=1, keepdims=True))
        return answer - lost if kept else answer


@_patched("log_softmax", "LPR201")
def adds_up_one_by_one(right: LogprobsOracle, logits: Any) -> Any:
    """The sum of a row is added up in float32, token by token."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        total = np.cumsum(np.exp(shifted).astype(np.float32), axis=1, dtype=np.float32)[:, -1:]
        return shifted - np.log(total.astype(np.float64))


@_patched("scores", "LPR201")
def normalises_before_the_mask(right: LogprobsOracle, batch: Batch, logits: Any) -> Any:
    """Excluded tokens get -inf, and the others keep the probability that they had in the whole vocabulary."""
    found = right.scores(batch, logits)
    if batch.stage != "processed_logprobs":
        return found
    raw = right.scores(batch.replace(stage="raw_logprobs"), batch.logits.float().cpu().numpy())
    return np.where(np.isneginf(logits), -np.inf, raw).astype(np.float32)


@_patched("values", "LPR201")
def returns_a_finite_floor(right: LogprobsOracle, scores: Any, ids: Any) -> Any:
    """-9999 in the place of -inf, so that it can be written as JSON."""
    return np.maximum(right.values(scores, ids), np.float32(-9999))


# -- ranks ------------------------------------------------------------------------------------------------------------


@_patched("rank", "LPR201")
def ranks_from_zero(right: LogprobsOracle, logits: Any, token: int) -> int:
    """The most probable token has rank 0."""
    return right.rank(logits, token) - 1


@_patched("rank", "LPR201")
def ranks_ties_first(right: LogprobsOracle, logits: Any, token: int) -> int:
    """Counts larger tokens where those as large are to be counted, too."""
    return 1 + int((logits > logits[token]).sum())


@_patched("rank", "LPR136")
def counts_padded_columns(right: LogprobsOracle, logits: Any, token: int) -> int:
    """Lanes behind the end of the vocabulary are loaded as -inf, and count if the token has -inf, too."""
    padding = -len(logits) % 8192
    return right.rank(logits, token) + (padding if logits[token] == -np.inf else 0)


@_patched("rank", "LPR201")
def counts_in16_bits(right: LogprobsOracle, logits: Any, token: int) -> int:
    """The rank is an int16."""
    return int(np.array(right.rank(logits, token)).astype(np.int16))


@_patched("rank", "LPR201")
def counts_in_bfloat16(right: LogprobsOracle, logits: Any, token: int) -> int:
    """Ones are added up in the model's dtype, which has eight bits."""
    return int(torch.tensor(right.rank(logits, token)).bfloat16())


@_patched("rank", "LPR201")
def ranks_rounded_logprobs(right: LogprobsOracle, logits: Any, token: int) -> int:
    """Ranks count log-probabilities in float32, of which many are equal where logits are not."""
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


@_patched("values", "LPR141")
def normalises_over_the_listed(answer: Any, scores: Any, ids: Any) -> Any:
    """Probabilities of the listed tokens are made to sum to 1."""
    with np.errstate(over="ignore"):
        total = np.exp(answer[1:].astype(np.float64)).sum()
    return answer if len(answer) < 2 or not total > 0 else (answer - np.log(total)).astype(np.float32)


@_patched("scores", "LPR142")
def rounds_to_the_batch(answer: Any, batch: Batch, logits: Any) -> Any:
    """A sum is added up in an order that depends on the number of rows: the last bit moves."""
    return np.nextafter(answer, np.float32(0)) if len(logits) > 1 and not batch.wants_logits else answer


@_patched("logprobs", "LPR201")
def repeats_the_first_rows_of_a_last_chunk(answer: LogprobsResult, batch: Batch) -> None:
    """Rows from the eighth on are computed in a second chunk, which is given the tokens of the first."""
    if len(answer.logprobs) > 8:
        answer.logprobs[8:] = answer.logprobs[: len(answer.logprobs) - 8][: len(answer.logprobs[8:])].clone()


@_patched("logprobs", "LPR201", "LPR142")
def sorts_requests_by_what_they_ask_for(answer: LogprobsResult, batch: Batch) -> LogprobsResult:
    """Rows are sorted for one launch per number, and the answers are not put back."""
    numbers = [-1 if number is None else number for number in batch.row_logprobs]
    order = torch.from_numpy(np.argsort(numbers, kind="stable"))
    return dataclasses.replace(answer, logprobs=answer.logprobs[order])


@_patched("logprobs", "LPR201")
def shifts_rows_of_drafts(answer: LogprobsResult, batch: Batch) -> LogprobsResult:
    """The value of a row with drafts is that of the position behind it."""
    values, first = answer.logprobs.clone(), 0
    for count in batch.num_rows:
        if count > 1:
            values[first : first + count - 1] = answer.logprobs[first + 1 : first + count]
        first += count
    return dataclasses.replace(answer, logprobs=values)


@_patched("logprobs", "LPR201")
def compacts_rows_that_ask(answer: LogprobsResult, batch: Batch) -> LogprobsResult:
    """Rows are compacted to those that ask; the index of the answer is not."""
    asking = [row for row, number in enumerate(batch.row_logprobs) if number is not None]
    values = torch.zeros_like(answer.logprobs)
    values[: len(asking)] = answer.logprobs[asking]
    return dataclasses.replace(answer, logprobs=values)


@_patched("numbers", "LPR201")
def takes_zero_for_none(right: LogprobsOracle, batch: Batch) -> list[int | None]:
    """`if num_logprobs:`"""
    return [number or None for number in batch.row_logprobs]


@_patched("numbers", "LPR201")
def lists_twenty_at_most(right: LogprobsOracle, batch: Batch) -> list[int | None]:
    """A limit of the server that is applied to -1, without a word."""
    asked = [batch.num_logprobs[request] for request in batch.row_requests]
    return [5 if one == -1 else number for one, number in zip(asked, batch.row_logprobs, strict=True)]


@_mutant("LPR201")
class AddsToItsWorkspace(LogprobsOracle):
    """A counter in the workspace is not cleared."""

    calls = 0

    def rank(self, logits: Any, token: int) -> int:
        return super().rank(logits, token) + self.calls

    def logprobs(self, batch: Batch) -> LogprobsResult:
        found = super().logprobs(batch)
        self.calls += 1
        return found


@_patched("logprobs", "LPR201")
def keeps_the_widest_buffer(answer: LogprobsResult, batch: Batch, *, kept: Memory) -> None:
    """Rows are read from a buffer of the largest call, with its width as stride, once there was a larger one."""
    rows = len(batch.token_ids)
    if 0 < rows < kept.get("width", 0):
        answer.logprobs[rows - 1] = 0.5
    kept["width"] = max(kept.get("width", 0), rows)


@_patched("logprobs", "LPR201")
def reads_ids_of32_bits_as_pairs(right: LogprobsOracle, batch: Batch) -> LogprobsResult:
    """A kernel loads ids as 64 bits, whatever they are."""
    if batch.token_ids.dtype == torch.int32 and len(batch.token_ids):
        first = batch.token_ids[::2].repeat_interleave(2)[: len(batch.token_ids)]
        batch = batch.replace(token_ids=torch.where(first == NOT_EMITTED, batch.token_ids, first))
    return right.logprobs(batch)


@_patched("stage_logits", "LPR201")
def assumes_rows_lie_together(right: LogprobsOracle, batch: Batch) -> Any:
    """The next row begins `vocab_size` elements later."""
    logits = batch.stage_logits
    if logits.is_contiguous() or logits.stride(0) > 1 << 20:
        return right.stage_logits(batch)
    return as_if_dense(logits).float().nan_to_num(posinf=9.0).numpy().copy()


@_patched("logprobs", "LPR201")
def assumes_ids_lie_together(right: LogprobsOracle, batch: Batch) -> LogprobsResult:
    """The next row's id is the next number in memory."""
    ids = as_if_dense(batch.token_ids)
    return right.logprobs(batch.replace(token_ids=ids.where(ids < batch.vocab_size, 0)))


@_patched("logprobs", "LPR201")
def writes_where_nothing_was_emitted(answer: LogprobsResult, batch: Batch) -> None:
    """The row of id -1 is computed, too, and written to the place before."""
    rows = [row for row, token in enumerate(batch.token_ids.tolist()) if token == NOT_EMITTED and row]
    for row in rows:
        answer.logprobs[row - 1, 0] = batch.logits[row, -1]


# -- a function that draws --------------------------------------------------------------------------------------------


@_drawing("returned", "LPR161")
def returns_raw_beside_drawn_tokens(right: Drawing, batch: SamplingBatch, distribution: Any) -> Any:
    """Filters decide about the token, and the distribution without them is returned, less what they excluded."""
    return np.where(distribution > 0, right.softmax(batch), 0)


@_drawing("returned", "LPR161", "DIST951")
def returns_the_distribution_before_the_temperature(right: Drawing, batch: SamplingBatch, distribution: Any) -> Any:
    """Log-probabilities are those of temperature 1, whatever the token was drawn at."""
    plain = np.exp(log_softmax(batch.logits.float().numpy()))
    return np.where(distribution > 0, plain, 0) / np.where(distribution > 0, plain, 0).sum(axis=1, keepdims=True)


@_drawing("returned", "DIST952", "DIST951")
def returns_a_uniform_distribution(right: Drawing, batch: SamplingBatch, distribution: Any) -> Any:
    """Everything that is possible is returned as equally probable, whatever the token was drawn from."""
    return (distribution > 0) / (distribution > 0).sum(axis=1, keepdims=True)


@_mutant("DIST952")
class DrawsLessFromTheEnd(Drawing):
    """The last sixteenth of the vocabulary is drawn half as often as what is returned says."""

    def distribution(self, batch: SamplingBatch) -> Any:
        size = batch.vocab_size
        return self._right(batch) * np.where(np.arange(size) < size - size // 16, 1.0, 0.5)

    def returned(self, batch: SamplingBatch, distribution: Any) -> Any:
        return self._right(batch)

    def _right(self, batch: SamplingBatch) -> NDArray[np.float64]:  # [batch_size, vocab_size] float64
        return super().distribution(batch)


@_drawing("answer", "LPR162")
def returns_a_raw_value_with_the_token(answer: LogprobsResult, batch: SamplingBatch, noise: SamplingNoise) -> None:
    """The token comes with its log-probability at temperature 1, the list with those that it was drawn from."""
    plain = torch.from_numpy(log_softmax(batch.logits.float().numpy()).astype(np.float32))
    answer.logprobs[:, :1] = plain.gather(1, answer.token_ids[:, :1])


def _lanes(fault: LaneFault) -> FunctionLogprobsSampler:
    return as_sampler(LogprobsOracle(), racing(Drawing, fault)(), fault.name)


MUTANTS = (
    *mutants_in(vars()),
    *lane_mutants(_lanes, "DIST952", "DIST952", faults=LANE_FAULTS),
    *lane_mutants(_lanes, "DIST953", "DIST953", min_draws=500_000),
)
