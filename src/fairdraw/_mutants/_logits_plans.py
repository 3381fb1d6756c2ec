"""Faults of the plan: copies, memory, decisions that were made for another step or another batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch
from torch import Tensor

from fairdraw._mutants._logits_mutant import mutant_planner
from fairdraw._oracles.logits_plan import Edit, LogitsPlanOracle, Row, exclude
from fairdraw.contracts import Capabilities, LogitsBatch, LogitsParams, PlanSetup


@mutant_planner("PLAN101", "PLAN102")
class CopiesWhenNothingIsToBeDone(LogitsPlanOracle):
    """As in vLLM: a clone at every step, for processors that do not run."""

    def untouched(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return logits.clone()


@mutant_planner("PLAN103")
class CopiesTwice(LogitsPlanOracle):
    """Casts with a copy, then clones to be safe."""

    def copied(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return super().copied(logits).clone()


@mutant_planner("PLAN105")
class WritesIntoTheGivenLogits(LogitsPlanOracle):
    """`to(float32)` is no copy of float32 logits, so raw logits are processed when log-probabilities are computed."""

    def copied(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return logits.to(torch.float32)


@mutant_planner("PLAN105", capabilities=Capabilities.of({"copy-free": "returns a tensor of its own"}))
class ReturnsAViewOfTheGivenLogits(LogitsPlanOracle):
    """Another tensor object, the same memory."""

    def untouched(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return logits[:]


@mutant_planner("PLAN105")
class ProcessesTheRawLogitsAsWell(LogitsPlanOracle):
    """The raw logits that are used for log-probabilities contain the bias already."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        processed = super().process(batch, setup)
        if processed is not batch.logits:
            batch.logits.copy_(processed)
        return processed


@mutant_planner("PLAN107")
class KeepsTheDtypeOfTheModel(LogitsPlanOracle):
    """Processed logits go back to bfloat16."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] any
        return super().process(batch, setup).to(batch.logits.dtype)


@mutant_planner("PLAN112")
class AsksTheFirstRequestOnly(LogitsPlanOracle):
    """If the first request needs no processor, no request gets one."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        first = [row for row in self.rows(batch, setup) if row.request == 0]
        needs = any(self.edits(name, first) or self.customs(name, first, setup) for name in self.order)
        return super().process(batch, setup) if needs else self.untouched(batch.logits)


@mutant_planner("PLAN112")
class MasksTheNeighboursRow(LogitsPlanOracle):
    """A request's allowed ids on the next request's rows: an index that counts from 1."""

    params: tuple[LogitsParams, ...] = ()

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        self.params = tuple(request.params for request in batch.requests)
        return super().process(batch, setup)

    def allowed_ids(self, row: Row) -> Edit | None:
        allowed = self.params[row.request - 1].allowed_token_ids
        return None if allowed is None else exclude(set(range(row.vocab_size)) - set(allowed))


@mutant_planner("PLAN130", "PLAN161")
class KeepsThePlanOfABatchOfTheSameSize(LogitsPlanOracle):
    """A new request gets the parameters of the one whose row it took."""

    params: tuple[LogitsParams, ...] = ()

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        if len(self.params) != batch.batch_size:
            self.params = tuple(request.params for request in batch.requests)
        pairs = zip(batch.requests, self.params, strict=True)
        stale = tuple(dataclasses.replace(request, params=params) for request, params in pairs)
        return super().process(batch.replace(requests=stale), setup)


@mutant_planner("PLAN133")
class LeavesParametersBehind(LogitsPlanOracle):
    """Requests move, their parameters do not: rows are planned anew only for requests that were added."""

    def __init__(self) -> None:
        self.params: dict[int, LogitsParams] = {}

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        self.params |= {row: params for row, params, _, _ in (batch.change.added if batch.change else ())}
        stale = [dataclasses.replace(request, params=self.params[i]) for i, request in enumerate(batch.requests)]
        return super().process(batch.replace(requests=tuple(stale)), setup)


@mutant_planner("PLAN132")
class DecidesOnceWhetherThereIsWork(LogitsPlanOracle):
    """A batch without work in its first step is left alone until it changes."""

    idle = False

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        if batch.change is None and self.idle:
            return self.untouched(batch.logits)
        processed = super().process(batch, setup)
        self.idle = processed is batch.logits
        return processed


@mutant_planner("PLAN132")
class ForgetsMinimaThatWereReached(LogitsPlanOracle):
    """As in vLLM: an output that was long enough and lost its end may stop."""

    def __init__(self) -> None:
        self.reached: list[list[int]] = []

    def min_tokens(self, row: Row) -> Edit | None:
        output = row.source.output_token_ids
        if len(output) >= row.params.min_tokens:
            self.reached.append(output)
        return None if any(output is known for known in self.reached) else super().min_tokens(row)


@mutant_planner("PLAN142")
class WrapsIds(LogitsPlanOracle):
    """An id beyond the vocabulary means another token."""

    def in_vocabulary(self, token_ids: Collection[int], row: Row) -> list[int]:
        return [token_id % row.vocab_size for token_id in token_ids]


@mutant_planner("PLAN142")
class ClampsIds(LogitsPlanOracle):
    """An id beyond the vocabulary means its last token."""

    def in_vocabulary(self, token_ids: Collection[int], row: Row) -> list[int]:
        return [min(token_id, row.vocab_size - 1) for token_id in token_ids]


@mutant_planner("PLAN142")
class DropsListsWithAnUnknownId(LogitsPlanOracle):
    """One id beyond the vocabulary, and the whole list is passed over, without a word."""

    def in_vocabulary(self, token_ids: Collection[int], row: Row) -> list[int]:
        return [] if max(token_ids, default=0) >= row.vocab_size else list(token_ids)


@mutant_planner("PLAN142")
class WritesIntoTheNextRow(LogitsPlanOracle):
    """Ids are offsets in the flat logits: one beyond the vocabulary is a token of the next row."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        processed, size = super().process(batch, setup), batch.logits.shape[1]
        for row in self.rows(batch, setup):
            beyond = [row.index * size + i for i in row.params.logit_bias or () if i >= size]
            flat = processed.view(-1)
            flat[[place for place in beyond if place < flat.numel()]] += 5.0
        return processed
