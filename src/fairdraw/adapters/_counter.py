"""Our sampler with counter noise behind the protocol; `counter.py` and `counter_triton.py` name its backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fairdraw.protocols import Capability, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch, VerifyFunction

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DECLINED", "verify_with"]

OWN_NUMBERS = "draws are functions of seed and position, there is no noise to hand in"

DECLINED: dict[str, str] = {
    Capability.EXPLICIT_NOISE: OWN_NUMBERS,
    Capability.REFERENCE_RACE: "tokens are drawn by inverse CDF, not by a race",
    Capability.UPSTREAM_STREAM: OWN_NUMBERS,
    Capability.SYNTHETIC_RATES: "the fast path has no synthetic mode; rejection_sample of sampler_impl.rejection has",
}


def verify_with(backend: Literal["torch", "triton"]) -> VerifyFunction:
    """`fairdraw.sampler_impl.rejection_counter` on one backend. A call draws one seed per request; positions are 0."""
    from fairdraw.sampler_impl.rejection_counter import rejection_sample

    def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        if isinstance(noise, ExplicitNoise):
            raise TypeError("verify: noise=ExplicitNoise, but it must be SeededNoise. This sampler declines the other.")
        return rejection_sample(
            batch.draft_token_ids,
            batch.cu_num_draft_tokens,
            batch.max_spec_len,
            batch.target_logits,
            _temperature(batch),
            seeds := _seeds(batch, noise),
            seeds.new_zeros(batch.batch_size),
            draft_probs=batch.draft_probs,
            bonus_token_ids=batch.bonus_token_ids,
            backend=backend,
        )

    return verify


def _temperature(batch: SpecDecodeBatch) -> Tensor:  # [batch_size] float32
    """1 for random requests, as the logits of a batch are processed."""
    import torch

    return torch.where(batch.is_greedy, 0.0, 1.0).to(torch.float32)


def _seeds(batch: SpecDecodeBatch, noise: SeededNoise) -> Tensor:  # [batch_size] int64
    """One draw per request from torch's generator, which the harness has seeded; if it has drafts, from its own."""
    import torch

    seeds = torch.empty(batch.batch_size, dtype=torch.int64, device=batch.device).random_()
    for request, generator in noise.generators(batch.device).items():
        if batch.num_draft_tokens[request] > 0:
            seeds[request].random_(generator=generator)
    return seeds
