"""The kernel that reads the logits, all of them once: of each tile the largest, and the sum of exp2 terms over it.

    program (strip, request)    for each block of tiles of the strip        (request, strip) in a plan of many requests
                                    for each row of the request      counts of penalties are held in registers
                                        load, edit, reduce; one word per tile

The tiles of edits are not among them: `edits` adds up what it lists.

A tile's word is one int64:

    63                        32 31              0
    order of the largest logit     sum of 2**((logit - largest) * log2(e) / temperature), float32

Filters also need what each run of 256 reaches: the upper 16 bits of the order of
its largest logit, four of them in a word. A tile with NaN has the order of NaN, and NaN as its sum.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .._counter.arithmetic import store_by_warps
from .._shared.kernels import INTERPRETED, LOG2_E, argmax_order
from .rows import (
    BLOCK_WORDS,
    MIN_TEMPERATURE,
    RUNS,
    TILE,
    find_request,
    indices_of,
    let_next_kernel_start,
    load_bits,
    load_penalties,
    load_raw,
    load_times,
    locate,
    masked,
    penalised,
    wait_for_kernel_before,
    without_moved,
    words_of_tiles,
)

PINS = tl.constexpr(not INTERPRETED and torch.version.hip is None)
"""The `mov` of `_kept_together` is one of NVIDIA's; elsewhere the compiler may do as it likes."""


@triton.jit
def exponent_scale(temperature):
    """Differences of logits times this are exponents of 2."""
    return tl.div_rn(LOG2_E, tl.maximum(temperature, MIN_TEMPERATURE))


@triton.jit
def exp2_terms(logits, largest, scale):
    """`exp((logit - largest) / temperature)`. Subtracted before scaling: the difference of near logits is exact.

    Where the largest is infinite there is nothing to compute with: terms are 0 or infinity then."""
    reference = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
    return tl.exp2((logits - reference) * scale)


@triton.jit
def sum_tiles(logits, scale):
    """Words of the tiles, and what their runs reach, both [tiles] int64.

    Takes `logits` [tiles, RUNS, WORDS, 32] float32."""
    largest_of_runs = tl.max(tl.max(logits, axis=3), axis=2)
    largest = tl.max(largest_of_runs, axis=1)
    terms = exp2_terms(logits, largest[:, None, None, None], scale)
    sums = tl.sum(tl.sum(tl.sum(terms, axis=1), axis=2), axis=1)
    order = argmax_order(tl.where(sums == sums, largest, float("nan")))
    words = (order.to(tl.int64) << 32) | (sums.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    reached = (argmax_order(largest_of_runs) >> 16).to(tl.int64) & 0xFFFF
    return words, tl.sum(reached << (16 * tl.arange(0, RUNS))[None, :].to(tl.int64), axis=1)


@triton.jit
def _is_presence_alone(factors):
    return (factors[1] == 0) & (factors[2] == 1)


@triton.jit
def _load_seen(inputs, slot, words, factors, vocab_size):
    """[tiles, RUNS, WORDS, 32] float32: how often the output of a slot has each id; -1 if its prompt alone has it. Of
    a request with a presence penalty alone: 1 if the output has the id, or 0.

    The same for all rows of a request: drafts before a row are among its edits."""
    penalties = inputs[5]
    seen = tl.zeros_like(indices_of(words)).to(tl.float32)
    if factors[3]:
        seen = load_times(inputs, slot, words, vocab_size).to(tl.float32)
        if _is_presence_alone(factors):
            seen = tl.minimum(seen, 1.0)
        elif factors[2] != 1:
            in_prompt = load_bits(penalties[4] + slot * penalties[6], words, vocab_size)
            seen = tl.where((seen == 0) & (in_prompt != 0), -1.0, seen)
    return seen


@triton.jit
def _kept_together(seen):
    """The same numbers, of which the compiler knows nothing. Otherwise it computes what follows from them before the
    loop over rows, and holds all of that: 214 registers instead of 121."""
    if PINS:
        seen = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [seen], dtype=tl.float32, is_pure=False, pack=1)
    return seen


@triton.jit
def _load_block(row, words, seen, block, vocab_size):
    """[tiles, RUNS, WORDS, 32] float32: edited logits of a block of the vocabulary's tiles.

    As `rows.load_logits`; excluded words are read only where the block has some."""
    inputs, place = row
    edits = inputs[4]
    is_moved = tl.zeros((), tl.int32)
    if edits[0] is not None:
        is_moved = (tl.load(edits[5] + place[0] * BLOCK_WORDS + block // 32) >> (block % 32)) & 1
    logits = load_raw(row, words, vocab_size).to(tl.float32)
    if inputs[5][3] is not None:
        factors = place[3]
        if _is_presence_alone(factors):
            logits = tl.fma(seen, -factors[0], logits)  # rounded once: the product is exact
        else:
            seen = _kept_together(seen)
            logits = penalised(logits, seen, seen < 0, factors)
    logits = masked(row, words, logits, vocab_size)
    if edits[0] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_moved != 0:
            logits = without_moved(row, words, logits, vocab_size)
    return logits


@triton.jit(do_not_specialize=["num_rows", "max_spec_len"])
def scan_kernel(
    words_ptr,  # [max_rows, all_tiles] int64, written
    reached_ptr,  # [max_rows, all_tiles] int64, written, or None: nothing is filtered
    inputs,
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32, or None
    temperature_ptr,  # [num_slots] float32
    num_rows,
    max_spec_len,
    vocab_size,
    all_tiles,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
    REQUESTS: tl.constexpr,
    WAITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_kernel_start(OVERLAPS)
    inputs = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5])  # for Triton 3.6: see `rows`
    req_idx, strip = tl.program_id(REQUESTS), tl.program_id(1 - REQUESTS)
    first, count, slot = find_request(cu_num_rows_ptr, slots_ptr, req_idx, num_rows, max_spec_len)
    scale = exponent_scale(tl.load(temperature_ptr + slot))
    for step in range(STRIP):
        block = strip * STRIP + step
        tiles = block * BLOCK + tl.arange(0, BLOCK)
        words = words_of_tiles(tiles)
        seen = words
        if inputs[5][3] is not None:
            seen = _load_seen(inputs, slot, words, load_penalties(inputs[5], slot), vocab_size)
        wait_for_kernel_before(WAITS)  # what it lists is needed from here on
        for offset in range(0, count):
            row_idx = (first + offset).to(tl.int64)
            row = (inputs, locate(inputs, row_idx, slot))
            sums, reached = sum_tiles(_load_block(row, words, seen, block, vocab_size), scale)
            at = row_idx * all_tiles + tiles
            is_tile = tiles < tl.cdiv(vocab_size, TILE)
            store_by_warps(words_ptr + at, sums, is_tile)
            if reached_ptr is not None:
                store_by_warps(reached_ptr + at, reached, is_tile)
