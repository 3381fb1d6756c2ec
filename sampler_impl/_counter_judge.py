"""The second task of a counter step: which draft tokens are accepted, and what replaces the first one that is not.

One program per request. It looks at the masses of its rows until the rows up to the first rejected one are complete;
rows behind that it does not need, and they may have been skipped. What it passes on is a verdict: where to draw from,
and the laws of that row, so that `draw_kernel` needs no masses. One-hot drafts need no third kernel: what is drawn from
is the row itself without the drafted id, whose tile masses are known, so that one tile is read and the token is there.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ._counter_functions import (
    LOG2_E,
    NO_ID,
    NO_MASS,
    TILE,
    exponent_scale,
    inverse,
    nothing,
    pick_tiles,
    pick_within,
    row_laws,
    sums_of_2,
    uniforms_at,
    weights_of,
)
from ._counter_handover import DONE, EVIDENCE, LOGITS, ONE_HOT, OPEN, PATIENCE, VERDICT, pack


@triton.jit
def _accepted(
    stats,  # [positions, CHUNKS, 32] int64
    token_ids,  # [...] int32
    known,  # [...] bool
    logits,  # [...] float32
    drafts,  # [...] float32
    draft_tops,  # [...] float32
    draft_inverses,  # [...] float32
    accept_uniforms,  # [...] float64
    temperature,
    scale,
    DRAFT: tl.constexpr,
):
    """Laws of rows (tops and totals), a greedy request's argmax, and whether their draft tokens are accepted."""
    tops, totals = row_laws(stats)
    targets = tl.exp2(logits * scale - tops)
    if DRAFT == ONE_HOT:
        # The masses are without the drafted token. The bound keeps certainty finite.
        targets = tl.where(targets > 1e30, 1e30, targets)
        totals += tl.where(logits < float("inf"), targets, float("nan"))
    probs = drafts
    if DRAFT == LOGITS:
        probs = tl.exp2(drafts * scale - draft_tops) * draft_inverses
    bounds = accept_uniforms * probs.to(tl.float64) * totals.to(tl.float64)
    accepted = known & (targets > 0) & (probs > 0) & (totals > 0) & (targets.to(tl.float64) >= bounds)
    best = tl.zeros_like(token_ids)
    if temperature == 0:
        best = ((tl.max(tl.max(stats, axis=1), axis=1) & NO_ID) ^ NO_ID).to(tl.int32)
        accepted = known & (token_ids == best)
    return tops, totals, best, accepted


@triton.jit
def _lowest_of_2(a, b, other_a, other_b):
    return tl.minimum(a, other_a), tl.minimum(b, other_b)


@triton.jit
def _sums_of_4(a, b, c, d, other_a, other_b, other_c, other_d):
    return a + other_a, b + other_b, c + other_c, d + other_d


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "pitch", "max_spec_len"])
def judge_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    verdicts_ptr,  # [batch_size, 3] int64, written
    evidence_ptr,  # [batch_size, max_spec_len, 4] float32, written, or None
    stats_ptr,  # [batch_size, max_spec_len, num_words] int64, written; twice if draft laws are needed
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    bonus_token_ids_ptr,  # [batch_size, 1] int32, or None: there are bonus rows
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    masses_ptr,  # [batch_size, num_tiles] int64, written, or None
    num_tokens,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    pitch,
    max_spec_len,
    DRAFT: tl.constexpr,
    BOTH: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    POSITIONS: tl.constexpr,
    TILES: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    req_idx = tl.program_id(0)
    stats_ptr += req_idx.to(tl.int64) * max_spec_len * pitch
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    end = tl.minimum(tl.load(cu_num_draft_tokens_ptr + req_idx), num_tokens)
    count = tl.minimum(end - start, max_spec_len)
    temperature = tl.load(temperature_ptr + req_idx)
    pos = tl.arange(0, POSITIONS)
    accept_uniforms, draw_uniforms = uniforms_at(tl.load(seeds_ptr + req_idx), tl.load(positions_ptr + req_idx) + pos)
    scale = exponent_scale(temperature)
    drafted = pos < count
    draft_rows = (start + pos).to(tl.int64)
    first_row = start.to(tl.int64)
    if bonus_token_ids_ptr is None:  # ahead of it are other requests' bonus rows
        first_row += req_idx
    logits_ptr += first_row * logits_stride
    # What the draft tokens need, except their rows' laws.
    token_ids = tl.load(draft_token_ids_ptr + draft_rows, mask=drafted, other=-1).to(tl.int32)
    known = (token_ids >= 0) & (token_ids < vocab_size)
    at = pos.to(tl.int64) * logits_stride + token_ids
    logits = tl.load(logits_ptr + at, mask=known, other=float("-inf")).to(tl.float32)
    drafts = tl.zeros_like(logits) + 1.0
    draft_tops = tl.zeros_like(logits)
    draft_inverses = tl.zeros_like(logits) + 1.0
    if DRAFT != ONE_HOT:
        drafts = tl.load(draft_ptr + draft_rows * draft_stride + token_ids, mask=known, other=0.0).to(tl.float32)
    if DRAFT == LOGITS and not BOTH:
        draft_tops = tl.load(draft_logsumexp_ptr + draft_rows, mask=drafted, other=0.0) * LOG2_E
    # A row to each warp: what is asked of a row takes no barrier. (If the compiler knew that `pitch` is even, it would
    # load two words per thread, and spread a row over two warps. That rows are contiguous is said as in `block_ids`.)
    chunks = tl.arange(0, TILES // 32)[None, :, None]
    threads = tl.arange(0, 32)[None, None, :]
    tiles = threads * (TILES // 32) + chunks
    stats_at = tl.max_contiguous(pos[:, None, None] * pitch + chunks * 32 + threads, [2, 1, 32])
    measured = (pos[:, None, None] < max_spec_len) & (tiles < num_tiles)
    draft_stats_ptr = stats_ptr + tl.num_programs(0).to(tl.int64) * max_spec_len * pitch
    stats = tl.full((POSITIONS, TILES // 32, 32), NO_MASS, tl.int64)
    tops = tl.zeros((POSITIONS,), tl.float32)
    totals = tl.zeros((POSITIONS,), tl.float32)
    best = tl.zeros((POSITIONS,), tl.int32)
    picked = tl.zeros((POSITIONS,), tl.int32)
    exponents = tl.zeros((POSITIONS,), tl.int32)
    goals = tl.zeros((POSITIONS,), tl.int64)
    num_accepted = tl.full((), 0, tl.int32)
    polls = 0
    if OVERLAP and not EAGER:
        gdc_wait()
    judged = count <= 0
    while (not judged) & (polls < PATIENCE):
        polls += 1
        stats = tl.load(stats_ptr + stats_at, mask=measured, other=nothing(temperature), volatile=True)
        is_there = tl.min(tl.min((stats != 0).to(tl.int32), axis=1), axis=1)
        if BOTH:
            drafts_seen = tl.load(draft_stats_ptr + stats_at, mask=measured, other=nothing(temperature), volatile=True)
            is_there &= tl.min(tl.min((drafts_seen != 0).to(tl.int32), axis=1), axis=1)
            draft_tops, draft_totals = row_laws(drafts_seen)
            draft_inverses = inverse(draft_totals)
        # fmt: off
        tops, totals, best, accepted = _accepted(stats, token_ids, known, logits, drafts, draft_tops, draft_inverses,
                                                 accept_uniforms, temperature, scale, DRAFT)
        missing, rejected = tl.reduce((tl.where(is_there > 0, POSITIONS, pos), tl.where(accepted, POSITIONS, pos)), 0,
                                      _lowest_of_2)
        # fmt: on
        if DRAFT == ONE_HOT:  # beside the laws, which leave the warps time for it
            picked, exponents, goals = pick_tiles(stats, draw_uniforms)
        # The first position that is not accepted; at the latest that after the drafts.
        num_accepted = rejected
        judged = (rejected < missing) | (missing >= count)
    complete = num_accepted == count
    stopped = pos == num_accepted
    verdict = tl.full((), DONE, tl.int64)
    if DRAFT != ONE_HOT or bonus_token_ids_ptr is None:
        laws = tl.where(stopped & (totals > 0), pack(tops, inverse(totals)), 0)
        law, draft_law = tl.reduce((laws, tl.where(stopped, pack(draft_tops, draft_inverses), 0)), 0, sums_of_2)
        is_open = complete & (bonus_token_ids_ptr is None)
        if DRAFT != ONE_HOT:
            is_open |= (not complete) & (temperature != 0) & (law != 0)
        verdict = tl.where(is_open, num_accepted.to(tl.int64) + OPEN, verdict)
        verdicts_ptr += req_idx * VERDICT
        tl.store(verdicts_ptr + 1, tl.where(law == 0, 1, law))
        tl.store(verdicts_ptr + 2, tl.where(draft_law == 0, 1, draft_law))
        tl.store(verdicts_ptr, verdict)
    # A rejected row without a law gives token 0, a greedy one its argmax.
    token_id = tl.full((), 0, tl.int32)
    removed_id = tl.full((), -1, tl.int32)
    tile = tl.full((), 0, tl.int32)
    top = tl.full((), 0, tl.int32)
    goal = tl.full((), 0, tl.int64)
    if complete:
        if bonus_token_ids_ptr is not None:
            token_id = tl.load(bonus_token_ids_ptr + req_idx).to(tl.int32)
    elif temperature == 0:
        token_id = tl.sum(tl.where(stopped, best, 0))
    elif DRAFT == ONE_HOT:
        chosen = stopped & (totals > 0)
        # fmt: off
        tile, top, removed_id, goal = tl.reduce(
            (tl.where(chosen, picked, 0), tl.where(chosen, exponents, 0), tl.where(chosen, token_ids, 0),
             tl.where(chosen, goals + 1, 0)), 0, _sums_of_4)
        # fmt: on
    weights = tl.zeros((TILE,), tl.float32)
    if DRAFT == ONE_HOT:  # under way while words are made 0 again
        row_ptr = logits_ptr + num_accepted.to(tl.int64) * logits_stride
        drawn = tl.where(goal > 0, vocab_size, 0)
        weights = weights_of(row_ptr, removed_id, tile, scale, top.to(tl.float32), drawn)
    if EAGER:
        if OVERLAP:
            gdc_wait()
        # Nobody writes any more: everything back to 0.
        tl.store(stats_ptr + stats_at, tl.zeros_like(stats), mask=measured)
        if BOTH:
            tl.store(draft_stats_ptr + stats_at, tl.zeros_like(stats), mask=measured)
        if evidence_ptr is not None:
            evidence_ptr += (req_idx * max_spec_len + pos[:, None]) * EVIDENCE + tl.arange(0, EVIDENCE)[None, :]
            tl.store(evidence_ptr, tl.zeros((POSITIONS, EVIDENCE), tl.float32), mask=pos[:, None] < max_spec_len)
    if DRAFT == ONE_HOT:  # noqa: SIM102  # the outer one is decided when compiling
        if goal > 0:
            token_id = tile * TILE + pick_within(weights, goal - 1)
    output = tl.where(pos < num_accepted, token_ids, tl.where(stopped, token_id, -1))
    width = max_spec_len + 1
    writes = (pos < width) & (pos != tl.where(verdict == DONE, -1, num_accepted))
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * width + pos, output, mask=writes)
    if not EAGER and masses_ptr is not None:  # what comes next counts on zeros, and there was nobody to leave them
        row_tiles = tl.arange(0, TILES)
        tl.store(masses_ptr + req_idx * num_tiles + row_tiles, row_tiles.to(tl.int64) * 0, mask=row_tiles < num_tiles)
