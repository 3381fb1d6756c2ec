"""Faults of the plan: copies, memory, decisions that were made for another step or another batch."""

import dataclasses
from collections.abc import Collection

import torch

from fairdraw._core.tensor_types import LogitRows
from fairdraw._mutants._logits_mutant import mutant_planner, patched_planner
from fairdraw._mutants._mutant import Memory
from fairdraw._oracles.logits_plan import Edit, Row, exclude
from fairdraw._oracles.logits_plan import LogitsPlanOracle as Oracle
from fairdraw.contracts import Capabilities, LogitsParams, PlanSetup
from fairdraw.contracts import LogitsBatch as Batch


@patched_planner("untouched", "PLAN101", "PLAN102")
def copies_when_nothing_is_to_be_done(right: Oracle, logits: LogitRows) -> LogitRows:
    """As in vLLM: a clone at every step, for processors that do not run."""
    return logits.clone()


@patched_planner("copied", "PLAN103")
def copies_twice(right: Oracle, logits: LogitRows) -> LogitRows:
    """Casts with a copy, then clones to be safe."""
    return right.copied(logits).clone()


@patched_planner("copied", "PLAN105")
def writes_into_the_given_logits(right: Oracle, logits: LogitRows) -> LogitRows:
    """`to(float32)` is no copy of float32 logits, so raw logits are processed when log-probabilities are computed."""
    return logits.to(torch.float32)


@patched_planner("untouched", "PLAN105", capabilities=Capabilities.of({"copy-free": "returns a tensor of its own"}))
def returns_a_view_of_the_given_logits(right: Oracle, logits: LogitRows) -> LogitRows:
    """Another tensor object, the same memory."""
    return logits[:]


@patched_planner("process", "PLAN105")
def processes_the_raw_logits_as_well(answer: LogitRows, batch: Batch, setup: PlanSetup) -> None:
    """The raw logits that are used for log-probabilities contain the bias already."""
    if answer is not batch.logits:
        batch.logits.copy_(answer)


@patched_planner("process", "PLAN107")
def keeps_the_dtype_of_the_model(right: Oracle, batch: Batch, setup: PlanSetup) -> LogitRows:
    """Processed logits go back to bfloat16."""
    return right.process(batch, setup).to(batch.logits.dtype)


@patched_planner("process", "PLAN112")
def asks_the_first_request_only(right: Oracle, batch: Batch, setup: PlanSetup) -> LogitRows:
    """If the first request needs no processor, no request gets one."""
    first = [row for row in right.rows(batch, setup) if row.request == 0]
    needs = any(right.edits(name, first) or right.customs(name, first, setup) for name in right.order)
    return right.process(batch, setup) if needs else right.untouched(batch.logits)


@mutant_planner("PLAN112")
class MasksTheNeighboursRow(Oracle):
    """A request's allowed ids on the next request's rows: an index that counts from 1."""

    params: tuple[LogitsParams, ...] = ()

    def process(self, batch: Batch, setup: PlanSetup) -> LogitRows:
        self.params = tuple(request.params for request in batch.requests)
        return super().process(batch, setup)

    def allowed_ids(self, row: Row) -> Edit | None:
        allowed = self.params[row.request - 1].allowed_token_ids
        return None if allowed is None else exclude(set(range(row.vocab_size)) - set(allowed))


@patched_planner("process", "PLAN130", "PLAN161")
def keeps_the_plan_of_a_batch_of_the_same_size(
    right: Oracle, batch: Batch, setup: PlanSetup, kept: Memory
) -> LogitRows:
    """A new request gets the parameters of the one whose row it took."""
    if len(kept) != batch.batch_size:
        kept.clear()
        kept |= {row: request.params for row, request in enumerate(batch.requests)}
    stale = [dataclasses.replace(request, params=kept[row]) for row, request in enumerate(batch.requests)]
    return right.process(batch.replace(requests=tuple(stale)), setup)


@patched_planner("process", "PLAN133")
def leaves_parameters_behind(right: Oracle, batch: Batch, setup: PlanSetup, *, kept: Memory) -> LogitRows:
    """Requests move, their parameters do not: rows are planned anew only for requests that were added."""
    kept |= {row: params for row, params, _, _ in (batch.change.added if batch.change else ())}
    stale = [dataclasses.replace(request, params=kept[row]) for row, request in enumerate(batch.requests)]
    return right.process(batch.replace(requests=tuple(stale)), setup)


@patched_planner("process", "PLAN132")
def decides_once_whether_there_is_work(right: Oracle, batch: Batch, setup: PlanSetup, kept: Memory) -> LogitRows:
    """A batch without work in its first step is left alone until it changes."""
    if batch.change is None and kept.get("is_idle"):
        return right.untouched(batch.logits)
    processed = right.process(batch, setup)
    kept["is_idle"] = processed is batch.logits
    return processed


@patched_planner("min_tokens", "PLAN132")
def forgets_minima_that_were_reached(right: Oracle, row: Row, *, kept: Memory) -> Edit | None:
    """As in vLLM: an output that was long enough and lost its end may stop."""
    output = row.source.output_token_ids
    if len(output) >= row.params.min_tokens:
        kept[id(output)] = output  # the list itself, so that no other gets its identity
    return None if id(output) in kept else right.min_tokens(row)


@patched_planner("in_vocabulary", "PLAN142")
def wraps_ids(right: Oracle, token_ids: Collection[int], row: Row) -> list[int]:
    """An id beyond the vocabulary means another token."""
    return [token_id % row.vocab_size for token_id in token_ids]


@patched_planner("in_vocabulary", "PLAN142")
def clamps_ids(right: Oracle, token_ids: Collection[int], row: Row) -> list[int]:
    """An id beyond the vocabulary means its last token."""
    return [min(token_id, row.vocab_size - 1) for token_id in token_ids]


@patched_planner("in_vocabulary", "PLAN142")
def drops_lists_with_an_unknown_id(right: Oracle, token_ids: Collection[int], row: Row) -> list[int]:
    """One id beyond the vocabulary, and the whole list is passed over, without a word."""
    return [] if max(token_ids, default=0) >= row.vocab_size else list(token_ids)


@patched_planner("process", "PLAN142")
def writes_into_the_next_row(right: Oracle, batch: Batch, setup: PlanSetup) -> LogitRows:
    """Ids are offsets in the flat logits: one beyond the vocabulary is a token of the next row."""
    processed, size = right.process(batch, setup), batch.logits.shape[1]
    for row in right.rows(batch, setup):
        beyond = [row.index * size + i for i in row.params.logit_bias or () if i >= size]
        flat = processed.view(-1)
        flat[[place for place in beyond if place < flat.numel()]] += 5.0
    return processed
