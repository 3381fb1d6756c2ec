"""The kernel that reads the logits, each at most once: of each tile the largest, and the sum of exp2 terms over it.

    program (strip, request)    for each block of tiles of the strip        (request, strip) in a plan of many requests
                                    for each row of the request      counts of penalties are held in registers
                                        load, edit, reduce; one word per tile
                                        stop if the draft token behind the row is surely rejected

A draft token is surely rejected if a single tile has a token that is so much more probable that even these two alone
would not let it pass: whatever the filters keep, they keep the row's best token. Then nobody asks for the rows behind,
and the request's arrivals say so; most wrong drafts are found out by every program for itself. In a small batch the
rows of a request have programs of their own instead (APART), which read them at the same time.

The tiles of edits are not among them: `edits` adds up what it lists.

A tile's word is one int64:

    63                        32 31              0
    order of the largest logit     sum of 2**((logit - largest) * log2(e) / temperature), float32

Filters also need what each run of 256 reaches: the upper 16 bits of the order of
its largest logit, four of them in a word. A tile with NaN has the order of NaN, and NaN as its sum.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportAssignmentType=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._counter.arithmetic import store_by_warps
from .._shared.kernels import LOG2_E, VERIFY_STREAM, argmax_order, philox_uniforms
from .rows import (
    BLOCK_WORDS,
    MIN_TEMPERATURE,
    REJECTION_BITS,
    RUNS,
    TILE,
    find_request,
    indices_of,
    let_next_kernel_start,
    load_bits,
    load_penalties,
    load_raw,
    load_times,
    locate_with,
    masked,
    most_of_draft,
    order_to_float,
    penalised,
    rejection_at,
    scaled_by,
    wait_for_kernel_before,
    without_moved,
    words_of_tiles,
)

SURE = tl.constexpr(1.01)
"""A factor of probabilities that covers the rounding of all that decides about a draft token."""
FAR = tl.constexpr(2.0)
"""Exponents of 2 between a draft token and a better one from which on a rejection is likely enough to be looked for."""


@triton.jit
def exponent_scale(temperature):
    """Differences of logits times this are exponents of 2."""
    return tl.div_rn(LOG2_E, tl.maximum(temperature, MIN_TEMPERATURE))


@triton.jit
def exp2_terms(logits, largest, scale):
    """`exp((logit - largest) / temperature)`. Subtracted before scaling: the difference of near logits is exact.

    Where the largest is infinite there is nothing to compute with: terms are 0 or infinity then."""
    reference = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
    return tl.exp2((logits - reference) * scale)


@triton.jit
def sum_tiles(logits, scale):
    """Words of the tiles, and what their runs reach, both [tiles] int64.

    Takes `logits` [tiles, RUNS, WORDS, 32] float32."""
    largest_of_runs = tl.max(tl.max(logits, axis=3), axis=2)
    largest = tl.max(largest_of_runs, axis=1)
    terms = exp2_terms(logits, largest[:, None, None, None], scale)
    sums = tl.sum(tl.sum(tl.sum(terms, axis=1), axis=2), axis=1)
    order = argmax_order(tl.where(sums == sums, largest, float("nan")))
    words = (order.to(tl.int64) << 32) | (sums.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    reached = (argmax_order(largest_of_runs) >> 16).to(tl.int64) & 0xFFFF
    return words, tl.sum(reached << (16 * tl.arange(0, RUNS))[None, :].to(tl.int64), axis=1)


@triton.jit
def _is_presence_alone(factors):
    return (factors[1] == 0) & (factors[2] == 1)


@triton.jit
def _load_seen(inputs, slot, words, factors, vocab_size):
    """[tiles, RUNS, WORDS, 32] float32: how often the output of a slot has each id; -1 if its prompt alone has it. Of
    a request with a presence penalty alone: 1 if the output has the id, or 0.

    The same for all rows of a request, but for the drafts before a row: `_with_draft`."""
    penalties = inputs[5]
    seen = tl.zeros_like(indices_of(words)).to(tl.float32)
    if factors[3]:
        seen = load_times(inputs, slot, words, vocab_size).to(tl.float32)
        if _is_presence_alone(factors):
            seen = tl.minimum(seen, 1.0)
        elif factors[2] != 1:
            in_prompt = load_bits(penalties[4] + slot * penalties[6], words, vocab_size)
            seen = tl.where((seen == 0) & (in_prompt != 0), -1.0, seen)
    return seen


@triton.jit
def _with_draft(seen, inputs, row_idx, block, factors):
    """As `_load_seen`, for the row behind a row: with the draft token between them. Few blocks have it."""
    if inputs[6] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if factors[3]:
            token_id = tl.load(inputs[6] + row_idx)
            if token_id // (seen.shape[0] * TILE) == block:
                tiles = block * seen.shape[0] + tl.arange(0, seen.shape[0])
                is_drafted = indices_of(words_of_tiles(tiles)) == token_id
                once_more = tl.where(_is_presence_alone(factors), 1.0, tl.maximum(seen, 0.0) + 1.0)
                seen = tl.where(is_drafted, once_more, seen)
    return seen


@triton.jit
def _kept_together(seen, PINS: tl.constexpr):
    """Return an opaque copy: it stops the compiler from hoisting work out of the row loop (214 to 121 registers)."""
    if PINS:
        seen = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [seen], dtype=tl.float32, is_pure=False, pack=1)
    return seen


@triton.jit
def _edited(row, words, raw, seen, block, vocab_size, PINS: tl.constexpr):
    """[tiles, RUNS, WORDS, 32] float32: edited logits of a block of the vocabulary's tiles.

    As `rows.load_logits`; excluded words are read only where the block has some. Takes `raw`: as `load_raw`."""
    inputs, place = row
    edits = inputs[4]
    is_moved = tl.zeros((), tl.int32)
    if edits[0] is not None:
        is_moved = (tl.load(edits[5] + place[0] * BLOCK_WORDS + block // 32) >> (block % 32)) & 1
    logits = raw.to(tl.float32)
    if inputs[5][3] is not None:
        factors = place[3]
        if _is_presence_alone(factors):
            logits = tl.fma(seen, -factors[0], logits)  # rounded once: the product is exact
        else:
            seen = _kept_together(seen, PINS)
            logits = penalised(logits, seen, seen < 0, factors)
    logits = masked(row, words, logits, vocab_size)
    if edits[0] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_moved != 0:
            logits = without_moved(row, words, logits, vocab_size)
    return logits


@triton.jit
def _exponents_between(largest, most, scale, given, FILTERS: tl.constexpr):
    """How many exponents of 2 a draft token is below another one, at least: `settle` rounds in one of two ways."""
    distance = (largest - most) * scale
    if FILTERS:
        temperature = tl.maximum(given, MIN_TEMPERATURE)
        by_quotients = (scaled_by(largest, temperature) - scaled_by(most, temperature)) * LOG2_E
        distance = tl.where(by_quotients < distance, by_quotients, distance)
    return distance


@triton.jit
def _is_surely_rejected(most, order, scale, noise, slot, req_idx, offset, FILTERS: tl.constexpr):
    """Whether a draft token is, if its logit is at most `most` and some tile of the row has a largest one of `order`.

    Each way of rounding is monotonic, so that this is not less sure for being computed from a part of the row. A row
    with NaN or infinity accepts nothing; comparisons with NaN are false. Takes `noise`: as `_scan_block`."""
    is_rejected = argmax_order(most) < order
    if is_rejected & (noise[2] != 0):
        distance = _exponents_between(order_to_float(order), most, scale, noise[2], FILTERS)
        is_rejected = distance > FAR
        if is_rejected:
            position = tl.load(noise[1] + req_idx) + offset
            uniform, _ = philox_uniforms(tl.load(noise[0] + slot), position, VERIFY_STREAM)
            is_rejected = tl.exp2(-distance) * SURE < uniform.to(tl.float32)
    return is_rejected


@triton.jit
def _scan_block(
    written,
    inputs,
    request,
    noise,
    draft_token_ids_ptr,  # [num_rows] int32, or None
    block,
    vocab_size,
    all_tiles,
    BLOCK: tl.constexpr,
    APART: tl.constexpr,
    WAITS: tl.constexpr,
    PINS: tl.constexpr,
):
    """One block of the rows `begin` to `end` of a request. Returns the new end: no row behind it is needed.

    Takes `written`: words, what runs reach, arrivals, as `scan_kernel`; `request`: its number, first row, number of
    rows, slot, begin and end; `noise`: pointers to seeds and positions, and the temperature."""
    words_ptr, reached_ptr, arrivals_ptr = written
    req_idx, first, count, slot, begin, end = request
    SKIPS: tl.constexpr = arrivals_ptr is not None and not APART
    FILTERS: tl.constexpr = reached_ptr is not None
    scale = exponent_scale(noise[2])
    tiles = block * BLOCK + tl.arange(0, BLOCK)
    words = words_of_tiles(tiles)
    factors = load_penalties(inputs[5], slot)
    seen = words
    if inputs[5][3] is not None:
        seen = _load_seen(inputs, slot, words, factors, vocab_size)
        if APART:
            for offset in range(0, begin):
                seen = _with_draft(seen, inputs, (first + offset).to(tl.int64), block, factors)
    wait_for_kernel_before(WAITS)  # what it lists is needed from here on
    offset = begin
    while offset < end:
        row_idx = (first + offset).to(tl.int64)
        row = (inputs, locate_with(inputs, row_idx, slot, offset, factors))
        raw = load_raw(row, words, vocab_size)
        # What the draft token has is there when the tiles are.
        most = tl.zeros((), tl.float32)
        if SKIPS:
            is_draft = offset + 1 < count
            token_id = tl.load(draft_token_ids_ptr + row_idx, mask=is_draft, other=-1)
            most = most_of_draft(row, token_id, is_draft, vocab_size)
        # Add up the tiles.
        sums, reached = sum_tiles(_edited(row, words, raw, seen, block, vocab_size, PINS), scale)
        at = row_idx * all_tiles + tiles
        is_tile = tiles < tl.cdiv(vocab_size, TILE)
        store_by_warps(words_ptr + at, sums, is_tile)
        if reached_ptr is not None:
            store_by_warps(reached_ptr + at, reached, is_tile)
        # Stop, or go on to the next row.
        if SKIPS:  # noqa: SIM102  # the outer one is decided when compiling
            if (offset + 1 < end) & (offset < REJECTION_BITS):
                order = tl.max((sums >> 32).to(tl.int32))
                if _is_surely_rejected(most, order, scale, noise, slot, req_idx, offset, FILTERS):
                    end = offset + 1
                    tl.atomic_or(arrivals_ptr + req_idx, rejection_at(offset), sem="relaxed")
        if inputs[5][3] is not None:
            seen = _with_draft(seen, inputs, row_idx, block, factors)
        offset += 1
    return end


@triton.jit(do_not_specialize=["num_rows", "num_slots", "max_spec_len"])
def scan_kernel(
    words_ptr,  # [max_rows, all_tiles] int64, written
    reached_ptr,  # [max_rows, all_tiles] int64, written, or None: nothing is filtered
    arrivals_ptr,  # [batch_size] int32, 0 before a step, or None: every row is read
    inputs,
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32, or None
    seeds_ptr,  # [num_slots] int64
    positions_ptr,  # [batch_size] int64
    temperature_ptr,  # [num_slots] float32
    draft_token_ids_ptr,  # [num_rows] int32, or None
    num_rows,
    num_slots,
    max_spec_len,
    vocab_size,
    all_tiles,
    STRIP: tl.constexpr,
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
    REQUESTS: tl.constexpr,
    WAITS: tl.constexpr,
    PINS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_kernel_start(OVERLAPS)
    inputs = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], inputs[6], inputs[7])  # as `rows` says
    req_idx, strip = tl.program_id(REQUESTS), tl.program_id(1 - REQUESTS)
    first, count, slot = find_request(cu_num_rows_ptr, slots_ptr, req_idx, num_rows, num_slots, max_spec_len)
    begin, end = tl.zeros((), tl.int32), count
    if APART:
        begin = tl.program_id(2)
        end = tl.minimum(count, begin + 1)
    written = (words_ptr, reached_ptr, arrivals_ptr)
    noise = (seeds_ptr, positions_ptr, tl.load(temperature_ptr + slot))
    for step in range(STRIP):
        if begin < end:
            request = (req_idx, first, count, slot, begin, end)
            end = _scan_block(
                written,
                inputs,
                request,
                noise,
                draft_token_ids_ptr,
                strip * STRIP + step,
                vocab_size,
                all_tiles,
                BLOCK,
                APART,
                WAITS,
                PINS,
            )
