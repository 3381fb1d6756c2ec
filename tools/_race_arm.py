"""The road not taken: the last kernel of `rejection_counter` with an exponential race instead of an inverse CDF.

Same launches, same bytes; but each entry of the residual draws a number of its own, so that the winner of a tile is a
maximum and no second reading is needed. `bench_rejection.py` times it against what is shipped.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from fairdraw.sampler_impl._counter_draw import residual
from fairdraw.sampler_impl._counter_functions import TILE, exponent_scale
from fairdraw.sampler_impl._counter_handover import ARRIVED, DONE, PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = tl.constexpr(512)
"""Entries that draw at a time: more of them spill registers."""


class RaceKernel:
    """Is launched in the place of `draw_kernel`."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., object]:
        return lambda output_token_ids, part_masses, *rest, **options: _race_kernel[grid](
            output_token_ids, torch.empty(part_masses.shape[:2], dtype=torch.int64, device="cuda"), *rest, **options
        )


@triton.jit(do_not_specialize=["num_tiles", "num_strips", "max_spec_len"])
def _race_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    tile_winners_ptr,  # [batch_size, num_tiles] int64, written
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
    LANES: tl.constexpr,
):
    tl.static_assert(not EAGER, "the race is timed without a workspace")
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    req_idx = program // num_strips
    first_tile = program % num_strips * STRIP
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    scale = exponent_scale(tl.load(temperature_ptr + req_idx))
    seed = tl.load(seeds_ptr + req_idx)
    position = tl.load(positions_ptr + req_idx)
    if OVERLAP:
        gdc_wait()
    row = tl.load(verdicts_ptr + req_idx * 3)
    target_law = tl.load(verdicts_ptr + req_idx * 3 + 1)
    draft_law = tl.load(verdicts_ptr + req_idx * 3 + 2)
    if row == DONE:
        return
    logits_row = row
    if BONUS:
        logits_row += req_idx
    winners_ptr = tile_winners_ptr + req_idx * num_tiles
    logits_row_ptr = logits_ptr + logits_row * logits_stride
    draft_row_ptr = draft_ptr + row * draft_stride
    pos = position + row - start
    for step in tl.static_range(STRIP):
        tile = first_tile + step
        winner = tl.full((), -1, tl.int64)
        for first in tl.static_range(0, TILE, STEP):
            token_ids = tile * TILE + first + tl.arange(0, STEP)
            weights = residual(
                logits_row_ptr, draft_row_ptr, token_ids, vocab_size, scale, target_law, draft_law, None, DRAFT
            )
            words = tl.randint(seed ^ (pos << 32), token_ids)
            uniforms = ((words >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08
            scores = weights / -tl.log2(uniforms)
            bits = tl.where(weights > 0, scores.to(tl.int32, bitcast=True), -1)
            best = tl.max(bits)
            lowest = tl.min(tl.where(bits == best, token_ids, 0x7FFFFFFF))
            winner = tl.maximum(winner, (best.to(tl.int64) << 32) | (0x7FFFFFFF - lowest))
        tl.store(winners_ptr + tile, winner, mask=tile < num_tiles)
    tl.debug_barrier()
    if tl.atomic_add(progress_ptr + req_idx * PROGRESS + ARRIVED, 1, sem="acq_rel") != num_strips - 1:
        return
    tiles = tl.arange(0, TILES)
    winner = tl.max(tl.load(winners_ptr + tiles, mask=tiles < num_tiles, other=-1, cache_modifier=".cg"))
    token_id = 0x7FFFFFFF - (winner & 0x7FFFFFFF)
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * (max_spec_len + 1) + (row - start), token_id.to(tl.int32))
