"""Verification with counter noise as three Triton kernels; none writes probabilities or noise.

    rows of one request      tiles of 4096 entries
    draft row 0   [ mass | mass | ... | mass ]    1. `tile_stats_kernel`, a program per row and tile: reads every
    draft row 1   [ mass | mass | ... | mass ]       target logit, once, and writes 8 bytes
    draft row 2   [ mass | mass | ... | mass ]
    (bonus row)   [ mass | mass | ... | mass ]
                             |
            accept, accept, REJECT                2. `judge_kernel`, a program per request: laws of the rows from their
                             |                       masses, draft tokens by gathers, the first rejected row
                             v
    draft row 2   [ masses of target - draft ]    3. `residual_kernel`, a program per request and tile: reads that one
                             |                       row of target and draft; the program that finishes last picks an
                             v                       eighth of a tile, and an entry of it
                           token

One-hot drafts and bonus rows need no third kernel: what is drawn from is the row itself (without the drafted id), whose
tile masses are known, so that `judge_kernel` reads one tile and is done. Greedy requests keep in place of a mass the
tile's highest logit and its id, and are done there as well.

On Hopper and later each kernel is launched while the one before it still runs (programmatic dependent launch), does
what does not depend on it, and waits. No integer but `vocab_size` and the strides is specialised on, and those only on
being multiples of 16, which allows 128-bit loads; tiles and positions are padded to powers of two.
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
    EMPTY,
    LOG2_E,
    NO_ID,
    TILE,
    exponent_scale,
    fixed_point,
    inverse,
    load_logits,
    load_masses,
    pick,
    pick_from_tiles,
    pick_last,
    row_laws,
    tile_mass,
    tile_winner,
    uniforms_at,
)

PARTS = tl.constexpr(8)
PART = tl.constexpr(512)  # TILE // PARTS
"""What is read again when a tile has been picked. Eighths instead of tiles: 97.9 us instead of 100.8 (H200, B=256)."""

ONE_HOT = tl.constexpr(0)
PROBS = tl.constexpr(1)
LOGITS = tl.constexpr(2)

DONE = tl.constexpr(-1)
"""Verdict on a request whose token is written; otherwise the verdict is the rejected draft row."""


@triton.jit
def _row_stats(
    logits,  # [...] any
    row_ptr,  # [vocab_size] any
    draft_token_id,
    tile,
    temperature,
    vocab_size,
    EXCLUDE: tl.constexpr,
    LANES: tl.constexpr,
):
    """A mass, or for a greedy request the winner."""
    if temperature == 0:
        stats = tile_winner(row_ptr, tile, vocab_size, LANES)
    else:
        scale = exponent_scale(temperature)
        stats = tile_mass(logits.to(tl.float32), row_ptr, draft_token_id, tile, scale, vocab_size, EXCLUDE, LANES)
    return stats


@triton.jit(do_not_specialize=["batch_size", "num_rows", "num_tiles", "max_spec_len"])
def tile_stats_kernel(
    tile_stats_ptr,  # [num_rows + num_tokens, num_tiles] int64, written
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_logits_ptr,  # [num_tokens, vocab_size] float32, or None: nobody needs their laws
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    temperature_ptr,  # [batch_size] float32
    batch_size,
    num_rows,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    EXCLUDE: tl.constexpr,
    BONUS: tl.constexpr,
    OVERLAP: tl.constexpr,
    LANES: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    stats_row = tl.program_id(0) // num_tiles
    tile = tl.program_id(0) % num_tiles
    is_draft = stats_row >= num_rows
    row = tl.where(is_draft, stats_row - num_rows, stats_row)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    token_ids = tile * TILE + tl.arange(0, TILE // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    # Loaded before anything else is known, as this is what the kernel waits for; converted only when it is needed.
    if draft_logits_ptr is None:
        logits = tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
    else:
        draft_row_ptr = draft_logits_ptr + row.to(tl.int64) * draft_stride
        if is_draft:
            logits = load_logits(draft_row_ptr, token_ids, vocab_size)
        else:
            logits = load_logits(row_ptr, token_ids, vocab_size)
    # Whose row it is. Mostly all requests have max_spec_len draft tokens, and nothing has to be waited for; else the
    # requests that end before this row are counted.
    extra = BONUS & (not is_draft)
    width = tl.maximum(max_spec_len + tl.where(extra, 1, 0), 1)
    req_idx = tl.minimum(row // width, batch_size - 1)
    draft_row = row - tl.where(extra, req_idx, 0)
    end = (req_idx + 1) * max_spec_len
    drafted = (draft_row < end) & (draft_row < num_rows - BONUS * batch_size)
    draft_token_id = tl.load(draft_token_ids_ptr + draft_row, mask=drafted, other=-1).to(tl.int32)
    temperature = tl.load(temperature_ptr + req_idx)
    if (tl.load(cu_num_draft_tokens_ptr + req_idx) != end) | (row >= (req_idx + 1) * width):
        req_idx = 0
        for first in range(0, batch_size, 256):
            requests = first + tl.arange(0, 256)
            ends = tl.load(cu_num_draft_tokens_ptr + requests, mask=requests < batch_size, other=NO_ID >> 1)
            req_idx += tl.sum((ends + tl.where(extra, requests + 1, 0) <= row).to(tl.int32))
        if req_idx >= batch_size:
            return
        draft_row = row - tl.where(extra, req_idx, 0)
        end = tl.load(cu_num_draft_tokens_ptr + req_idx).to(tl.int32)
        draft_token_id = tl.load(draft_token_ids_ptr + draft_row, mask=draft_row < end, other=-1).to(tl.int32)
        temperature = tl.load(temperature_ptr + req_idx)
    if draft_logits_ptr is None:
        stats = _row_stats(logits, row_ptr, draft_token_id, tile, temperature, vocab_size, EXCLUDE, LANES)
    elif is_draft:
        stats = _row_stats(logits, draft_row_ptr, draft_token_id, tile, temperature, vocab_size, False, LANES)
    else:
        stats = _row_stats(logits, row_ptr, draft_token_id, tile, temperature, vocab_size, False, LANES)
    tl.store(tile_stats_ptr + stats_row.to(tl.int64) * num_tiles + tile, stats)


@triton.jit
def _pack(high, low):
    """Two float32 in one int64."""
    low_bits = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (high.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low_bits


@triton.jit
def _unpack(word):
    high = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return high, (word & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _draft_laws(
    tile_stats_ptr,  # [num_rows + num_tokens, num_tiles] int64
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_rows,  # [...] int64
    drafted,  # [...] bool
    num_rows,
    num_tiles,
    TILES: tl.constexpr,
):
    """Tops and reciprocal totals of rows of draft logits, carried over or from their own tiles."""
    if draft_logsumexp_ptr is not None:
        tops = tl.load(draft_logsumexp_ptr + draft_rows, mask=drafted, other=0.0) * LOG2_E
        return tops, tl.zeros_like(tops) + 1.0
    stats, exponents, row_exponents = load_masses(tile_stats_ptr, draft_rows + num_rows, drafted, num_tiles, TILES)
    tops, totals = row_laws(stats, exponents, row_exponents)
    return tops, inverse(totals)


@triton.jit(do_not_specialize=["num_rows", "num_tiles", "max_spec_len"])
def judge_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    verdicts_ptr,  # [batch_size, 3] int64, written
    num_arrived_ptr,  # [batch_size] int32, written
    tile_stats_ptr,  # [num_rows + num_tokens, num_tiles] int64
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    logits_ptr,  # [num_rows, vocab_size] float32
    bonus_token_ids_ptr,  # [batch_size, 1] int32, or None: there are bonus rows
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    num_rows,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    DRAFT: tl.constexpr,
    OVERLAP: tl.constexpr,
    POSITIONS: tl.constexpr,
    TILES: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    req_idx = tl.program_id(0)
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    count = tl.load(cu_num_draft_tokens_ptr + req_idx) - start
    temperature = tl.load(temperature_ptr + req_idx)
    position = tl.load(positions_ptr + req_idx)
    accept_uniforms, draw_uniforms = uniforms_at(tl.load(seeds_ptr + req_idx), position + tl.arange(0, POSITIONS))
    scale = exponent_scale(temperature)
    pos = tl.arange(0, POSITIONS)
    drafted = pos < count
    draft_rows = (start + pos).to(tl.int64)
    rows = draft_rows
    live = drafted
    if bonus_token_ids_ptr is None:
        rows += req_idx
        live = pos <= count
    # What the drafted tokens need, except their rows' laws.
    token_ids = tl.load(draft_token_ids_ptr + draft_rows, mask=drafted, other=-1).to(tl.int32)
    known = (token_ids >= 0) & (token_ids < vocab_size)
    logits = tl.load(logits_ptr + rows * logits_stride + token_ids, mask=known, other=float("-inf")).to(tl.float32)
    drafts = tl.zeros_like(logits) + 1.0
    if DRAFT != ONE_HOT:
        drafts = tl.load(draft_ptr + draft_rows * draft_stride + token_ids, mask=known, other=0.0).to(tl.float32)
    tl.store(num_arrived_ptr + req_idx, 0)
    if OVERLAP:
        gdc_wait()
    stats, exponents, row_exponents = load_masses(tile_stats_ptr, rows, live, num_tiles, TILES)
    tops, totals = row_laws(stats, exponents, row_exponents)
    targets = tl.exp2(logits * scale - tops)
    if DRAFT == ONE_HOT:
        # The masses are without the drafted token. The bound keeps certainty finite.
        targets = tl.where(targets > 1e30, 1e30, targets)
        totals += tl.where(logits < float("inf"), targets, float("nan"))
    targets = tl.where(totals > 0, tl.div_rn(targets, totals), 0.0)
    if DRAFT == LOGITS:
        draft_tops, draft_inverses = _draft_laws(
            tile_stats_ptr, draft_logsumexp_ptr, draft_rows, drafted, num_rows, num_tiles, TILES
        )
        drafts = tl.exp2(drafts * scale - draft_tops) * draft_inverses
    accepted = (targets > 0) & (drafts > 0) & (tl.div_rn(targets, drafts).to(tl.float64) >= accept_uniforms)
    best = ((tl.max(stats, axis=1) & NO_ID) ^ NO_ID).to(tl.int32)
    accepted = known & tl.where(temperature == 0, token_ids == best, accepted)
    # The first position that is not accepted; at the latest that after the drafts.
    num_accepted = tl.min(tl.where(accepted, POSITIONS, pos))
    complete = num_accepted == count
    stopped = pos == num_accepted
    verdict = tl.full((), DONE, tl.int64)
    token_id = tl.sum(tl.where(stopped, best, 0))
    needs_draw = temperature != 0
    if bonus_token_ids_ptr is not None:
        bonus_token_id = tl.load(bonus_token_ids_ptr + req_idx).to(tl.int32)
        token_id = tl.where(complete, bonus_token_id, token_id)
        needs_draw = needs_draw & (not complete)
    row = start.to(tl.int64) + num_accepted
    if needs_draw:
        token_id = 0
        if tl.sum(tl.where(stopped, totals, 0.0)) > 0:
            verdict = row
    if DRAFT == ONE_HOT or bonus_token_ids_ptr is None:  # noqa: SIM102  # the outer one is decided when compiling
        if (verdict != DONE) & (complete | (DRAFT == ONE_HOT)):
            verdict = tl.full((), DONE, tl.int64)
            if bonus_token_ids_ptr is None:
                row += req_idx
            token_id = pick_from_tiles(
                tl.sum(tl.where(stopped[:, None], stats, 0), axis=0),
                logits_ptr + row * logits_stride,
                tl.sum(tl.where(stopped, token_ids, 0)),
                tl.sum(tl.where(stopped, draw_uniforms, 0.0)),
                scale,
                vocab_size,
                TILES,
            )
    if DRAFT != ONE_HOT:
        tl.store(verdicts_ptr + req_idx * 3, verdict)
        tl.store(verdicts_ptr + req_idx * 3 + 1, tl.sum(tl.where(stopped, _pack(tops, inverse(totals)), 0)))
        if DRAFT == LOGITS:
            tl.store(verdicts_ptr + req_idx * 3 + 2, tl.sum(tl.where(stopped, _pack(draft_tops, draft_inverses), 0)))
    output = tl.where(pos < num_accepted, token_ids, tl.where(stopped, token_id, -1))
    width = max_spec_len + 1
    writes = (pos < width) & ((verdict == DONE) | (pos != num_accepted))
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * width + pos, output, mask=writes)


@triton.jit
def residual(
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    token_ids,  # [...] int32
    vocab_size,
    scale,
    target_law,
    draft_law,
    keep,
    DRAFT: tl.constexpr,
):
    """`max(target - keep * draft, 0)`, where a draft that is NaN leaves nothing. Laws are packed tops and inverses."""
    target_top, target_inverse = _unpack(target_law)
    logits = load_logits(logits_row_ptr, token_ids, vocab_size)
    draft = tl.load(draft_row_ptr + token_ids, mask=token_ids < vocab_size, other=0.0).to(tl.float32)
    if DRAFT == LOGITS:
        draft_top, draft_inverse = _unpack(draft_law)
        draft = tl.exp2(draft * scale - draft_top) * draft_inverse
    if keep is not None:
        draft = tl.where(keep, draft, 0.0)
    # This way round it is one fused multiply-add.
    difference = draft - tl.exp2(logits * scale - target_top) * target_inverse
    return tl.where(difference < 0, -difference, 0.0)


@triton.jit(do_not_specialize=["num_tiles", "max_spec_len"])
def residual_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    part_masses_ptr,  # [batch_size, num_tiles, 8] float32, written
    num_arrived_ptr,  # [batch_size] int32, written
    verdicts_ptr,  # [batch_size, 3] int64
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    DRAFT: tl.constexpr,
    BONUS: tl.constexpr,
    OVERLAP: tl.constexpr,
    TILES: tl.constexpr,
):
    req_idx = tl.program_id(0) // num_tiles
    tile = tl.program_id(0) % num_tiles
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    scale = exponent_scale(tl.load(temperature_ptr + req_idx))
    seed = tl.load(seeds_ptr + req_idx)
    position = tl.load(positions_ptr + req_idx)
    if OVERLAP:
        gdc_wait()
    row = tl.load(verdicts_ptr + req_idx * 3)
    target_law = tl.load(verdicts_ptr + req_idx * 3 + 1)
    draft_law = tl.load(verdicts_ptr + req_idx * 3 + 2) if DRAFT == LOGITS else target_law
    if row == DONE:
        return
    logits_row = row
    if BONUS:
        logits_row += req_idx
    logits_row_ptr = logits_ptr + logits_row * logits_stride
    draft_row_ptr = draft_ptr + row * draft_stride
    token_ids = tile * TILE + tl.arange(0, TILE)
    weights = residual(logits_row_ptr, draft_row_ptr, token_ids, vocab_size, scale, target_law, draft_law, None, DRAFT)
    masses_ptr = part_masses_ptr + req_idx * num_tiles * PARTS
    tl.store(masses_ptr + tile * PARTS + tl.arange(0, PARTS), tl.sum(tl.reshape(weights, (PARTS, PART)), axis=1))
    tl.debug_barrier()  # the masses are stored by many threads, their arrival is announced by one
    if tl.atomic_add(num_arrived_ptr + req_idx, 1, sem="acq_rel") != num_tiles - 1:
        return
    pos = (row - start).to(tl.int32)
    _, uniform = uniforms_at(seed, position + pos)
    parts = tl.arange(0, TILES * PARTS)
    masses = tl.load(masses_ptr + parts, mask=parts < num_tiles * PARTS, other=0.0, cache_modifier=".cg")
    total = tl.sum(masses)
    keep = total > EMPTY
    if not keep:
        # The residual is empty: draw from the target row instead. Rare, so one program does it alone.
        for part in range(0, num_tiles * PARTS):
            ids = part * PART + tl.arange(0, PART)
            targets = residual(
                logits_row_ptr, draft_row_ptr, ids, vocab_size, scale, target_law, draft_law, keep, DRAFT
            )
            masses = tl.where(parts == part, tl.sum(targets), masses)
        total = tl.sum(masses)
    picked, uniform = pick(fixed_point(masses, total), uniform)
    last_ids = picked * PART + tl.arange(0, PART)
    last = residual(logits_row_ptr, draft_row_ptr, last_ids, vocab_size, scale, target_law, draft_law, keep, DRAFT)
    output = picked * PART + pick_last(fixed_point(last, tl.sum(last)), uniform)
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + pos, output)
