"""Masks beside tokens, of the whole step."""

from __future__ import annotations

import torch

from fairdraw.adapters._catalogue import SamplerRow
from fairdraw.adapters._step import Backend, capabilities_of, plan_of, sampling_inputs
from fairdraw.contracts import FilterPolicy, FunctionMaskedSampler, MaskedTokens, MaskRows, SamplingBatch, SamplingNoise


def step(row: SamplerRow, device: str, *, backend: Backend) -> FunctionMaskedSampler:
    """Return a plan without drafts. Of tokens that tie at the edge of top-p all stay."""

    def sample(batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        output = plan_of(batch, backend, logprobs=True).masked(sampling_inputs(batch, noise), into.words)
        assert output.logprobs is not None
        write_ids(into, batch.vocab_size)
        return MaskedTokens(output.token_ids[:, 0], output.logprobs[:, 0])

    capabilities = capabilities_of(row, backend, device)
    return FunctionMaskedSampler(row.name, sample, device, capabilities, FilterPolicy(top_p_ties="all"))


def write_ids(into: MaskRows, vocab_size: int) -> None:
    """Write ids and counts of the bits that are set: what a reader of words does."""
    bits = (into.words[:, :, None] >> torch.arange(32, device=into.words.device)) & 1
    is_kept = bits.flatten(1)[:, :vocab_size]
    into.counts.copy_(is_kept.sum(1))
    places = is_kept.cumsum(1) - 1
    row, token = (is_kept * (places < into.token_ids.shape[1])).nonzero(as_tuple=True)
    into.token_ids[row, places[row, token]] = token.int()
