"""Correct token samplers for the statistical checks: other filters, declared, and noise of other making."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from fairdraw._mutants._dependence import Codes, Member, Uniforms, few_bits, from_torch
from fairdraw._mutants._mutant import Memory
from fairdraw._mutants.sampling_distributions import FiltersTopPFirst, TempersLast, right_distribution
from fairdraw.contracts import FilterPolicy

ODD_DISTRIBUTIONS = (
    right_distribution(FiltersTopPFirst, FilterPolicy(order=("top_p", "min_p", "top_k"))),
    right_distribution(TempersLast, FilterPolicy(temperature="last")),
)
"""Correct, because they declare how they filter."""


def _philox(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """A counter-based generator: a key per call, and counters that no two rows share."""
    blocks = -(-width // 4)  # a counter makes four numbers
    return np.random.Generator(np.random.Philox(key=seed)).random((num_rows, 4 * blocks))[:, :width]


def _other_order(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """PCG64 in another order: columns first, the rows of a call from the last to the first."""
    return np.ascontiguousarray(np.random.default_rng([seed % 2**64, 1]).random((width, num_rows)).T[::-1])


def _torch_floats(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """`torch.rand` in float32: multiples of 2**-24."""
    drawn = torch.rand((num_rows, width), generator=torch.Generator().manual_seed(seed))
    return np.asarray(drawn.double().numpy())


_NONE: Codes = ((), ())
ODD_NOISE = (
    Member("philox counters", _philox, _NONE),
    Member("philox counters, inverse CDF", _philox, _NONE, inverts=True),
    Member("another order of draws", _other_order, _NONE),
    Member("uniforms of 24 bits", _torch_floats, _NONE),
    Member("uniforms of 24 bits, inverse CDF", _torch_floats, _NONE, inverts=True),
    Member("uniforms of 23 bits", partial(few_bits, 23), _NONE),
    Member("uniforms of 23 bits, inverse CDF", partial(few_bits, 23), _NONE, inverts=True),
    Member("torch's default generator, inverse CDF", from_torch, _NONE, inverts=True),
    Member("torch's default generator", from_torch, _NONE),
)
"""Correct: none may be accused, though their noise is coarse, or made in another way."""
