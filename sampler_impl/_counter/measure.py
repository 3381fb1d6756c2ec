"""The first counter kernel: partial sums of one strip of tiles, unless an earlier draft token is known rejected.

A draft token is rejected if `uniform * draft probability > target probability`, and the target probability is the
token's own exp2 term over the sum of all terms. So with every tile that is added, the **early-exit bound**

    bound = uniform * draft probability * sum of terms so far / term of the token

can only grow, and from 1 on the token is rejected, whatever the rest of the row holds. Programs add their strip to the
bound of their row. Programs of later rows poll the bounds of earlier ones and read nothing if one exceeds 1 by a margin
for rounding: no kernel needs their partial sums. Tokens are the same whichever programs saw a bound in time.

    program    [ find its row ][ poll bounds ][ load a block of 4 tiles, one per warp ][ add up ][ publish 4 slots ]
                                              [ load the next block                        ][ add up ][ ... ]
               [ add the strip to the bound ][ one-hot: the drafted token's tile again, without the token ]

exp2 terms are taken over that of the drafted token, which a gather knows before the tiles are there.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportAssignmentType=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from .._shared.kernels import LOG2_E, NO_ID, load_logits, tile_argmax
from .arithmetic import (
    BLOCK,
    TILE,
    argmax_word_at,
    exp2_terms,
    exponent_scale,
    is_out_of_range,
    load_block,
    pack_finite_sum,
    reference_of,
    request_uniforms,
    slot_of_tile,
    store_by_warps,
    sum_tiles,
    tile_sum,
)
from .slots import BOUND_WORDS, LOGITS, ONE_HOT, SNAPSHOT, find_drafts

MARGIN = tl.constexpr(1.002)
"""Number that a bound must reach. Rounding of exponents below `PRECISE` moves it by 0.0003."""
LIKELY = tl.constexpr(1.2)
"""Number that a bound is expected to reach if it is worth waiting for; 1.0 to 1.5 made no difference."""
LIKELY_FACTOR = tl.constexpr(0.6)
"""The factor from which on to wait while no strip has been added. Of one-hot drafts the factor is the uniform."""
MAX_POLLS = tl.constexpr(8)
"""Most polls, about a microsecond each. Reading too much does no harm."""
WAITS = tl.constexpr(1)
REJECTED = tl.constexpr(2)
PRECISE = tl.constexpr(2048)
CERTAIN = tl.constexpr(1e30)
"""The most that one strip adds to a bound."""


@triton.jit
def _count_ended(
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_row,
    batch_size,
):
    """Return the number of requests that end before a row."""
    ended = 0
    for first in range(0, batch_size, 256):
        requests = first + tl.arange(0, 256)
        ends = tl.load(cu_num_draft_tokens_ptr + requests, mask=requests < batch_size, other=NO_ID >> 1)
        ended += tl.sum((ends <= draft_row).to(tl.int32))
    return ended


@triton.jit
def _find_row(
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    batch_size,
    num_tokens,
    folds,
    max_spec_len,
    BOTH: tl.constexpr,
    BY_POSITION: tl.constexpr,
):
    """Return which row a program has: request, position, flat index, whether there is such a row, and whether the
    draft's."""
    minor = tl.program_id(1)
    major = tl.program_id(2)
    is_draft = False
    if BOTH:  # the second half of the grid
        is_draft = major >= tl.num_programs(2) // 2
        major -= tl.where(is_draft, tl.num_programs(2) // 2, 0)
    line = major * tl.num_programs(1) + minor
    if folds == 0:  # rows in the order of memory
        req_idx = tl.minimum(_count_ended(cu_num_draft_tokens_ptr, line, batch_size), batch_size - 1)
        position = line * 0
    else:
        if BY_POSITION:  # all first rows, then all second ones: the bounds that a row needs are older then
            position = major
            req_idx = minor
        else:  # in the order of memory
            req_idx = major
            position = minor
        if folds > 1:
            req_idx += position % folds * tl.cdiv(batch_size, folds)
            position = tl.where(req_idx < batch_size, position // folds, max_spec_len)
            req_idx = tl.minimum(req_idx, batch_size - 1)
    start, count = find_drafts(cu_num_draft_tokens_ptr, req_idx, batch_size, num_tokens, max_spec_len)
    if folds == 0:
        position = line - start
    draft_row = start + position
    return req_idx, position, draft_row, (position >= 0) & (position < count), is_draft


@triton.jit
def _is_known_rejected(
    request_bounds_ptr,  # [max_spec_len, 4] float32, of one request
    position,
    num_strips,
    max_polls,
):
    """Whether the bound of an earlier draft token shows that it is rejected.

    If the strips so far make that likely, it polls again before it returns False: waiting for the others is faster
    than reading a row in vain."""
    bounds = request_bounds_ptr + tl.arange(0, SNAPSHOT) * BOUND_WORDS
    is_before = tl.arange(0, SNAPSHOT) < position
    state = tl.full((), WAITS, tl.int32)
    polls = 0
    while (state == WAITS) & (polls < max_polls):
        polls += 1
        sums = tl.load(bounds, mask=is_before, other=0.0, volatile=True)
        factors = tl.load(bounds + 1, mask=is_before, other=0.0, volatile=True)
        counts = tl.load(bounds + 2, mask=is_before, other=0.0, volatile=True)
        likely = sums * factors * num_strips >= counts * LIKELY
        likely = tl.where(counts > 0, likely, factors > LIKELY_FACTOR)
        waits = is_before & (counts < num_strips) & likely
        state = tl.max(tl.where(sums * factors >= MARGIN, REJECTED, tl.where(waits, WAITS, 0)))
    return state == REJECTED


@triton.jit
def _is_needed(
    exit_bounds_ptr,  # [batch_size, max_spec_len, 4] float32
    is_row,
    req_idx,
    position,
    folds,
    max_spec_len,
):
    """Whether a row has to be read: there is one, and no earlier draft token is known rejected."""
    request_bounds_ptr = exit_bounds_ptr + req_idx * max_spec_len * BOUND_WORDS
    if is_row & (position > 0):
        # In the order of memory the earlier rows are read at the same time, and their bounds are not due soon.
        max_polls = tl.where(folds == 0, 1, MAX_POLLS)
        num_strips = tl.num_programs(0).to(tl.float32)
        is_row = not _is_known_rejected(request_bounds_ptr, position, num_strips, max_polls)
    return is_row


@triton.jit
def _factor_of(drafts, noise_ptrs, request, draft_row, token_id, known, scale, DRAFT: tl.constexpr):
    """Return the factor of a row's bound: uniform times draft probability; 1 for a greedy request.

    Takes `drafts` as `_draft_probability` does; `noise_ptrs`: to seeds and positions; `request`: its number, the
    position of the row, and the temperature."""
    req_idx, position, temperature = request
    factor = tl.full((), 1.0, tl.float32)
    if temperature != 0:
        seeds_ptr, positions_ptr = noise_ptrs
        uniform, _ = request_uniforms(seeds_ptr, positions_ptr, req_idx, position)
        factor = uniform.to(tl.float32) * _draft_probability(drafts, draft_row, token_id, known, scale, DRAFT)
    return factor


@triton.jit
def _draft_probability(drafts, draft_row, token_id, known, scale, DRAFT: tl.constexpr):
    """Return that of the drafted token. Takes `drafts`: pointers to them and to their log-sum-exps, and the stride."""
    draft_ptr, draft_logsumexp_ptr, draft_stride = drafts
    draft = tl.full((), 1.0, tl.float32)
    if DRAFT != ONE_HOT:
        at = draft_row.to(tl.int64) * draft_stride + token_id
        draft = tl.load(draft_ptr + at, mask=known, other=0.0).to(tl.float32)
    if DRAFT == LOGITS:
        draft = tl.exp2(draft * scale - tl.load(draft_logsumexp_ptr + draft_row) * LOG2_E)
    return draft


@triton.jit
def _at_most_certain(value):
    """Return a number that bounds can be added up of: not NaN, and not infinite."""
    return tl.where(value == value, tl.minimum(value, CERTAIN), 0.0)


@triton.jit
def _publish_argmax(strip, token_id, CHUNKS: tl.constexpr, STRIP: tl.constexpr):
    """Publish the argmax words of a strip, for a greedy request. Return what they add to the bound of the drafted
    token.

    Takes `strip` as `measure_kernel` makes it."""
    slots_ptr, row_ptr, first_tile, vocab_size, num_tiles = strip
    bound = tl.zeros((), tl.float32)
    drafted = argmax_word_at(row_ptr, token_id, vocab_size)
    for tile in range(first_tile, tl.minimum(first_tile + STRIP * BLOCK, num_tiles)):
        token_ids = tile * TILE + tl.arange(0, TILE)
        best = tile_argmax(load_logits(row_ptr, token_ids, vocab_size), token_ids)
        tl.store(slots_ptr + slot_of_tile(tile, CHUNKS), best)
        bound = tl.where(best > drafted, CERTAIN, bound)
    return bound


@triton.jit
def _publish_sums(strip, logits, scale, exponent, excluded, CHUNKS: tl.constexpr, STRIP: tl.constexpr):
    """Publish partial sums of a strip except the excluded tile, over the drafted token's exponent. Return what they add
    to the bound: their sum over the token's own term.

    Takes `strip` as `measure_kernel` makes it; `logits` [BLOCK, TILE // RUN, RUN] any, the first block."""
    slots_ptr, row_ptr, first_tile, vocab_size, num_tiles = strip
    RUN: tl.constexpr = logits.shape[2]
    reference = reference_of(exponent)
    following = logits
    total = tl.zeros((BLOCK,), tl.float32)
    failures = tl.zeros((BLOCK,), tl.int32)  # a bit for each step
    for step in tl.static_range(STRIP):
        tiles = first_tile + step * BLOCK + tl.arange(0, BLOCK)
        now = following
        # The next block is on its way while this one is added up.
        if step + 1 < STRIP:
            following = load_block(row_ptr, first_tile + (step + 1) * BLOCK, vocab_size, RUN)
        sums = sum_tiles(exp2_terms(now.to(tl.float32), scale, reference))
        failed = (tiles < num_tiles) & is_out_of_range(sums, exponent)
        words = tl.where(failed, 0, pack_finite_sum(sums, reference))  # 0: not yet published
        stored = (tiles < num_tiles) & (tiles != excluded)
        store_by_warps(slots_ptr + slot_of_tile(tiles, CHUNKS), words, stored)
        total += tl.where(failed, float("nan"), sums)
        failures |= tl.where(failed, 1 << step, 0)
    total = tl.sum(total)
    if total != total:
        # Tiles for which the reference is out of range are summed over their own maximum. Rare.
        for tile in range(first_tile, tl.minimum(first_tile + STRIP * BLOCK, num_tiles)):
            at = tile - first_tile
            bits = tl.max(tl.where(tl.arange(0, BLOCK) == at % BLOCK, failures, 0))
            if (((bits >> (at // BLOCK)) & 1) != 0) & (tile != excluded):
                word = tile_sum(row_ptr, -1, tile, scale, vocab_size, exponent)
                tl.store(slots_ptr + slot_of_tile(tile, CHUNKS), word)
    return tl.where(tl.abs(exponent) < PRECISE, total * tl.exp2(reference - exponent), 0.0)


@triton.jit(do_not_specialize=["batch_size", "num_tokens", "folds", "num_tiles", "max_spec_len"])
def measure_kernel(
    exit_bounds_ptr,  # [batch_size, max_spec_len, 4] float32, written, or None: every row is read
    partial_sums_ptr,  # [batch_size, max_spec_len, num_words] int64, written; twice if draft statistics are needed
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    batch_size,
    num_tokens,
    folds,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    DRAFT: tl.constexpr,
    BONUS: tl.constexpr,
    CHUNKS: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    RUN: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    # Find the row, and start loading what does not depend on earlier rows.
    BOTH: tl.constexpr = DRAFT == LOGITS and draft_logsumexp_ptr is None
    strip = tl.program_id(0)
    first_tile = strip * STRIP * BLOCK
    req_idx, position, draft_row, is_row, is_draft = _find_row(
        cu_num_draft_tokens_ptr, batch_size, num_tokens, folds, max_spec_len, BOTH, exit_bounds_ptr is not None
    )
    temperature = tl.load(temperature_ptr + req_idx)
    token_id = tl.load(draft_token_ids_ptr + draft_row, mask=is_row, other=-1).to(tl.int32)
    known = (token_id >= 0) & (token_id < vocab_size)
    row_ptr = logits_ptr + (draft_row + (req_idx if BONUS else 0)).to(tl.int64) * logits_stride
    slot_row = req_idx * max_spec_len + position
    if BOTH and is_draft:
        row_ptr = draft_ptr + draft_row.to(tl.int64) * draft_stride
        slot_row += batch_size * max_spec_len
    # Poll the bounds of earlier rows.
    if exit_bounds_ptr is not None:
        is_row = _is_needed(exit_bounds_ptr, is_row, req_idx, position, folds, max_spec_len)
        exit_bounds_ptr += req_idx * max_spec_len * BOUND_WORDS + position * BOUND_WORDS
    if is_row:
        # Load the first block, and the logit of the drafted token.
        logits = load_block(row_ptr, first_tile, vocab_size, RUN)
        own = tl.load(row_ptr + token_id, mask=known, other=float("nan")).to(tl.float32)
        scale = exponent_scale(temperature)
        exponent = own * scale
        own_tile = tl.where(known & (temperature != 0), token_id // TILE, -1) if DRAFT == ONE_HOT else -1
        slots_ptr = partial_sums_ptr + slot_row.to(tl.int64) * (CHUNKS * 32)
        if exit_bounds_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
            if strip == 0:
                drafts, noise_ptrs = (draft_ptr, draft_logsumexp_ptr, draft_stride), (seeds_ptr, positions_ptr)
                request = (req_idx, position, temperature)
                factor = _factor_of(drafts, noise_ptrs, request, draft_row, token_id, known, scale, DRAFT)
                tl.store(exit_bounds_ptr + 1, _at_most_certain(factor))
        # Add up the strip, publish its partial sums, and add to the bound.
        strip_of_row = (slots_ptr, row_ptr, first_tile, vocab_size, num_tiles)
        if temperature == 0:
            ratio = _publish_argmax(strip_of_row, token_id, CHUNKS, STRIP)
        else:
            ratio = _publish_sums(strip_of_row, logits, scale, exponent, own_tile, CHUNKS, STRIP)
        if exit_bounds_ptr is not None:
            tl.atomic_add(exit_bounds_ptr, _at_most_certain(ratio), sem="relaxed")
            tl.atomic_add(exit_bounds_ptr + 2, 1.0, sem="relaxed")
        if DRAFT == ONE_HOT:  # noqa: SIM102
            # Comparing every id with the drafted one would cost more than reading one tile of a row again.
            if (own_tile >= first_tile) & (own_tile < first_tile + STRIP * BLOCK):
                word = tile_sum(row_ptr, token_id, own_tile, scale, vocab_size, exponent)
                tl.store(slots_ptr + slot_of_tile(own_tile, CHUNKS), word)
