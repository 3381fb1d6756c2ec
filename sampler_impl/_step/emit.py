"""The last kernel with dense draft rows: it draws what `settle` left, and emits.

There a row of tiles has no token yet. Its `max(target - draft, 0)` is read here, for the first rejected row alone, by a
program per block of tiles. The last of a request's programs reads the tile that was drawn again.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._counter.arithmetic import store_by_warps
from .._shared.kernels import VERIFY_STREAM, philox_uniforms
from .bisection import ONE
from .draft_rows import draft_probs_of, find_draft_row
from .drawing import STREAMED, draw_from_tiles, draw_index, load_words
from .named import DraftRow, Row, RowInputs, Statistics
from .output import count_accepted, write_tokens
from .rows import (
    BLOCK_TILES,
    MIN_TEMPERATURE,
    TILE,
    find_request,
    ids_of,
    indices_of,
    load_logits,
    locate,
    scaled_order,
    wait_for_kernel_before,
    words_of_tile,
    words_of_tiles,
)
from .scan import exponent_scale
from .settle import logit_at, probability


@triton.jit
def _residuals(row, draft_row, words, statistics, kept, vocab_size):
    """Return [..., 32] int64: weights of `max(target - draft, 0)`.

    Takes `words` [RUNS, WORDS] or [tiles, RUNS, WORDS] int32."""
    logits, ids = load_logits(row, words, vocab_size), indices_of(words)
    is_kept = scaled_order(logits, statistics.temperature) >= kept
    terms = tl.exp2((logits - statistics.largest) * statistics.scale)
    target = tl.where(is_kept, terms / statistics.row_sum, 0.0)
    # Neighbours are loaded together only where the mask does not depend on what is loaded.
    is_there = ids < vocab_size
    if row.inputs.edits.excluded_ptr is not None:
        ids, is_there = tl.where(is_kept, ids_of(row, ids, vocab_size), 0), is_kept
    return (tl.maximum(target - draft_probs_of(draft_row, ids, is_there), 0.0) * ONE).to(tl.int64)


@triton.jit
def _is_last_to_add(memory, row, draft_row, statistics, kept, req_idx, sizes):
    """Add up a block of tiles, and return whether all other programs of the request have."""
    tiles = tl.program_id(1) * BLOCK_TILES + tl.arange(0, BLOCK_TILES)
    weights = _residuals(row, draft_row, words_of_tiles(tiles), statistics, kept, sizes.vocab_size)
    shares = tl.sum(tl.sum(tl.sum(weights, axis=3), axis=2), axis=1)
    at = req_idx.to(tl.int64) * sizes.all_tiles + tiles
    store_by_warps(memory.shares_ptr + at, shares, tiles < sizes.all_tiles)
    tl.debug_barrier()  # every thread has written its sums, before one of them says so
    is_last = tl.atomic_add(memory.arrivals_ptr + req_idx, 1) + 1 == tl.num_programs(1)
    if is_last:
        tl.store(memory.arrivals_ptr + req_idx, 0)
    return is_last


@triton.jit
def _draw(memory, row, draft_row, statistics, kept, req_idx, uniform, sizes, TILES: tl.constexpr):
    """Return a token by the weights that were added up, or by those of the target if they are 0."""
    results, row_idx, vocab_size = memory.results, row.place.row_idx, sizes.vocab_size
    tiles = tl.arange(0, TILES)
    # Other programs wrote them a moment ago, as in `count_accepted`.
    shares_ptr = memory.shares_ptr + req_idx.to(tl.int64) * sizes.all_tiles
    shares = tl.load(shares_ptr + tiles, mask=tiles < sizes.all_tiles, other=0, cache_modifier=".cg")
    tile, within = draw_index(shares, uniform)
    weights = _residuals(row, draft_row, words_of_tile(tl.maximum(tile, 0)), statistics, kept, vocab_size)
    entry, _ = draw_index(tl.reshape(weights, (TILE,)), within)
    index = tl.where((tile < 0) | (entry < 0), -1, tile * TILE + entry)
    if index < 0:
        words = load_words(memory, row_idx, sizes.all_tiles, TILES)
        index = tl.maximum(draw_from_tiles(row, words, -1, kept, statistics, vocab_size, uniform), 0)
    if results.row_logprobs_ptr is not None:
        own = probability(logit_at(row, index, vocab_size), -1, statistics)
        tl.store(results.row_logprobs_ptr + 2 * row_idx + 1, tl.log(own))
    return ids_of(row, index, vocab_size)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def emit_kernel(memory, inputs, requests, drafts, num_rows, num_slots, sizes, PLAN: tl.constexpr):
    wait_for_kernel_before(PLAN.overlaps)
    inputs = RowInputs(*inputs)  # as `rows` says
    # Find the first rejected row.
    req_idx, max_spec_len = tl.program_id(0), sizes.max_spec_len
    request, slot = find_request(requests, req_idx, num_rows, num_slots, max_spec_len)
    num_accepted = count_accepted(memory.results.accepted_ptr, request, PLAN.positions)
    last = (request.first + num_accepted).to(tl.int64)
    token = tl.load(memory.results.tokens_ptr + last, mask=request.count > 0, other=-1)
    # Add up what is left of its row, a block per program, and draw the token by the last of them.
    emits = tl.program_id(1) == 0
    if token == STREAMED:
        results, row = memory.results, Row(inputs, locate(inputs, last, slot, num_accepted))
        temperature = tl.maximum(tl.load(requests.temperature_ptr + slot), MIN_TEMPERATURE)
        largest = tl.load(results.statistics_ptr + 2 * last)
        row_sum = tl.load(results.statistics_ptr + 2 * last + 1)
        statistics = Statistics(largest, row_sum, exponent_scale(temperature), temperature)
        kept = tl.load(results.kept_ptr + last)
        place = locate(inputs, last, slot, tl.minimum(num_accepted, max_spec_len - 1))
        logsumexp, heat = find_draft_row(drafts, place, True, sizes, PLAN.tiles)
        draft_row = DraftRow(drafts, slot, place.offset, request.count > 0, logsumexp, heat)
        emits = _is_last_to_add(memory, row, draft_row, statistics, kept, req_idx, sizes)
        if emits:
            position = tl.load(requests.positions_ptr + req_idx) + num_accepted
            _, uniform = philox_uniforms(tl.load(requests.seeds_ptr + slot), position, VERIFY_STREAM)
            token = _draw(memory, row, draft_row, statistics, kept, req_idx, uniform, sizes, PLAN.tiles)
            tl.debug_barrier()
    # Write the tokens.
    if emits:
        write_tokens(memory, drafts, request, num_accepted, token, sizes, PLAN.positions)
