"""Philox uniforms and the inverse CDF in PyTorch; `kernels` has the same as Triton functions.

Philox 4x32 with 10 rounds turns a seed (the key) and a counter into four words. The counter is two words of position
and one that names the *stream*: draws for different purposes at the same (seed, position) must not share their numbers,
or an accepted draft would depend on the noise that drafted it.

Reference:
    Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .._shared.tensors import Int64s, LogitRows, RowFloat64s

VERIFY_STREAM = 0x76657269
"""Third counter word of the verification step ("veri")."""
SAMPLE_STREAM = 0x64726177
"""The same for the plain sampler ("draw")."""
DRAFT_STREAM = 0x64726674
"""The same for a drafter ("drft")."""

_WORD = 0xFFFFFFFF
_FIXED_POINT = 2.0**60


def philox(seed: Int64s, position: Int64s, stream: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # [...] int64
    """Return four words for each (seed, position), as low halves of int64, whose products wrap as unsigned ones do."""
    low, high = seed & _WORD, (seed >> 32) & _WORD
    c0, c1 = position & _WORD, (position >> 32) & _WORD
    c2, c3 = torch.full_like(c0, stream), torch.zeros_like(c0)
    for _ in range(10):
        of_a, of_b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = ((of_b >> 32) & _WORD) ^ c1 ^ low, ((of_a >> 32) & _WORD) ^ c3 ^ high
        c1, c3 = of_b & _WORD, of_a & _WORD
        low, high = (low + 0x9E3779B9) & _WORD, (high + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def philox_uniforms(
    seed: Int64s, position: Int64s, stream: int
) -> tuple[Tensor, Tensor]:  # [...] float64, [...] float64
    """Return two multiples of 2**-53 in [0, 1) for each (seed, position, stream)."""
    a, b, c, d = philox(seed, position, stream)
    return _unit(a, b), _unit(c, d)


def _unit(high: Int64s, low: Int64s) -> Tensor:  # [...] float64
    return ((high >> 5).double() * 2.0**26 + (low >> 6).double()) * 2.0**-53


def invert_cdf(row_weights: LogitRows, quantiles: RowFloat64s) -> Tensor:  # [num_rows] int64
    """Return the first entry of each row whose cumulative weight exceeds `quantile * total`; 0 in an invalid row.

    The weights become 64-bit integers, which add up without rounding: no entry without weight is drawn, and the search
    cannot leave the row. A row is invalid if its weights are all 0, or NaN.
    """
    totals = row_weights.sum(-1, keepdim=True, dtype=torch.float64)
    shares = torch.where(totals > 0, row_weights / totals, 0.0).mul_(_FIXED_POINT).long()
    cumulative = shares.cumsum_(-1)
    total = cumulative[:, -1:]
    threshold = torch.minimum((quantiles[:, None] * total).long(), total - 1)
    return torch.searchsorted(cumulative, threshold.contiguous(), right=True).squeeze(-1).where(total[:, 0] > 0, 0)
