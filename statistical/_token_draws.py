"""Draft, bonus and fill tokens, drawn on the device where the batch lies."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._core.array_types import AnyRows64


class Uniforms:
    """A stream of uniform numbers that no sampler uses: NumPy's on a CPU, a generator of its own elsewhere.

    torch's generator on a CPU keeps 32 bits of a seed, so that of a billion draws two calls could share their numbers.

    Randomness:
        Everything follows from `seed`, and from the type of the device.
    """

    def __init__(self, seed: int, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._rng = np.random.default_rng(seed)
        self._generator = None if self._device.type == "cpu" else torch.Generator(self._device).manual_seed(seed)

    def draw(self, num_rows: int, width: int) -> Tensor:  # [num_rows, width] float64, in [0, 1)
        """The next numbers of the stream."""
        if self._generator is None:
            return torch.from_numpy(self._rng.random((num_rows, width)))
        size = (num_rows, width)
        return torch.rand(size, dtype=torch.float64, device=self._device, generator=self._generator)


def draw_tokens(
    probs: NDArray[np.float64],  # [width, vocab_size] float64
    uniforms: Tensor,  # [num_rows, width] float64, in [0, 1)
) -> Tensor:  # [num_rows, width] int32
    """A token of the distribution of its column for each uniform, by inverse CDF, as `draw_one`."""
    drawn = torch.zeros_like(uniforms, dtype=torch.int32)
    for step in torch.from_numpy(inner_steps(probs).T.copy()).to(uniforms.device):
        drawn += uniforms >= step
    return drawn


def draw_one(
    probs: NDArray[np.float64],  # [vocab_size] float64
    uniforms: NDArray[np.float64],  # [...] float64, in [0, 1)
) -> NDArray[np.int32]:  # [...] int32
    """A token of one distribution for each uniform, by inverse CDF; a token of probability 0 is never drawn."""
    # Vocabularies are small: counting the steps below a uniform is faster than a search.
    drawn = np.zeros(uniforms.shape, dtype=np.int32)
    for step in inner_steps(probs):
        drawn += uniforms >= step
    return drawn


def inner_steps(probs: AnyRows64) -> NDArray[np.float64]:  # [..., vocab_size - 1] float64
    """The cumulative distribution without its last entry, which is 1."""
    cumulative = np.cumsum(probs, axis=-1)
    cumulative /= cumulative[..., -1:]
    return np.asarray(cumulative[..., :-1])
