"""Uniforms that depend on a seed and a counter alone: Philox 4x32 with 10 rounds, in PyTorch.

The same integers as `tl.philox`, so that kernels and PyTorch draw the same numbers. A counter has two words of position
and one that names the *stream*: draws for different purposes at the same (seed, position) must not share their numbers,
or an accepted draft would depend on the noise that drafted it.

Reference:
    Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLE_STREAM = 0x64726177
"""Third counter word of the plain sampler's draws ("draw")."""

DRAFT_STREAM = 0x64726674
"""The same for a drafter's draws ("drft")."""

_WORD = 0xFFFFFFFF
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_NUM_ROUNDS = 10


def counter_uniforms(
    seeds: Tensor,  # [batch_size] int64
    positions: Tensor,  # [batch_size] int64
    stream: int,
) -> Tensor:  # [batch_size] float64
    """One multiple of 2**-53 in [0, 1) per row, a function of (seed, position, stream)."""
    first, second = _philox(seeds, positions, stream)
    return ((first >> 5).double() * 2.0**26 + (second >> 6).double()) * 2.0**-53


def _philox(
    seeds: Tensor,  # [batch_size] int64
    positions: Tensor,  # [batch_size] int64
    stream: int,
) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size] int64
    """The first two of the four words; words are the low halves of int64, whose products wrap as unsigned ones do."""
    low, high = seeds & _WORD, (seeds >> 32) & _WORD
    c0, c1 = positions & _WORD, (positions >> 32) & _WORD
    c2, c3 = torch.full_like(c0, stream), torch.zeros_like(c0)
    for _ in range(_NUM_ROUNDS):
        of_a, of_b = c0 * _ROUND_A, c2 * _ROUND_B
        c0, c2 = ((of_b >> 32) & _WORD) ^ c1 ^ low, ((of_a >> 32) & _WORD) ^ c3 ^ high
        c1, c3 = of_b & _WORD, of_a & _WORD
        low, high = (low + _KEY_A) & _WORD, (high + _KEY_B) & _WORD
    return c0, c1
