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
    PARTS,
    exponent_scale,
    inverse,
    nothing,
    pick_from_tiles,
    row_laws,
    uniforms_at,
)
from ._counter_handover import DONE, LOGITS, ONE_HOT, OPEN, PATIENCE, VERDICT, pack


@triton.jit
def _accepted(
    stats,  # [...] int64
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
    """Laws of rows (tops and totals), their argmax, and whether their draft tokens are accepted."""
    tops, totals = row_laws(stats)
    targets = tl.exp2(logits * scale - tops)
    if DRAFT == ONE_HOT:
        # The masses are without the drafted token. The bound keeps certainty finite.
        targets = tl.where(targets > 1e30, 1e30, targets)
        totals += tl.where(logits < float("inf"), targets, float("nan"))
    targets = tl.where(totals > 0, tl.div_rn(targets, totals), 0.0)
    probs = drafts
    if DRAFT == LOGITS:
        probs = tl.exp2(drafts * scale - draft_tops) * draft_inverses
    accepted = (targets > 0) & (probs > 0) & (tl.div_rn(targets, probs).to(tl.float64) >= accept_uniforms)
    best = ((tl.max(stats, axis=1) & NO_ID) ^ NO_ID).to(tl.int32)
    return tops, totals, best, known & tl.where(temperature == 0, token_ids == best, accepted)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "num_strips", "max_spec_len"])
def judge_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    verdicts_ptr,  # [batch_size, 3] int64, written
    evidence_ptr,  # [batch_size, max_spec_len, num_strips] float32, written, or None
    stats_ptr,  # [batch_size, max_spec_len, num_tiles] int64, written; twice if draft laws are needed
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    bonus_token_ids_ptr,  # [batch_size, 1] int32, or None: there are bonus rows
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    part_masses_ptr,  # [batch_size, num_tiles, 8] int64, written, or None
    num_tokens,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    num_strips,
    max_spec_len,
    DRAFT: tl.constexpr,
    BOTH: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    POSITIONS: tl.constexpr,
    TILES: tl.constexpr,
    EVIDENCE: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    req_idx = tl.program_id(0)
    stats_ptr += req_idx.to(tl.int64) * max_spec_len * num_tiles
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
    tiles = tl.arange(0, TILES)[None, :]
    stats_at = pos[:, None] * num_tiles + tiles
    measured = (pos < max_spec_len)[:, None] & (tiles < num_tiles)
    draft_stats_ptr = stats_ptr + tl.num_programs(0).to(tl.int64) * max_spec_len * num_tiles
    stats = tl.full((POSITIONS, TILES), NO_MASS, tl.int64)
    tops = tl.zeros((POSITIONS,), tl.float32)
    totals = tl.zeros((POSITIONS,), tl.float32)
    best = tl.zeros((POSITIONS,), tl.int32)
    accepted = pos < 0
    if OVERLAP and not EAGER:
        gdc_wait()
    num_measured = 0
    polls = 0
    judged = count <= 0
    while (not judged) & (polls < PATIENCE):
        polls += 1
        seen = tl.load(stats_ptr + stats_at, mask=measured, other=nothing(temperature), volatile=True)
        missing = tl.min(tl.where(seen == 0, pos[:, None], POSITIONS))
        if BOTH:
            drafts_seen = tl.load(draft_stats_ptr + stats_at, mask=measured, other=nothing(temperature), volatile=True)
            missing = tl.minimum(missing, tl.min(tl.where(drafts_seen == 0, pos[:, None], POSITIONS)))
        missing = tl.minimum(missing, count)
        if missing > num_measured:
            num_measured = missing
            stats = seen
            if BOTH:
                draft_tops, draft_totals = row_laws(drafts_seen)
                draft_inverses = inverse(draft_totals)
            # fmt: off
            tops, totals, best, accepted = _accepted(stats, token_ids, known, logits, drafts, draft_tops,
                                                     draft_inverses, accept_uniforms, temperature, scale, DRAFT)
            # fmt: on
            judged = (tl.min(tl.where(accepted, POSITIONS, pos)) < num_measured) | (num_measured == count)
    # The first position that is not accepted; at the latest that after the drafts.
    num_accepted = tl.min(tl.where(accepted, POSITIONS, pos))
    complete = num_accepted == count
    stopped = pos == num_accepted
    # A rejected row without a law gives token 0, a greedy one its argmax.
    token_id = tl.where(temperature == 0, tl.sum(tl.where(stopped, best, 0)), 0)
    lawful = (temperature != 0) & (tl.sum(tl.where(stopped, totals, 0.0)) > 0)
    verdict = tl.full((), DONE, tl.int64)
    if complete:
        if bonus_token_ids_ptr is None:
            verdict = num_accepted.to(tl.int64) + OPEN
        else:
            token_id = tl.load(bonus_token_ids_ptr + req_idx).to(tl.int32)
    elif lawful:
        if DRAFT == ONE_HOT:
            token_id = pick_from_tiles(
                tl.sum(tl.where(stopped[:, None], stats, 0), axis=0),
                logits_ptr + num_accepted.to(tl.int64) * logits_stride,
                tl.sum(tl.where(stopped, token_ids, 0)),
                tl.sum(tl.where(stopped, draw_uniforms, 0.0)),
                scale,
                vocab_size,
                TILES,
            )
        else:
            verdict = num_accepted.to(tl.int64) + OPEN
    if DRAFT != ONE_HOT or bonus_token_ids_ptr is None:
        law = tl.sum(tl.where(stopped, pack(tops, inverse(totals)), 0))
        draft_law = tl.sum(tl.where(stopped, pack(draft_tops, draft_inverses), 0))
        verdicts_ptr += req_idx * VERDICT
        tl.store(verdicts_ptr + 1, tl.where(law == 0, 1, law))
        tl.store(verdicts_ptr + 2, tl.where(draft_law == 0, 1, draft_law))
        tl.store(verdicts_ptr, verdict)
    output = tl.where(pos < num_accepted, token_ids, tl.where(stopped, token_id, -1))
    width = max_spec_len + 1
    writes = (pos < width) & (pos != tl.where(verdict == DONE, -1, num_accepted))
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * width + pos, output, mask=writes)
    if EAGER:
        if OVERLAP:
            gdc_wait()
        # Nobody writes any more: everything back to 0.
        tl.store(stats_ptr + stats_at, tl.zeros((POSITIONS, TILES), tl.int64), mask=measured)
        if BOTH:
            tl.store(draft_stats_ptr + stats_at, tl.zeros((POSITIONS, TILES), tl.int64), mask=measured)
        if evidence_ptr is not None:
            evidence_at = (req_idx * max_spec_len + pos[:, None]) * EVIDENCE + tiles
            strips = (pos < max_spec_len)[:, None] & (tiles < num_strips)
            tl.store(evidence_ptr + evidence_at, tl.zeros((POSITIONS, TILES), tl.float32), mask=strips)
    elif part_masses_ptr is not None:  # what comes next counts on zeros, and there was nobody to leave them
        parts = tl.arange(0, TILES * PARTS)
        part_masses_ptr += req_idx * num_tiles * PARTS
        tl.store(part_masses_ptr + parts, tl.zeros_like(parts).to(tl.int64), mask=parts < num_tiles * PARTS)
