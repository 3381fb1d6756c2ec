"""The third counter kernel: a token of the rejected row, from what the target has more than the draft."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from ._counter_functions import (
    EMPTY,
    TILE,
    exponent_scale,
    fixed_point,
    load_logits,
    pick,
    pick_last,
    uniforms_at,
)
from ._counter_handover import ARRIVED, DONE, JUDGED, LOGITS, PROGRESS, end_after_predecessor, unpack, wait_until

PARTS = tl.constexpr(8)
PART = tl.constexpr(512)  # TILE // PARTS
"""What is read again when a tile has been picked. Eighths instead of tiles: 97.9 us instead of 100.8 (H200, B=256)."""


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
    target_top, target_inverse = unpack(target_law)
    logits = load_logits(logits_row_ptr, token_ids, vocab_size)
    draft = tl.load(draft_row_ptr + token_ids, mask=token_ids < vocab_size, other=0.0).to(tl.float32)
    if DRAFT == LOGITS:
        draft_top, draft_inverse = unpack(draft_law)
        draft = tl.exp2(draft * scale - draft_top) * draft_inverse
    if keep is not None:
        draft = tl.where(keep, draft, 0.0)
    # This way round it is one fused multiply-add.
    difference = draft - tl.exp2(logits * scale - target_top) * target_inverse
    return tl.where(difference < 0, -difference, 0.0)


@triton.jit
def _recovered_token(
    masses_ptr,  # [num_tiles, 8] float32
    logits_row_ptr,  # [vocab_size] float32
    draft_row_ptr,  # [vocab_size] float32
    uniform,
    num_tiles,
    vocab_size,
    scale,
    target_law,
    draft_law,
    DRAFT: tl.constexpr,
    TILES: tl.constexpr,
):
    """Pick an eighth of a tile by the masses, then an entry of it."""
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
    return picked * PART + pick_last(fixed_point(last, tl.sum(last)), uniform)


@triton.jit(do_not_specialize=["num_tiles", "num_strips", "max_spec_len"])
def residual_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    part_masses_ptr,  # [batch_size, num_tiles, 8] float32, written
    progress_ptr,  # [batch_size, 4] int32, written
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
    num_strips,
    max_spec_len,
    DRAFT: tl.constexpr,
    BONUS: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    TILES: tl.constexpr,
):
    # The last request first: its rows were read last, and may still be in L2.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    req_idx = program // num_strips
    first_tile = program % num_strips * STRIP
    progress_ptr += req_idx * PROGRESS
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    scale = exponent_scale(tl.load(temperature_ptr + req_idx))
    seed = tl.load(seeds_ptr + req_idx)
    position = tl.load(positions_ptr + req_idx)
    if EAGER:
        judged = wait_until(progress_ptr + JUDGED, 1)
        row = tl.where(judged >= 2, start.to(tl.int64) + judged - 2, DONE)
    else:
        if OVERLAP:
            gdc_wait()
        row = tl.load(verdicts_ptr + req_idx * 3, cache_modifier=".cg")
    target_law = tl.load(verdicts_ptr + req_idx * 3 + 1, cache_modifier=".cg")
    draft_law = target_law
    if DRAFT == LOGITS:
        draft_law = tl.load(verdicts_ptr + req_idx * 3 + 2, cache_modifier=".cg")
    logits_row = row
    if BONUS:
        logits_row += req_idx
    logits_row_ptr = logits_ptr + logits_row * logits_stride
    draft_row_ptr = draft_ptr + row * draft_stride
    masses_ptr = part_masses_ptr + req_idx * num_tiles * PARTS
    if row != DONE:
        for step in tl.static_range(STRIP):
            tile = first_tile + step
            ids = tile * TILE + tl.arange(0, TILE)
            weights = residual(
                logits_row_ptr, draft_row_ptr, ids, vocab_size, scale, target_law, draft_law, None, DRAFT
            )
            masses = tl.sum(tl.reshape(weights, (PARTS, PART)), axis=1)
            parts = tile * PARTS + tl.arange(0, PARTS)
            tl.store(masses_ptr + parts, masses, mask=parts < num_tiles * PARTS)
    tl.debug_barrier()  # the masses are stored by many threads, their arrival is announced by one
    if tl.atomic_add(progress_ptr + ARRIVED, 1, sem="acq_rel") == num_strips - 1:
        tl.store(progress_ptr + JUDGED, 0)
        tl.store(progress_ptr + ARRIVED, 0)
        if row != DONE:
            pos = (row - start).to(tl.int32)
            _, uniform = uniforms_at(seed, position + pos)
            # fmt: off
            token_id = _recovered_token(masses_ptr, logits_row_ptr, draft_row_ptr, uniform, num_tiles, vocab_size,
                                        scale, target_law, draft_law, DRAFT, TILES)
            # fmt: on
            tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + pos, token_id)
    if EAGER and OVERLAP:
        end_after_predecessor()
