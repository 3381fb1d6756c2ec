"""What `rejection_sample`, vLLM's and ours, reads of its sampling metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from fairdraw.protocols import ExplicitNoise, Noise, SpecDecodeBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["ReadFields", "read_fields"]


class ReadFields(TypedDict):
    """The fields that decide how a batch is verified."""

    temperature: Tensor  # [batch_size] float32
    all_greedy: bool
    all_random: bool
    generators: dict[int, torch.Generator]


def read_fields(batch: SpecDecodeBatch, noise: Noise) -> ReadFields:
    """Sampling metadata of `batch`; generators are those of seeded noise."""
    is_greedy = batch.is_greedy
    return ReadFields(
        temperature=batch.temperature,
        all_greedy=bool(is_greedy.all()),
        all_random=not bool(is_greedy.any()),
        generators={} if isinstance(noise, ExplicitNoise) else noise.generators(batch.device),
    )
