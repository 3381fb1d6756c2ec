"""The third counter kernel: one token, of what the target has more than the draft, or of the bonus row.

    rejected row   [ target - draft | target - draft | ... ]   a mass per tile, float32
    bonus row      [     target     |     target     | ... ]   a mass per tile, int64: a float32 and its exponent

A request is in one of three states when this kernel looks at it: its token is written, and nothing is read; a draft
token was rejected; or all were accepted, and its bonus row, which nobody has read until now, is measured here. The
program of its first strip, the last to start, waits for the masses of all, picks, and makes their words 0 again.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from ._counter_functions import (
    FAR,
    NO_ID,
    TILE,
    block_ids,
    block_powers,
    exponent_scale,
    fixed_point,
    goal_within,
    goals_of,
    load_block,
    nothing,
    packed,
    pick,
    pick_last,
    pick_within,
    shares,
    store_by_warps,
    tile_sums,
    tile_winner,
    uniforms_at,
    weights_of,
)
from ._counter_handover import LOGITS, ONE_HOT, OPEN, PATIENCE, VERDICT, unpack, wait_for, wait_for_all, wait_for_laws

ONE = tl.constexpr(2305843009213693952.0)
"""Residuals as integers: 1, which is the most that a row of them can add up to, is 2**61."""
EMPTY = tl.constexpr(2)
"""2**-60: a residual of no more is rounding of equal laws."""

NO_MASS_32 = tl.constexpr(-0x80000000)
"""-0.0: a residual of nothing, which is not 0 as a word."""


@triton.jit
def load_both(
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    token_ids,  # [...] int32
    vocab_size,
):
    """Logits and the draft of some entries, each in its own type."""
    logits = tl.load(logits_row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
    # Read for the first and last time, so that it shall not turn the target's rows out of L2.
    draft = tl.load(draft_row_ptr + token_ids, mask=token_ids < vocab_size, other=0.0, eviction_policy="evict_first")
    return logits, draft


@triton.jit
def residual(
    logits,  # [...] any
    draft,  # [...] any
    scale,
    target_law,
    draft_law,
    keep,
    DRAFT: tl.constexpr,
):
    """`max(target - keep * draft, 0)`, where a draft that is NaN leaves nothing. Laws are packed tops and inverses."""
    target_top, target_inverse = unpack(target_law)
    draft = draft.to(tl.float32)
    if DRAFT == LOGITS:
        draft_top, draft_inverse = unpack(draft_law)
        draft = tl.exp2(draft * scale - draft_top) * draft_inverse
    if keep is not None:
        draft = tl.where(keep, draft, 0.0)
    # This way round it is one fused multiply-add.
    difference = draft - tl.exp2(logits.to(tl.float32) * scale - target_top) * target_inverse
    return tl.where(difference < 0, -difference, 0.0)


@triton.jit
def _recovered_token(
    masses,  # [tiles] int64, in units of 2**-61
    total,
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    uniform,
    num_tiles,
    vocab_size,
    scale,
    target_law,
    draft_law,
    DRAFT: tl.constexpr,
):
    """Pick a tile by the masses, then an entry of it."""
    keep = total > EMPTY
    if not keep:
        # The residual is empty: draw from the target row instead. Rare, so one program does it alone.
        tiles = tl.arange(0, masses.shape[0])
        for tile in range(0, num_tiles):
            logits, draft = load_both(logits_row_ptr, draft_row_ptr, tile * TILE + tl.arange(0, TILE), vocab_size)
            targets = residual(logits, draft, scale, target_law, draft_law, keep, DRAFT)
            masses = tl.where(tiles == tile, fixed_point(tl.sum(targets), ONE), masses)
        total = tl.sum(masses)
    picked, goal = pick(masses, goals_of(uniform, total))
    logits, draft = load_both(logits_row_ptr, draft_row_ptr, picked * TILE + tl.arange(0, TILE), vocab_size)
    weights = residual(logits, draft, scale, target_law, draft_law, keep, DRAFT)
    return picked * TILE + pick_last(fixed_point(weights, ONE), goal)


@triton.jit
def _least_and_sum(a, b, other_a, other_b):
    return tl.minimum(a, other_a), b + other_b


@triton.jit
def _wait_for_masses(
    residuals_ptr,  # [num_tiles] int32
    num_tiles,
    TILES: tl.constexpr,
):
    """Masses of all tiles once they are there, and what they add up to."""
    tiles = tl.arange(0, TILES)
    words = tl.load(residuals_ptr + tiles, mask=tiles < num_tiles, other=NO_MASS_32, volatile=True)
    masses = fixed_point((words & 0x7FFFFFFF).to(tl.float32, bitcast=True), ONE)
    are_there, total = tl.reduce(((words != 0).to(tl.int32), masses), 0, _least_and_sum)
    polls = 0
    while (are_there == 0) & (polls < PATIENCE):
        polls += 1
        words = tl.load(residuals_ptr + tiles, mask=tiles < num_tiles, other=NO_MASS_32, volatile=True)
        masses = fixed_point((words & 0x7FFFFFFF).to(tl.float32, bitcast=True), ONE)
        are_there, total = tl.reduce(((words != 0).to(tl.int32), masses), 0, _least_and_sum)
    return masses, total


@triton.jit
def _measure_residual(
    residuals_ptr,  # [num_tiles] int32, written: float32 with the sign set
    verdict_ptr,  # [3] int64
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    first_tile,
    num_tiles,
    vocab_size,
    scale,
    DRAFT: tl.constexpr,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    """Returns the laws of target and draft, which are there by the time that the first block is."""
    logits, draft = load_both(logits_row_ptr, draft_row_ptr, block_ids(first_tile, BLOCK, RUN), vocab_size)
    target_law, draft_law = wait_for_laws(verdict_ptr)
    for step in tl.static_range(STRIP):
        if step > 0:
            ids = block_ids(first_tile + step * BLOCK, BLOCK, RUN)
            logits, draft = load_both(logits_row_ptr, draft_row_ptr, ids, vocab_size)
        weights = residual(logits, draft, scale, target_law, draft_law, None, DRAFT)
        tiles = first_tile + step * BLOCK + tl.arange(0, BLOCK)
        words = tile_sums(weights).to(tl.int32, bitcast=True) | NO_MASS_32
        store_by_warps(residuals_ptr + tiles, words, tiles < num_tiles)
    return target_law, draft_law


@triton.jit
def _measure_bonus(
    bonus_masses_ptr,  # [num_tiles] int64, written
    row_ptr,  # [vocab_size] any
    first_tile,
    num_tiles,
    vocab_size,
    temperature,
    scale,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    """Nothing is known beforehand about the size of its numbers, so that each tile is taken over its own highest."""
    for step in range(STRIP):
        first = first_tile + step * BLOCK
        tiles = first + tl.arange(0, BLOCK)
        if temperature == 0:
            for tile in range(first, tl.minimum(first + BLOCK, num_tiles)):
                tl.store(bonus_masses_ptr + tile, tile_winner(row_ptr, tile, vocab_size))
        else:
            sums, references = block_powers(load_block(row_ptr, first, vocab_size, BLOCK, RUN), scale)
            store_by_warps(bonus_masses_ptr + tiles, packed(sums, references), tiles < num_tiles)


@triton.jit
def _bonus_token(
    stats,  # [tiles] int64
    row_ptr,  # [vocab_size] any
    uniform,
    scale,
    vocab_size,
):
    """Pick a tile by the masses, then an entry of it. A row without a law gives token 0."""
    exponents = (stats >> 32).to(tl.int32)
    row_exponent = tl.max(exponents)
    masses = shares(stats, row_exponent)
    total = tl.sum(masses)
    token_id = 0
    if total > 0:
        tile, offset = pick(masses, goals_of(uniform, total))
        top = tl.max(tl.where(tl.arange(0, stats.shape[0]) == tile, exponents, -FAR))
        weights = weights_of(row_ptr, -1, tile, scale, top.to(tl.float32), vocab_size)
        token_id = tile * TILE + pick_within(weights, goal_within(offset, row_exponent - top))
    return token_id


@triton.jit(do_not_specialize=["batch_size", "num_tiles", "max_spec_len"])
def draw_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    masses_ptr,  # [batch_size, num_tiles] int64, written; of a rejected row the first half, as float32
    verdicts_ptr,  # [batch_size, 3] int64, written
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    batch_size,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    DRAFT: tl.constexpr,
    BONUS: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    # The last request first: its rows were read last, and may still be in L2.
    strip = tl.num_programs(0) - 1 - tl.program_id(0)
    req_idx = batch_size - 1 - tl.program_id(2) * tl.num_programs(1) - tl.program_id(1)
    if req_idx < 0:
        return
    first_tile = strip * STRIP * BLOCK
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    count = tl.load(cu_num_draft_tokens_ptr + req_idx) - start
    temperature = tl.load(temperature_ptr + req_idx)
    scale = exponent_scale(temperature)
    bonus_masses_ptr = masses_ptr + req_idx * num_tiles
    residuals_ptr = bonus_masses_ptr.to(tl.pointer_type(tl.int32))
    verdicts_ptr += req_idx * VERDICT
    if OVERLAP and not EAGER:
        gdc_wait()
    verdict = wait_for(verdicts_ptr)
    is_open = verdict >= OPEN
    pos = tl.where(is_open, verdict - OPEN, 0).to(tl.int32)
    row = start.to(tl.int64) + pos
    complete = False
    target_law = tl.zeros((), tl.int64)
    draft_law = tl.zeros((), tl.int64)
    logits_row_ptr = logits_ptr + row * logits_stride
    if BONUS:
        logits_row_ptr += req_idx.to(tl.int64) * logits_stride
        complete = is_open & (pos == count)
    if complete:
        # fmt: off
        _measure_bonus(bonus_masses_ptr, logits_row_ptr, first_tile, num_tiles, vocab_size, temperature, scale, STRIP,
                       BLOCK, RUN)
        # fmt: on
    elif DRAFT != ONE_HOT and is_open:
        # fmt: off
        target_law, draft_law = _measure_residual(
            residuals_ptr, verdicts_ptr, logits_row_ptr, draft_ptr + row * draft_stride, first_tile, num_tiles,
            vocab_size, scale, DRAFT, STRIP, BLOCK, RUN)
        # fmt: on
    else:  # whoever waits below waits for all
        for step in tl.static_range(STRIP):
            tiles = first_tile + step * BLOCK + tl.arange(0, BLOCK)
            tl.store(residuals_ptr + tiles, tl.full((BLOCK,), NO_MASS_32, tl.int32), mask=tiles < num_tiles)
    if strip == 0:
        _, uniform = uniforms_at(tl.load(seeds_ptr + req_idx), tl.load(positions_ptr + req_idx) + pos)
        token_ptr = output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + pos
        tiles = tl.arange(0, TILES)
        live = tiles < num_tiles
        if complete:
            stats = wait_for_all(bonus_masses_ptr + tiles, live, nothing(temperature))
            tl.store(bonus_masses_ptr + tiles, tl.zeros_like(stats), mask=live)
            token_id = ((tl.max(stats) & NO_ID) ^ NO_ID).to(tl.int32)
            if temperature != 0:
                token_id = _bonus_token(stats, logits_row_ptr, uniform, scale, vocab_size)
            tl.store(token_ptr, token_id)
        else:
            masses, total = _wait_for_masses(residuals_ptr, num_tiles, TILES)
            tl.store(residuals_ptr + tiles, tl.zeros((TILES,), tl.int32), mask=live)
            if DRAFT != ONE_HOT:  # noqa: SIM102  # the outer one is decided when compiling
                if is_open:
                    # fmt: off
                    tl.store(token_ptr, _recovered_token(masses, total, logits_row_ptr, draft_ptr + row * draft_stride,
                                                         uniform, num_tiles, vocab_size, scale, target_law, draft_law,
                                                         DRAFT))
                    # fmt: on
        tl.store(verdicts_ptr, 0)
        tl.store(verdicts_ptr + 1, 0)
        tl.store(verdicts_ptr + 2, 0)
    if OVERLAP and EAGER:  # noqa: SIM102  # the outer one is decided when compiling
        # One program must, or what comes next would not wait for the kernel before this one either.
        if (strip == 0) & (req_idx == 0):
            gdc_wait()
