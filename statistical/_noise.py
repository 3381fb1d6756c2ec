"""The noise that the statistical checks give a sampler, fresh for every seed."""

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
    can, both = sampler.capabilities, (Capability.SEEDED_NOISE, Capability.EXPLICIT_NOISE)
    return next((kind for kind in both if kind in can), Capability.SEEDED_NOISE)


def draw_rows(sampler: RejectionSampler, batch: SpecDecodeBatch, seed: int) -> Outputs:
    """The sampler's output rows on noise of one seed.

    Raises:
        Exception: As `emit`.
    """
    return emit(sampler, batch, noise_for(noise_kind(sampler), batch, seed)).tokens


def noise_for(
    kind: Capability, batch: SpecDecodeBatch, seed: int, request_seeds: Mapping[int, int] | None = None
) -> Noise:
    """Noise of one kind, fresh for every seed. Seeds of single requests are without effect on explicit noise."""
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
