"""Our plain sampler behind the sampling contract; modules beside this one name its forms.

With `RaceNoise` and vLLM's stream it is PyTorch's on every device (`race`). With counters it is PyTorch's (`counter`)
or Triton's (`triton`): a request draws by its seed and position; one without a seed of its own has it hashed from the
call's seed and its row, as a server would give it one when it arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fairdraw._adapters._runtime import default_device, triton_is_interpreted
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.sampling import draft as oracle_draft
from fairdraw._oracles.sampling import sample as oracle_sample
from fairdraw.protocols import Capability, Drafted, FunctionTokenSampler, RaceNoise, token_sampler

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise
    from fairdraw.sampler_impl import sampling as implementation

__all__ = ["counter", "oracle", "race", "triton"]

_COUNTS: dict[str, str] = {
    Capability.EXPLICIT_NOISE: "one uniform per request, made of seed and position",
    Capability.REFERENCE_RACE: "inverts the CDF",
    Capability.UPSTREAM_STREAM: "uses no torch generator",
}
_GENERATORS: dict[str, str] = {Capability.COUNTER_NOISE: "draws from torch generators, which advance"}


def oracle(device: str | None = None) -> FunctionTokenSampler:
    """The specification itself; its arithmetic is NumPy's wherever the batch lies."""
    return token_sampler(
        oracle_sample,
        drafting=oracle_draft,
        name="sampling_oracle",
        device=device or default_device(),
        unsupported=_GENERATORS,
    )


def race(device: str | None = None) -> FunctionTokenSampler:
    """The exponential race of vLLM 0.22.0, in PyTorch."""
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

    return token_sampler(
        sample, drafting=draft, name="sampling", device=device or default_device(), unsupported=_GENERATORS
    )


def counter(device: str | None = None) -> FunctionTokenSampler:
    """Inverse CDF with counters, in PyTorch."""
    return _counting("torch", "sampling_counter", device or default_device(), slow=False)


def triton(device: str | None = None) -> FunctionTokenSampler:
    """Inverse CDF with counters, in Triton: compiled on a GPU, interpreted without one.

    Raises:
        ModuleNotFoundError: If triton is not installed.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    device = device or default_device()
    return _counting("triton", "sampling_triton", device, slow=triton_is_interpreted(device))


def _counting(backend: Literal["torch", "triton"], name: str, device: str, *, slow: bool) -> FunctionTokenSampler:
    from fairdraw.sampler_impl import sampling

    def noise_of(batch: SamplingBatch, noise: SamplingNoise) -> implementation.CounterNoise:
        import torch

        assert not isinstance(noise, RaceNoise), "explicit noise is unsupported"
        seeds = [noise.request_seeds.get(i, derive_seed("counter", noise.seed, i)) for i in range(batch.batch_size)]
        return sampling.CounterNoise(torch.tensor(seeds, dtype=torch.int64, device=batch.device), batch.positions)

    def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        return sampling.sample(batch.logits, _parameters(batch), noise_of(batch, noise), backend=backend)

    def draft(batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """From log-sum-exps where no filter is used: what a verifier of draft logits would compute."""
        if batch.top_k is not None or batch.top_p is not None or batch.min_p is not None:
            drawn = sampling.draft(batch.logits, _parameters(batch), noise_of(batch, noise))
            return Drafted(drawn.sampled_token_ids, drawn.probs)
        tokens, logsumexp = sampling.draft_with_logsumexp(
            batch.logits, batch.temperature, noise_of(batch, noise), backend=backend
        )
        return Drafted(tokens, _distribution(batch, tokens, logsumexp))

    return token_sampler(sample, drafting=draft, name=name, device=device, unsupported=_COUNTS, slow=slow)


def _distribution(
    batch: SamplingBatch,
    tokens: Tensor,  # [batch_size] int64
    logsumexp: Tensor,  # [batch_size] float32
) -> Tensor:  # [batch_size, vocab_size] float32
    """`exp(logits / temperature - logsumexp)`; greedy rows, and those without a distribution, are certain of their
    token.
    """
    import torch

    temperature = batch.temperature.masked_fill(batch.is_greedy, 1.0)
    probs = (batch.logits.float() / temperature[:, None] - logsumexp[:, None]).exp()
    certain = torch.zeros_like(probs).scatter_(-1, tokens[:, None], 1.0)
    return torch.where((batch.is_greedy | logsumexp.isnan())[:, None], certain, probs)


def _parameters(batch: SamplingBatch) -> implementation.SamplingParameters:
    from fairdraw.sampler_impl.sampling import SamplingParameters

    greedy = batch.is_greedy
    fields: dict[str, Any] = {
        name: getattr(batch, name) for name in ("temperature", "top_k", "top_p", "min_p")
    }  # Any: one type each
    return SamplingParameters(**fields, all_greedy=bool(greedy.all()), all_random=not bool(greedy.any()))
