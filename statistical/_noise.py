"""The noise that the statistical checks give a sampler, fresh for every seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fairdraw._core.array_types import Outputs
from fairdraw._core.tensor_types import LogitRows
from fairdraw.contracts import Capability, ExplicitNoise, Noise, RejectionSampler, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import emit


def noise_kind(sampler: RejectionSampler) -> Capability:
    """`SEEDED_NOISE` or `EXPLICIT_NOISE`: the sampler's own random numbers if it takes seeds, because it runs on them.

    A sampler that takes neither gets seeds, as in the properties. It draws by itself and may ignore them, so its draws
    cannot be repeated; but they have a distribution, and a correct one fails no more often than any other.
    """
    takes_numbers_alone = (
        Capability.SEEDED_NOISE not in sampler.capabilities and Capability.EXPLICIT_NOISE in sampler.capabilities
    )
    return Capability.EXPLICIT_NOISE if takes_numbers_alone else Capability.SEEDED_NOISE


def draw_rows(
    sampler: RejectionSampler, batch: SpecDecodeBatch, seed: int, request_seeds: Mapping[int, int] | None = None
) -> Outputs:
    """The sampler's output rows on noise of one seed.

    Args:
        request_seeds: Of requests that have one; without effect on explicit noise.

    Raises:
        Exception: As `emit`.
    """
    return emit(sampler, batch, noise_for(noise_kind(sampler), batch, seed, request_seeds)).tokens


def noise_for(
    kind: Capability, batch: SpecDecodeBatch, seed: int, request_seeds: Mapping[int, int] | None = None
) -> Noise:
    """Noise of one kind, fresh for every seed."""
    if kind is Capability.SEEDED_NOISE:
        return SeededNoise(seed, request_seeds or {})
    rng = np.random.default_rng(seed)
    raced = exponentials(rng, batch.batch_size, batch.vocab_size)
    return ExplicitNoise(torch.from_numpy(rng.random(batch.num_tokens)).to(batch.device), raced.to(batch.device))


def exponentials(rng: np.random.Generator, batch_size: int, vocab_size: int) -> LogitRows:
    """Positive exponentials, as the contracts want them: NumPy gives a 0 about once in 2**23 draws (27 in 2**28).

    They are clamped as those of torch, at 2**-25: where a smaller number stood, any token would win.
    """
    drawn = rng.standard_exponential((batch_size, vocab_size), dtype=np.float32)
    return torch.from_numpy(np.maximum(drawn, np.float32(2.0**-25)))
