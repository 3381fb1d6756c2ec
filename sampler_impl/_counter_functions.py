"""What the counter kernels compute with: masses that add up exactly, and one uniform per draw.

A **mass** is the sum of `2**exponent` over some entries of a row, where `exponent = logit * log2(e) / temperature`. The
mass of a tile is kept as one int64, `exponent << 32 | mantissa` (24 bits), so that masses of different scale can be
compared as integers, and added as fixed-point numbers in any order with the same result.

An inverse CDF is taken in two levels: the uniform becomes a goal among the integers that the tiles' masses are, the
goal picks a tile, and what is left of it picks the entry. Integers have no rounding, so that no tile can be missed.

    row    [ tile 0 | tile 1 | tile 2 | ... ]          goal = uniform * total
                        ^ goal falls here; goal' = goal - start of tile 1
    tile 1 [ entry 1024, entry 1025, ... ]
                        ^ goal' falls here

A tile belongs to one warp, from loading it to its mass, so that nothing in it waits for a barrier.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from ._counter_step import TILE_SIZE

TILE = tl.constexpr(TILE_SIZE)
"""Entries that one mass stands for: what a warp adds up by itself, and what is read again once the tile is picked."""

NO_ID = tl.constexpr(0x7FFFFFFF)
NO_WINNER = tl.constexpr(-0x8000000000000000)

FAR = tl.constexpr(1 << 30)
"""Exponents beyond this are no numbers to compute with: a row that has one has no law."""
NO_MASS = tl.constexpr(-(1 << 62))  # exponent -FAR, mantissa 0
NO_LAW = tl.constexpr(1 << 62)  # exponent FAR, mantissa 0

MAX_SCALE = tl.constexpr(65536.0)
"""log2(e) over the lowest temperature, 2.2e-5, which is as good as greedy."""

LOG2_E = tl.constexpr(1.4426950408889634)

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
def sums_of_2(a, b, other_a, other_b):
    """For a reduction of several values at once: each by itself would take a barrier more."""
    return a + other_a, b + other_b


@triton.jit
def sums_of_3(a, b, c, other_a, other_b, other_c):
    return a + other_a, b + other_b, c + other_c


@triton.jit
def goals_of(
    uniforms,  # [...] float64
    totals,  # [...] int64
):
    """Where in 0, 1, ... totals - 1 uniforms fall."""
    return tl.minimum((uniforms * totals.to(tl.float64)).to(tl.int64), totals - 1)


@triton.jit
def pick(
    masses,  # [...] int64, not negative, not all 0
    goal,
):
    """The entry in which the goal falls, and how far into it."""
    ends = tl.cumsum(masses)
    offsets = goal - (ends - masses)
    falls = (offsets >= 0) & (ends > goal)
    indices = tl.arange(0, masses.shape[0])
    return tl.reduce((tl.where(falls, indices, 0), tl.where(falls, offsets, 0)), 0, sums_of_2)


@triton.jit
def pick_last(
    masses,  # [...] int64, not negative, not all 0
    goal,
):
    """The entry in which the goal falls; the last one if it falls behind, as the goal may be of a rounded total."""
    index = tl.sum((tl.cumsum(masses) <= goal).to(tl.int32))
    if index == masses.shape[0]:
        index = tl.max(tl.where(masses > 0, tl.arange(0, masses.shape[0]), 0))
    return index


@triton.jit
def fixed_point(
    weights,  # [...] float32, not negative
    ONE: tl.constexpr,
):
    """Integers, of a power of 2 for 1."""
    return (weights * ONE).to(tl.int64)


@triton.jit
def load_logits(
    row_ptr,  # [vocab_size] any
    token_ids,  # [...] int32
    vocab_size,
):
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def block_ids(first_tile, BLOCK: tl.constexpr, RUN: tl.constexpr):
    """[BLOCK, TILE // RUN, RUN] int32: a warp reads the runs of one tile, each with one load of 128 bits per thread.

    Warps are dealt out to dimensions in the order of their contiguity. Where two have the same, Triton 3.6 takes the
    first one and 3.7 the last one, which would spread a tile over all warps. So tiles are said to be contiguous in
    twos, which they are not. Only the order of dimensions is taken from that, as loads go by the last dimension."""
    tiles = (first_tile + tl.arange(0, BLOCK))[:, None, None] * TILE
    runs = tl.arange(0, TILE // RUN)[None, :, None] * RUN
    return tl.max_contiguous(tiles + runs + tl.arange(0, RUN)[None, None, :], [2, 1, RUN])


@triton.jit
def load_block(
    row_ptr,  # [vocab_size] any
    first_tile,
    vocab_size,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    """[BLOCK, TILE // RUN, RUN] in the row's own type; -inf behind its end."""
    token_ids = block_ids(first_tile, BLOCK, RUN)
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))


@triton.jit
def tile_sums(
    weights,  # [BLOCK, TILE // RUN, RUN] float32
):
    """[BLOCK] float32: of each tile, by its warp. The order of additions does not depend on the tiles beside it."""
    return tl.sum(tl.sum(weights, axis=1), axis=1)


@triton.jit
def reference_of(exponents):
    """What powers are taken over: an exponent rounded up, or 0 if there is none to compute with."""
    return tl.where(tl.abs(exponents) < FAR, tl.ceil(exponents), 0.0)


@triton.jit
def block_powers(
    logits,  # [BLOCK, TILE // RUN, RUN] any
    scale,
):
    """[BLOCK] float32 twice: sums of powers over `2**reference` of each tile, and the references.

    NaN or an infinite logit make a sum that is no number."""
    exponents = logits.to(tl.float32)
    references = reference_of(tl.max(tl.max(exponents, axis=1), axis=1) * scale)
    return tile_sums(tl.exp2(exponents * scale - references[:, None, None])), references


@triton.jit
def without(logits, token_ids, token_id):
    return tl.where(token_ids == token_id, float("-inf"), logits)


@triton.jit
def packed(
    masses,  # [...] float32
    references,  # [...] float32
):
    """As int64, `masses * 2**references`; of NaN or infinity the highest exponent, with nothing of it."""
    return tl.where(masses < 1e38, packed_finite(masses, references), NO_LAW)


@triton.jit
def packed_finite(
    masses,  # [...] float32, not negative
    references,  # [...] float32
):
    """As int64, `masses * 2**references`; of less than float32's normal numbers nothing."""
    bits = masses.to(tl.int32, bitcast=True)
    exponents = (bits >> 23) + (references.to(tl.int32) - 127)
    mantissas = (bits & 0x7FFFFF) | 0x800000
    return tl.where(bits >= 0x800000, (exponents.to(tl.int64) << 32) | mantissas.to(tl.int64), NO_MASS)


@triton.jit
def tile_mass(
    row_ptr,  # [vocab_size] any
    removed_id,
    tile,
    scale,
    vocab_size,
    reference,
    usable,
):
    """Mass of a tile without a token, over a reference of its own if the given one fails."""
    token_ids = tile * TILE + tl.arange(0, TILE)
    logits = without(load_logits(row_ptr, token_ids, vocab_size), token_ids, removed_id)
    mass = tl.sum(tl.exp2(logits * scale - reference))
    if fails(mass, least_of(usable)):
        reference = reference_of(tl.max(logits) * scale)
        mass = tl.sum(tl.exp2(logits * scale - reference))
    return packed(mass, reference)


@triton.jit
def least_of(usable):
    """What tiles must at least add up to, where a reference has to prove itself."""
    return tl.where(usable, 0.0, 1e-20)


@triton.jit
def fails(sums, least):
    """Whether a reference was too low for a tile, or too high; also of NaN."""
    return ((sums < 1e30) & (sums >= least)) == 0


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
):
    """Highest logit of one tile and its lowest token id, in one int64; NaN is highest, as in torch.argmax."""
    token_ids = tile * TILE + tl.arange(0, TILE)
    keys = _winner_keys(load_logits(row_ptr, token_ids, vocab_size))
    best = tl.max(keys)
    return winner(best, tl.min(tl.where(keys == best, token_ids, NO_ID)))


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
    """Masses of tiles over `2**row_exponent` as fixed-point numbers: 1 is 2**53, and 512 tiles add up."""
    return ((stats & 0xFFFFFFFF) << 30) >> tl.minimum(row_exponents - (stats >> 32).to(tl.int32), 63)


@triton.jit
def row_laws(
    stats,  # [rows, CHUNKS, 32] int64
):
    """The law of a row is `2**(logit * scale - top) / total`: its tops and totals, float32. No law: total 0."""
    row_exponents = tl.max(tl.max((stats >> 32).to(tl.int32), axis=1), axis=1)
    tops = row_exponents.to(tl.float32)
    sums = tl.sum(tl.sum(shares(stats, row_exponents[:, None, None]), axis=1), axis=1)
    # Beyond 2**24 the float32 top is not the exponent itself.
    rest = tl.exp2((row_exponents - tops.to(tl.int32)).to(tl.float32))
    return tops, sums.to(tl.float32) * 1.1102230246251565e-16 * rest


@triton.jit
def inverse(totals):
    """Reciprocals, 0 where there is no law."""
    return tl.where(totals > 0, tl.div_rn(1.0, totals), 0.0)


@triton.jit
def weights_of(
    row_ptr,  # [vocab_size] any
    removed_id,
    tile,
    scale,
    top,
    vocab_size,
):
    """[TILE] float32: of a tile's entries, over `2**top`."""
    token_ids = tile * TILE + tl.arange(0, TILE)
    logits = without(load_logits(row_ptr, token_ids, vocab_size), token_ids, removed_id)
    return tl.exp2(logits * scale - top)


@triton.jit
def word_of_tile(tiles, CHUNKS: tl.constexpr):
    """Where in its row a tile's word stands, so that 32 threads side by side read tiles `CHUNKS` apart.

    Thread 0 then has the first `CHUNKS` tiles, thread 1 the next ones, and one scan over threads is enough."""
    tiles = tl.cast(tiles, tl.uint32)  # so that divisions are shifts
    return tl.cast(tiles % CHUNKS * 32 + tiles // CHUNKS, tl.int32)


@triton.jit
def store_by_warps(
    pointers,  # [BLOCK] any
    words,  # [BLOCK] any
    mask,  # [BLOCK] bool
):
    """Each by a thread of the warp that has its tile; as a block of [BLOCK] they would be handed over by barriers."""
    threads = tl.arange(0, 32)[None, :]
    tl.store(pointers[:, None] + threads, words[:, None] + threads * 0, mask=mask[:, None] & (threads == 0))


@triton.jit
def pick_tiles(
    stats,  # [rows, CHUNKS, 32] int64
    uniforms,  # [rows] float64
):
    """For each row the tile in which its uniform falls, the tile's exponent, and the goal in it for `pick_within`,
    which is -1 if there is nothing to pick from.

    Reduced first over chunks, then over threads: in another order a row would not stay in its warp."""
    exponents = (stats >> 32).to(tl.int32)
    row_exponents = tl.max(tl.max(exponents, axis=1), axis=1)
    masses = shares(stats, row_exponents[:, None, None])
    sums = tl.sum(masses, axis=1)
    goals = goals_of(uniforms, tl.sum(sums, axis=1))
    ends = tl.cumsum(masses, axis=1) + (tl.cumsum(sums, axis=1) - sums)[:, None, :]
    offsets = goals[:, None, None] - (ends - masses)
    falls = (offsets >= 0) & (offsets < masses)
    chunks: tl.constexpr = stats.shape[1]
    tiles = tl.arange(0, 32)[None, None, :] * chunks + tl.arange(0, chunks)[None, :, None]
    # fmt: off
    tile, offset, exponent = tl.reduce((tl.where(falls, tiles, 0), tl.where(falls, offsets, 0),
                                        tl.where(falls, exponents, 0)), 1, sums_of_3)
    # fmt: on
    tile, offset, exponent = tl.reduce((tile, offset, exponent), 1, sums_of_3)
    return tile, exponent, tl.where(goals < 0, -1, goal_within(offset, row_exponents - exponent))


@triton.jit
def goal_within(offsets, distances):
    """`offsets` into a tile, in `shares` over an exponent that is `distances` higher, for `pick_within`."""
    return offsets << tl.minimum(distances + 4, 63)


@triton.jit
def pick_within(
    weights,  # [TILE] float32
    goal,
):
    """The entry of a tile in which the goal falls. Over the tile's exponent its powers add up to 1, or less than 2."""
    return pick_last(fixed_point(weights, 144115188075855872.0), goal)  # 2**57
