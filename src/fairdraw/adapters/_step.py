"""`fairdraw.sampler_impl.step`, the whole step in one call, as a sampler; `_step_plan.py` has its processed logits.

An engine builds one plan. Here a plan is built for each capacity, with sizes rounded up to powers of two so that few
are needed, and with what the batch uses and nothing else: so every combination of a plan's parts is asked about.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

import torch

from fairdraw.adapters._rejection import bonus_mask, draft_by_counter, draft_counts, kept_seeds, rows_of, seeds_of_step
from fairdraw.adapters._runtime import triton_is_interpreted
from fairdraw.adapters._sampling import counter_seeds
from fairdraw.contracts import Drafted, ExplicitNoise, FilterPolicy, FunctionSampler, FunctionTokenSampler, RaceNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw._core import tensor_types as shapes
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.contracts import Capabilities, Noise, SamplingBatch, SamplingNoise, SpecDecodeBatch
    from fairdraw.sampler_impl.step import Capacity, StepInputs, StepOutput, StepPlan

Backend = Literal["torch", "triton"]


def sampling(row: SamplerRow, device: str, *, backend: Backend) -> FunctionTokenSampler:
    """Return a plan without drafts. Of tokens that tie at the edge of top-p all stay."""

    def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
        return plan_of(batch, backend)(sampling_inputs(batch, noise)).token_ids[:, 0]

    def draft(batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """Return tokens, and the softmax of processed rows."""
        output, processed = plan_of(batch, backend).drafted(sampling_inputs(batch, noise))
        tokens = output.token_ids[:, 0].long()
        return Drafted(tokens, _probs(processed, tokens, batch.is_greedy))

    capabilities = capabilities_of(row, backend, device)
    return FunctionTokenSampler(row.name, sample, draft, device, capabilities, FilterPolicy(top_p_ties="all"))


def rejection(row: SamplerRow, device: str, *, backend: Backend, draft_logits: bool = False) -> FunctionSampler:
    """Return a plan without filters, since the contract's logits are processed; the step draws its own bonus tokens.

    Args:
        draft_logits: Give logarithms of the batch's draft probabilities in their place.
    """
    verify = functools.partial(_verify, backend, draft_logits)
    return FunctionSampler(row.name, verify, device, capabilities_of(row, backend, device), propose=draft_by_counter)


def capabilities_of(row: SamplerRow, backend: Backend, device: str) -> Capabilities:
    """Return the capabilities of the row, slower in Triton's interpreter: milliseconds, and minutes for large
    vocabularies."""
    if backend != "triton" or not triton_is_interpreted(device):
        return row.capabilities()
    return row.capabilities({"its filters take minutes there in Triton's interpreter": ["large-vocab"]}, slow=True)


@functools.lru_cache(maxsize=64)
def plan_for(capacity: Capacity, device: torch.device, backend: Backend) -> StepPlan:
    from fairdraw.sampler_impl.step import StepPlan

    return StepPlan(capacity, device, backend=backend)


def rounded_up(size: int) -> int:
    """Return `number` rounded up to a power of two."""
    return 1 << max(size - 1, 0).bit_length()


def by_row(logits: shapes.AnyLogitRows) -> shapes.AnyLogitRows:
    """Return rows that may have any stride, but whose entries may not."""
    return logits if logits.stride(-1) == 1 else logits.contiguous()


def words_of(are_set: Tensor) -> Tensor:  # [..., vocab_size] bool, and [..., num_words] int32
    """Return masks with a bit per token."""
    bits = torch.nn.functional.pad(are_set.long(), (0, -are_set.shape[-1] % 32))
    bits = bits.view(*are_set.shape[:-1], -1, 32)
    words: Tensor = (bits << torch.arange(32, device=bits.device)).sum(-1)
    return words.int()


# Sampling


def plan_of(batch: SamplingBatch, backend: Backend, *, logprobs: bool = False) -> StepPlan:
    from fairdraw.sampler_impl.step import Capacity, Drafts

    filters = any(value is not None for value in (batch.top_k, batch.top_p, batch.min_p))
    size = rounded_up(batch.batch_size)
    capacity = Capacity(size, 0, batch.vocab_size, batch.logits.dtype, Drafts.NONE, filters, logprobs=logprobs)
    return plan_for(capacity, batch.device, backend)


def sampling_inputs(batch: SamplingBatch, noise: SamplingNoise) -> StepInputs:
    from fairdraw.sampler_impl.step import Parameters, StepInputs

    assert not isinstance(noise, RaceNoise), "explicit noise is unsupported"
    temperature = batch.temperature.masked_fill(batch.is_greedy, 0.0)
    return StepInputs(
        logits=by_row(batch.logits),
        parameters=Parameters(temperature, batch.top_k, batch.top_p, batch.min_p),
        seeds=counter_seeds(batch, noise),
        positions=batch.positions,
        cu_num_rows=torch.arange(batch.batch_size + 1, dtype=torch.int32, device=batch.device),
    )


def _probs(processed: shapes.LogitRows, tokens: shapes.RequestInts, is_greedy: shapes.RequestFlags) -> shapes.LogitRows:
    """Return probabilities, one-hot for greedy requests and for rows without a distribution."""
    one_hot = torch.zeros_like(processed).scatter_(-1, tokens[:, None], 1.0)
    is_certain = is_greedy | ~processed.amax(-1).isfinite()
    return torch.where(is_certain[:, None], one_hot, processed.softmax(-1))


# Rejection


def _verify(backend: Backend, draft_logits: bool, batch: SpecDecodeBatch, noise: Noise) -> shapes.OutputTokens:
    """Verify from processed logits, by the number of the request alone."""
    from fairdraw.sampler_impl.step import Capacity, Drafts, Parameters, StepInputs

    seeds, positions = counters_of(batch, noise)
    drafts = Drafts.ONE_HOT if batch.draft_probs is None else Drafts.LOGITS if draft_logits else Drafts.PROBS
    width = rounded_up(max(batch.max_spec_len, 1))
    sizes = (rounded_up(batch.batch_size), width, batch.vocab_size)
    plan = plan_for(Capacity(*sizes, batch.target_logits.dtype, drafts, filters=False), batch.device, backend)
    is_bonus, rows = bonus_mask(batch), draft_probs_of(batch, width)
    output = plan(
        StepInputs(
            logits=rows_of(batch, is_bonus),
            parameters=Parameters(torch.where(batch.is_greedy, 0.0, 1.0)),
            seeds=seeds,
            positions=positions,
            cu_num_rows=cumulative(draft_counts(batch) + 1),
            draft_token_ids=drafts_of(batch.draft_token_ids, is_bonus),
            draft_probs=rows if drafts is Drafts.PROBS else None,
            draft_logits=rows.log() if rows is not None and drafts is Drafts.LOGITS else None,
        )
    )
    return tokens_of(batch, output)


def counters_of(batch: SpecDecodeBatch, noise: Noise) -> tuple[shapes.RequestInts, shapes.RequestInts]:
    """Return seeds and positions of the requests."""
    assert not isinstance(noise, ExplicitNoise), "explicit noise is unsupported"
    if batch.positions is not None:
        return kept_seeds(batch.batch_size, noise, batch.device), batch.positions
    seeds = seeds_of_step(batch, noise)
    return seeds, torch.zeros_like(seeds)


def cumulative(counts: shapes.RequestCounts) -> Tensor:  # [batch_size + 1] int32
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))


def tokens_of(batch: SpecDecodeBatch, output: StepOutput) -> shapes.OutputTokens:
    """Return a step's tokens; a bonus token that was given takes the place of the one that was drawn."""
    tokens = output.token_ids[:, : batch.max_spec_len + 1].clone()
    if batch.bonus_logits is None:
        counts = draft_counts(batch)
        complete = (output.num_tokens == counts + 1).nonzero()[:, 0]
        tokens[complete, counts[complete].long()] = batch.bonus_token_ids[complete, 0].to(tokens.dtype)
    return tokens


def drafts_of(draft_token_ids: Tensor, is_bonus: shapes.RowFlags) -> Tensor:  # [num_tokens] int32, and [num_rows] int32
    """Return the draft behind each row; a request's last row has none, but whatever was in memory."""
    behind = draft_token_ids.new_zeros(len(is_bonus))
    behind[~is_bonus] = draft_token_ids
    return behind


def draft_probs_of(batch: SpecDecodeBatch, width: int) -> shapes.DraftRows | None:
    """Return draft probabilities by the number of the request."""
    return None if batch.draft_probs is None else batch.spread(batch.draft_probs, width)
