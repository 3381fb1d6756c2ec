"""The second counter kernel: which draft tokens are accepted, and what replaces the first one that is not.

One program per request polls the partial sums of its rows until the rows up to the first rejected one are published;
later rows are not needed, and may never be. For `draw_kernel` it publishes a status word and the softmax statistics of
the row to draw from. One-hot drafts need no third kernel: the token is drawn from the row itself without the drafted
id. Its partial sums are known, so that one tile is read and the token is there.

    [ gather drafted logits ][ poll partial sums: accept, or first rejected ][ publish the status ]
                             [ one-hot: sample a tile of each row           ][ sample in that tile ][ write tokens ]
                                                                            [ reset the slots ]
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportAssignmentType=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .._shared.kernels import LOG2_E, argmax_token, pack, sums_of_2
from .arithmetic import (
    TILE,
    exp2_terms,
    exponent_scale,
    load_tile,
    padding_word,
    reciprocals,
    request_uniforms,
    sample_in_tile,
    sample_tiles,
    softmax_statistics,
)
from .slots import BOUND_WORDS, DONE, LOGITS, MAX_SPINS, ONE_HOT, OPEN, STATUS_WORDS, find_drafts


@triton.jit
def _lowest_of_2(a, b, other_a, other_b):
    return tl.minimum(a, other_a), tl.minimum(b, other_b)


@triton.jit
def _sums_of_4(a, b, c, d, other_a, other_b, other_c, other_d):
    return a + other_a, b + other_b, c + other_c, d + other_d


@triton.jit
def _gather(pointers, start, count, pos, vocab_size, logits_stride, draft_stride, DRAFT: tl.constexpr):
    """Return what accepting needs of each drafted token: its id, whether the id is known, its logit, and of the draft
    its probability or logit, with the softmax statistics of its row where these are given.

    Takes `pointers` of logits, draft, draft_logsumexp and draft_token_ids; `pos` [positions] int32."""
    logits_ptr, draft_ptr, draft_logsumexp_ptr, draft_token_ids_ptr = pointers
    drafted = pos < count
    draft_rows = (start + pos).to(tl.int64)
    token_ids = tl.load(draft_token_ids_ptr + draft_rows, mask=drafted, other=-1).to(tl.int32)
    known = (token_ids >= 0) & (token_ids < vocab_size)
    at = pos.to(tl.int64) * logits_stride + token_ids
    logits = tl.load(logits_ptr + at, mask=known, other=float("-inf")).to(tl.float32)
    drafts = tl.zeros_like(logits) + 1.0
    draft_max = tl.zeros_like(logits)
    draft_inverses = tl.zeros_like(logits) + 1.0
    if DRAFT != ONE_HOT:
        drafts = tl.load(draft_ptr + draft_rows * draft_stride + token_ids, mask=known, other=0.0).to(tl.float32)
    if DRAFT == LOGITS and draft_logsumexp_ptr is not None:
        draft_max = tl.load(draft_logsumexp_ptr + draft_rows, mask=drafted, other=0.0) * LOG2_E
    return token_ids, known, logits, drafts, draft_max, draft_inverses


@triton.jit
def _slots_of(
    partial_sums_ptr,  # [batch_size, max_spec_len, num_words] int64
    req_idx,
    pos,  # [POSITIONS] int32
    num_tiles,
    row_words,
    max_spec_len,
    TILES: tl.constexpr,
):
    """Return [POSITIONS, TILES // 32, 32]: the slots of target rows and of draft rows, and which of them are used.

    A row to each warp: reductions along a row take no barrier."""
    pos = pos[:, None, None]
    chunks = tl.arange(0, TILES // 32)[None, :, None]
    threads = tl.arange(0, 32)[None, None, :]
    # If the compiler knew that `row_words` is even, it would load two words per thread, and spread a row over two
    # warps. That rows are contiguous is declared for the reason given in `block_ids`.
    at = tl.max_contiguous(pos * row_words + chunks * 32 + threads, [2, 1, 32])
    used = (pos < max_spec_len) & (threads * (TILES // 32) + chunks < num_tiles)
    partial_sums_ptr += req_idx.to(tl.int64) * max_spec_len * row_words
    draft_sums_ptr = partial_sums_ptr + tl.num_programs(0).to(tl.int64) * max_spec_len * row_words
    return partial_sums_ptr + at, draft_sums_ptr + at, used


@triton.jit
def _accept_each(partial_sums, gathered, draft_max, draft_inverses, uniforms, temperature, scale, DRAFT: tl.constexpr):
    """Return for each row the softmax statistics (maximum and sum), a greedy request's argmax, and whether its draft
    token is accepted.

    Takes `partial_sums` [POSITIONS, TILES // 32, 32] int64, `uniforms` [POSITIONS] float64, the rest float32 alike."""
    token_ids, known, logits, drafts, _, _ = gathered
    row_max, row_sums = softmax_statistics(partial_sums)
    targets = exp2_terms(logits, scale, row_max)
    if DRAFT == ONE_HOT:
        # The partial sums are without the drafted token. The bound keeps certainty finite.
        targets = tl.where(targets > 1e30, 1e30, targets)
        row_sums += tl.where(logits < float("inf"), targets, float("nan"))
    probs = drafts
    if DRAFT == LOGITS:
        probs = exp2_terms(drafts, scale, draft_max) * draft_inverses
    # target / sum >= uniform * draft, without the quotient.
    bounds = uniforms * probs.to(tl.float64) * row_sums.to(tl.float64)
    accepted = known & (targets > 0) & (probs > 0) & (row_sums > 0) & (targets.to(tl.float64) >= bounds)
    best = tl.zeros_like(token_ids)
    if temperature == 0:
        best = argmax_token(tl.max(tl.max(partial_sums, axis=1), axis=1)).to(tl.int32)
        accepted = known & (token_ids == best)
    return row_max, row_sums, best, accepted


@triton.jit
def _published(slots, used, temperature):
    """Return the words of slots, and for each row whether all of its slots are published."""
    words = tl.load(slots, mask=used, other=padding_word(temperature), volatile=True)
    return words, tl.min(tl.min((words != 0).to(tl.int32), axis=1), axis=1)


@triton.jit
def _wait_for_rejection(
    slots,  # [POSITIONS, TILES // 32, 32] pointers
    draft_slots,  # the same
    used,  # [POSITIONS, TILES // 32, 32] bool
    gathered,
    uniforms,  # two [POSITIONS] float64: to accept with, to draw with
    count,
    temperature,
    scale,
    DRAFT: tl.constexpr,
    BOTH: tl.constexpr,
):
    """Poll until the rows up to the first rejected one are published.

    Returns the number of accepted tokens; of each row the softmax statistics of target (maximum, sum) and draft
    (maximum, 1 / sum), the argmax, and for one-hot drafts the sampled tile, its exponent and its CDF threshold."""
    POSITIONS: tl.constexpr = slots.shape[0]
    pos = tl.arange(0, POSITIONS)
    accept_uniforms, draw_uniforms = uniforms
    _, _, _, _, draft_max, draft_inverses = gathered
    row_max = tl.zeros((POSITIONS,), tl.float32)
    row_sums = tl.zeros((POSITIONS,), tl.float32)
    best = tl.zeros((POSITIONS,), tl.int32)
    tiles = tl.zeros((POSITIONS,), tl.int32)
    exponents = tl.zeros((POSITIONS,), tl.int32)
    thresholds = tl.zeros((POSITIONS,), tl.int64)
    num_accepted = tl.full((), 0, tl.int32)
    polls = 0
    decided = count <= 0
    while (not decided) & (polls < MAX_SPINS):
        polls += 1
        partial_sums, is_there = _published(slots, used, temperature)
        if BOTH:
            draft_sums, is_there_too = _published(draft_slots, used, temperature)
            is_there &= is_there_too
            draft_max, draft_totals = softmax_statistics(draft_sums)
            draft_inverses = reciprocals(draft_totals)
        row_max, row_sums, best, accepted = _accept_each(
            partial_sums, gathered, draft_max, draft_inverses, accept_uniforms, temperature, scale, DRAFT
        )
        positions = (tl.where(is_there > 0, POSITIONS, pos), tl.where(accepted, POSITIONS, pos))
        missing, rejected = tl.reduce(positions, 0, _lowest_of_2)
        if DRAFT == ONE_HOT:  # beside accepting, which leaves the warps time for it
            tiles, exponents, thresholds = sample_tiles(partial_sums, draw_uniforms)
        # The first position that is not accepted; at the latest that after the drafts.
        num_accepted = rejected
        decided = (rejected < missing) | (missing >= count)
    return num_accepted, (row_max, row_sums, draft_max, draft_inverses), best, (tiles, exponents, thresholds)


@triton.jit
def _publish_status(
    request_status_ptr,  # [3] int64, written
    decision,
    count,
    temperature,
    BONUS: tl.constexpr,
    DRAFT: tl.constexpr,
):
    """Whether `draw_kernel` has to draw, after how many drafts, and the packed statistics of that row."""
    num_accepted, statistics, _, _ = decision
    row_max, row_sums, draft_max, draft_inverses = statistics
    stopped = tl.arange(0, row_max.shape[0]) == num_accepted
    of_target = tl.where(stopped & (row_sums > 0), pack(row_max, reciprocals(row_sums)), 0)
    of_draft = tl.where(stopped, pack(draft_max, draft_inverses), 0)
    target, draft = tl.reduce((of_target, of_draft), 0, sums_of_2)
    complete = num_accepted == count
    is_open = complete & BONUS
    if DRAFT != ONE_HOT:
        is_open |= (not complete) & (temperature != 0) & (target != 0)
    status = tl.where(is_open, num_accepted.to(tl.int64) + OPEN, DONE)
    tl.store(request_status_ptr + 1, tl.where(target == 0, 1, target))
    tl.store(request_status_ptr + 2, tl.where(draft == 0, 1, draft))
    tl.store(request_status_ptr, status)
    return status


@triton.jit
def _choose_last(
    bonus_token_ids_ptr,  # [batch_size, 1] int32, or None
    req_idx,
    decision,
    token_ids,  # [POSITIONS] int32
    count,
    temperature,
    DRAFT: tl.constexpr,
):
    """Return the last token, if it is known by now: a bonus token, a greedy request's argmax, or 0 for an invalid row.

    Of a one-hot draft also the sampled tile, its exponent, the id to leave out, and the CDF threshold + 1 (0: none)."""
    num_accepted, statistics, best, sampled = decision
    stopped = tl.arange(0, token_ids.shape[0]) == num_accepted
    token_id = tl.full((), 0, tl.int32)
    tile = tl.full((), 0, tl.int32)
    exponent = tl.full((), 0, tl.int32)
    removed_id = tl.full((), -1, tl.int32)
    threshold = tl.full((), 0, tl.int64)
    if num_accepted == count:
        if bonus_token_ids_ptr is not None:
            token_id = tl.load(bonus_token_ids_ptr + req_idx).to(tl.int32)
    elif temperature == 0:
        token_id = tl.sum(tl.where(stopped, best, 0))
    elif DRAFT == ONE_HOT:
        tiles, exponents, thresholds = sampled
        _, row_sums, _, _ = statistics
        chosen = stopped & (row_sums > 0)
        of_tile = (tl.where(chosen, tiles, 0), tl.where(chosen, exponents, 0))
        in_tile = (tl.where(chosen, token_ids, 0), tl.where(chosen, thresholds + 1, 0))
        tile, exponent, removed_id, threshold = tl.reduce(of_tile + in_tile, 0, _sums_of_4)
    return token_id, (tile, exponent, removed_id, threshold)


@triton.jit
def _reset_slots(
    exit_bounds_ptr,  # [batch_size, max_spec_len, 4] float32, written
    slots,  # [POSITIONS, TILES // 32, 32] pointers
    draft_slots,  # the same
    used,  # [POSITIONS, TILES // 32, 32] bool
    req_idx,
    max_spec_len,
    BOTH: tl.constexpr,
):
    """Set all back to 0, once no program writes any more."""
    tl.store(slots, tl.zeros(slots.shape, tl.int64), mask=used)
    if BOTH:
        tl.store(draft_slots, tl.zeros(slots.shape, tl.int64), mask=used)
    if exit_bounds_ptr is not None:
        pos = tl.arange(0, slots.shape[0])[:, None]
        exit_bounds_ptr += (req_idx * max_spec_len + pos) * BOUND_WORDS + tl.arange(0, BOUND_WORDS)[None, :]
        tl.store(exit_bounds_ptr, tl.zeros((slots.shape[0], BOUND_WORDS), tl.float32), mask=pos < max_spec_len)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "row_words", "max_spec_len"])
def accept_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    status_ptr,  # [batch_size, 3] int64, written
    exit_bounds_ptr,  # [batch_size, max_spec_len, 4] float32, written, or None
    partial_sums_ptr,  # [batch_size, max_spec_len, num_words] int64, written; twice if draft statistics are needed
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    bonus_token_ids_ptr,  # [batch_size, 1] int32, or None: there are bonus rows
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    draw_sums_ptr,  # [batch_size, num_tiles] int64, written, or None
    num_tokens,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    row_words,
    max_spec_len,
    DRAFT: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    POSITIONS: tl.constexpr,
    TILES: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    # Gather what the drafted tokens need.
    BONUS: tl.constexpr = bonus_token_ids_ptr is None
    BOTH: tl.constexpr = DRAFT == LOGITS and draft_logsumexp_ptr is None
    req_idx = tl.program_id(0)
    start, count = find_drafts(cu_num_draft_tokens_ptr, req_idx, tl.num_programs(0), num_tokens, max_spec_len)
    temperature = tl.load(temperature_ptr + req_idx)
    pos = tl.arange(0, POSITIONS)
    uniforms = request_uniforms(seeds_ptr, positions_ptr, req_idx, pos)
    scale = exponent_scale(temperature)
    # The rows of a request lie behind other requests' bonus rows, if there are any.
    logits_ptr += (start.to(tl.int64) + (req_idx if BONUS else 0)) * logits_stride
    pointers = (logits_ptr, draft_ptr, draft_logsumexp_ptr, draft_token_ids_ptr)
    gathered = _gather(pointers, start, count, pos, vocab_size, logits_stride, draft_stride, DRAFT)
    # Poll the partial sums of the request's rows.
    slots, draft_slots, used = _slots_of(partial_sums_ptr, req_idx, pos, num_tiles, row_words, max_spec_len, TILES)
    if OVERLAP and not EAGER:
        gdc_wait()
    decision = _wait_for_rejection(slots, draft_slots, used, gathered, uniforms, count, temperature, scale, DRAFT, BOTH)
    num_accepted, _, _, _ = decision
    # Publish the status.
    status = tl.full((), DONE, tl.int64)
    if DRAFT != ONE_HOT or BONUS:
        status = _publish_status(status_ptr + req_idx * STATUS_WORDS, decision, count, temperature, BONUS, DRAFT)
    # Choose the last token. Of a one-hot draft, the sampled tile is on its way while slots are reset.
    token_ids, _, _, _, _, _ = gathered
    token_id, sampled = _choose_last(bonus_token_ids_ptr, req_idx, decision, token_ids, count, temperature, DRAFT)
    tile, exponent, removed_id, threshold = sampled
    terms = tl.zeros((TILE,), tl.float32)
    if DRAFT == ONE_HOT:
        row_ptr = logits_ptr + num_accepted.to(tl.int64) * logits_stride
        logits = load_tile(row_ptr, tile, removed_id, tl.where(threshold > 0, vocab_size, 0))
        terms = exp2_terms(logits, scale, exponent.to(tl.float32))
    if EAGER:
        if OVERLAP:
            gdc_wait()
        _reset_slots(exit_bounds_ptr, slots, draft_slots, used, req_idx, max_spec_len, BOTH)
    if DRAFT == ONE_HOT:  # noqa: SIM102  # the outer one is decided when compiling
        if threshold > 0:
            token_id = tile * TILE + sample_in_tile(terms, threshold - 1)
    # Write the tokens, except one that `draw_kernel` will write.
    output = tl.where(pos < num_accepted, token_ids, tl.where(pos == num_accepted, token_id, -1))
    width = max_spec_len + 1
    writes = (pos < width) & (pos != tl.where(status == DONE, -1, num_accepted))
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * width + pos, output, mask=writes)
    if not EAGER and draw_sums_ptr is not None:  # `draw_kernel` counts on zeros, and without a workspace there are none
        row_tiles = tl.arange(0, TILES)
        draw_sums_ptr += req_idx * num_tiles
        tl.store(draw_sums_ptr + row_tiles, row_tiles.to(tl.int64) * 0, mask=row_tiles < num_tiles)
