"""Requests of the statistical suite of the sampling contract: their kinds, and batches and noise made for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise
from fairdraw.statistical._noise import exponentials, noise_kind

FILTERS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}


@dataclass(frozen=True)
class Kind:
    """The parameters of one kind of request."""

    name: str
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


def batch_of(
    kinds: list[Kind], logits: NDArray[np.float32], positions: NDArray[np.int64], device: str
) -> SamplingBatch:
    """A batch of these kinds of requests; a filter that one of them uses is off in the rows of the others."""
    vocab_size = logits.shape[1]

    def column(name: str, off: float, dtype: torch.dtype) -> torch.Tensor:  # [batch_size] any
        given = (getattr(kind, name) for kind in kinds)
        return torch.tensor([off if value is None else value for value in given], dtype=dtype, device=device)

    return SamplingBatch(
        logits=torch.tensor(logits, device=device),  # a copy: a sampler may overwrite its inputs
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", vocab_size, torch.int32) if any(k.top_k for k in kinds) else None,
        top_p=column("top_p", 1.0, torch.float32) if any(k.top_p for k in kinds) else None,
        min_p=column("min_p", 0.0, torch.float32) if any(k.min_p for k in kinds) else None,
        positions=torch.from_numpy(positions).to(device),
        origin=f"<{len(kinds)} requests, vocab_size={vocab_size}>",
    )


def noise_of(sampler: Any, batch: SamplingBatch, seed: int, *, seeded: Iterable[int] = ()) -> SamplingNoise:
    """Noise of a kind that the sampler takes: its own random numbers first.

    Args:
        sampler: Any: of the sampling contract.
        seeded: Requests that have a seed of their own.
    """
    if noise_kind(sampler) is Capability.SEEDED_NOISE:
        return SeededNoise(derive_seed("noise", seed), {i: derive_seed("own", seed, i) for i in seeded})
    rng = np.random.default_rng(derive_seed("noise", seed))
    return RaceNoise(exponentials(rng, batch.batch_size, batch.vocab_size).to(batch.device))
