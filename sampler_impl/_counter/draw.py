"""The third counter kernel: one token, from the residual of the rejected row or from the bonus row.

    rejected row   [ target - draft | target - draft | ... ]   a sum per tile: float32
    bonus row      [     target     |     target     | ... ]   a partial sum per tile: int64

What is drawn depends on the status of the request: nothing, if its token is written; the residual, if a draft token was
rejected; the bonus row, if all were accepted, which no kernel has read until now.

    [ wait for the status ][ add up a strip of tiles, publish the sums ]
    first strip, the last program to start:    [ wait for the sums of all ][ sample a tile ][ sample in it ][ reset ]
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .._shared.kernels import (
    argmax_token,
    cdf_thresholds,
    fixed_point,
    load_logits,
    sample_index,
    sample_index_or_last,
    tile_argmax,
    unpack,
)
from .arithmetic import (
    BLOCK,
    FAR,
    TILE,
    aligned_sums,
    block_ids,
    block_sums,
    exp2_terms,
    exponent_scale,
    load_block,
    load_tile,
    padding_word,
    request_uniforms,
    sample_in_tile,
    store_by_warps,
    sum_tiles,
    threshold_in_tile,
)
from .slots import (
    LOGITS,
    MAX_SPINS,
    ONE_HOT,
    OPEN,
    STATUS_WORDS,
    find_drafts,
    wait_for_all,
    wait_for_statistics,
    wait_for_status,
)

ONE = tl.constexpr(2305843009213693952.0)
"""Residuals as integers: 1, which is the most that a row of them can add up to, is 2**61."""
EMPTY = tl.constexpr(2)
"""2**-60: a residual of no more is rounding of equal distributions."""
NO_RESIDUAL = tl.constexpr(-0x80000000)
"""-0.0: a residual of nothing, which is not 0 as a word."""
RUN = tl.constexpr(256)
"""Entries that a warp reads at once, of rows in two types."""


@triton.jit
def load_both(
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    token_ids,  # [...] int32
    vocab_size,
):
    """Return logits and the draft of some entries, each in its own type."""
    logits = tl.load(logits_row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
    # The draft is read for the first and last time: it must not push the target's rows out of L2.
    draft = tl.load(draft_row_ptr + token_ids, mask=token_ids < vocab_size, other=0.0, eviction_policy="evict_first")
    return logits, draft


@triton.jit
def residual(both, scale, statistics, keep, DRAFT: tl.constexpr):
    """Return `max(target - keep * draft, 0)`; 0 where the draft is NaN.

    Takes `both` logits and draft, each [...] any; `statistics` of target and draft, packed: maximum and 1 / sum."""
    logits, draft = both
    target_statistics, draft_statistics = statistics
    target_max, target_inverse = unpack(target_statistics)
    draft = draft.to(tl.float32)
    if DRAFT == LOGITS:
        draft_max, draft_inverse = unpack(draft_statistics)
        draft = exp2_terms(draft, scale, draft_max) * draft_inverse
    if keep is not None:
        draft = tl.where(keep, draft, 0.0)
    # This way round it is one fused multiply-add.
    difference = draft - exp2_terms(logits.to(tl.float32), scale, target_max) * target_inverse
    return tl.where(difference < 0, -difference, 0.0)


@triton.jit
def _recovered_token(sums, total, rows, uniform, num_tiles, vocab_size, scale, statistics, DRAFT: tl.constexpr):
    """Sample a tile, then an entry of it.

    Takes `sums` [tiles] int64, in units of 2**-61; `rows` of target and draft: pointers to [vocab_size] float32."""
    logits_row_ptr, draft_row_ptr = rows
    keep = total > EMPTY
    if not keep:
        # The residual is empty: draw from the target row instead. Rare, so one program does it alone.
        tiles = tl.arange(0, sums.shape[0])
        for tile in range(0, num_tiles):
            both = load_both(logits_row_ptr, draft_row_ptr, tile * TILE + tl.arange(0, TILE), vocab_size)
            targets = residual(both, scale, statistics, keep, DRAFT)
            sums = tl.where(tiles == tile, fixed_point(tl.sum(targets), ONE), sums)
        total = tl.sum(sums)
    sampled, threshold = sample_index(sums, cdf_thresholds(uniform, total))
    both = load_both(logits_row_ptr, draft_row_ptr, sampled * TILE + tl.arange(0, TILE), vocab_size)
    weights = residual(both, scale, statistics, keep, DRAFT)
    return sampled * TILE + sample_index_or_last(fixed_point(weights, ONE), threshold)


@triton.jit
def _least_and_sum(a, b, other_a, other_b):
    return tl.minimum(a, other_a), b + other_b


@triton.jit
def _load_residuals(slots, used):
    """Return sums of all tiles, whether all are published, and their total. Both are reduced at once."""
    words = tl.load(slots, mask=used, other=NO_RESIDUAL, volatile=True)
    sums = fixed_point((words & 0x7FFFFFFF).to(tl.float32, bitcast=True), ONE)
    are_there, total = tl.reduce(((words != 0).to(tl.int32), sums), 0, _least_and_sum)
    return sums, are_there, total


@triton.jit
def _take_residuals(slots, used):
    """Return the sums of all tiles once they are published, and their total. Reset the slots, pointers [TILES] to
    int32."""
    sums, are_there, total = _load_residuals(slots, used)
    polls = 0
    while (are_there == 0) & (polls < MAX_SPINS):
        polls += 1
        sums, are_there, total = _load_residuals(slots, used)
    tl.store(slots, tl.zeros(slots.shape, tl.int32), mask=used)
    return sums, total


@triton.jit
def _publish_residuals(
    residuals_ptr,  # [num_tiles] int32, written: float32 with the sign set
    request_status_ptr,  # [3] int64
    rows,  # of target and draft: pointers to [vocab_size] float32
    first_tile,
    num_tiles,
    vocab_size,
    scale,
    DRAFT: tl.constexpr,
    STRIP: tl.constexpr,
):
    """Publish sums of the residual of a strip, and return the statistics of target and draft, which are published by
    the time that the first block is loaded."""
    logits_row_ptr, draft_row_ptr = rows
    both = load_both(logits_row_ptr, draft_row_ptr, block_ids(first_tile, RUN), vocab_size)
    statistics = wait_for_statistics(request_status_ptr)
    for step in tl.static_range(STRIP):
        if step > 0:
            both = load_both(logits_row_ptr, draft_row_ptr, block_ids(first_tile + step * BLOCK, RUN), vocab_size)
        weights = residual(both, scale, statistics, None, DRAFT)
        tiles = first_tile + step * BLOCK + tl.arange(0, BLOCK)
        words = sum_tiles(weights).to(tl.int32, bitcast=True) | NO_RESIDUAL
        store_by_warps(residuals_ptr + tiles, words, tiles < num_tiles)
    return statistics


@triton.jit
def _publish_bonus(
    request_sums_ptr,  # [num_tiles] int64, written
    row_ptr,  # [vocab_size] any
    first_tile,
    num_tiles,
    vocab_size,
    temperature,
    scale,
    STRIP: tl.constexpr,
):
    """Publish sums of a strip of the bonus row. The size of the numbers is not known beforehand, so each tile is summed
    over its own maximum."""
    for step in range(STRIP):
        first = first_tile + step * BLOCK
        tiles = first + tl.arange(0, BLOCK)
        if temperature == 0:
            for tile in range(first, tl.minimum(first + BLOCK, num_tiles)):
                token_ids = tile * TILE + tl.arange(0, TILE)
                tl.store(request_sums_ptr + tile, tile_argmax(load_logits(row_ptr, token_ids, vocab_size), token_ids))
        else:
            sums = block_sums(load_block(row_ptr, first, vocab_size, RUN), scale)
            store_by_warps(request_sums_ptr + tiles, sums, tiles < num_tiles)


@triton.jit
def _publish_nothing(
    residuals_ptr,  # [num_tiles] int32, written
    first_tile,
    num_tiles,
    STRIP: tl.constexpr,
):
    """Publish empty sums: the first strip waits for the words of all, also where nothing is drawn."""
    for step in tl.static_range(STRIP):
        tiles = first_tile + step * BLOCK + tl.arange(0, BLOCK)
        tl.store(residuals_ptr + tiles, tl.full((BLOCK,), NO_RESIDUAL, tl.int32), mask=tiles < num_tiles)


@triton.jit
def _bonus_token(slots, used, row_pointer, uniform, vocab_size, temperature, scale):
    """Wait for the sums of all tiles and reset their slots; then sample a tile, and an entry of it.

    A greedy request takes the argmax, and an invalid row gives token 0. Takes `slots`, pointers [TILES] to int64."""
    partial_sums = wait_for_all(slots, used, padding_word(temperature))
    tl.store(slots, tl.zeros_like(partial_sums), mask=used)
    token_id = argmax_token(tl.max(partial_sums)).to(tl.int32)
    if temperature != 0:
        exponents = (partial_sums >> 32).to(tl.int32)
        row_exponent = tl.max(exponents)
        sums = aligned_sums(partial_sums, row_exponent)
        total = tl.sum(sums)
        token_id = 0
        if total > 0:
            tile, offset = sample_index(sums, cdf_thresholds(uniform, total))
            exponent = tl.max(tl.where(tl.arange(0, exponents.shape[0]) == tile, exponents, -FAR))
            terms = exp2_terms(load_tile(row_pointer, tile, -1, vocab_size), scale, exponent.to(tl.float32))
            token_id = tile * TILE + sample_in_tile(terms, threshold_in_tile(offset, row_exponent - exponent))
    return token_id


@triton.jit(do_not_specialize=["batch_size", "num_tokens", "num_tiles", "max_spec_len"])
def draw_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    draw_sums_ptr,  # [batch_size, num_tiles] int64, written; of a rejected row the first half, as float32
    status_ptr,  # [batch_size, 3] int64, written
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    batch_size,
    num_tokens,
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
):
    # The last request first: its rows were read last, and may still be in L2.
    strip = tl.num_programs(0) - 1 - tl.program_id(0)
    req_idx = batch_size - 1 - tl.program_id(2) * tl.num_programs(1) - tl.program_id(1)
    if req_idx < 0:
        return
    first_tile = strip * STRIP * BLOCK
    start, count = find_drafts(cu_num_draft_tokens_ptr, req_idx, batch_size, num_tokens, max_spec_len)
    temperature = tl.load(temperature_ptr + req_idx)
    scale = exponent_scale(temperature)
    draw_sums_ptr += req_idx * num_tiles
    residuals_ptr = draw_sums_ptr.to(tl.pointer_type(tl.int32))
    status_ptr += req_idx * STATUS_WORDS
    # Wait for the status.
    if OVERLAP and not EAGER:
        gdc_wait()
    status = wait_for_status(status_ptr)
    is_open = (status >= OPEN) & (status - OPEN < count + (1 if BONUS else 0))  # a workspace may hold anything
    pos = tl.where(is_open, status - OPEN, 0).to(tl.int32)
    row = start.to(tl.int64) + pos
    logits_row_ptr = logits_ptr + (row + (req_idx if BONUS else 0)) * logits_stride
    complete = is_open & (pos == count) if BONUS else False
    # Add up the strip and publish.
    target_statistics = tl.zeros((), tl.int64)
    draft_statistics = tl.zeros((), tl.int64)
    if complete:
        _publish_bonus(draw_sums_ptr, logits_row_ptr, first_tile, num_tiles, vocab_size, temperature, scale, STRIP)
    elif DRAFT != ONE_HOT and is_open:
        rows = (logits_row_ptr, draft_ptr + row * draft_stride)
        target_statistics, draft_statistics = _publish_residuals(
            residuals_ptr, status_ptr, rows, first_tile, num_tiles, vocab_size, scale, DRAFT, STRIP
        )
    else:
        _publish_nothing(residuals_ptr, first_tile, num_tiles, STRIP)
    # Wait for the sums of all strips, draw, and reset the slots.
    if strip == 0:
        _, uniform = request_uniforms(seeds_ptr, positions_ptr, req_idx, pos)
        token_ptr = output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + pos
        tiles = tl.arange(0, TILES)
        used = tiles < num_tiles
        if complete:
            slots = draw_sums_ptr + tiles
            tl.store(token_ptr, _bonus_token(slots, used, logits_row_ptr, uniform, vocab_size, temperature, scale))
        else:
            sums, total = _take_residuals(residuals_ptr + tiles, used)
            if DRAFT != ONE_HOT and is_open:
                statistics = (target_statistics, draft_statistics)
                rows = (logits_row_ptr, draft_ptr + row * draft_stride)
                token_id = _recovered_token(sums, total, rows, uniform, num_tiles, vocab_size, scale, statistics, DRAFT)
                tl.store(token_ptr, token_id)
        for word in tl.static_range(STATUS_WORDS):
            tl.store(status_ptr + word, 0)
    # One program must wait, or what comes next would not wait for the kernel before this one either.
    if OVERLAP and EAGER and (strip == 0) & (req_idx == 0):
        gdc_wait()
