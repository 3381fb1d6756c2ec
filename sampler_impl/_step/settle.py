"""The kernel that settles each row: what is kept, whether the draft token is accepted, and which token replaces it.

    program (request, row)    find the row
                              filter it             a list of candidates (`candidates`); of a flat row, tiles that are
                                                    made anew of what is kept (`flat_rows`)
                              accept or reject the draft token
                              draw another          from the list or the tiles (`drawing`)
                              emit, if this is the last of the request's programs

With SKIPS, a row behind one that is known to be rejected is skipped: the scan may not even have read it.

Only a row of tiles with a dense draft row is left to `emit`, which reads it whole, and for the rejected row
alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import LOG2_E, VERIFY_STREAM, argmax_order, philox_uniforms
from .bisection import ONE
from .candidates import FEW, list_candidates, load_reached, scratch_of, thresholds_of_few, thresholds_of_many, weigh
from .draft_rows import draft_probs_of, find_draft_row
from .drawing import STREAMED, argmax_token, draw_from_list, draw_from_tiles, load_words, sum_of_words
from .flat_rows import bisect_row, filter_words
from .output import count_accepted, write_tokens
from .rows import (
    ARRIVAL_BITS,
    MIN_TEMPERATURE,
    NOTHING,
    REJECTION_BITS,
    RUNS,
    TILE,
    find_request,
    ids_of,
    index_of,
    let_next_kernel_start,
    load_one_tile,
    load_or,
    locate,
    order_to_float,
    rejection_at,
    scaled_by,
    scaled_order,
    wait_for_kernel_before,
)
from .scan import exponent_scale

MOST_ARRIVALS = tl.constexpr((1 << 16) - 1)


@triton.jit
def _draft_of(row, drafts, row_idx, slot, offset, count, vocab_size, max_spec_len, EDITS: tl.constexpr):
    """Id and index of the draft token behind a row; -1 if there is none, or none that could be accepted."""
    draft_token_ids_ptr = drafts[0]
    token_id = tl.full((), -1, tl.int32)
    if draft_token_ids_ptr is not None:
        drafted = tl.load(draft_token_ids_ptr + row_idx, mask=offset + 1 < count, other=-1)
        token_id = tl.where((drafted >= 0) & (drafted < vocab_size), drafted, -1).to(tl.int32)
    index = token_id
    if token_id >= 0:
        index = index_of(row, token_id, vocab_size, EDITS)
    return token_id, index


@triton.jit
def _logit_at(row, index, vocab_size):
    """The edited logit at an index; -inf at -1."""
    logit = tl.full((), float("-inf"), tl.float32)
    if index >= 0:
        logits, indices = load_one_tile(row, index // TILE, vocab_size)
        logit = tl.max(tl.where(indices == index, logits, float("-inf")))
    return logit


@triton.jit
def _softmax_of(words, given):
    """Of the whole row: largest logit, sum over it (NaN if quotients are infinite), scale, temperature.

    Takes `words` [TILES] int64; `given`: the temperature as the request has it."""
    temperature = tl.maximum(given, MIN_TEMPERATURE)
    scale = exponent_scale(temperature)
    largest = order_to_float(tl.max((words >> 32).to(tl.int32)))
    row_sum = sum_of_words(words, largest, scale)
    has_quotients = tl.abs(tl.div_rn(largest, temperature)) < float("inf")
    return largest, tl.where(has_quotients, row_sum, float("nan")), scale, temperature


@triton.jit
def _load_filters(parameters, slot, vocab_size):
    """top_k, 0 if it is off, top_p, min_p."""
    top_k = load_or(parameters[1], slot, tl.zeros((), tl.int32))
    top_p = load_or(parameters[2], slot, tl.full((), 1.0, tl.float32))
    min_p = load_or(parameters[3], slot, tl.zeros((), tl.float32))
    return tl.where(top_k >= vocab_size, 0, top_k), top_p, min_p


@triton.jit
def _filter(memory, row, statistics, filters, vocab_size, all_tiles, TILES: tl.constexpr, BLOCK, MOST: tl.constexpr):
    """The order of the least that is kept, how many candidates are listed, -1 if words were made anew, and the sum.

    Takes `memory`: of this row, the words, what runs reach, and the list; `statistics`: as `list_candidates`."""
    words_ptr, reached_ptr, listed = memory
    largest, row_sum, scale, temperature = statistics
    top_k, top_p, min_p = filters
    best = tl.div_rn(largest, temperature)
    floor = tl.maximum(argmax_order(best + tl.log(min_p)), NOTHING + 1)
    reached = load_reached(reached_ptr, all_tiles, TILES)
    # Rounded down, and once more for the rounding of quotients.
    least = tl.maximum((argmax_order(order_to_float(floor) * temperature) >> 16) - 1, NOTHING >> 16)
    size, is_all = list_candidates(listed, row, reached, least, statistics, filters, vocab_size, BLOCK, MOST)
    kept = floor
    if (size < 0) | (size > MOST):
        size = tl.full((), -1, tl.int32)
        kept = bisect_row(row, all_tiles, best, floor, top_k, top_p, temperature, vocab_size, BLOCK)
        filter_words(words_ptr, row, all_tiles, kept, scale, temperature, vocab_size, BLOCK)
        tl.debug_barrier()
        row_sum = sum_of_words(load_words(words_ptr, all_tiles, TILES), largest, scale)
    else:
        seen = tl.where((top_k > 0) | is_all, -1.0, row_sum)
        if size <= FEW:
            kept = thresholds_of_few(listed, size, best, floor, top_k, top_p, seen)
        else:
            kept = thresholds_of_many(listed, size, best, floor, top_k, top_p, seen)
        row_sum = (weigh(listed, size, kept, best, True, FEW).to(tl.float64) / ONE).to(tl.float32)
    return kept, size, row_sum


@triton.jit
def _probability(logit, size, statistics):
    """Of one kept logit. A list's sum is one of quotients, and these are rounded: so are they here, or probabilities
    would not add up to 1. Takes `statistics`: as `list_candidates`."""
    largest, row_sum, scale, temperature = statistics
    of_quotients = (scaled_by(logit, temperature) - tl.div_rn(largest, temperature)) * LOG2_E
    return tl.div_rn(tl.exp2(tl.where(size >= 0, of_quotients, (logit - largest) * scale)), row_sum)


@triton.jit
def _is_accepted(row, draft_row, token_id, index, kept, size, statistics, uniform, vocab_size):
    """Whether the draft token is, and its probability. Takes `statistics`: as `list_candidates`."""
    logit = _logit_at(row, index, vocab_size)
    is_kept = (token_id >= 0) & (scaled_order(logit, statistics[3]) >= kept)
    target = tl.where(is_kept, _probability(logit, size, statistics), 0.0)
    draft = tl.full((), 1.0, tl.float32)
    if draft_row[0][1] is not None:
        draft = draft_probs_of(draft_row, token_id, token_id >= 0)
    ratio = tl.div_rn(target, draft)
    return (ratio > 0) & (draft > 0) & (ratio.to(tl.float64) >= uniform), target


@triton.jit
def _draw(memory, row, draft_row, index, kept, size, statistics, uniform, vocab_size, all_tiles, TILES: tl.constexpr):
    """The index of the token that replaces the draft token, or follows; STREAMED if `emit` has to read the row."""
    words_ptr, _, listed = memory
    largest, row_sum, scale, temperature = statistics
    drafts, _, _, has_draft, _, _ = draft_row
    removed = tl.where(drafts[1] is None, index, -1)
    drawn = tl.full((), STREAMED, tl.int32)
    if size >= 0:
        kept_of = (tl.div_rn(largest, temperature), row_sum, kept)
        drawn = draw_from_list(listed, size, row, kept_of, removed, draft_row, vocab_size, uniform)
    elif (drafts[1] is None) | (not has_draft):
        words = load_words(words_ptr, all_tiles, TILES)
        drawn = draw_from_tiles(row, words, removed, kept, largest, scale, temperature, vocab_size, uniform)
        if drawn < 0:  # nothing else is kept
            drawn = draw_from_tiles(row, words, -1, kept, largest, scale, temperature, vocab_size, uniform)
    return drawn


@triton.jit
def _settle_greedy(results, row, row_idx, words, token_id, vocab_size, EDITS: tl.constexpr, LOGPROBS: tl.constexpr):
    """Accept the draft token if it is the argmax. Takes `words` [TILES] int64. Returns whether it is."""
    accepted_ptr, tokens_ptr, _, _, logprobs_ptr = results
    token = argmax_token(row, words, vocab_size, EDITS)
    accepted = token == token_id
    tl.store(accepted_ptr + row_idx, accepted.to(tl.int32))
    tl.store(tokens_ptr + row_idx, token)
    if LOGPROBS:
        tl.store(logprobs_ptr + 2 * row_idx, 0.0)
        tl.store(logprobs_ptr + 2 * row_idx + 1, 0.0)
    return accepted


@triton.jit
def _decide(
    results, memory, row, draft_row, found, statistics, uniforms, vocab_size, all_tiles, TILES, LOGPROBS: tl.constexpr
):
    """Accept or reject the draft token, and draw the one that replaces it, or follows. Returns whether it is accepted.

    Takes `found`: the row's number, id and index of its draft token, the least order that is kept, how many candidates
    are listed, and whether there is a distribution; `uniforms`: to accept and to draw by."""
    row_idx, token_id, index, kept, size, is_valid = found
    accepting, drawing = uniforms
    accepted, target = _is_accepted(row, draft_row, token_id, index, kept, size, statistics, accepting, vocab_size)
    drawn = tl.full((), -1, tl.int32)
    if is_valid:
        drawn = _draw(memory, row, draft_row, index, kept, size, statistics, drawing, vocab_size, all_tiles, TILES)
    accepted = accepted & is_valid
    _publish(results, row, row_idx, accepted, target, drawn, kept, size, statistics, vocab_size, LOGPROBS)
    return accepted


@triton.jit
def _publish(
    results, row, row_idx, accepted, target, drawn, kept, size, statistics, vocab_size, LOGPROBS: tl.constexpr
):
    """What `emit` needs of a random row."""
    accepted_ptr, tokens_ptr, kept_ptr, statistics_ptr, logprobs_ptr = results
    token = tl.where(drawn == STREAMED, STREAMED, 0)
    if drawn >= 0:
        token = ids_of(row, drawn, vocab_size)
    tl.store(accepted_ptr + row_idx, accepted.to(tl.int32))
    tl.store(tokens_ptr + row_idx, token)
    tl.store(kept_ptr + row_idx, kept)
    tl.store(statistics_ptr + 2 * row_idx, statistics[0])
    tl.store(statistics_ptr + 2 * row_idx + 1, statistics[1])
    if LOGPROBS:
        own = _logit_at(row, tl.where(drawn >= 0, drawn, -1), vocab_size)
        tl.store(logprobs_ptr + 2 * row_idx, tl.log(target))
        tl.store(logprobs_ptr + 2 * row_idx + 1, tl.log(_probability(own, size, statistics)))


@triton.jit
def _known_rejections(
    arrivals_ptr,  # [batch_size] int32
    req_idx,
):
    """The bits of a request's arrivals. Programs of first rows come first; where not all fit the GPU at once, half of
    the others have nothing to do."""
    # One thread asks for all: others change the number meanwhile, and warps of a program must not part ways.
    return tl.atomic_or(arrivals_ptr + req_idx, 0, sem="relaxed") & ~MOST_ARRIVALS


@triton.jit
def _is_behind(rejections, offset):
    """Whether an earlier row than this is rejected."""
    before = (tl.full((), 1, tl.int32) << tl.minimum(offset, REJECTION_BITS)) - 1
    return ((rejections >> ARRIVAL_BITS) & before) != 0


@triton.jit
def _new_rejection(rejections, offset, is_rejected):
    """What a row adds to its request's arrivals: its bit, unless it has none, or the scan has set it."""
    bit = rejection_at(tl.minimum(offset, REJECTION_BITS - 1))
    return tl.where(is_rejected & (offset < REJECTION_BITS), bit & ~rejections, 0)


@triton.jit
def _emit_as_last(
    output,
    results,
    arrivals_ptr,  # [batch_size] int32, 0 before and after a step
    drafts,
    request,
    max_spec_len,
    vocab_size,
    LOGPROBS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """The last of a request's programs emits its tokens: a kernel less to wait for. Takes `request`: as
    `write_tokens`, and what `_new_rejection` makes of this row."""
    req_idx, first, count, rejection = request
    tl.debug_barrier()  # every thread has written what it found, before one of them says so
    arrived = tl.atomic_add(arrivals_ptr + req_idx, 1 + rejection) & MOST_ARRIVALS
    if arrived + 1 == tl.maximum(count, 1):
        tl.store(arrivals_ptr + req_idx, 0)
        num_accepted = count_accepted(results[0], first, count, POSITIONS)
        token_ptr = results[1] + (first + num_accepted).to(tl.int64)
        token = tl.load(token_ptr, mask=count > 0, other=-1, cache_modifier=".cg")
        of_tokens = (req_idx, first, count)
        write_tokens(
            output, results[4], drafts[0], of_tokens, num_accepted, token, max_spec_len, vocab_size, LOGPROBS, POSITIONS
        )


@triton.jit
def _settle_random(
    results,
    memory,
    row,
    draft,  # those of all requests, slot, offset, and whether a row comes behind it
    found,  # row, draft token and its index, what is kept, how many candidates there are, whether the row is valid
    statistics,
    noise_ptrs,  # seed int64, position int64 of the request
    vocab_size,
    all_tiles,
    TILES: tl.constexpr,
    LOGPROBS: tl.constexpr,
):
    """Whether a filtered row accepts its draft token, with the uniforms of its position."""
    drafts, slot, offset, is_before = draft
    position = tl.load(noise_ptrs[1]) + offset
    accepting, drawing = philox_uniforms(tl.load(noise_ptrs[0]), position, VERIFY_STREAM)
    has_draft, logsumexp, heat = find_draft_row(
        drafts, slot, offset, found[0], is_before, found[1], found[5], vocab_size
    )
    draft_row, uniforms = (drafts, slot, offset, has_draft, logsumexp, heat), (accepting, drawing)
    return _decide(results, memory, row, draft_row, found, statistics, uniforms, vocab_size, all_tiles, TILES, LOGPROBS)


@triton.jit(do_not_specialize=["num_rows", "num_slots", "max_spec_len"])
def settle_kernel(
    output,  # token_ids [batch_size, max_spec_len + 1] int32, num_tokens [batch_size] int32, logprobs; or three None
    arrivals_ptr,  # [batch_size] int32, 0 before and after a step
    results,  # accepted [max_rows] int32, tokens [max_rows] int32, kept [max_rows] int32, statistics and logprobs
    words_ptr,  # [max_rows, all_tiles] int64
    run_reached_ptr,  # [max_rows, num_runs] int16, or None
    scratch,  # runs [max_rows, TILES * RUNS] int32, indices [max_rows, MOST] int32, logits [max_rows, MOST] float32
    inputs,
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32, or None
    seeds_ptr,  # [num_slots] int64
    positions_ptr,  # [batch_size] int64
    parameters,  # temperature, top_k, top_p, min_p: [num_slots] each, or None
    drafts,  # ids [num_rows] int32, dense [num_slots, max_spec_len, vocab_size] any, strides, logsumexp: `draft_rows`
    num_rows,
    num_slots,
    max_spec_len,
    vocab_size,
    all_tiles,
    FILTERS: tl.constexpr,
    EDITS: tl.constexpr,
    LOGPROBS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    POSITIONS: tl.constexpr,
    SKIPS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_kernel_before(OVERLAPS)
    let_next_kernel_start(OVERLAPS)
    inputs = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], inputs[6], inputs[7])  # as `rows` says
    # Find the row.
    req_idx = tl.program_id(0)
    offset = tl.program_id(1)
    first, count, slot = find_request(cu_num_rows_ptr, slots_ptr, req_idx, num_rows, num_slots, max_spec_len)
    row_idx = (first + offset).to(tl.int64)
    accepted = offset >= 0
    is_needed = offset < count
    rejections = tl.zeros((), tl.int32)
    if SKIPS:  # noqa: SIM102  # both are decided when compiling
        if output[0] is not None:
            rejections = _known_rejections(arrivals_ptr, req_idx)
            is_needed = is_needed & (not _is_behind(rejections, offset))
    if is_needed:
        row = (inputs, locate(inputs, row_idx, slot, offset))
        words_ptr += row_idx * all_tiles
        words = load_words(words_ptr, all_tiles, TILES)
        token_id, index = _draft_of(row, drafts, row_idx, slot, offset, count, vocab_size, max_spec_len, EDITS)
        given = tl.load(parameters[0] + slot)
        if given == 0:
            accepted = _settle_greedy(results, row, row_idx, words, token_id, vocab_size, EDITS, LOGPROBS)
        else:
            largest, row_sum, scale, temperature = _softmax_of(words, given)
            is_valid = (row_sum > 0) & (row_sum < float("inf"))
            # Filter.
            listed = (scratch[0], scratch[1], scratch[2], temperature)
            memory = (words_ptr, run_reached_ptr, listed)
            kept = tl.full((), NOTHING + 1, tl.int32)
            size = tl.full((), -1, tl.int32)
            if FILTERS:
                listed = scratch_of(scratch, row_idx, temperature, TILES, MOST)
                memory = (words_ptr, run_reached_ptr + row_idx * all_tiles * RUNS, listed)
                filters = _load_filters(parameters, slot, vocab_size)
                if is_valid & ((filters[0] > 0) | (filters[1] < 1) | (filters[2] > 0)):
                    whole = (largest, row_sum, scale, temperature)
                    found = _filter(memory, row, whole, filters, vocab_size, all_tiles, TILES, BLOCK, MOST)
                    kept, size, row_sum = found
            # Decide.
            noise_ptrs, draft = (seeds_ptr + slot, positions_ptr + req_idx), (drafts, slot, offset, offset + 1 < count)
            statistics, found = (largest, row_sum, scale, temperature), (row_idx, token_id, index, kept, size, is_valid)
            accepted = _settle_random(
                results, memory, row, draft, found, statistics, noise_ptrs, vocab_size, all_tiles, TILES, LOGPROBS
            )
    # Emit the tokens of the request.
    if output[0] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if offset < tl.maximum(count, 1):
            request = (req_idx, first, count, _new_rejection(rejections, offset, not accepted))
            _emit_as_last(output, results, arrivals_ptr, drafts, request, max_spec_len, vocab_size, LOGPROBS, POSITIONS)
