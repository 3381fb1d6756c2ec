"""Our sampler with counter noise behind the protocol; `counter.py` and `counter_triton.py` name its backends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from fairdraw.protocols import Capability, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch, VerifyFunction

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["UNSUPPORTED", "captured_step", "verify_with"]

OWN_NUMBERS = "draws are functions of seed and position, there is no noise to hand in"

UNSUPPORTED: dict[str, str] = {
    Capability.EXPLICIT_NOISE: OWN_NUMBERS,
    Capability.REFERENCE_RACE: "tokens are drawn by inverse CDF, not by a race",
    Capability.UPSTREAM_STREAM: OWN_NUMBERS,
    Capability.SYNTHETIC_RATES: "the fast path has no synthetic mode; rejection_sample of sampler_impl.rejection has",
}


def verify_with(backend: Literal["torch", "triton"]) -> VerifyFunction:
    """`fairdraw.sampler_impl.rejection_counter` on one backend. A call draws one seed per request; positions are 0.

    On a GPU each call has a workspace, so that its kernels overlap and read no more rows than they must.
    """

    def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        if isinstance(noise, ExplicitNoise):
            raise TypeError(
                "verify: noise=ExplicitNoise, but it must be SeededNoise. This sampler does not support the other."
            )
        return _step(batch, _seeds(batch, noise), backend, workspace=batch.device.type == "cuda")()

    return verify


def captured_step(batch: SpecDecodeBatch, backend: Literal["torch", "triton"], *, workspace: bool) -> partial[Tensor]:
    """One call with seeds that stay where they are: what a server captures in a CUDA graph.

    A graph has addresses only. This holds the tensors that lie there, its own workspace among them (as
    `keywords["workspace"]`), and so must live as long as the graph.
    """
    import torch

    return _step(batch, torch.arange(batch.batch_size, device=batch.device), backend, workspace=workspace)


def _step(
    batch: SpecDecodeBatch,
    seeds: Tensor,  # [batch_size] int64
    backend: Literal["torch", "triton"],
    *,
    workspace: bool,
) -> partial[Tensor]:
    from fairdraw.sampler_impl.rejection_counter import make_workspace, rejection_sample

    sizes = (batch.batch_size, batch.max_spec_len, batch.target_logits.shape[1])
    return partial(
        rejection_sample,
        batch.draft_token_ids,
        batch.cu_num_draft_tokens,
        batch.max_spec_len,
        batch.target_logits,
        _temperature(batch),
        seeds,
        seeds.new_zeros(batch.batch_size),
        draft_probs=batch.draft_probs,
        bonus_token_ids=batch.bonus_token_ids,
        workspace=make_workspace(*sizes, batch.device) if workspace else None,
        backend=backend,
    )


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
