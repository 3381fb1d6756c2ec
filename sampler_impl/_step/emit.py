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
from .named import DraftRow, Row, RowInputs, Statistics
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
def _residual_of_tile(row, draft_row, tile, statistics, kept, vocab_size, HAS_DRAFT: tl.constexpr):
    """Return [TILE] int64: weights of `max(target - draft, 0)`, and their indices."""
    logits, indices = load_one_tile(row, tile, vocab_size)
    is_kept = scaled_order(logits, statistics.temperature) >= kept
    terms = tl.exp2((logits - statistics.largest) * statistics.scale)
    target = tl.where(is_kept, terms / statistics.row_sum, 0.0)
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
    sizes,
    uniform,
    HAS_DRAFT: tl.constexpr,
    TILES: tl.constexpr,
):
    """Return an index by weight, -1 if nothing weighs anything."""
    vocab_size = sizes.vocab_size
    for tile in range(0, sizes.all_tiles):
        weights, _ = _residual_of_tile(row, draft_row, tile, statistics, kept, vocab_size, HAS_DRAFT)
        tl.store(shares_ptr + tile, tl.sum(weights))
    tl.debug_barrier()
    tiles = tl.arange(0, TILES)
    tile, within = draw_index(tl.load(shares_ptr + tiles, mask=tiles < sizes.all_tiles, other=0), uniform)
    weights, _ = _residual_of_tile(row, draft_row, tl.maximum(tile, 0), statistics, kept, vocab_size, HAS_DRAFT)
    entry, _ = draw_index(weights, within)
    return tl.where((tile < 0) | (entry < 0), -1, tile * TILE + entry)


@triton.jit
def _draw_rejected(memory, row, draft_row, temperature, uniform, sizes, TILES: tl.constexpr):
    """Return the token of a row of tiles with a dense draft, from the target if the residual is empty."""
    results, row_idx = memory.results, row.place.row_idx
    shares_ptr = memory.words_ptr + row_idx * sizes.all_tiles
    largest = tl.load(results.statistics_ptr + 2 * row_idx)
    row_sum = tl.load(results.statistics_ptr + 2 * row_idx + 1)
    statistics = Statistics(largest, row_sum, exponent_scale(temperature), temperature)
    kept = tl.load(results.kept_ptr + row_idx)
    index = _draw(shares_ptr, row, draft_row, statistics, kept, sizes, uniform, True, TILES)
    if index < 0:
        tl.debug_barrier()
        index = _draw(shares_ptr, row, draft_row, statistics, kept, sizes, uniform, False, TILES)
    index = tl.maximum(index, 0)
    if results.row_logprobs_ptr is not None:
        tile = index // TILE
        weights, indices = _residual_of_tile(row, draft_row, tile, statistics, kept, sizes.vocab_size, False)
        weight = tl.sum(tl.where(indices == index, weights, 0)).to(tl.float32) / ONE
        tl.store(results.row_logprobs_ptr + 2 * row_idx + 1, tl.log(weight))
    return ids_of(row, index, sizes.vocab_size)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def emit_kernel(
    memory,
    inputs,
    requests,
    drafts,
    num_rows,
    num_slots,
    sizes,
    TILES: tl.constexpr,
    POSITIONS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_kernel_before(OVERLAPS)
    inputs = RowInputs(*inputs)  # as `rows` says
    # Find the first rejected row.
    req_idx, max_spec_len = tl.program_id(0), sizes.max_spec_len
    request, slot = find_request(requests, req_idx, num_rows, num_slots, max_spec_len)
    num_accepted = count_accepted(memory.results.accepted_ptr, request, POSITIONS)
    last = (request.first + num_accepted).to(tl.int64)
    token = tl.load(memory.results.tokens_ptr + last, mask=request.count > 0, other=-1)
    # Draw its token, if that was left.
    if token == STREAMED:
        position = tl.load(requests.positions_ptr + req_idx) + num_accepted
        _, uniform = philox_uniforms(tl.load(requests.seeds_ptr + slot), position, VERIFY_STREAM)
        row = Row(inputs, locate(inputs, last, slot, num_accepted))
        temperature = tl.maximum(tl.load(requests.temperature_ptr + slot), MIN_TEMPERATURE)
        logsumexp, heat = load_draft_row(drafts, slot, last)
        offset, has_draft = tl.minimum(num_accepted, max_spec_len - 1), request.count > 0
        draft_row = DraftRow(drafts, slot, offset, has_draft, logsumexp, heat)
        token = _draw_rejected(memory, row, draft_row, temperature, uniform, sizes, TILES)
        tl.debug_barrier()
    # Write the tokens.
    write_tokens(memory, drafts.draft_token_ids_ptr, request, num_accepted, token, sizes, POSITIONS)
