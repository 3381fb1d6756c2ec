"""What the counter kernels compute with: masses that add up exactly, and one uniform per draw.

A **mass** is the sum of `2**exponent` over some entries of a row, where `exponent = logit * log2(e) / temperature`. The
mass of a tile is kept as one int64, `exponent << 32 | mantissa` (24 bits), so that masses of different scale can be
compared as integers, and added as fixed-point numbers in any order with the same result.

An inverse CDF is taken in two levels, and exactly: the uniform picks a tile by the tiles' masses (or an eighth of one),
and what is left of it picks the entry. Integers have no rounding, so no level can miss.

    row    [ tile 0 | tile 1 | tile 2 | ... ]          goal = uniform * total
                        ^ goal falls here; uniform' = (goal - start) / mass
    tile 1 [ entry 4096, entry 4097, ... ]
                        ^ goal' = uniform' * mass falls here
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(4096)
PARTS = tl.constexpr(8)
PART = tl.constexpr(512)  # TILE // PARTS
"""What is read again when a tile has been picked. Eighths instead of tiles: 97.9 us instead of 100.8 (H200, B=256)."""

NO_ID = tl.constexpr(0x7FFFFFFF)
NO_WINNER = tl.constexpr(-0x8000000000000000)

FAR = tl.constexpr(1 << 30)
"""Exponents beyond this are no numbers to compute with: a row that has one has no law."""
NO_MASS = tl.constexpr(-(1 << 62))  # exponent -FAR, mantissa 0

MAX_SCALE = tl.constexpr(65536.0)
"""log2(e) over the lowest temperature, 2.2e-5, which is as good as greedy."""

LOG2_E = tl.constexpr(1.4426950408889634)

EMPTY = tl.constexpr(8.673617379884035e-19)
"""2**-60: a residual of less mass is rounding of equal laws."""

STREAM = tl.constexpr(0x76657269)
"""Third counter word of Philox, "veri": no other draw of the engine shares these numbers."""


@triton.jit
def exponent_scale(temperature):
    """Logits times this are exponents of 2."""
    return tl.minimum(tl.div_rn(LOG2_E, temperature), MAX_SCALE)


@triton.jit
def uniforms_at(seed, positions):
    """Two float64 in [0, 1) for each position: one to accept with, one to draw with. One Philox block, 53 bits each."""
    low = (positions & 0xFFFFFFFF).to(tl.uint32)
    high = ((positions >> 32) & 0xFFFFFFFF).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0 + STREAM, low * 0)
    accept = ((a >> 5).to(tl.float64) * 67108864.0 + (b >> 6).to(tl.float64)) * 1.1102230246251565e-16
    draw = ((c >> 5).to(tl.float64) * 67108864.0 + (d >> 6).to(tl.float64)) * 1.1102230246251565e-16
    return accept, draw


@triton.jit
def pick(
    masses,  # [...] int64, not negative, not all 0
    uniform,
):
    """The entry in which `uniform` falls, and how far into it, in [0, 1)."""
    cumulative = tl.cumsum(masses)
    total = tl.sum(masses)
    goal = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    passed = cumulative <= goal
    start = tl.max(tl.where(passed, cumulative, 0))
    end = tl.min(tl.where(passed, 0x7FFFFFFFFFFFFFFF, cumulative))
    return tl.sum(passed.to(tl.int32)), (goal - start).to(tl.float64) / (end - start).to(tl.float64)


@triton.jit
def pick_last(
    masses,  # [...] int64, not negative, not all 0
    uniform,
):
    """The entry in which `uniform` falls, where nothing is drawn within it."""
    total = tl.sum(masses)
    goal = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    return tl.sum((tl.cumsum(masses) <= goal).to(tl.int32))


@triton.jit
def fixed_point(
    weights,  # [...] float32, not negative
    total,
):
    """Integers in proportion, of 58 bits or so together. `total` is what the weights add up to, more than 2**-65."""
    exponent = (total.to(tl.int32, bitcast=True) >> 23) - 127
    return (weights * ((57 - exponent + 127) << 23).to(tl.float32, bitcast=True)).to(tl.int64)


@triton.jit
def load_logits(
    row_ptr,  # [vocab_size] any
    token_ids,  # [...] int32
    vocab_size,
):
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def tile_ids(tile, LANES: tl.constexpr):
    """[TILE // LANES, LANES] int32"""
    return tile * TILE + tl.arange(0, TILE // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]


@triton.jit
def load_tile(
    row_ptr,  # [vocab_size] any
    tile,
    vocab_size,
    LANES: tl.constexpr,
):
    """[TILE // LANES, LANES] in the row's own type; -inf behind its end."""
    token_ids = tile_ids(tile, LANES)
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))


@triton.jit
def without(logits, token_ids, token_id):
    return tl.where(token_ids == token_id, float("-inf"), logits)


@triton.jit
def highest_exponent(
    row_ptr,  # [vocab_size] any
    removed_id,
    tile,
    scale,
    vocab_size,
    size,
    LANES: tl.constexpr,
):
    """Of one tile, rounded up; 0 if there is none to compute with."""
    best = tl.full((LANES,), float("-inf"), tl.float32)
    for first in range(0, size, LANES):
        token_ids = tile * TILE + first + tl.arange(0, LANES)
        logits = without(load_logits(row_ptr, token_ids, vocab_size), token_ids, removed_id)
        best = tl.where(logits > best, logits, best)
    highest = tl.max(best) * scale
    return tl.where(tl.abs(highest) < FAR, tl.ceil(highest), 0.0)


@triton.jit
def _sum_of_powers(
    row_ptr,  # [vocab_size] any
    removed_id,
    tile,
    scale,
    reference,
    vocab_size,
    size,
    LANES: tl.constexpr,
):
    """Of one tile without the removed id, over `2**reference`."""
    sums = tl.zeros((LANES,), tl.float32)
    for first in range(0, size, LANES):
        token_ids = tile * TILE + first + tl.arange(0, LANES)
        logits = without(load_logits(row_ptr, token_ids, vocab_size), token_ids, removed_id)
        sums += tl.exp2(logits * scale - reference)
    return tl.sum(sums)


@triton.jit
def reference_exponent(
    row_ptr,  # [vocab_size] any
    draft_token_id,
    scale,
    vocab_size,
):
    """What powers of a row are taken over: that of the drafted token, which one gather knows at once.

    A tile's highest would be as good, but a reduction would have to find it first. The second value is the token's own
    exponent. The third says whether there was a drafted token with a number to compute with; if not, the reference is
    0, and has to prove itself.
    """
    known = (draft_token_id >= 0) & (draft_token_id < vocab_size)
    own = tl.load(row_ptr + draft_token_id, mask=known, other=0.0).to(tl.float32) * scale
    usable = known & (tl.abs(own) < FAR)
    return tl.where(usable, tl.ceil(own), 0.0), own, usable


@triton.jit
def packed(
    masses,  # [...] float32
    reference,
):
    """As int64, `masses * 2**reference`; of NaN or infinity the highest exponent, with nothing of it."""
    bits = masses.to(tl.int32, bitcast=True)
    normal = (masses < 1e38) & (bits >= 0x800000)
    exponents = tl.where(normal, (bits >> 23) - 127 + reference.to(tl.int32), tl.where(masses < 1e38, -FAR, FAR))
    mantissas = tl.where(normal, (bits & 0x7FFFFF) | 0x800000, 0)
    return (exponents.to(tl.int64) << 32) | mantissas.to(tl.int64)


@triton.jit
def tile_mass(
    logits,  # [TILE // LANES, LANES] any
    row_ptr,  # [vocab_size] any
    tile,
    scale,
    reference,
    usable,
    vocab_size,
    LANES: tl.constexpr,
):
    """Mass of one tile; NaN or an infinite logit give it the highest exponent.

    Where the row's reference fails, the tile is read again with its own. The second value is the sum over
    `2**reference`, or 0 if that failed.
    """
    total = tl.sum(tl.sum(tl.exp2(logits.to(tl.float32) * scale - reference), axis=0))
    mass = total
    if (not (total < 1e30)) | ((not usable) & (total < 1e-20)):
        total = 0.0
        reference = highest_exponent(row_ptr, -1, tile, scale, vocab_size, TILE, LANES)
        mass = _sum_of_powers(row_ptr, -1, tile, scale, reference, vocab_size, TILE, LANES)
    return packed(mass, reference), total


@triton.jit
def mass_beside(
    row_ptr,  # [vocab_size] any
    token_id,
    scale,
    reference,
    usable,
    vocab_size,
    LANES: tl.constexpr,
):
    """Mass of the tile that has a token, without that token."""
    tile = token_id // TILE
    size = tl.minimum(TILE, vocab_size - tile * TILE)  # a number that the compiler does not know unrolls nothing
    mass = _sum_of_powers(row_ptr, token_id, tile, scale, reference, vocab_size, size, LANES)
    if (not (mass < 1e30)) | ((not usable) & (mass < 1e-20)):
        reference = highest_exponent(row_ptr, token_id, tile, scale, vocab_size, size, LANES)
        mass = _sum_of_powers(row_ptr, token_id, tile, scale, reference, vocab_size, size, LANES)
    return packed(mass, reference)


@triton.jit
def _winner_keys(
    logits,  # [...] float32
):
    """Integers in the order of the logits; NaN is highest, as in torch.argmax."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    return tl.where(logits == logits, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), 0x7FFFFFFF)


@triton.jit
def winner(keys, token_ids):
    """A highest logit and its lowest token id in one int64."""
    return (keys.to(tl.int64) << 32) | (token_ids ^ NO_ID)


@triton.jit
def tile_winner(
    row_ptr,  # [vocab_size] any
    tile,
    vocab_size,
    LANES: tl.constexpr,
):
    """Highest logit of one tile and its lowest token id, in one int64; NaN is highest, as in torch.argmax."""
    highest = tl.full((), NO_WINNER, tl.int64)
    for first in range(0, TILE, LANES):
        token_ids = tile * TILE + first + tl.arange(0, LANES)
        keys = _winner_keys(load_logits(row_ptr, token_ids, vocab_size))
        best = tl.max(keys)
        highest = tl.maximum(highest, winner(best, tl.min(tl.where(keys == best, token_ids, NO_ID))))
    return highest


@triton.jit
def winner_at(
    row_ptr,  # [vocab_size] any
    token_id,
    vocab_size,
):
    """What the drafted token would be as a winner; less than any if it is outside the vocabulary."""
    known = (token_id >= 0) & (token_id < vocab_size)
    logit = tl.load(row_ptr + token_id, mask=known, other=0.0).to(tl.float32)
    return tl.where(known, winner(_winner_keys(logit), token_id), NO_WINNER)


@triton.jit
def nothing(temperature):
    """What a tile behind the last one has: no mass, or of a greedy request less than any logit."""
    return tl.where(temperature == 0, NO_WINNER, NO_MASS)


@triton.jit
def shares(
    stats,  # [...] int64
    row_exponents,
):
    """Masses of tiles over `2**row_exponent` as fixed-point numbers: 1 is 2**55, and 128 tiles add up."""
    return ((stats & 0xFFFFFFFF) << 32) >> tl.minimum(row_exponents - (stats >> 32).to(tl.int32), 63)


@triton.jit
def row_laws(
    stats,  # [...] int64
):
    """The law of a row is `2**(logit * scale - top) / total`: its tops and totals, float32. No law: total 0."""
    row_exponents = tl.max((stats >> 32).to(tl.int32), axis=1)
    tops = row_exponents.to(tl.float32)
    sums = tl.sum(shares(stats, row_exponents[:, None]), axis=1)
    # Beyond 2**24 the float32 top is not the exponent itself.
    rest = tl.exp2((row_exponents - tops.to(tl.int32)).to(tl.float32))
    return tops, sums.to(tl.float32) * 2.7755575615628914e-17 * rest


@triton.jit
def inverse(totals):
    """Reciprocals, 0 where there is no law."""
    return tl.where(totals > 0, tl.div_rn(1.0, totals), 0.0)


@triton.jit
def weights_of(
    row_ptr,  # [vocab_size] any
    removed_id,
    first_id,
    scale,
    top,
    vocab_size,
    SIZE: tl.constexpr,
):
    """Of entries in a row, over `2**top`."""
    token_ids = first_id + tl.arange(0, SIZE)
    logits = without(load_logits(row_ptr, token_ids, vocab_size), token_ids, removed_id)
    return tl.exp2(logits * scale - top)


@triton.jit
def pick_from_tiles(
    stats,  # [...] int64
    row_ptr,  # [vocab_size] any
    removed_id,
    uniform,
    scale,
    vocab_size,
    TILES: tl.constexpr,
):
    """Draw from a row whose tile masses are known, reading one tile of it. A row without a law gives token 0.

    The tile is read by eighths: to add up 4096 integers at once takes the registers of two programs.
    """
    exponents = (stats >> 32).to(tl.int32)
    masses = shares(stats, tl.max(exponents))
    token_id = 0
    if tl.max(masses) > 0:
        tile, uniform = pick(masses, uniform)
        top = tl.max(tl.where(tl.arange(0, TILES) == tile, exponents, -FAR)).to(tl.float32)
        weights = weights_of(row_ptr, removed_id, tile * TILE, scale, top, vocab_size, TILE)
        parts = tl.sum(tl.reshape(weights, (PARTS, PART)), axis=1)
        part, uniform = pick(fixed_point(parts, tl.sum(parts)), uniform)
        first_id = tile * TILE + part * PART
        weights = weights_of(row_ptr, removed_id, first_id, scale, top, vocab_size, PART)
        token_id = first_id + pick_last(fixed_point(weights, tl.sum(weights)), uniform)
    return token_id
