"""The road not taken: the last kernel of `rejection_counter` with an exponential race instead of an inverse CDF.

It is launched in the place of `draw_kernel`: same launches, same bytes, but each entry of the residual draws a number
of its own, so that the winner of a tile is a maximum and no second reading is needed. `bench_rejection.py` times it
against what is shipped.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from fairdraw.sampler_impl._counter_draw import load_both, residual
from fairdraw.sampler_impl._counter_functions import TILE, exponent_scale
from fairdraw.sampler_impl._counter_handover import DONE, OPEN, VERDICT, wait_for, wait_for_all, wait_for_distributions

STEP = tl.constexpr(512)
"""Entries that draw at a time: more of them spill registers."""


@triton.jit(do_not_specialize=["batch_size", "num_tiles", "max_spec_len"])
def race_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    tile_winners_ptr,  # [batch_size, num_tiles] int64, written
    verdicts_ptr,  # [batch_size, 3] int64
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32
    logits_ptr,  # [num_rows, vocab_size] float32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    batch_size,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    DRAFT: tl.constexpr,
    BONUS: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    tl.static_assert(not EAGER, "the race is timed without a workspace")
    req_idx = batch_size - 1 - tl.program_id(2) * tl.num_programs(1) - tl.program_id(1)
    if req_idx < 0:
        return
    first_tile = (tl.num_programs(0) - 1 - tl.program_id(0)) * STRIP * BLOCK
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    scale = exponent_scale(tl.load(temperature_ptr + req_idx))
    seed = tl.load(seeds_ptr + req_idx)
    position = tl.load(positions_ptr + req_idx)
    if OVERLAP:
        gdc_wait()
    verdict = wait_for(verdicts_ptr + req_idx * VERDICT)
    if verdict == DONE:
        return
    target_distribution, draft_distribution = wait_for_distributions(verdicts_ptr + req_idx * VERDICT)
    pos = (verdict - OPEN).to(tl.int32)
    row = start.to(tl.int64) + pos
    logits_row = row
    if BONUS:
        logits_row += req_idx
    winners_ptr = tile_winners_ptr + req_idx * num_tiles
    logits_row_ptr = logits_ptr + logits_row * logits_stride
    draft_row_ptr = draft_ptr + row * draft_stride
    pos_in_sequence = position + pos
    for tile in range(first_tile, tl.minimum(first_tile + STRIP * BLOCK, num_tiles)):
        winner = tl.full((), 1, tl.int64)
        for first in tl.static_range(0, TILE, STEP):
            token_ids = tile * TILE + first + tl.arange(0, STEP)
            logits, draft = load_both(logits_row_ptr, draft_row_ptr, token_ids, vocab_size)
            weights = residual(logits, draft, scale, target_distribution, draft_distribution, None, DRAFT)
            words = tl.randint(seed ^ (pos_in_sequence << 32), token_ids)
            uniforms = ((words >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08
            scores = weights / -tl.log2(uniforms)
            bits = tl.where(weights > 0, scores.to(tl.int32, bitcast=True), -1)
            best = tl.max(bits)
            lowest = tl.min(tl.where(bits == best, token_ids, 0x7FFFFFFF))
            winner = tl.maximum(winner, (best.to(tl.int64) << 32) | (0x7FFFFFFF - lowest))  # 0 is nobody's word
        tl.store(winners_ptr + tile, winner)
    if first_tile == 0:
        tiles = tl.arange(0, TILES)
        winner = tl.max(wait_for_all(winners_ptr + tiles, tiles < num_tiles, 1))
        token_id = 0x7FFFFFFF - (winner & 0x7FFFFFFF)
        tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + pos, token_id.to(tl.int32))
