"""fairdraw's log-probabilities, behind the contract; `draw` takes our token sampler."""

from __future__ import annotations

from typing import Literal

from fairdraw.adapters._catalogue import SamplerRow
from fairdraw.adapters._runtime import triton_is_interpreted
from fairdraw.contracts import FunctionLogprobsSampler, LogprobsBatch, LogprobsResult, SamplingBatch, SamplingNoise


def ours(row: SamplerRow, device: str, *, backend: Literal["torch", "triton"] = "torch") -> FunctionLogprobsSampler:
    """Return `fairdraw.sampler_impl.logprobs`; tokens are drawn by `fairdraw.sampler_impl.sampling`."""
    slow = backend == "triton" and triton_is_interpreted(device)
    from fairdraw.adapters._sampling import counter
    from fairdraw.sampler_impl.logprobs import top_logprobs

    drafter = counter(row, device)

    def logprobs(batch: LogprobsBatch) -> LogprobsResult:
        logits, normalise = batch.stage_logits, not batch.wants_logits
        found = top_logprobs(logits, batch.token_ids, batch.most_logprobs, normalise=normalise, backend=backend)
        return LogprobsResult(found.logprob_token_ids, found.logprobs, found.ranks)

    def draw(batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult:
        drawn = drafter.draft(batch, noise)
        assert drawn.draft_probs is not None
        found = top_logprobs(drawn.draft_probs.log(), drawn.token_ids, -1, backend=backend)
        return LogprobsResult(found.logprob_token_ids, found.logprobs)

    return FunctionLogprobsSampler(row.name, logprobs, draw, device, row.capabilities(slow=slow))


def step(row: SamplerRow, device: str, *, backend: Literal["torch", "triton"]) -> FunctionLogprobsSampler:
    """Return the tokens of `fairdraw.sampler_impl.step` with the log-probabilities that the step itself returns, beside
    lists of its processed logits; tokens that are given are looked up as `logprobs/torch` does.
    """
    from fairdraw.adapters._step import capabilities_of, plan_of, sampling_inputs
    from fairdraw.sampler_impl.logprobs import top_logprobs

    def draw(batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult:
        plan, inputs = plan_of(batch, backend, logprobs=True), sampling_inputs(batch, noise)
        output = plan(inputs)
        assert output.logprobs is not None
        tokens, own = output.token_ids[:, 0].clone(), output.logprobs[:, :1].clone()
        found = top_logprobs(plan.processed_logits(inputs), tokens, -1, backend="torch")
        values = found.logprobs
        return LogprobsResult(found.logprob_token_ids, values.index_copy(1, values.new_zeros(1).long(), own))

    function, capabilities = ours(row, device).function, capabilities_of(row, backend, device)
    return FunctionLogprobsSampler(row.name, function, draw, device, capabilities)
