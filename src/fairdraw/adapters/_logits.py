"""fairdraw's penalties, thinking budget and logits plan, behind the contracts of a live batch.

`_PaddedSession` keeps a token buffer as vLLM's runner keeps `token_ids_cpu`: it is written when a request enters and
when tokens are appended, -1 for those that are late, and never repaired; rows move with their requests. In steps with
drafts the engine builds its own tensor, which is done here from the lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID as PLACEHOLDER
from fairdraw.contracts import AddedRow, LiveBatch, LogitsBatch, Move, PlanSetup, Rounding, RowChanges, SessionSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fairdraw._core.tensor_types import LogitRows
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.contracts import Markers

MOST_REQUESTS, LONGEST = 1040, 36_864
"""Sizes of the buffers of a penalties session, which costs nothing until they are written."""


def penalties(row: SamplerRow, device: str) -> SessionSampler:
    """Return `fairdraw.sampler_impl.penalties.Penalties`: counts that are kept between steps."""
    return _sampler(row, device, partial(_open_penalties, device), Rounding.of_vllm(device))


def padded_penalties(row: SamplerRow, device: str) -> SessionSampler:
    """Return `fairdraw.sampler_impl.penalties.PaddedOutputs`, counted in PyTorch; always on the CPU."""
    return _sampler(row, "cpu", _open_padded)


def thinking(row: SamplerRow, device: str) -> SessionSampler:
    """Return `fairdraw.sampler_impl.thinking_budget.ThinkingBudget`; it decides on the host."""
    return _sampler(row, device, _open_thinking)


def plan(row: SamplerRow, device: str, *, always_copies: bool = False) -> SessionSampler:
    """Return `fairdraw.sampler_impl.logits_plan`; with `always_copies` it copies the logits as vLLM does."""
    return _sampler(row, device, partial(_open_plan, device, always_copies), Rounding.of_vllm(device))


def _sampler(
    row: SamplerRow, device: str, function: Callable[[Any], Any], rounding: Rounding = Rounding.FREE
) -> SessionSampler:  # Any: as the contract has it
    return SessionSampler(row.name, function, row.contract, device, row.capabilities(), rounding)


# Penalties


def _open_penalties(device: str, vocab_size: int) -> _PenaltiesSession:
    from fairdraw.sampler_impl.penalties import Penalties

    return _PenaltiesSession(Penalties(vocab_size, device))


@dataclass(frozen=True)
class _PenaltiesSession:
    penalties: Any  # Any: `Penalties`, which asks for lists; the suite's sequences behave like them

    def sync(self, changes: RowChanges) -> None:
        self.penalties.sync_batch(changes)

    def penalise(self, logits: LogitRows, batch: LiveBatch) -> LogitRows:
        self.penalties.update(batch.output_token_ids)
        return self._applied(self.penalties.apply, logits, batch)

    def penalise_drafts(self, logits: LogitRows, batch: LiveBatch) -> LogitRows:
        return self._applied(self.penalties.apply_to_drafts, logits, batch)

    def _applied(self, apply: Callable[..., LogitRows], logits: LogitRows, batch: LiveBatch) -> LogitRows:
        return apply(logits, *batch.factors(self.penalties.device.type), batch.draft_token_ids)


def _open_padded(vocab_size: int) -> _PaddedSession:
    from fairdraw.sampler_impl.penalties import PaddedOutputs

    return _PaddedSession(PaddedOutputs("cpu"), vocab_size)


class _PaddedSession:
    """A padded tensor of all outputs, built anew at every step."""

    def __init__(self, padded: Any, vocab_size: int) -> None:  # Any: `PaddedOutputs`, as above
        self.padded, self.vocab_size = padded, vocab_size
        self.rows: list[AddedRow | None] = [None] * MOST_REQUESTS
        self.buffer = np.zeros((MOST_REQUESTS, LONGEST), np.int32)
        self.num_prompt = np.zeros(MOST_REQUESTS, np.int32)
        self.num_tokens = np.zeros(MOST_REQUESTS, np.int32)

    def sync(self, changes: RowChanges) -> None:
        for row in changes.removed:
            self.rows[row] = None
        for added in changes.added:
            self.rows[added.row] = added
            self.num_prompt[added.row] = self.num_tokens[added.row] = len(added.prompt_token_ids)
            self.buffer[added.row, : len(added.prompt_token_ids)] = added.prompt_token_ids
        for source, target, direction in changes.moved:
            pair, back = [source, target], [target, source]
            self.rows[target], self.rows[source] = self.rows[source], self.rows[target]
            for array in (self.buffer, self.num_prompt, self.num_tokens):
                array[pair] = array[back]
            if direction is Move.UNIDIRECTIONAL:
                self.rows[source] = None

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        live = [None if added is None else added.output_token_ids for added in self.rows]
        self._append(live)
        rows = list(range(len(batch.requests)))
        if batch.num_drafts:
            seen = [[*r.output_token_ids, *r.draft_token_ids] for r in batch.requests]
            return self._penalised(logits, batch, rows, seen)
        bounds = self.num_prompt, self.num_tokens
        built = self.padded.build(batch.output_token_ids, live, self.buffer, *bounds, self.vocab_size)
        return self._penalised(logits, batch, rows, batch.output_token_ids if built is None else built.tolist())

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        rows = [(row, n) for row, r in enumerate(batch.requests) for n in range(len(r.draft_token_ids))]
        seen = [[*batch.requests[row].output_token_ids, *batch.requests[row].draft_token_ids[:n]] for row, n in rows]
        return self._penalised(logits, batch, [row for row, _ in rows], seen)

    def _append(self, live: Sequence[Sequence[int] | None]) -> None:
        """Append as the runner does after a step: new ids, as they are known, and no others."""
        for row, tokens in enumerate(live):
            if tokens is not None:
                begin, end = int(self.num_tokens[row]), int(self.num_prompt[row]) + len(tokens)
                if self._was_rewritten(row, min(begin, end), tokens):
                    begin = int(self.num_prompt[row])
                if end > begin:
                    self.buffer[row, begin:end] = list(tokens)[begin - end :]
                self.num_tokens[row] = end

    def _was_rewritten(self, row: int, end: int, tokens: Sequence[int]) -> bool:
        """Whether tokens were cut and others follow: the last one that was known is another one."""
        begin = int(self.num_prompt[row])
        known = [i for i in range(begin, end) if self.buffer[row, i] != PLACEHOLDER]
        return bool(known) and int(self.buffer[row, known[-1]]) != tokens[known[-1] - begin]

    def _penalised(
        self, logits: LogitRows, batch: LiveBatch, request: list[int], outputs: Sequence[Sequence[int]]
    ) -> LogitRows:
        """Penalise as specified, for the tokens that were built."""
        found = []
        for row, i, own in zip(logits.numpy(), request, outputs, strict=True):
            one = batch.requests[i]
            seen = PenalisedRow(one.prompt_token_ids, list(own), PenaltyFactors(*one.params.factors))
            found.append(PenaltiesOracle().penalise(row, seen))
        return torch.from_numpy(np.stack(found))


# Thinking budget


def _open_thinking(markers: Markers) -> _ThinkingSession:
    from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

    return _ThinkingSession(ThinkingBudget(markers.start, markers.end))


class _ThinkingSession:
    def __init__(self, thinking: Any) -> None:  # Any: `ThinkingBudget`, as above
        self.thinking, self.sync, self.think_counts = thinking, thinking.sync_batch, thinking.think_counts

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        self.thinking.update_state(batch.output_token_ids, batch.draft_token_ids)
        return {row: list(tokens) for row, tokens in self.thinking.forced.items()}


# Logits plan


def _open_plan(device: str, always_copies: bool, setup: PlanSetup) -> _PlanSession:
    from fairdraw.sampler_impl.logits_plan import LogitsPlan
    from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

    thinking = ThinkingBudget(setup.start_token_ids, setup.end_token_ids)
    customs: Any = setup.custom_processors  # Any: they get rows of its own, which have the fields of `RowOfRequest`
    plan = LogitsPlan(setup.vocab_size, device, thinking=thinking, custom_processors=customs)
    return _PlanSession(plan, always_copies)


@dataclass(frozen=True)
class _PlanSession:
    plan: Any  # Any: a `LogitsPlan`, as above
    always_copies: bool

    def process(self, batch: LogitsBatch) -> LogitRows:
        self.plan.sync_batch(batch.change)
        outputs = [request.output_token_ids for request in batch.requests]
        drafts = [request.draft_token_ids for request in batch.requests]
        processed: LogitRows = self.plan.apply(batch.logits, outputs, drafts)
        return processed.float().clone() if self.always_copies else processed
