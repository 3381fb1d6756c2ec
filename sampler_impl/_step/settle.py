"""The kernel that settles each row: what is kept, whether the draft token is accepted, and which token replaces it.

    program (request, row)    find the row
                              filter it             a list of candidates (`candidates`)
                              accept or reject the draft token
                              draw another          from the list or the tiles (`drawing`)
                              emit, if this is the last of the request's programs

A row whose candidates do not fit a list is deferred: the same kernel, launched once more (`PLAN.flat`) with more warps
for each program, finds what is kept of it otherwise (`flat_rows`), and makes its tiles anew. Most steps have no such
row, and their programs are the lighter for it.

With `PLAN.skips`, a row behind one that is known to be rejected is skipped: the scan may not even have read it.

Only a row of tiles with a dense draft row is left to `emit`, which reads it whole, and for the rejected row
alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# pyright: reportAssignmentType=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import LOG2_E, VERIFY_STREAM, argmax_order, philox_uniforms
from .bisection import ONE
from .candidates import FEW, list_candidates, lists_of, load_reached, thresholds_of, weigh
from .draft_rows import draft_probs_of, find_draft_row
from .drawing import STREAMED, argmax_token, draw_from_list, draw_from_tiles, load_words, sum_of_words
from .flat_rows import filter_flat
from .named import Draft, DraftRow, Filtering, Found, Given, Noise, Row, RowInputs, Statistics
from .output import count_accepted, write_tokens
from .rows import (
    ARRIVAL_BITS,
    MIN_TEMPERATURE,
    NOTHING,
    REJECTION_BITS,
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
DEFERRED = tl.constexpr(-2)
"""Mark in place of the number of candidates of a row that is left to the programs of flat rows."""
MOST_POLLS = tl.constexpr(4096)
"""Questions of a program for the rows before its own: some 1 ms, then it goes on without an answer. 512 were over
before the first wave, in some runs: then 64 requests took 292 us in place of 177, and with two filters always 450, not
264."""


@triton.jit
def _draft_of(row, draft_token_ids_ptr, is_before, vocab_size, EDITS: tl.constexpr):  # [num_rows] int32, or None
    """Return id and index of the draft token behind a row; -1 if there is none, or none that could be accepted."""
    token_id = tl.full((), -1, tl.int32)
    if draft_token_ids_ptr is not None:
        drafted = tl.load(draft_token_ids_ptr + row.place.row_idx, mask=is_before, other=-1)
        token_id = tl.where((drafted >= 0) & (drafted < vocab_size), drafted, -1).to(tl.int32)
    index = token_id
    if token_id >= 0:
        index = index_of(row, token_id, vocab_size, EDITS)
    return token_id, index


@triton.jit
def logit_at(row, index, vocab_size):
    """Return the edited logit at an index; -inf at -1."""
    logit = tl.full((), float("-inf"), tl.float32)
    if index >= 0:
        logits, indices = load_one_tile(row, index // TILE, vocab_size)
        logit = tl.max(tl.where(indices == index, logits, float("-inf")))
    return logit


@triton.jit
def _softmax_of(words, given):
    """Return the statistics of the whole row; the sum is NaN if quotients are infinite.

    Takes `words` [TILES] int64; `given`: the temperature as the request has it."""
    temperature = tl.maximum(given, MIN_TEMPERATURE)
    scale = exponent_scale(temperature)
    largest = order_to_float(tl.max((words >> 32).to(tl.int32)))
    row_sum = sum_of_words(words, largest, scale)
    has_quotients = tl.abs(tl.div_rn(largest, temperature)) < float("inf")
    return Statistics(largest, tl.where(has_quotients, row_sum, float("nan")), scale, temperature)


@triton.jit
def _load_filters(filters, slot, vocab_size):
    """Return the filters of a slot; top_k is 0 if it is off."""
    top_k = load_or(filters.top_k_ptr, slot, tl.zeros((), tl.int32))
    top_p = load_or(filters.top_p_ptr, slot, tl.full((), 1.0, tl.float32))
    min_p = load_or(filters.min_p_ptr, slot, tl.zeros((), tl.float32))
    return Filtering(tl.where(top_k >= vocab_size, 0, top_k), top_p, min_p)


@triton.jit
def _filter_by_list(memory, lists, row, whole, filters, floor, sizes, PLAN: tl.constexpr):
    """Return the order of the least that is kept, how many candidates are listed or DEFERRED, and the sum.

    Takes `whole`: the statistics of the whole row; `floor`: the least order that min-p leaves."""
    top_k, top_p, best = filters.top_k, filters.top_p, tl.div_rn(whole.largest, whole.temperature)
    reached = load_reached(memory, row.place.row_idx, sizes.all_tiles, PLAN.tiles)
    # Rounded down, and once more for the rounding of quotients.
    least = tl.maximum((argmax_order(order_to_float(floor) * whole.temperature) >> 16) - 1, NOTHING >> 16)
    size, is_all = list_candidates(lists, row, reached, least, whole, filters, sizes.vocab_size, PLAN.block, PLAN.most)
    size = tl.where((size < 0) | (size > PLAN.most), DEFERRED, size)
    kept, row_sum = floor, whole.row_sum
    if size >= 0:
        seen = tl.where((top_k > 0) | is_all, -1.0, whole.row_sum)
        if size <= FEW:
            kept = thresholds_of(lists, size, best, floor, top_k, top_p, seen, FEW)
        else:
            kept = thresholds_of(lists, size, best, floor, top_k, top_p, seen, PLAN.most)
        row_sum = (weigh(lists, size, kept, best, FEW).to(tl.float64) / ONE).to(tl.float32)
    return kept, size, row_sum


@triton.jit
def probability(logit, size, statistics):
    """Return the probability of one kept logit. A list's sum is one of quotients, and these are rounded: so are they
    here, or probabilities would not add up to 1."""
    best = tl.div_rn(statistics.largest, statistics.temperature)
    of_quotients = (scaled_by(logit, statistics.temperature) - best) * LOG2_E
    exponents = tl.where(size >= 0, of_quotients, (logit - statistics.largest) * statistics.scale)
    return tl.div_rn(tl.exp2(exponents), statistics.row_sum)


@triton.jit
def _is_accepted(row, draft_row, found, statistics, uniform, vocab_size):
    """Whether the draft token is, and its probability."""
    logit = logit_at(row, found.index, vocab_size)
    is_kept = (found.token_id >= 0) & (scaled_order(logit, statistics.temperature) >= found.kept)
    target = tl.where(is_kept, probability(logit, found.size, statistics), 0.0)
    draft = tl.full((), 1.0, tl.float32)
    if draft_row.drafts.dense_ptr is not None:
        draft = draft_probs_of(draft_row, found.token_id, found.token_id >= 0)
    ratio = tl.div_rn(target, draft)
    return (ratio > 0) & (draft > 0) & (ratio.to(tl.float64) >= uniform), target


@triton.jit
def _draw(memory, lists, row, draft_row, found, statistics, uniform, sizes, TILES: tl.constexpr):
    """Return the index of the token that replaces the draft token, or follows; STREAMED if `emit` has to draw it."""
    vocab_size = sizes.vocab_size
    removed = tl.where(draft_row.drafts.dense_ptr is None, found.index, -1)
    drawn = tl.full((), STREAMED, tl.int32)
    if found.size >= 0:
        drawn = draw_from_list(lists, row, found, statistics, removed, draft_row, vocab_size, uniform)
    elif (draft_row.drafts.dense_ptr is None) | (not draft_row.has_draft):
        words = load_words(memory, row.place.row_idx, sizes.all_tiles, TILES)
        drawn = draw_from_tiles(row, words, removed, found.kept, statistics, vocab_size, uniform)
        if drawn < 0:  # nothing else is kept
            drawn = draw_from_tiles(row, words, -1, found.kept, statistics, vocab_size, uniform)
    return drawn


@triton.jit
def _settle_greedy(results, row, words, token_id, vocab_size, EDITS: tl.constexpr):
    """Accept the draft token if it is the argmax, and return whether it is. Takes `words` [TILES] int64."""
    row_idx = row.place.row_idx
    token = argmax_token(row, words, vocab_size, EDITS)
    accepted = token == token_id
    tl.store(results.accepted_ptr + row_idx, accepted.to(tl.int32))
    tl.store(results.tokens_ptr + row_idx, token)
    if results.row_logprobs_ptr is not None:
        tl.store(results.row_logprobs_ptr + 2 * row_idx, 0.0)
        tl.store(results.row_logprobs_ptr + 2 * row_idx + 1, 0.0)
    return accepted


@triton.jit
def _publish(results, row, found, accepted, target, drawn, statistics, vocab_size):
    """Write what `emit` needs of a random row."""
    row_idx = row.place.row_idx
    token = tl.where(drawn == STREAMED, STREAMED, 0)
    if drawn >= 0:
        token = ids_of(row, drawn, vocab_size)
    tl.store(results.accepted_ptr + row_idx, accepted.to(tl.int32))
    tl.store(results.tokens_ptr + row_idx, token)
    tl.store(results.kept_ptr + row_idx, found.kept)
    tl.store(results.statistics_ptr + 2 * row_idx, statistics.largest)
    tl.store(results.statistics_ptr + 2 * row_idx + 1, statistics.row_sum)
    if results.row_logprobs_ptr is not None:
        own = logit_at(row, tl.where(drawn >= 0, drawn, -1), vocab_size)
        tl.store(results.row_logprobs_ptr + 2 * row_idx, tl.log(target))
        tl.store(results.row_logprobs_ptr + 2 * row_idx + 1, tl.log(probability(own, found.size, statistics)))


@triton.jit
def _known_rejections(memory, req_idx):
    """Return the bits of a request's arrivals. Programs of first rows come first; where not all fit the GPU at once,
    half of the others have nothing to do."""
    # One thread asks for all: others change the number meanwhile, and warps of a program must not part ways.
    return tl.atomic_or(memory.arrivals_ptr + req_idx, 0, sem="relaxed") & ~MOST_ARRIVALS


@triton.jit
def _wait_for_rows_before(memory, place, PLAN: tl.constexpr):
    """Wait until the rows of a request before the one at a place have arrived, or one of them is rejected: then this
    one is skipped. Nothing depends on it but time, so nobody waits for long: another program may not run yet."""
    offset, arrivals_ptr = place // PLAN.batch, memory.arrivals_ptr + place % PLAN.batch
    polls = tl.where(place < PLAN.at_once, MOST_POLLS, 0)  # in the first wave nobody waits
    arrivals = tl.zeros((), tl.int32)
    while ((arrivals & MOST_ARRIVALS) < offset) & (not _is_behind(arrivals, offset)) & (polls < MOST_POLLS):
        arrivals = tl.atomic_or(arrivals_ptr, 0, sem="relaxed")
        polls += 1


@triton.jit
def _is_behind(rejections, offset):
    """Whether an earlier row than this is rejected."""
    before = (tl.full((), 1, tl.int32) << tl.minimum(offset, REJECTION_BITS)) - 1
    return ((rejections >> ARRIVAL_BITS) & before) != 0


@triton.jit
def _new_rejection(rejections, offset, is_rejected):
    """Return what a row adds to its request's arrivals: its bit, unless it has none, or the scan has set it."""
    bit = rejection_at(tl.minimum(offset, REJECTION_BITS - 1))
    return tl.where(is_rejected & (offset < REJECTION_BITS), bit & ~rejections, 0)


@triton.jit
def _emit_as_last(memory, drafts, request, rejection, sizes, POSITIONS: tl.constexpr):
    """Emit the tokens of a request by the last of its programs: a kernel less to wait for. Takes `rejection`: what
    `_new_rejection` returns for this row."""
    tl.debug_barrier()  # every thread has written what it found, before one of them says so
    arrivals_ptr, results = memory.arrivals_ptr + request.req_idx, memory.results
    arrived = tl.atomic_add(arrivals_ptr, 1 + rejection) & MOST_ARRIVALS
    if arrived + 1 == tl.maximum(request.count, 1):
        tl.store(arrivals_ptr, 0)
        num_accepted = count_accepted(results.accepted_ptr, request, POSITIONS)
        token_ptr = results.tokens_ptr + (request.first + num_accepted).to(tl.int64)
        token = tl.load(token_ptr, mask=request.count > 0, other=-1, cache_modifier=".cg")
        write_tokens(memory, drafts, request, num_accepted, token, sizes, POSITIONS)


@triton.jit
def _decide(memory, row, draft, found, statistics, noise, lists, sizes, PLAN: tl.constexpr):
    """Accept or reject the draft token of a row with the uniforms of its position, and draw the token that replaces it,
    or follows. Return whether it is accepted."""
    place, drafts, vocab_size = row.place, draft.drafts, sizes.vocab_size
    # Accept or reject.
    position = tl.load(noise.position_ptr) + place.offset
    accepting, drawing = philox_uniforms(tl.load(noise.seed_ptr), position, VERIFY_STREAM)
    # A placeholder has no distribution among logits: there it stands for a draft that was never made, as in vLLM's
    # model runner V2.
    has_draft = draft.is_before & ((found.token_id >= 0) | (drafts.row_words_ptr is None))
    logsumexp, heat = find_draft_row(drafts, place, found.is_valid & has_draft, sizes, PLAN.tiles)
    draft_row = DraftRow(drafts, place.slot, place.offset, has_draft, logsumexp, heat)
    accepted, target = _is_accepted(row, draft_row, found, statistics, accepting, vocab_size)
    # Draw another.
    drawn = tl.full((), -1, tl.int32)
    if found.is_valid:
        drawn = _draw(memory, lists, row, draft_row, found, statistics, drawing, sizes, PLAN.tiles)
    accepted = accepted & found.is_valid
    _publish(memory.results, row, found, accepted, target, drawn, statistics, vocab_size)
    return accepted


@triton.jit
def _settle_random(memory, row, draft, filters, noise, words, sizes, PLAN: tl.constexpr):
    """Filter a row and decide about its draft token. Return whether it is accepted, and whether that is deferred.

    Takes `words` [TILES] int64."""
    place, vocab_size = row.place, sizes.vocab_size
    largest, row_sum, scale, temperature = _softmax_of(words, noise.temperature)
    is_valid = (row_sum > 0) & (row_sum < float("inf"))
    # Filter.
    lists = lists_of(memory.lists, place.row_idx, temperature, PLAN.tiles, PLAN.most)
    kept = tl.full((), NOTHING + 1, tl.int32)
    size = tl.full((), -1, tl.int32)
    if memory.run_reached_ptr is not None:
        given = _load_filters(filters, place.slot, vocab_size)
        if is_valid & ((given.top_k > 0) | (given.top_p < 1) | (given.min_p > 0)):
            whole = Statistics(largest, row_sum, scale, temperature)
            floor = argmax_order(tl.div_rn(largest, temperature) + tl.log(given.min_p))
            floor = tl.maximum(floor, NOTHING + 1)
            if PLAN.flat:
                kept, row_sum = filter_flat(memory, lists, row, whole, given, floor, sizes, PLAN)
            else:
                kept, size, row_sum = _filter_by_list(memory, lists, row, whole, given, floor, sizes, PLAN)
    # Decide.
    is_deferred = size == DEFERRED
    accepted = is_valid
    if not is_deferred:
        statistics = Statistics(largest, row_sum, scale, temperature)
        found = Found(draft.token_id, draft.index, kept, size, is_valid)
        accepted = _decide(memory, row, draft, found, statistics, noise, lists, sizes, PLAN)
    return accepted, is_deferred


@triton.jit
def _settle(memory, row, request, requests, filters, drafts, sizes, PLAN: tl.constexpr):
    """Settle a row, and return whether its draft token is accepted, and whether the row is deferred."""
    place, req_idx = row.place, request.req_idx
    words = load_words(memory, place.row_idx, sizes.all_tiles, PLAN.tiles)
    is_before = place.offset + 1 < request.count
    token_id, index = _draft_of(row, drafts.draft_token_ids_ptr, is_before, sizes.vocab_size, PLAN.edits)
    temperature = tl.load(requests.temperature_ptr + place.slot)
    accepted, is_deferred = is_before, is_before & False
    if temperature == 0:
        accepted = _settle_greedy(memory.results, row, words, token_id, sizes.vocab_size, PLAN.edits)
    else:
        noise = Noise(requests.seeds_ptr + place.slot, requests.positions_ptr + req_idx, temperature)
        draft = Draft(drafts, token_id, index, is_before)
        accepted, is_deferred = _settle_random(memory, row, draft, filters, noise, words, sizes, PLAN)
    return accepted, is_deferred


@triton.jit
def _settle_place(memory, given, place, limits, sizes, PLAN: tl.constexpr):
    """Settle the row at a place of a request, if there is one, and emit the request's tokens after its last row."""
    EMITS: tl.constexpr = memory.output.token_ids_ptr is not None
    # Find the row.
    req_idx, offset = place
    num_rows, num_slots = limits
    request, slot = find_request(given.requests, req_idx, num_rows, num_slots, sizes.max_spec_len)
    is_needed, rejections = offset < request.count, tl.zeros((), tl.int32)
    ends = offset < tl.maximum(request.count, 1)
    if PLAN.skips and EMITS:
        rejections = _known_rejections(memory, req_idx)
        is_needed = is_needed & (not _is_behind(rejections, offset))
    # Settle it.
    accepted, is_deferred = offset >= 0, offset < 0
    if is_needed:
        row = Row(given.inputs, locate(given.inputs, (request.first + offset).to(tl.int64), slot, offset))
        accepted, is_deferred = _settle(memory, row, request, given.requests, given.filters, given.drafts, sizes, PLAN)
    # Leave it to the next kernel, or emit the tokens of the request.
    if is_deferred:
        tl.store(memory.results.deferred_ptr + offset * PLAN.batch + req_idx, 1)
    if EMITS:  # noqa: SIM102  # the outer one is decided when compiling
        if ends & (not is_deferred):
            rejection = _new_rejection(rejections, offset, not accepted)
            _emit_as_last(memory, given.drafts, request, rejection, sizes, PLAN.positions)


@triton.jit
def _settle_deferred(memory, given, limits, sizes, PLAN: tl.constexpr):
    """Settle the rows that are left to the programs of flat rows. First rows come first, so that many rows behind
    rejected ones are skipped."""
    # Ask for all places of the program at once: in most steps nothing is deferred.
    first, step, end = tl.program_id(0), tl.num_programs(0), PLAN.batch * (sizes.max_spec_len + 1)
    places, deferred_ptr = first + step * tl.arange(0, PLAN.places), memory.results.deferred_ptr
    if tl.sum(tl.load(deferred_ptr + places, mask=places < end, other=0)) > 0:
        for place in range(first, end, step):
            if tl.load(deferred_ptr + place) != 0:
                tl.debug_barrier()  # every thread has read it
                tl.store(deferred_ptr + place, 0)
                at = tl.zeros((), tl.int32) + place
                _wait_for_rows_before(memory, at, PLAN)
                _settle_place(memory, given, (at % PLAN.batch, at // PLAN.batch), limits, sizes, PLAN)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def settle_kernel(memory, inputs, requests, filters, drafts, num_rows, num_slots, sizes, PLAN: tl.constexpr):
    wait_for_kernel_before(PLAN.overlaps)
    let_next_kernel_start(PLAN.overlaps)
    given, limits = Given(RowInputs(*inputs), requests, filters, drafts), (num_rows, num_slots)  # as `rows` says
    if PLAN.flat:
        _settle_deferred(memory, given, limits, sizes, PLAN)
    else:
        _settle_place(memory, given, (tl.program_id(0), tl.program_id(1)), limits, sizes, PLAN)
