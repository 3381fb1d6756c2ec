"""Our own sampler behind the protocol; `torch.py` and `triton.py` name its backends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from fairdraw._adapters._metadata import read_fields
from fairdraw.protocols import ExplicitNoise, Noise, SpecDecodeBatch, VerifyFunction

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["verify_with"]


def verify_with(backend: Literal["torch", "triton"]) -> VerifyFunction:
    """`fairdraw.sampler_impl.rejection` on one backend: noise handed in, or drawn in vLLM's order."""
    from fairdraw.sampler_impl.rejection import rejection_sample, verify_drafts

    def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        arguments = _arguments(batch, noise)
        if isinstance(noise, ExplicitNoise):
            return verify_drafts(**arguments, uniforms=noise.uniforms, exponentials=noise.exponentials, backend=backend)
        return rejection_sample(**arguments, backend=backend)

    return verify


def _arguments(batch: SpecDecodeBatch, noise: Noise) -> dict[str, Any]:  # Any: one type each
    return {
        "draft_token_ids": batch.draft_token_ids,
        "num_draft_tokens": batch.num_draft_tokens,
        "max_spec_len": batch.max_spec_len,
        "cu_num_draft_tokens": batch.cu_num_draft_tokens,
        "draft_probs": batch.draft_probs,
        "target_logits": batch.target_logits,
        "bonus_token_ids": batch.bonus_token_ids,
        "sampling_metadata": SimpleNamespace(**read_fields(batch, noise)),
        "synthetic_mode": batch.synthetic_rates is not None,
        "synthetic_conditional_rates": batch.synthetic_rates,
    }
