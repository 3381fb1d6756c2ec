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
from .draft_rows import load_draft_logits
from .named import Noise, Row, RowInputs
from .rows import (
    BLOCK_TILES,
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
    prompt_of,
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
    """Return what differences of logits are multiplied by to be exponents of 2."""
    return tl.div_rn(LOG2_E, tl.maximum(temperature, MIN_TEMPERATURE))


@triton.jit
def exp2_terms(logits, largest, scale):
    """Return `exp((logit - largest) / temperature)`. Subtracted before scaling: the difference of near logits is exact.

    Where the largest is infinite there is nothing to compute with: terms are 0 or infinity then."""
    reference = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
    return tl.exp2((logits - reference) * scale)


@triton.jit
def sum_tiles(logits, scale):
    """Return the words of the tiles, and what their runs reach, both [tiles] int64.

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
    """Whether neither frequency nor repetition is penalised."""
    return (factors.frequency == 0) & (factors.repetition == 1)


@triton.jit
def _load_seen(penalties, slot, words, factors, vocab_size):
    """Return [tiles, RUNS, WORDS, 32] float32: how often the output of a slot has each id; -1 if its prompt alone has
    it. For a request with a presence penalty alone: 1 if the output has the id, or 0.

    All rows of a request have it in common, but for the drafts before a row: `_with_draft`."""
    seen = tl.zeros_like(indices_of(words)).to(tl.float32)
    if factors.is_any:
        seen = load_times(penalties, slot, words, vocab_size).to(tl.float32)
        if _is_presence_alone(factors):
            seen = tl.minimum(seen, 1.0)
        elif factors.repetition != 1:
            in_prompt = load_bits(prompt_of(penalties, slot), words, vocab_size)
            seen = tl.where((seen == 0) & (in_prompt != 0), -1.0, seen)
    return seen


@triton.jit
def _with_draft(seen, inputs, row_idx, block, factors):
    """Return what `_load_seen` does for the row behind a row: with the draft token between them. Few blocks have it."""
    if inputs.draft_token_ids_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if factors.is_any:
            token_id = tl.load(inputs.draft_token_ids_ptr + row_idx)
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
    """Return [tiles, RUNS, WORDS, 32] float32: edited logits of a block of the vocabulary's tiles.

    They are those of `rows.load_logits`; excluded words are read only where the block has some. Takes `raw`: what
    `load_raw` returns."""
    edits, factors = row.inputs.edits, row.place.factors
    is_moved = tl.zeros((), tl.int32)
    if edits.excluded_ptr is not None:
        moved_ptr = edits.blocks_ptr + row.place.row_idx * BLOCK_WORDS
        is_moved = (tl.load(moved_ptr + block // 32) >> (block % 32)) & 1
    logits = raw.to(tl.float32)
    if row.inputs.penalties.output_counts_ptr is not None:
        if _is_presence_alone(factors):
            logits = tl.fma(seen, -factors.presence, logits)  # rounded once: the product is exact
        else:
            seen = _kept_together(seen, PINS)
            logits = penalised(logits, seen, seen < 0, factors)
    logits = masked(row, words, logits, vocab_size)
    if edits.excluded_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_moved != 0:
            logits = without_moved(row, words, logits, vocab_size)
    return logits


@triton.jit
def _exponents_between(largest, most, scale, given, FILTERS: tl.constexpr):
    """Return how many exponents of 2 a draft token is below another one, at least: `settle` rounds in two ways."""
    distance = (largest - most) * scale
    if FILTERS:
        temperature = tl.maximum(given, MIN_TEMPERATURE)
        by_quotients = (scaled_by(largest, temperature) - scaled_by(most, temperature)) * LOG2_E
        distance = tl.where(by_quotients < distance, by_quotients, distance)
    return distance


@triton.jit
def _is_surely_rejected(most, order, scale, noise, offset, FILTERS: tl.constexpr):
    """Whether a draft token is, if its logit is at most `most` and some tile of the row has a largest one of `order`.

    Each way of rounding is monotonic, so that this is not less sure for being computed from a part of the row. A row
    with NaN or infinity accepts nothing; comparisons with NaN are false."""
    is_rejected = argmax_order(most) < order
    if is_rejected & (noise.temperature != 0):
        distance = _exponents_between(order_to_float(order), most, scale, noise.temperature, FILTERS)
        is_rejected = distance > FAR
        if is_rejected:
            position = tl.load(noise.position_ptr) + offset
            uniform, _ = philox_uniforms(tl.load(noise.seed_ptr), position, VERIFY_STREAM)
            is_rejected = tl.exp2(-distance) * SURE < uniform.to(tl.float32)
    return is_rejected


@triton.jit
def _stops(most, order, scale, noise, offset, end, FILTERS: tl.constexpr):
    """Whether no row behind this one is needed, as its draft token is surely rejected."""
    stops = (offset + 1 < end) & (offset < REJECTION_BITS)
    if stops:
        stops = _is_surely_rejected(most, order, scale, noise, offset, FILTERS)
    return stops


@triton.jit
def _scan_block(scanned, inputs, request, slot, rows, noise, drafts, block, sizes, SHAPE: tl.constexpr):
    """Scan one block of some rows of a request. Return their new end: no row behind it is needed.

    Takes `rows`: the first of them, and the one behind the last."""
    offset, end = rows
    SKIPS: tl.constexpr = scanned.arrivals_ptr is not None and not SHAPE.apart
    FILTERS: tl.constexpr = scanned.reached_ptr is not None
    scale = exponent_scale(noise.temperature)
    tiles = block * BLOCK_TILES + tl.arange(0, BLOCK_TILES)
    words = words_of_tiles(tiles)
    # Read the counts of penalties, which the rows have in common.
    factors = load_penalties(inputs.penalties, slot)
    seen = words
    if inputs.penalties.output_counts_ptr is not None:
        seen = _load_seen(inputs.penalties, slot, words, factors, sizes.vocab_size)
        if SHAPE.apart:
            for before in range(0, offset):
                seen = _with_draft(seen, inputs, (request.first + before).to(tl.int64), block, factors)
    wait_for_kernel_before(SHAPE.waits)  # what it lists is needed from here on
    while offset < end:
        # Load the row. What the draft token has is there when the tiles are.
        row_idx = (request.first + offset).to(tl.int64)
        row = Row(inputs, locate_with(inputs, row_idx, slot, offset, factors))
        raw = load_raw(row, words, sizes.vocab_size)
        most = tl.zeros((), tl.float32)
        if SKIPS:
            is_draft = offset + 1 < request.count
            token_id = tl.load(drafts.draft_token_ids_ptr + row_idx, mask=is_draft, other=-1)
            most = most_of_draft(row, token_id, is_draft, sizes.vocab_size)
        # Add up the tiles.
        sums, reached = sum_tiles(_edited(row, words, raw, seen, block, sizes.vocab_size, SHAPE.pins), scale)
        at = row_idx * sizes.all_tiles + tiles
        is_tile = tiles < tl.cdiv(sizes.vocab_size, TILE)
        store_by_warps(scanned.words_ptr + at, sums, is_tile)
        if FILTERS:
            store_by_warps(scanned.reached_ptr + at, reached, is_tile)
        # Stop, or go on to the next row.
        if SKIPS:  # noqa: SIM102  # the outer one is decided when compiling
            if _stops(most, tl.max((sums >> 32).to(tl.int32)), scale, noise, offset, end, FILTERS):
                end = offset + 1
                tl.atomic_or(scanned.arrivals_ptr + request.req_idx, rejection_at(offset), sem="relaxed")
        if inputs.penalties.output_counts_ptr is not None:
            seen = _with_draft(seen, inputs, row_idx, block, factors)
        offset += 1
    return end


@triton.jit
def _scan_draft(drafts, request, slot, offset, temperature, strip, sizes, STRIP: tl.constexpr):
    """Write the words of a strip of draft logits, of which `settle` makes a logsumexp, if a random request has a draft
    there."""
    row_idx = (request.first + offset).to(tl.int64)
    token_id = tl.load(drafts.draft_token_ids_ptr + row_idx, mask=offset + 1 < request.count, other=-1)
    if (token_id >= 0) & (token_id < sizes.vocab_size) & (temperature != 0):
        for step in range(STRIP):
            tiles = (strip * STRIP + step) * BLOCK_TILES + tl.arange(0, BLOCK_TILES)
            ids = indices_of(words_of_tiles(tiles))
            sums, _ = sum_tiles(load_draft_logits(drafts, slot, offset, ids, sizes.vocab_size), LOG2_E)
            at = row_idx * sizes.all_tiles + tiles
            store_by_warps(drafts.row_words_ptr + at, sums, tiles < tl.cdiv(sizes.vocab_size, TILE))


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def scan_kernel(scanned, inputs, requests, drafts, num_rows, num_slots, sizes, SHAPE: tl.constexpr):
    let_next_kernel_start(SHAPE.overlaps)
    inputs = RowInputs(*inputs)  # as `rows` says
    # Find the rows.
    req_idx, strip = tl.program_id(SHAPE.requests_at), tl.program_id(1 - SHAPE.requests_at)
    request, slot = find_request(requests, req_idx, num_rows, num_slots, sizes.max_spec_len)
    begin, end = tl.zeros((), tl.int32), request.count
    if SHAPE.apart:
        begin = tl.program_id(2)
        end = tl.minimum(request.count, begin + 1)
    temperature = tl.load(requests.temperature_ptr + slot)
    # The last programs are of rows of draft logits, whose logsumexp is not given.
    if drafts.row_words_ptr is not None and drafts.draft_logsumexp_ptr is None:
        offset = tl.program_id(2) - (sizes.max_spec_len + 1 if SHAPE.apart else 1)
        if offset >= 0:
            end = begin
            _scan_draft(drafts, request, slot, offset, temperature, strip, sizes, SHAPE.strip)
    # Scan rows block by block.
    noise = Noise(requests.seeds_ptr + slot, requests.positions_ptr + req_idx, temperature)
    for step in range(SHAPE.strip):
        if begin < end:
            block, rows = strip * SHAPE.strip + step, (begin, end)
            end = _scan_block(scanned, inputs, request, slot, rows, noise, drafts, block, sizes, SHAPE)
