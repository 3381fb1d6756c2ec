"""fairdraw's token samplers: with vLLM's order of draws, and with counters.

With counters a request draws by its seed and position. A request without a seed gets one hashed from the call's seed
and its row, as a server would assign one when the request arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fairdraw._core.seeds import derive_seed
from fairdraw.adapters._runtime import triton_is_interpreted
from fairdraw.contracts import Drafted, FunctionTokenSampler, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw._core.tensor_types import LogitRows, RequestFloats, RequestInts
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.sampler_impl import sampling as implementation


def race(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the exponential race of vLLM 0.22.0, in PyTorch on every device."""
    from fairdraw.sampler_impl import sampling

    def noise_of(batch: SamplingBatch, noise: SamplingNoise) -> implementation.SamplingNoise:
        if isinstance(noise, RaceNoise):
            return sampling.RaceNoise(noise.exponentials)
        return sampling.UpstreamNoise(noise.generators(batch.device))

    def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        return sampling.sample(batch.logits, _parameters(batch), noise_of(batch, noise))

    def draft(batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        drawn = sampling.draft(batch.logits, _parameters(batch), noise_of(batch, noise))
        return Drafted(drawn.sampled_token_ids, drawn.probs)

    return FunctionTokenSampler(row.name, sample, draft, device, row.capabilities())


def counter(row: SamplerRow, device: str, *, backend: Literal["torch", "triton"] = "torch") -> FunctionTokenSampler:
    """Return the inverse CDF with counters. In Triton's interpreter a call takes milliseconds."""
    slow = backend == "triton" and triton_is_interpreted(device)
    from fairdraw.sampler_impl import sampling

    def noise_of(batch: SamplingBatch, noise: SamplingNoise) -> implementation.CounterNoise:
        assert not isinstance(noise, RaceNoise), "explicit noise is unsupported"
        return sampling.CounterNoise(counter_seeds(batch, noise), batch.positions)

    def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        return sampling.sample(batch.logits, _parameters(batch), noise_of(batch, noise), backend=backend)

    def draft(batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """Draw a draft. Without filters probabilities come from log-sum-exps, as a verifier of draft logits would
        compute them."""
        if batch.top_k is not None or batch.top_p is not None or batch.min_p is not None:
            drawn = sampling.draft(batch.logits, _parameters(batch), noise_of(batch, noise))
            return Drafted(drawn.sampled_token_ids, drawn.probs)
        tokens, logsumexp = sampling.draft_with_logsumexp(
            batch.logits, batch.temperature, noise_of(batch, noise), backend=backend
        )
        return Drafted(tokens, _probs(batch, tokens, logsumexp))

    return FunctionTokenSampler(row.name, sample, draft, device, row.capabilities(slow=slow))


def counter_seeds(batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size] int64
    """Return each request's seed, or one hashed from the call's."""
    import torch

    seeds = [noise.request_seeds.get(i, derive_seed("counter", noise.seed, i)) for i in range(batch.batch_size)]
    return torch.tensor(seeds, dtype=torch.int64, device=batch.device)


def _probs(batch: SamplingBatch, tokens: RequestInts, logsumexp: RequestFloats) -> LogitRows:
    """Return `exp(logits / temperature - logsumexp)`; one-hot for greedy requests and for rows without a
    distribution."""
    import torch

    temperature = batch.temperature.masked_fill(batch.is_greedy, 1.0)
    probs = (batch.logits.float() / temperature[:, None] - logsumexp[:, None]).exp()
    one_hot = torch.zeros_like(probs).scatter_(-1, tokens[:, None], 1.0)
    return torch.where((batch.is_greedy | logsumexp.isnan())[:, None], one_hot, probs)


def _parameters(batch: SamplingBatch) -> implementation.SamplingParameters:
    from fairdraw.sampler_impl.sampling import SamplingParameters

    greedy = batch.is_greedy
    names = ("temperature", "top_k", "top_p", "min_p")
    fields: dict[str, Any] = {name: getattr(batch, name) for name in names}  # Any: one type each
    return SamplingParameters(**fields, all_greedy=bool(greedy.all()), all_random=not bool(greedy.any()))
