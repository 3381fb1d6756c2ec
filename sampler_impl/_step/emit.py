"""The last kernel with dense draft rows: one program per request draws what `settle` left, and emits.

There a row of tiles has no token yet. Its `max(target - draft, 0)` is read here, for the first rejected row alone, in
two passes: the sum of every tile, then the tile that was drawn.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import VERIFY_STREAM, philox_uniforms
from .bisection import ONE
from .draft_rows import draft_probs_of, load_draft_row
from .drawing import STREAMED, draw_index
from .output import count_accepted, write_tokens
from .rows import (
    MIN_TEMPERATURE,
    TILE,
    find_request,
    ids_of,
    load_one_tile,
    locate,
    scaled_order,
    wait_for_kernel_before,
)
from .scan import exponent_scale


@triton.jit
def _residual_of_tile(row, draft_row, tile, statistics, kept, temperature, vocab_size, HAS_DRAFT: tl.constexpr):
    """[TILE] int64: weights of `max(target - draft, 0)`, and their indices."""
    largest, row_sum = statistics
    logits, indices = load_one_tile(row, tile, vocab_size)
    is_kept = scaled_order(logits, temperature) >= kept
    target = tl.where(is_kept, tl.exp2((logits - largest) * exponent_scale(temperature)) / row_sum, 0.0)
    if HAS_DRAFT:
        ids = tl.where(is_kept, ids_of(row, indices, vocab_size), 0)
        target = tl.maximum(target - draft_probs_of(draft_row, ids, is_kept), 0.0)
    return (target * ONE).to(tl.int64), indices


@triton.jit
def _draw(
    shares_ptr,  # [all_tiles] int64, written
    row,
    draft_row,
    statistics,
    kept,
    temperature,
    vocab_size,
    all_tiles,
    uniform,
    HAS_DRAFT: tl.constexpr,
    TILES: tl.constexpr,
):
    """An index by weight, -1 if nothing weighs anything."""
    for tile in range(0, all_tiles):
        weights, _ = _residual_of_tile(row, draft_row, tile, statistics, kept, temperature, vocab_size, HAS_DRAFT)
        tl.store(shares_ptr + tile, tl.sum(weights))
    tl.debug_barrier()
    tiles = tl.arange(0, TILES)
    tile, within = draw_index(tl.load(shares_ptr + tiles, mask=tiles < all_tiles, other=0), uniform)
    found = tl.maximum(tile, 0)
    weights, _ = _residual_of_tile(row, draft_row, found, statistics, kept, temperature, vocab_size, HAS_DRAFT)
    entry, _ = draw_index(weights, within)
    return tl.where((tile < 0) | (entry < 0), -1, tile * TILE + entry)


@triton.jit
def _draw_rejected(
    results,
    words_ptr,  # [max_rows, all_tiles] int64, overwritten
    row,
    row_idx,
    draft_row,
    temperature,
    uniform,
    vocab_size,
    all_tiles,
    LOGPROBS: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of a row of tiles with a dense draft, from the target if the residual is empty."""
    _, _, kept_ptr, statistics_ptr, logprobs_ptr = results
    shares_ptr = words_ptr + row_idx * all_tiles
    statistics = (tl.load(statistics_ptr + 2 * row_idx), tl.load(statistics_ptr + 2 * row_idx + 1))
    kept = tl.load(kept_ptr + row_idx)
    index = _draw(
        shares_ptr, row, draft_row, statistics, kept, temperature, vocab_size, all_tiles, uniform, True, TILES
    )
    if index < 0:
        tl.debug_barrier()
        index = _draw(
            shares_ptr, row, draft_row, statistics, kept, temperature, vocab_size, all_tiles, uniform, False, TILES
        )
    index = tl.maximum(index, 0)
    if LOGPROBS:
        weights, indices = _residual_of_tile(
            row, draft_row, index // TILE, statistics, kept, temperature, vocab_size, False
        )
        weight = tl.sum(tl.where(indices == index, weights, 0)).to(tl.float32) / ONE
        tl.store(logprobs_ptr + 2 * row_idx + 1, tl.log(weight))
    return ids_of(row, index, vocab_size)


@triton.jit(do_not_specialize=["num_rows", "num_slots", "max_spec_len"])
def emit_kernel(
    output,  # token_ids [batch_size, max_spec_len + 1] int32, num_tokens [batch_size] int32, logprobs or None
    results,
    words_ptr,  # [max_rows, all_tiles] int64, overwritten
    inputs,
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32, or None
    seeds_ptr,  # [num_slots] int64
    positions_ptr,  # [batch_size] int64
    temperature_ptr,  # [num_slots] float32
    drafts,
    num_rows,
    num_slots,
    max_spec_len,
    vocab_size,
    all_tiles,
    LOGPROBS: tl.constexpr,
    TILES: tl.constexpr,
    POSITIONS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_kernel_before(OVERLAPS)
    inputs = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], inputs[6], inputs[7])  # as `rows` says
    # Find the first rejected row.
    req_idx = tl.program_id(0)
    first, count, slot = find_request(cu_num_rows_ptr, slots_ptr, req_idx, num_rows, num_slots, max_spec_len)
    num_accepted = count_accepted(results[0], first, count, POSITIONS)
    last = (first + num_accepted).to(tl.int64)
    token = tl.load(results[1] + last, mask=count > 0, other=-1)
    # Draw its token, if that was left.
    if token == STREAMED:
        position = tl.load(positions_ptr + req_idx) + num_accepted
        uniforms = philox_uniforms(tl.load(seeds_ptr + slot), position, VERIFY_STREAM)
        row = (inputs, locate(inputs, last, slot, num_accepted))
        temperature = tl.maximum(tl.load(temperature_ptr + slot), MIN_TEMPERATURE)
        logsumexp, heat = load_draft_row(drafts, slot, last)
        draft_row = (drafts, slot, tl.minimum(num_accepted, max_spec_len - 1), count > 0, logsumexp, heat)
        token = _draw_rejected(
            results,
            words_ptr,
            row,
            last,
            draft_row,
            temperature,
            uniforms[1],
            vocab_size,
            all_tiles,
            LOGPROBS,
            TILES,
        )
        tl.debug_barrier()
    # Write the tokens.
    request = (req_idx, first, count)
    write_tokens(
        output, results[4], drafts[0], request, num_accepted, token, max_spec_len, vocab_size, LOGPROBS, POSITIONS
    )
