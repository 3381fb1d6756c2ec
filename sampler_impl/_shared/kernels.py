"""Triton functions that the kernels of several contracts share: Philox, argmax words, the inverse CDF.

A greedy request's candidate is an **argmax word**, one int64, so that the best of all tiles is a plain maximum:

    63                 32 31                    0
    order of the logit     2**31 - 1 - token id        NaN is highest, ties go to the lowest id, as in `torch.argmax`

A random request's token is drawn by a two-level inverse CDF with one uniform. The uniform becomes a CDF threshold among
the integers that the partial sums of the tiles are; the threshold selects a tile, and its rest selects an entry of that
tile. Integers add up without rounding, so cumulative sums and totals agree and no tile can be missed.

    row    [ tile 0 | tile 1 | tile 2 | ... ]          threshold = uniform * total
                        ^ threshold; rest = threshold - start of tile 1
    tile 1 [ entry 1024, entry 1025, ... ]
                        ^ rest: the sampled index
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import triton
import triton.language as tl

from . import draws

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether TRITON_INTERPRET=1 was set when the kernels were defined; only then do they take CPU tensors."""

NO_ID = tl.constexpr(0x7FFFFFFF)
NO_WORD = tl.constexpr(-0x8000000000000000)
"""Less than any argmax word."""
VERIFY_STREAM = tl.constexpr(draws.VERIFY_STREAM)
LOG2_E = tl.constexpr(1.4426950408889634)


def quiet_numpy() -> AbstractContextManager[object]:
    """Return a context without NumPy's warnings. The interpreter computes with NumPy, which warns of infinities and NaN
    that the kernels handle."""
    return _quiet_numpy() if INTERPRETED else _NOTHING


_NOTHING = nullcontext()


@contextmanager
def _quiet_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@triton.jit
def philox_uniforms(seeds, positions, stream):
    """Return two float64 in [0, 1) for each position, 53 bits each, from one block: as `draws.philox_uniforms`."""
    low = (positions & 0xFFFFFFFF).to(tl.uint32)
    high = ((positions >> 32) & 0xFFFFFFFF).to(tl.uint32)
    a, b, c, d = tl.philox(seeds, low, high, low * 0 + stream, low * 0)
    return _unit(a, b), _unit(c, d)


@triton.jit
def _unit(high, low):
    return ((high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64)) * 1.1102230246251565e-16


@triton.jit
def load_logits(
    row_ptr,  # [vocab_size] any
    token_ids,  # [...] int32
    vocab_size,
):
    """Load logits as float32; -inf behind the end of the row."""
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def argmax_order(logits):
    """Return integers in the order of the logits; NaN is highest. Takes `logits` [...] float32."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    return tl.where(logits == logits, tl.where(bits < 0, bits ^ NO_ID, bits), NO_ID)


@triton.jit
def argmax_word(order, token_ids):
    return (order.to(tl.int64) << 32) | (token_ids ^ NO_ID)


@triton.jit
def tile_argmax(logits, token_ids):
    """Return the argmax word of one tile. Takes `logits` [...] float32; `token_ids` [...] int32."""
    order = argmax_order(logits)
    best = tl.max(order)
    return argmax_word(best, tl.min(tl.where(order == best, token_ids, NO_ID)))


@triton.jit
def argmax_token(words):
    """Return token id of the best of some argmax words, reduced already."""
    return (words & NO_ID) ^ NO_ID


@triton.jit
def pack(high, low):
    """Return two float32 in one int64."""
    low_bits = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (high.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low_bits


@triton.jit
def unpack(words):
    high = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return high, (words & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def sums_of_2(a, b, other_a, other_b):
    """Add up, for a reduction of several values at once: each by itself would take a barrier more."""
    return a + other_a, b + other_b


@triton.jit
def fixed_point(weights, ONE: tl.constexpr):
    """Return integers, a power of 2 for 1. Takes `weights` [...] float32, not negative."""
    return (weights * ONE).to(tl.int64)


@triton.jit
def cdf_thresholds(uniforms, totals):
    """Return where in 0, 1, ... totals - 1 uniforms fall. Takes `uniforms` [...] float64; `totals` [...] int64."""
    return tl.minimum((uniforms * totals.to(tl.float64)).to(tl.int64), totals - 1)


@triton.jit
def sample_index(sums, threshold):
    """Return the index whose share of the CDF holds the threshold, and how far into it the threshold is.

    Takes `sums` [...] int64, not negative, not all 0."""
    ends = tl.cumsum(sums)
    offsets = threshold - (ends - sums)
    falls = (offsets >= 0) & (ends > threshold)
    indices = tl.arange(0, sums.shape[0])
    return tl.reduce((tl.where(falls, indices, 0), tl.where(falls, offsets, 0)), 0, sums_of_2)


@triton.jit
def sample_index_or_last(sums, threshold):
    """Return the index alone; the last entry above 0 if the threshold is behind the end, as that of a rounded total may
    be.

    Takes `sums` [...] int64, not negative, not all 0."""
    index = tl.sum((tl.cumsum(sums) <= threshold).to(tl.int32))
    if index == sums.shape[0]:
        index = tl.max(tl.where(sums > 0, tl.arange(0, sums.shape[0]), 0))
    return index
