"""fairdraw's log-probabilities and the specification, behind the contract; `draw` takes our token sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fairdraw._adapters._runtime import triton_is_interpreted
from fairdraw._oracles.logprobs import LogprobsOracle
from fairdraw.protocols import FunctionLogprobsSampler, LogprobsBatch, LogprobsResult

if TYPE_CHECKING:
    from fairdraw._adapters._table import BuiltIn
    from fairdraw.protocols import SamplingBatch, SamplingNoise


def oracle(row: BuiltIn, device: str) -> FunctionLogprobsSampler:
    """The specification, in NumPy on the host."""
    return FunctionLogprobsSampler(row.name, LogprobsOracle().logprobs, None, device, row.capabilities())


def ours(row: BuiltIn, device: str, *, backend: Literal["torch", "triton"] = "torch") -> FunctionLogprobsSampler:
    """`fairdraw.sampler_impl.logprobs`; tokens are drawn by `fairdraw.sampler_impl.sampling`."""
    slow = backend == "triton" and triton_is_interpreted(device)
    from fairdraw._adapters._sampling import counter
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
