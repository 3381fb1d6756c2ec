"""The third counter kernel: one token, of what the target has more than the draft, or of the bonus row.

    rejected row   [ target - draft | target - draft | ... ]   a mass per eighth of a tile, float32
    bonus row      [     target     |     target     | ... ]   a mass per eighth, int64: a float32 and its exponent

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
    EMPTY,
    FAR,
    NO_ID,
    NO_WINNER,
    PART,
    PARTS,
    TILE,
    exponent_scale,
    fixed_point,
    highest_exponent,
    load_logits,
    nothing,
    packed,
    pick,
    pick_last,
    shares,
    tile_winner,
    uniforms_at,
    weights_of,
)
from ._counter_handover import LOGITS, ONE_HOT, OPEN, VERDICT, unpack, wait_for, wait_for_all

NO_MASS_32 = tl.constexpr(-0x80000000)
"""-0.0: a residual of nothing, which is not 0 as a word."""


@triton.jit
def residual(
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    token_ids,  # [...] int32
    vocab_size,
    scale,
    target_law,
    draft_law,
    keep,
    DRAFT: tl.constexpr,
):
    """`max(target - keep * draft, 0)`, where a draft that is NaN leaves nothing. Laws are packed tops and inverses."""
    target_top, target_inverse = unpack(target_law)
    logits = load_logits(logits_row_ptr, token_ids, vocab_size)
    # Read for the first and last time, so that it shall not turn the target's rows out of L2.
    draft = tl.load(
        draft_row_ptr + token_ids, mask=token_ids < vocab_size, other=0.0, eviction_policy="evict_first"
    ).to(tl.float32)
    if DRAFT == LOGITS:
        draft_top, draft_inverse = unpack(draft_law)
        draft = tl.exp2(draft * scale - draft_top) * draft_inverse
    if keep is not None:
        draft = tl.where(keep, draft, 0.0)
    # This way round it is one fused multiply-add.
    difference = draft - tl.exp2(logits * scale - target_top) * target_inverse
    return tl.where(difference < 0, -difference, 0.0)


@triton.jit
def _recovered_token(
    masses,  # [tiles * 8] float32
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    uniform,
    num_tiles,
    vocab_size,
    scale,
    target_law,
    draft_law,
    DRAFT: tl.constexpr,
    TILES: tl.constexpr,
):
    """Pick an eighth of a tile by the masses, then an entry of it."""
    parts = tl.arange(0, TILES * PARTS)
    total = tl.sum(masses)
    keep = total > EMPTY
    if not keep:
        # The residual is empty: draw from the target row instead. Rare, so one program does it alone.
        for part in range(0, num_tiles * PARTS):
            ids = part * PART + tl.arange(0, PART)
            targets = residual(
                logits_row_ptr, draft_row_ptr, ids, vocab_size, scale, target_law, draft_law, keep, DRAFT
            )
            masses = tl.where(parts == part, tl.sum(targets), masses)
        total = tl.sum(masses)
    picked, uniform = pick(fixed_point(masses, total), uniform)
    last_ids = picked * PART + tl.arange(0, PART)
    last = residual(logits_row_ptr, draft_row_ptr, last_ids, vocab_size, scale, target_law, draft_law, keep, DRAFT)
    mass = tl.sum(tl.where(parts == picked, masses, 0.0))  # their sum, which is known before they are
    return picked * PART + pick_last(fixed_point(last, mass), uniform)


@triton.jit
def _measure_residual(
    residuals_ptr,  # [num_tiles, 8] int32, written: float32 with the sign set
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    first_tile,
    num_tiles,
    vocab_size,
    scale,
    target_law,
    draft_law,
    DRAFT: tl.constexpr,
    STRIP: tl.constexpr,
):
    for step in tl.static_range(STRIP):
        tile = first_tile + step
        ids = tile * TILE + tl.arange(0, TILE)
        weights = residual(logits_row_ptr, draft_row_ptr, ids, vocab_size, scale, target_law, draft_law, None, DRAFT)
        masses = tl.sum(tl.reshape(weights, (PARTS, PART)), axis=1)
        parts = tile * PARTS + tl.arange(0, PARTS)
        words = masses.to(tl.int32, bitcast=True) | NO_MASS_32
        tl.store(residuals_ptr + parts, words, mask=parts < num_tiles * PARTS)


@triton.jit
def _part_masses(
    row_ptr,  # [vocab_size] any
    tile,
    scale,
    reference,
    vocab_size,
):
    """Of a tile's eighths, over `2**reference`."""
    weights = weights_of(row_ptr, -1, tile * TILE, scale, reference, vocab_size, TILE)
    return tl.sum(tl.reshape(weights, (PARTS, PART)), axis=1)


@triton.jit
def _measure_bonus(
    bonus_masses_ptr,  # [num_tiles, 8] int64, written
    row_ptr,  # [vocab_size] any
    first_tile,
    num_tiles,
    vocab_size,
    temperature,
    scale,
    STRIP: tl.constexpr,
    LANES: tl.constexpr,
):
    """Nothing is known beforehand about the size of its numbers: if 0 is no good reference, a tile finds its own."""
    parts = tl.arange(0, PARTS)
    for tile in range(first_tile, tl.minimum(first_tile + STRIP, num_tiles)):
        if temperature == 0:
            stats = tl.where(parts == 0, tile_winner(row_ptr, tile, vocab_size, LANES), NO_WINNER)
        else:
            reference = tl.full((), 0.0, tl.float32)
            masses = _part_masses(row_ptr, tile, scale, reference, vocab_size)
            total = tl.sum(masses)
            if (not (total < 1e30)) | (total < 1e-20):
                reference = highest_exponent(row_ptr, -1, tile, scale, vocab_size, TILE, LANES)
                masses = _part_masses(row_ptr, tile, scale, reference, vocab_size)
            stats = packed(masses, reference)
        tl.store(bonus_masses_ptr + tile * PARTS + parts, stats)


@triton.jit
def _bonus_token(
    stats,  # [tiles * 8] int64
    row_ptr,  # [vocab_size] any
    uniform,
    vocab_size,
    temperature,
    scale,
    TILES: tl.constexpr,
):
    """Pick an eighth of a tile by the masses, then an entry of it; of a greedy request the argmax. No law: token 0."""
    parts = tl.arange(0, TILES * PARTS)
    token_id = 0
    if temperature == 0:
        token_id = ((tl.max(stats) & NO_ID) ^ NO_ID).to(tl.int32)
    else:
        exponents = (stats >> 32).to(tl.int32)
        masses = shares(stats, tl.max(exponents) + 3)  # so that eight times as many add up
        if tl.max(masses) > 0:
            picked, uniform = pick(masses, uniform)
            top = tl.max(tl.where(parts == picked, exponents, -FAR)).to(tl.float32)
            weights = weights_of(row_ptr, -1, picked * PART, scale, top, vocab_size, PART)
            token_id = picked * PART + pick_last(fixed_point(weights, tl.sum(weights)), uniform)
    return token_id


@triton.jit(do_not_specialize=["num_tiles", "num_strips", "max_spec_len"])
def draw_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    part_masses_ptr,  # [batch_size, num_tiles, 8] int64, written; of a rejected row the first half, as float32
    verdicts_ptr,  # [batch_size, 3] int64, written
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    num_strips,
    max_spec_len,
    DRAFT: tl.constexpr,
    BONUS: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    TILES: tl.constexpr,
    LANES: tl.constexpr,
):
    # The last request first: its rows were read last, and may still be in L2.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    req_idx = program // num_strips
    strip = program % num_strips
    first_tile = strip * STRIP
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    count = tl.load(cu_num_draft_tokens_ptr + req_idx) - start
    temperature = tl.load(temperature_ptr + req_idx)
    scale = exponent_scale(temperature)
    seed = tl.load(seeds_ptr + req_idx)
    sequence_position = tl.load(positions_ptr + req_idx)
    bonus_masses_ptr = part_masses_ptr + req_idx * num_tiles * PARTS
    residuals_ptr = bonus_masses_ptr.to(tl.pointer_type(tl.int32))
    verdicts_ptr += req_idx * VERDICT
    if OVERLAP and not EAGER:
        gdc_wait()
    verdict, target_law, draft_law = wait_for(verdicts_ptr)
    is_open = verdict >= OPEN
    pos = tl.where(is_open, verdict - OPEN, 0).to(tl.int32)
    row = start.to(tl.int64) + pos
    complete = False
    logits_row_ptr = logits_ptr + row * logits_stride
    if BONUS:
        logits_row_ptr += req_idx.to(tl.int64) * logits_stride
        complete = is_open & (pos == count)
    if complete:
        # fmt: off
        _measure_bonus(bonus_masses_ptr, logits_row_ptr, first_tile, num_tiles, vocab_size, temperature, scale, STRIP,
                       LANES)
        # fmt: on
    elif DRAFT != ONE_HOT and is_open:
        # fmt: off
        _measure_residual(residuals_ptr, logits_row_ptr, draft_ptr + row * draft_stride, first_tile, num_tiles,
                          vocab_size, scale, target_law, draft_law, DRAFT, STRIP)
        # fmt: on
    else:  # whoever waits below waits for all
        parts = first_tile * PARTS + tl.arange(0, STRIP * PARTS)
        tl.store(residuals_ptr + parts, tl.full((STRIP * PARTS,), NO_MASS_32, tl.int32), mask=parts < num_tiles * PARTS)
    if strip == 0:
        _, uniform = uniforms_at(seed, sequence_position + pos)
        token_ptr = output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + pos
        parts = tl.arange(0, TILES * PARTS)
        live = parts < num_tiles * PARTS
        if complete:
            stats = wait_for_all(bonus_masses_ptr + parts, live, nothing(temperature))
            tl.store(bonus_masses_ptr + parts, tl.zeros_like(stats), mask=live)
            tl.store(token_ptr, _bonus_token(stats, logits_row_ptr, uniform, vocab_size, temperature, scale, TILES))
        else:
            words = wait_for_all(residuals_ptr + parts, live, NO_MASS_32)
            # 0, as their sign is set; a plain 0 leaves the loop without a use, which Triton 3.6 cannot compile.
            tl.store(residuals_ptr + parts, (words >> 31) + 1, mask=live)
            if DRAFT != ONE_HOT:  # noqa: SIM102  # the outer one is decided when compiling
                if is_open:
                    masses = (words & 0x7FFFFFFF).to(tl.float32, bitcast=True)
                    # fmt: off
                    tl.store(token_ptr, _recovered_token(masses, logits_row_ptr, draft_ptr + row * draft_stride,
                                                         uniform, num_tiles, vocab_size, scale, target_law, draft_law,
                                                         DRAFT, TILES))
                    # fmt: on
        tl.store(verdicts_ptr, 0)
        tl.store(verdicts_ptr + 1, 0)
        tl.store(verdicts_ptr + 2, 0)
    if OVERLAP and EAGER:  # noqa: SIM102  # the outer one is decided when compiling
        if program == 0:  # one program must, or what comes next would not wait for the kernel before this one either
            gdc_wait()
