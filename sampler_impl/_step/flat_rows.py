"""Rows whose candidates do not fit a list: flat ones. They are read again and again: correct, and slow."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import NO_ID, argmax_order
from .bisection import count_or_weights, middle_of, narrowed_by
from .rows import LEAST, RUNS, WORDS, load_logits, scaled_by, scaled_order, words_of_runs, words_of_tiles
from .scan import sum_tiles


@triton.jit
def _measure(
    row, all_tiles, middle, floor, largest, temperature, vocab_size, BY_SUM: tl.constexpr, BLOCK: tl.constexpr
):
    """Return what `split` does, of everything at or above the floor, by reading the row."""
    total = tl.zeros((BLOCK, WORDS, 32), tl.int64)
    above = tl.full((BLOCK, WORDS, 32), NO_ID, tl.int32)
    below = tl.full((BLOCK, WORDS, 32), LEAST, tl.int32)
    for begin in range(0, all_tiles * RUNS, BLOCK):
        logits = load_logits(row, words_of_runs(begin + tl.arange(0, BLOCK)), vocab_size)
        total, above, below = _add_block(logits, total, above, below, middle, floor, largest, temperature, BY_SUM)
    above = tl.min(tl.min(tl.min(above, axis=2), axis=1))
    return tl.sum(tl.sum(tl.sum(total, axis=2), axis=1)), above, tl.max(tl.max(tl.max(below, axis=2), axis=1))


@triton.jit
def _add_block(logits, total, above, below, middle, floor, largest, temperature, BY_SUM: tl.constexpr):
    """Return what `_measure` finds, with one block more."""
    scaled = scaled_by(logits, temperature)
    orders = argmax_order(scaled)
    is_there = (orders >= floor) & (logits > float("-inf"))
    weights = tl.where(is_there, count_or_weights(scaled, largest, BY_SUM), 0)
    total += tl.where(orders >= middle, weights, 0)
    above = tl.minimum(above, tl.where((orders >= middle) & (weights > 0), orders, NO_ID))
    below = tl.maximum(below, tl.where(is_there & (orders < middle), orders, LEAST))
    return total, above, below


@triton.jit
def _bisect(row, all_tiles, need, floor, largest, temperature, vocab_size, BY_SUM: tl.constexpr, BLOCK: tl.constexpr):
    """Return what `highest_with` does, of a whole row."""
    low = tl.full((), LEAST, tl.int32)
    high = argmax_order(largest)
    while low < high:
        middle = middle_of(low, high)
        total, above, below = _measure(row, all_tiles, middle, floor, largest, temperature, vocab_size, BY_SUM, BLOCK)
        low, high = narrowed_by(total >= need, above, below, low, high)
    return low


@triton.jit
def bisect_row(row, all_tiles, largest, floor, filters, temperature, vocab_size, BLOCK: tl.constexpr):
    """Return what is kept of a row, as the order of the least one, by reading it some 20 times for each filter."""
    kept = floor
    if filters.top_k > 0:
        need = filters.top_k.to(tl.int64)
        kept = tl.maximum(kept, _bisect(row, all_tiles, need, kept, largest, temperature, vocab_size, False, BLOCK))
    if filters.top_p < 1:
        least = tl.full((), LEAST, tl.int32)
        total, _, _ = _measure(row, all_tiles, least, kept, largest, temperature, vocab_size, True, BLOCK)
        need = tl.maximum((total.to(tl.float64) * filters.top_p.to(tl.float64)).to(tl.int64), 1)
        kept = tl.maximum(kept, _bisect(row, all_tiles, need, kept, largest, temperature, vocab_size, True, BLOCK))
    return kept


@triton.jit
def filter_words(
    row_words_ptr,  # [all_tiles] int64, written
    row,
    all_tiles,
    kept,
    statistics,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Write the words of the tiles again, of what is kept alone."""
    for begin in range(0, all_tiles, BLOCK // RUNS):
        tiles = begin + tl.arange(0, BLOCK // RUNS)
        logits = load_logits(row, words_of_tiles(tiles), vocab_size)
        logits = tl.where(scaled_order(logits, statistics.temperature) >= kept, logits, float("-inf"))
        words, _ = sum_tiles(logits, statistics.scale)
        tl.store(row_words_ptr + tiles, words, mask=tiles < all_tiles)
