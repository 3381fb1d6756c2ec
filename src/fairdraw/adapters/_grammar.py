"""Maskers: `sampler_impl.grammar`, and the whole step with a bitmask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.adapters._step import Backend, by_row, capabilities_of, cumulative, plan_for, rounded_up
from fairdraw.contracts import BitmaskBatch, FunctionGrammarMasker, GrammarBatch, SeededNoise, num_words
from fairdraw.strategies.noise import hashed_seeds

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw._core.tensor_types import AnyLogitRows, Bitmasks, RequestCounts
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.sampler_impl.step import StepInputs


def torch_masker(row: SamplerRow, device: str) -> FunctionGrammarMasker:
    """Return `fairdraw.sampler_impl.grammar`."""
    from fairdraw.sampler_impl import grammar

    def apply(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        return grammar.apply_bitmask(batch.logits, batch.bitmask, batch.indices)

    def drafts(batch: GrammarBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        return grammar.apply_bitmask(batch.logits, _forked(batch))

    return FunctionGrammarMasker(row.name, apply, drafts, device, row.capabilities())


def _forked(batch: GrammarBatch) -> Bitmasks:
    from fairdraw.sampler_impl.grammar import fork_bitmasks

    words = torch.empty((len(batch.logits), num_words(batch.vocab_size)), dtype=torch.int32)
    grammars = [request.grammar for request in batch.requests]
    drafts = [request.draft_token_ids for request in batch.requests]
    return fork_bitmasks(grammars, drafts, words).to(batch.device)


# The step, which takes the bitmask with everything else


@dataclass(frozen=True)
class StepMasker(FunctionGrammarMasker):
    """A masker that draws the tokens of a step itself."""

    backend: Backend = "torch"

    def emit(self, batch: GrammarBatch, noise: SeededNoise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        """Verify one-hot drafts under the forked grammars."""
        counts = torch.tensor(batch.num_draft_tokens, dtype=torch.int32, device=batch.device)
        drafts = [token for one in batch.requests for token in (*one.draft_token_ids, 0)]
        inputs = _inputs(batch.logits, _forked(batch), noise, counts + 1, torch.tensor(drafts, dtype=torch.int32))
        plan = _plan(batch.logits, batch.batch_size, batch.max_spec_len, self.backend)
        tokens: Tensor = plan(inputs).token_ids
        return tokens[:, : batch.max_spec_len + 1]


def step(row: SamplerRow, device: str, *, backend: Backend) -> StepMasker:
    """Return `StepPlan` with a grammar mask and no other parameter; its processed logits are float32, cast back
    exactly."""

    def apply(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        words, width = batch.bitmask[: batch.batch_size], num_words(batch.vocab_size)
        if batch.indices is not None or words.shape[1] < width:
            words = torch.full((batch.batch_size, width), -1, dtype=torch.int32, device=batch.device)
            known = min(width, batch.bitmask.shape[1])
            words[batch.rows, :known] = batch.bitmask[batch.rows, :known]
        # As it lies, if the step can take it so: engines slice one buffer.
        words = words[:, :width]
        return _processed(batch.logits, words if words.stride(1) == 1 else words.contiguous(), backend)

    def drafts(batch: GrammarBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        return _processed(batch.logits, _forked(batch), backend)

    return StepMasker(row.name, apply, drafts, device, capabilities_of(row, backend, device), backend=backend)


def _processed(logits: AnyLogitRows, words: Bitmasks, backend: Backend) -> AnyLogitRows:
    counts = torch.ones(len(logits), dtype=torch.int32, device=logits.device)
    inputs = _inputs(logits, words, hashed_seeds(0, ()), counts)
    processed: Tensor = _plan(logits, len(logits), 0, backend).processed_logits(inputs)
    return processed.to(logits.dtype)


def _plan(logits: AnyLogitRows, batch_size: int, max_spec_len: int, backend: Backend) -> Any:  # Any: StepPlan
    from fairdraw.sampler_impl.step import Capacity, Drafts

    kind = Drafts.ONE_HOT if max_spec_len else Drafts.NONE
    width = rounded_up(max_spec_len) if max_spec_len else 0
    sizes = (rounded_up(batch_size), width, logits.shape[1])
    return plan_for(Capacity(*sizes, logits.dtype, kind, filters=False, grammar=True), logits.device, backend)


def _inputs(
    logits: AnyLogitRows, words: Bitmasks, noise: SeededNoise, counts: RequestCounts, drafts: Tensor | None = None
) -> StepInputs:  # drafts: [num_rows] int32
    from fairdraw._core.seeds import derive_seed
    from fairdraw.sampler_impl.step import Parameters, StepInputs

    seeds = [derive_seed("row", noise.seed, i) % 2**62 for i in range(len(counts))]
    has_drafts = drafts is not None and int(counts.max()) > 1
    return StepInputs(
        logits=by_row(logits),
        parameters=Parameters(torch.ones(len(counts), device=logits.device)),
        seeds=torch.tensor(seeds, dtype=torch.int64, device=logits.device),
        positions=torch.zeros(len(counts), dtype=torch.int64, device=logits.device),
        cu_num_rows=cumulative(counts),
        draft_token_ids=drafts.to(logits.device) if has_drafts and drafts is not None else None,
        grammar_mask=words,
    )
