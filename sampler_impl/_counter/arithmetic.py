"""What the counter kernels compute with: partial sums that add up exactly, and the inverse CDF on them.

The **partial sum** of a tile is the sum of its exp2 terms, `2**exponent`, `exponent = logit * log2(e) / temperature`.
It is kept as one int64, `exponent << 32 | mantissa` (24 bits), so that sums of different scale can be compared as
integers, and added as fixed-point numbers in any order with the same result.

The **softmax statistics** of a row are its maximum and the sum over it (or 1 / sum): a probability is
`2**(exponent - maximum) / sum`. Any reference near the largest exponent serves as the maximum. The sum of an invalid
row (NaN, an infinite logit, nothing but -inf) is 0.

A tile belongs to one warp from its load to its sum, so that nothing in it waits for a barrier.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import (
    LOG2_E,
    NO_WORD,
    VERIFY_STREAM,
    argmax_order,
    argmax_word,
    cdf_thresholds,
    fixed_point,
    load_logits,
    philox_uniforms,
    sample_index_or_last,
)
from .step import TILE_SIZE, WARPS

TILE = tl.constexpr(TILE_SIZE)
BLOCK = tl.constexpr(WARPS)
"""Tiles that a program loads at once: each of its warps has one to itself."""

FAR = tl.constexpr(1 << 30)
"""A row with an exponent beyond this is invalid."""
NO_SUM = tl.constexpr(-(1 << 62))  # exponent -FAR, mantissa 0
INVALID_SUM = tl.constexpr(1 << 62)  # exponent FAR, mantissa 0

MAX_SCALE = tl.constexpr(65536.0)
"""log2(e) over the lowest temperature, 2.2e-5, which is as good as greedy."""


@triton.jit
def exponent_scale(temperature):
    """Return what logits are multiplied by to be exponents of 2."""
    return tl.minimum(tl.div_rn(LOG2_E, temperature), MAX_SCALE)


@triton.jit
def request_uniforms(
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    req_idx,
    pos,
):
    """Return two float64 in [0, 1) at a position of the request: one to accept with, one to draw with."""
    return philox_uniforms(tl.load(seeds_ptr + req_idx), tl.load(positions_ptr + req_idx) + pos, VERIFY_STREAM)


@triton.jit
def sums_of_3(a, b, c, other_a, other_b, other_c):
    return a + other_a, b + other_b, c + other_c


# Loading tiles: one per warp.


@triton.jit
def block_ids(first_tile, RUN: tl.constexpr):
    """Return [BLOCK, TILE // RUN, RUN] int32: a warp reads the runs of one tile, each with one load of 128 bits per
    thread."""
    tiles = (first_tile + tl.arange(0, BLOCK))[:, None, None] * TILE
    runs = tl.arange(0, TILE // RUN)[None, :, None] * RUN
    # Triton deals out warps to dimensions in the order of their contiguity. Of two equal ones 3.6 takes the first and
    # 3.7 the last, which would spread a tile over all warps. So tiles are declared to be contiguous in twos, which they
    # are not: only the order of dimensions is taken from that, as loads go by the last dimension.
    return tl.max_contiguous(tiles + runs + tl.arange(0, RUN)[None, None, :], [2, 1, RUN])


@triton.jit
def load_block(
    row_ptr,  # [vocab_size] any
    first_tile,
    vocab_size,
    RUN: tl.constexpr,
):
    """Return [BLOCK, TILE // RUN, RUN] in the row's own type; -inf behind its end."""
    token_ids = block_ids(first_tile, RUN)
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))


@triton.jit
def load_tile(
    row_ptr,  # [vocab_size] any
    tile,
    removed_id,
    vocab_size,
):
    """Return [TILE] float32: one tile without a token."""
    token_ids = tile * TILE + tl.arange(0, TILE)
    logits = load_logits(row_ptr, token_ids, vocab_size)
    return tl.where(token_ids == removed_id, float("-inf"), logits)


@triton.jit
def exp2_terms(logits, scale, row_max):
    return tl.exp2(logits * scale - row_max)


@triton.jit
def argmax_word_at(
    row_ptr,  # [vocab_size] any
    token_id,
    vocab_size,
):
    """Return the argmax word of the drafted token; less than any other if it is outside the vocabulary."""
    known = (token_id >= 0) & (token_id < vocab_size)
    logit = tl.load(row_ptr + token_id, mask=known, other=0.0).to(tl.float32)
    return tl.where(known, argmax_word(argmax_order(logit), token_id), NO_WORD)


# Partial sums of tiles.


@triton.jit
def sum_tiles(terms):
    """Return the sum of each tile by its warp, [BLOCK] float32. The order of additions does not depend on the tiles
    beside it.

    Takes `terms` [BLOCK, TILE // RUN, RUN] float32."""
    return tl.sum(tl.sum(terms, axis=1), axis=1)


@triton.jit
def reference_of(exponents):
    """Return what exp2 terms are taken over: an exponent rounded up, or 0 if there is none to compute with."""
    return tl.where(tl.abs(exponents) < FAR, tl.ceil(exponents), 0.0)


@triton.jit
def is_out_of_range(sums, exponent):
    """Whether the reference of an exponent is too low for a tile, or too high if there was no exponent; also of NaN."""
    least = tl.where(tl.abs(exponent) < FAR, 0.0, 1e-20)
    return ((sums < 1e30) & (sums >= least)) == 0


@triton.jit
def pack_sum(sums, references):
    """Return `sums * 2**references` as int64; of NaN or infinity the highest exponent, with mantissa 0.

    Takes `sums` [...] float32; `references` [...] float32."""
    return tl.where(sums < 1e38, pack_finite_sum(sums, references), INVALID_SUM)


@triton.jit
def pack_finite_sum(sums, references):
    """Return `sums * 2**references` as int64; less than float32's normal numbers counts as 0.

    Takes `sums` [...] float32, not negative; `references` [...] float32."""
    bits = sums.to(tl.int32, bitcast=True)
    exponents = (bits >> 23) + (references.to(tl.int32) - 127)
    mantissas = (bits & 0x7FFFFF) | 0x800000
    return tl.where(bits >= 0x800000, (exponents.to(tl.int64) << 32) | mantissas.to(tl.int64), NO_SUM)


@triton.jit
def block_sums(logits, scale):
    """Return [BLOCK] int64: partial sums, each over the maximum of its own tile.

    Takes `logits` [BLOCK, TILE // RUN, RUN] any."""
    exponents = logits.to(tl.float32)
    references = reference_of(tl.max(tl.max(exponents, axis=1), axis=1) * scale)
    return pack_sum(sum_tiles(exp2_terms(exponents, scale, references[:, None, None])), references)


@triton.jit
def tile_sum(
    row_ptr,  # [vocab_size] any
    removed_id,
    tile,
    scale,
    vocab_size,
    exponent,
):
    """Return partial sum of one tile without a token, over an exponent; if that is out of range, over the tile's
    maximum."""
    reference = reference_of(exponent)
    logits = load_tile(row_ptr, tile, removed_id, vocab_size)
    total = tl.sum(exp2_terms(logits, scale, reference))
    if is_out_of_range(total, exponent):
        reference = reference_of(tl.max(logits) * scale)
        total = tl.sum(exp2_terms(logits, scale, reference))
    return pack_sum(total, reference)


@triton.jit
def padding_word(temperature):
    """Return what a tile behind the last one counts for: nothing, or less than any argmax word."""
    return tl.where(temperature == 0, NO_WORD, NO_SUM)


# From the partial sums of a row to its softmax statistics and to a token.


@triton.jit
def aligned_sums(partial_sums, row_exponents):
    """Return partial sums over `2**row_exponent` as fixed-point numbers: 1 is 2**53, and 512 tiles add up.

    Takes `partial_sums` [...] int64."""
    return ((partial_sums & 0xFFFFFFFF) << 30) >> tl.minimum(row_exponents - (partial_sums >> 32).to(tl.int32), 63)


@triton.jit
def softmax_statistics(partial_sums):
    """Return [rows] float32 twice: maximum and sum of each row; the sum of an invalid row is 0.

    Takes `partial_sums` [rows, CHUNKS, 32] int64."""
    row_exponents = tl.max(tl.max((partial_sums >> 32).to(tl.int32), axis=1), axis=1)
    row_max = row_exponents.to(tl.float32)
    row_sums = tl.sum(tl.sum(aligned_sums(partial_sums, row_exponents[:, None, None]), axis=1), axis=1)
    # Beyond 2**24 the float32 maximum is not the exponent itself.
    rest = tl.exp2((row_exponents - row_max.to(tl.int32)).to(tl.float32))
    return row_max, row_sums.to(tl.float32) * 1.1102230246251565e-16 * rest


@triton.jit
def reciprocals(row_sums):
    """Return 1 / sum; 0 for an invalid row."""
    return tl.where(row_sums > 0, tl.div_rn(1.0, row_sums), 0.0)


@triton.jit
def sample_tiles(partial_sums, uniforms):
    """Return for each row the sampled tile, the tile's exponent and its CDF threshold for `sample_in_tile`, which is -1
    in an invalid row. Reductions are first over chunks, then over threads: in another order a row would leave its warp.

    Takes `partial_sums` [rows, CHUNKS, 32] int64; `uniforms` [rows] float64."""
    exponents = (partial_sums >> 32).to(tl.int32)
    row_exponents = tl.max(tl.max(exponents, axis=1), axis=1)
    aligned = aligned_sums(partial_sums, row_exponents[:, None, None])
    sums = tl.sum(aligned, axis=1)
    thresholds = cdf_thresholds(uniforms, tl.sum(sums, axis=1))
    ends = tl.cumsum(aligned, axis=1) + (tl.cumsum(sums, axis=1) - sums)[:, None, :]
    offsets = thresholds[:, None, None] - (ends - aligned)
    falls = (offsets >= 0) & (offsets < aligned)
    chunks: tl.constexpr = partial_sums.shape[1]
    tiles = tl.arange(0, 32)[None, None, :] * chunks + tl.arange(0, chunks)[None, :, None]
    found = (tl.where(falls, tiles, 0), tl.where(falls, offsets, 0), tl.where(falls, exponents, 0))
    tile, offset, exponent = tl.reduce(tl.reduce(found, 1, sums_of_3), 1, sums_of_3)
    return tile, exponent, tl.where(thresholds < 0, -1, threshold_in_tile(offset, row_exponents - exponent))


@triton.jit
def threshold_in_tile(offsets, distances):
    """Return what `sample_in_tile` takes, of offsets into a tile, which count over an exponent that is `distances`
    higher."""
    return offsets << tl.minimum(distances + 4, 63)


@triton.jit
def sample_in_tile(terms, threshold):
    """Return the sampled index. Over the tile's exponent its exp2 terms add up to 1, or less than 2.

    Takes `terms` [TILE] float32."""
    return sample_index_or_last(fixed_point(terms, 144115188075855872.0), threshold)  # 2**57


# Where partial sums lie.


@triton.jit
def slot_of_tile(tiles, CHUNKS: tl.constexpr):
    """Return where in its row a tile's slot is, so that 32 threads side by side read tiles `CHUNKS` apart.

    Thread 0 then has the first `CHUNKS` tiles, thread 1 the next ones, and one scan over threads is enough."""
    tiles = tl.cast(tiles, tl.uint32)  # so that divisions are shifts
    return tl.cast(tiles % CHUNKS * 32 + tiles // CHUNKS, tl.int32)


@triton.jit
def store_by_warps(pointers, words, mask):
    """Store each word by a thread of the warp that has its tile; a block of [BLOCK] would be exchanged over barriers.

    Takes `pointers` [BLOCK] any; `words` [BLOCK] any; `mask` [BLOCK] bool."""
    threads = tl.arange(0, 32)[None, :]
    tl.store(pointers[:, None] + threads, words[:, None] + threads * 0, mask=mask[:, None] & (threads == 0))
