"""Random bits for samplers that draw for themselves: a counter hashed, as kernels do it. NumPy, any shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
MOST = 1 - 2.0**-53
"""The largest uniform."""


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:  # same shape
    """The finaliser of splitmix64: every bit of the input reaches every bit of the output."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def key_of(*parts: int) -> np.uint64:
    """One key from some integers of any size and sign."""
    key = np.array([0x243F6A8885A308D3], np.uint64)
    for part in parts:
        with np.errstate(over="ignore"):
            key = mixed(key * np.uint64(3) + _GOLDEN + np.uint64(part % 2**64))
    return np.uint64(key[0])


def hashed(
    keys: NDArray[np.uint64],  # [n]
    width: int,
) -> NDArray[np.uint64]:  # [n, width]
    """64 bits per key and column."""
    with np.errstate(over="ignore"):
        columns = (np.arange(1, width + 1, dtype=np.uint64) * _GOLDEN)[None, :]
        return mixed(keys[:, None] + columns)


def uniforms_of(bits: NDArray[np.uint64]) -> NDArray[np.float64]:  # same shape, in [0, 1)
    """53 of the 64 bits."""
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def exponentials_of(uniforms: NDArray[np.float64]) -> NDArray[np.float32]:  # same shape, > 0
    """By the inverse of the distribution function."""
    return np.maximum(-np.log1p(-uniforms), 1e-38).astype(np.float32)


def stream(*parts: int) -> np.random.Generator:
    """A counter-based generator with this key, as JAX and cuRAND have one."""
    return np.random.Generator(np.random.Philox(key=int(key_of(*parts))))


def drawn_exponentials(generator: np.random.Generator, *shape: int) -> NDArray[np.float32]:  # shape
    """Never 0."""
    return np.maximum(generator.standard_exponential(shape, np.float32), np.float32(1e-38))
