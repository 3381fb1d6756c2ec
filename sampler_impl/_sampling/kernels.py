"""The Triton backend of `sampling`, for counter noise: logits are read once, probabilities are never written.

    sum      one program per request and tile     row maximum of the tile and its partial sum over that
    min-p    one program per request and tile     (if min-p is in use) the partial sum again, of kept tokens alone;
                                                  tiles without one are not read
    sample   one program per request              a tile by its partial sum, then a token of that tile: the two levels
                                                  of an inverse CDF with one uniform

Why inverse CDF, and not Gumbel noise: a Gumbel or exponential race needs a random number per token, and Philox with a
logarithm takes longer than reading a logit. The rejection step, which draws as this one does, takes twice as long with
a race in that place (`race` in `perf_regression/records/rejection_h200.json`). One uniform per request costs nothing,
and the draw is as exact.

A tile's entry in `tile_sums` is one int64: an argmax word (`_shared.kernels`) of a greedy request, else

    63             32 31              0
    highest logit     partial sum            both float32

Partial sums become 64-bit integers, `ONE` for the highest logit, before anything is added across lanes or tiles.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._shared.compiled import Given, LaunchPlan, compiled
from .._shared.kernels import (
    INTERPRETED,
    LOG2_E,
    NO_WORD,
    argmax_token,
    cdf_thresholds,
    fixed_point,
    load_logits,
    pack,
    philox_uniforms,
    tile_argmax,
    unpack,
)
from .._shared.sizes import cdiv, next_power_of_2
from . import parameters
from .parameters import KNOWN, DrawCall

TILE = 4096
"""Vocabulary entries per program; constant, because sums depend on it and a draw must not depend on the batch.

Chosen on an H200, together with the number of warps; other widths have no record. Wider than the tiles of the rejection
kernels, `_counter.step.TILE_SIZE`, of which each warp adds up one by itself: here all warps of a program add up one."""

OPTIONS = {"num_warps": 4}

MAX_VOCAB_SIZE = 128 * TILE
"""128 tiles of at most 4096 * ONE fit an int64."""

ONE = tl.constexpr(4398046511104.0)  # 2**42
GREEDY_BELOW = tl.constexpr(parameters.GREEDY_BELOW)


def draw(call: DrawCall) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size] float32
    """Draw one token per row, and the log-sum-exp of its kept logits over temperature (0 for greedy rows).

    Traffic:
        The logits, once, and one tile of each row again; with min-p also the tiles that hold a kept token.
    """
    call = _contiguous(call)
    plan = _Plan(call) if INTERPRETED else KNOWN.find_or_make(call, lambda: _Plan(call))
    return plan(call)


def _contiguous(call: DrawCall) -> DrawCall:
    """Make tensors contiguous; of logits each row, as a stride between rows costs nothing."""
    logits, temperature, min_p, seeds, positions, stream = call
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    min_p = None if min_p is None else min_p.contiguous()
    return DrawCall(logits, temperature.contiguous(), min_p, seeds.contiguous(), positions.contiguous(), stream)


class _Plan(LaunchPlan):
    """The kernels of calls of one kind."""

    def __init__(self, call: DrawCall) -> None:
        super().__init__(call.logits.device)
        self.batch_size, vocab_size = call.logits.shape
        self.num_tiles = cdiv(vocab_size, TILE)
        tiles = next_power_of_2(self.num_tiles)
        strides = {"vocab_size": vocab_size, "row_stride": call.logits.stride(0)}
        self.sizes = {"rng_stream": call.stream, **strides, "num_tiles": self.num_tiles}
        by_tile = (self.batch_size, self.num_tiles, 1)
        filtered = [] if call.min_p is None else [(compiled(_min_p_kernel, OPTIONS, TILE=TILE, TILES=tiles), by_tile)]
        self.launches = [
            (compiled(_sum_kernel, OPTIONS, TILE=TILE), by_tile),
            *filtered,
            (compiled(_sample_kernel, OPTIONS, TILE=TILE, TILES=tiles), (self.batch_size, 1, 1)),
        ]

    def __call__(self, call: DrawCall) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size] float32
        tile_sums = torch.empty((self.batch_size, self.num_tiles), dtype=torch.int64, device=self.device)
        sampled_token_ids = torch.empty(self.batch_size, dtype=torch.int64, device=self.device)
        logsumexp = torch.empty(self.batch_size, dtype=torch.float32, device=self.device)
        if self.batch_size > 0:
            self.launch((sampled_token_ids, logsumexp, tile_sums, *call[:-1]))
        return sampled_token_ids, logsumexp

    def named(self, given: Given) -> dict[str, Any]:  # Any: as given, and numbers
        sampled_token_ids, logsumexp, tile_sums, logits, temperature, min_p, seeds, positions = given
        return {
            "sampled_token_ids_ptr": sampled_token_ids,
            "logsumexp_ptr": logsumexp,
            "tile_sums_ptr": tile_sums,
            "logits_ptr": logits,
            "temperature_ptr": temperature,
            "min_p_ptr": min_p,
            "seeds_ptr": seeds,
            "positions_ptr": positions,
            **self.sizes,
        }


@triton.jit
def _exp2_terms(logits, row_max, scale):
    """Return `exp((logit - row_max) / temperature)`. Subtracted before scaling: the difference of near logits is exact.

    Takes `logits` [TILE] float32."""
    reference = tl.where(tl.abs(row_max) < float("inf"), row_max, 0.0)
    return tl.exp2((logits - reference) * scale)


@triton.jit
def _load_sums(
    tile_sums_ptr,  # [batch_size, num_tiles] int64
    row,
    num_tiles,
    TILES: tl.constexpr,
):
    """Return maximum and partial sum of every tile of a random row."""
    tiles = tl.arange(0, TILES)
    words = tl.load(tile_sums_ptr + row * num_tiles + tiles, mask=tiles < num_tiles, other=0)
    maxima, sums = unpack(words)
    return tl.where(tiles < num_tiles, maxima, float("-inf")), sums


@triton.jit
def _sample(weights, uniform):
    """Sample by one level of the inverse CDF. Return the sampled index, and how far into it the uniform falls, again in
    [0, 1).

    Takes `weights` [TILE] float32, 1 stands for ONE."""
    shares = fixed_point(weights, ONE)
    ends = tl.cumsum(shares)
    total = tl.sum(shares)
    threshold = cdf_thresholds(uniform, total)
    # Not `sample_index`: it reduces two values at once, which the interpreter does entry by entry, here of 4096.
    passed = ends <= threshold
    low = tl.max(tl.where(passed, ends, 0))
    high = tl.min(tl.where(passed, total, ends))
    return tl.sum(passed.to(tl.int32)), (threshold - low).to(tl.float64) / (high - low).to(tl.float64)


@triton.jit
def _sum_kernel(
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
    logits = load_logits(logits_ptr + row * row_stride, token_ids, vocab_size)
    temperature = tl.load(temperature_ptr + row)
    if temperature < GREEDY_BELOW:
        word = tile_argmax(logits, token_ids)
    else:
        tile_max = tl.max(logits)
        word = pack(tile_max, tl.sum(_exp2_terms(logits, tile_max, tl.div_rn(LOG2_E, temperature))))
    tl.store(tile_sums_ptr + row * tl.num_programs(1) + tile, word)


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
    # Other programs may have written their sums already. Only the maxima are used here, and these stay the same.
    maxima, _sums = _load_sums(tile_sums_ptr, row, num_tiles, TILES)
    scale = tl.div_rn(LOG2_E, temperature)
    row_max = tl.max(maxima)
    tile_max = tl.max(tl.where(tl.arange(0, TILES) == tile, maxima, float("-inf")))
    total = 0.0
    if (tile_max - row_max) * scale >= tl.log2(min_p):
        token_ids = tile * TILE + tl.arange(0, TILE)
        logits = load_logits(logits_ptr + row * row_stride, token_ids, vocab_size)
        kept = (logits - row_max) * scale >= tl.log2(min_p)
        total = tl.sum(tl.where(kept | (logits != logits), _exp2_terms(logits, tile_max, scale), 0.0))
    tl.store(tile_sums_ptr + row * num_tiles + tile, pack(tile_max, total))


@triton.jit(do_not_specialize=["rng_stream", "num_tiles"])
def _sample_kernel(
    sampled_token_ids_ptr,  # [batch_size] int64, written
    logsumexp_ptr,  # [batch_size] float32, written
    tile_sums_ptr,  # [batch_size, num_tiles] int64
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    min_p_ptr,  # [num_rows] float32, or None
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    rng_stream,
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
        words = tl.load(tile_sums_ptr + row * num_tiles + tiles, mask=tiles < num_tiles, other=NO_WORD)
        token_id = argmax_token(tl.max(words))
    else:
        # Sum up the row.
        scale = tl.div_rn(LOG2_E, temperature)
        maxima, sums = _load_sums(tile_sums_ptr, row, num_tiles, TILES)
        row_max = tl.max(maxima)
        # NaN and infinite logits make a sum that is not finite; a tile of -inf alone has sum 0.
        is_valid = tl.min((sums < float("inf")).to(tl.int32)) == 1
        shares = tl.where(sums > 0, sums * tl.exp2((maxima - row_max) * scale), 0.0)
        total = tl.sum(shares)
        logsumexp = float("nan")
        if is_valid & (total > 0):
            logsumexp = (row_max * scale + tl.log2(total)) / LOG2_E
            # Sample a tile.
            uniform, _ = philox_uniforms(tl.load(seeds_ptr + row), tl.load(positions_ptr + row), rng_stream)
            tile, rest = _sample(shares, uniform)
            # Sample in that tile, with what is left of the uniform.
            token_ids = tile * TILE + tl.arange(0, TILE)
            logits = load_logits(logits_ptr + row * row_stride, token_ids, vocab_size)
            weights = _exp2_terms(logits, tl.max(tl.where(tiles == tile, maxima, float("-inf"))), scale)
            if min_p_ptr is not None:
                cut = tl.log2(tl.load(min_p_ptr + row))
                weights = tl.where((logits - row_max) * scale >= cut, weights, 0.0)
            last, rest = _sample(weights, rest)
            token_id = (tile * TILE + last).to(tl.int64)
    tl.store(sampled_token_ids_ptr + row, token_id)
    tl.store(logsumexp_ptr + row, logsumexp)
