"""The plain sampler with counter noise as Triton kernels: logits are read once, probabilities are never written.

    stats    one program per request and tile     highest logit of the tile and the mass relative to it
    min-p    one program per request and tile     (if min-p is in use) the mass again, of kept tokens alone; tiles
                                                  without one are not read
    pick     one program per request              a tile by its share, then a token of that tile: two steps of one
                                                  inverse CDF with one uniform

Why inverse CDF, and not Gumbel noise: a Gumbel or exponential race needs a random number per token, and Philox with a
logarithm takes longer than reading a logit. The rejection step, which draws as this one does, takes twice as long with
a race in that place (`race` in `perf_regression/records/rejection_h200.json`). One uniform per request costs nothing,
and its draw is as fair.

A tile's entry in `tile_sums` is one int64. Of a random request, and of a greedy one (the order of keys is that of
logits, lowest id first, NaN highest as in torch.argmax):

    63             32 31              0        63                32 31                    0
    highest logit     mass                     key of the logit     2**31 - 1 - token id      (maximum: best of all)

Masses become 64-bit integers, `MASS_ONE` for the highest logit, before anything is added up across lanes or tiles:
integer sums are exact, so cumulative sums and totals agree, and the pick can neither miss nor leave the vocabulary.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._sampling_checks import CounterNoise

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether TRITON_INTERPRET=1 was set when the kernels were defined; only then do they take CPU tensors."""

TILE = 4096
"""Vocabulary entries per program; constant, because sums depend on it and a draw must not depend on the batch.

Chosen on an H200, together with the number of warps; other widths have no record."""

MAX_VOCAB_SIZE = 128 * TILE
"""128 tiles of at most 4096 * MASS_ONE fit an int64."""

MASS_ONE = tl.constexpr(4398046511104.0)  # 2**42
NO_ID = tl.constexpr(0x7FFFFFFF)
GREEDY_BELOW = tl.constexpr(1e-5)
LOG2_E = tl.constexpr(1.4426950408889634)


@contextmanager
def _silent() -> Iterator[None]:
    """The interpreter computes with NumPy, which warns of infinities and NaN that the kernels handle."""
    if not INTERPRETED:
        yield
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sample(
    logits: Tensor,  # [num_rows, vocab_size] float32
    temperature: Tensor,  # [batch_size] float32
    min_p: Tensor | None,  # [num_rows] float32
    noise: CounterNoise,
    stream: int,
) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size] float32
    """One token per row, and the log-sum-exp of its kept logits over temperature (0 for greedy rows).

    Traffic:
        The logits, once, and one tile of each row again; with min-p also the tiles that hold a kept token.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    batch_size, vocab_size = logits.shape
    num_tiles = triton.cdiv(vocab_size, TILE)
    tile_sums = torch.empty((batch_size, num_tiles), dtype=torch.int64, device=logits.device)
    sampled_token_ids = torch.empty(batch_size, dtype=torch.int64, device=logits.device)
    logsumexp = torch.empty(batch_size, dtype=torch.float32, device=logits.device)
    tiles = triton.next_power_of_2(num_tiles)
    temperature = temperature.contiguous()
    min_p = None if min_p is None else min_p.contiguous()
    if batch_size == 0:
        return sampled_token_ids, logsumexp
    with _silent():
        _stats_kernel[(batch_size, num_tiles)](
            tile_sums, logits, temperature, vocab_size, logits.stride(0), TILE=TILE, num_warps=4
        )
        if min_p is not None:
            _min_p_kernel[(batch_size, num_tiles)](
                tile_sums, logits, temperature, min_p, vocab_size, logits.stride(0), TILE=TILE, TILES=tiles, num_warps=4
            )
        _pick_kernel[(batch_size,)](
            sampled_token_ids,
            logsumexp,
            tile_sums,
            logits,
            temperature,
            min_p,
            noise.seeds.contiguous(),
            noise.positions.contiguous(),
            stream,
            vocab_size,
            logits.stride(0),
            num_tiles,
            TILE=TILE,
            TILES=tiles,
            num_warps=4,
        )
    return sampled_token_ids, logsumexp


@triton.jit
def _load_logits(
    row_ptr,  # [vocab_size] any
    token_ids,  # [TILE] int32
    vocab_size,
):
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def _masses(
    logits,  # [TILE] float32
    top,
    scale,
):
    """`exp((logit - top) / temperature)`. Subtracted before it is scaled: the difference of near logits is exact."""
    reference = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    return tl.exp2((logits - reference) * scale)


@triton.jit
def _pack(top, mass):
    low = mass.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (top.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def _load_stats(
    tile_sums_ptr,  # [batch_size, num_tiles] int64
    row,
    num_tiles,
    TILES: tl.constexpr,
):
    """Highest logit and mass of every tile of a random row."""
    tiles = tl.arange(0, TILES)
    stats = tl.load(tile_sums_ptr + row * num_tiles + tiles, mask=tiles < num_tiles, other=0)
    tops = (stats >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    masses = (stats & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(tiles < num_tiles, tops, float("-inf")), masses


@triton.jit
def _pick(
    masses,  # [TILE] float32, 1 stands for MASS_ONE
    draw,
):
    """Inverse CDF: the entry in which `draw` falls, and how far into it, again in [0, 1)."""
    counts = (masses * MASS_ONE).to(tl.int64)
    cumulative = tl.cumsum(counts)
    total = tl.sum(counts)
    goal = tl.minimum((draw * total.to(tl.float64)).to(tl.int64), total - 1)
    passed = cumulative <= goal
    low = tl.max(tl.where(passed, cumulative, 0))
    high = tl.min(tl.where(passed, total, cumulative))
    return tl.sum(passed.to(tl.int32)), (goal - low).to(tl.float64) / (high - low).to(tl.float64)


@triton.jit
def _counter_draw(seed, position, stream):
    """One multiple of 2**-53 in [0, 1): as `_philox.counter_uniforms`."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    first, second, _third, _fourth = tl.philox(seed, low, high, stream.to(tl.uint32), low * 0)
    return ((first >> 5).to(tl.float64) * 67108864.0 + (second >> 6).to(tl.float64)) * 1.1102230246251565e-16


@triton.jit
def _stats_kernel(
    tile_sums_ptr,  # [batch_size, num_tiles] int64, written
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    vocab_size,
    row_stride,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token_ids = tile * TILE + tl.arange(0, TILE)
    logits = _load_logits(logits_ptr + row * row_stride, token_ids, vocab_size)
    temperature = tl.load(temperature_ptr + row)
    if temperature < GREEDY_BELOW:
        bits = (logits + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
        keys = tl.where(logits == logits, tl.where(bits < 0, bits ^ NO_ID, bits), NO_ID)
        best = tl.max(keys)
        lowest = tl.min(tl.where(keys == best, token_ids, NO_ID))
        stats = (best.to(tl.int64) << 32) | (lowest ^ NO_ID)
    else:
        top = tl.max(logits)
        stats = _pack(top, tl.sum(_masses(logits, top, tl.div_rn(LOG2_E, temperature))))
    tl.store(tile_sums_ptr + row * tl.num_programs(1) + tile, stats)


@triton.jit
def _min_p_kernel(
    tile_sums_ptr,  # [batch_size, num_tiles] int64, written
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    min_p_ptr,  # [num_rows] float32
    vocab_size,
    row_stride,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    if (temperature < GREEDY_BELOW) | (min_p <= 0):
        return
    num_tiles = tl.num_programs(1)
    # Other programs may have written their tiles; the highest logits, which are all that is read, stay.
    tops, _others = _load_stats(tile_sums_ptr, row, num_tiles, TILES)
    scale = tl.div_rn(LOG2_E, temperature)
    row_top = tl.max(tops)
    tile_top = tl.max(tl.where(tl.arange(0, TILES) == tile, tops, float("-inf")))
    mass = 0.0
    if (tile_top - row_top) * scale >= tl.log2(min_p):
        token_ids = tile * TILE + tl.arange(0, TILE)
        logits = _load_logits(logits_ptr + row * row_stride, token_ids, vocab_size)
        kept = (logits - row_top) * scale >= tl.log2(min_p)
        mass = tl.sum(tl.where(kept | (logits != logits), _masses(logits, tile_top, scale), 0.0))
    tl.store(tile_sums_ptr + row * num_tiles + tile, _pack(tile_top, mass))


@triton.jit(do_not_specialize=["stream", "num_tiles"])
def _pick_kernel(
    sampled_token_ids_ptr,  # [batch_size] int64, written
    logsumexp_ptr,  # [batch_size] float32, written
    tile_sums_ptr,  # [batch_size, num_tiles] int64
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    min_p_ptr,  # [num_rows] float32, or None
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    stream,
    vocab_size,
    row_stride,
    num_tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES)
    temperature = tl.load(temperature_ptr + row)
    token_id = tl.full((), 0, tl.int64)
    logsumexp = 0.0
    if temperature < GREEDY_BELOW:
        offsets = row * num_tiles + tiles
        keys = tl.load(tile_sums_ptr + offsets, mask=tiles < num_tiles, other=-0x8000000000000000)
        token_id = (tl.max(keys) & NO_ID) ^ NO_ID
    else:
        scale = tl.div_rn(LOG2_E, temperature)
        tops, masses = _load_stats(tile_sums_ptr, row, num_tiles, TILES)
        row_top = tl.max(tops)
        # NaN and infinite logits leave their mark in a mass; a tile of -inf alone has mass 0.
        is_law = tl.min((masses < float("inf")).to(tl.int32)) == 1
        shares = tl.where(masses > 0, masses * tl.exp2((tops - row_top) * scale), 0.0)
        total = tl.sum(shares)
        logsumexp = float("nan")
        if is_law & (total > 0):
            logsumexp = (row_top * scale + tl.log2(total)) / LOG2_E
            draw = _counter_draw(tl.load(seeds_ptr + row), tl.load(positions_ptr + row), stream)
            tile, rest = _pick(shares, draw)
            token_ids = tile * TILE + tl.arange(0, TILE)
            logits = _load_logits(logits_ptr + row * row_stride, token_ids, vocab_size)
            weights = _masses(logits, tl.max(tl.where(tiles == tile, tops, float("-inf"))), scale)
            if min_p_ptr is not None:
                cut = tl.log2(tl.load(min_p_ptr + row))
                weights = tl.where((logits - row_top) * scale >= cut, weights, 0.0)
            last, rest = _pick(weights, rest)
            token_id = (tile * TILE + last).to(tl.int64)
    tl.store(sampled_token_ids_ptr + row, token_id)
    tl.store(logsumexp_ptr + row, logsumexp)
