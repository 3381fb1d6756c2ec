"""Draws by the inverse CDF, over integers: from a list of candidates, or from tiles with a threshold."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import LOG2_E, NO_ID, argmax_order, cdf_thresholds, unpack
from .bisection import ONE, weights_of
from .candidates import FEW, load_candidates, weigh
from .draft_rows import draft_probs_of
from .rows import NOTHING, TILE, ids_of, load_one_tile, order_to_float, scaled_order
from .scan import exp2_terms

STREAMED = tl.constexpr(-2)
"""Mark in place of a token that `emit` draws."""


@triton.jit
def load_words(memory, row_idx, all_tiles, TILES: tl.constexpr):
    """Return [TILES] int64: words of a row's tiles; behind the last, of a tile in which there is nothing."""
    tiles = tl.arange(0, TILES)
    words = tl.load(memory.words_ptr + row_idx * all_tiles + tiles, mask=tiles < all_tiles, other=0)
    return tl.where(tiles < all_tiles, words, tl.full((TILES,), NOTHING, tl.int64) << 32)


@triton.jit
def largest_and_sums(words):
    """Return [TILES] float32 twice: largest logits and sums."""
    _, sums = unpack(words)
    return order_to_float((words >> 32).to(tl.int32)), sums


@triton.jit
def sum_of_words(words, largest, scale):
    """Return a float32: the sum of all exp2 terms over the row's largest logit. Takes `words` [TILES] int64."""
    maxima, sums = largest_and_sums(words)
    return tl.sum(tl.where(sums == 0, 0.0, sums * tl.exp2((maxima - largest) * scale)))


@triton.jit
def draw_index(weights, uniform):
    """Return which of some integer weights a uniform falls on, and how far into it, in [0, 1); -1 if all are 0."""
    ends = tl.cumsum(weights)
    total = tl.sum(weights)
    threshold = cdf_thresholds(uniform, total)
    found = tl.min(tl.where((ends > threshold) & (weights > 0), tl.arange(0, weights.shape[0]), NO_ID))
    is_found = tl.arange(0, weights.shape[0]) == found
    weight = tl.sum(tl.where(is_found, weights, 0))
    offset = threshold - tl.sum(tl.where(is_found, ends - weights, 0))
    within = (offset.to(tl.float64) + 0.5) / tl.maximum(weight, 1).to(tl.float64)
    return tl.where(total > 0, found, -1), within


@triton.jit
def _without(row, words, index, kept, statistics, vocab_size):
    """Return the shares of the tiles as integers, without one index. Takes `words` [TILES] int64."""
    largest, _, scale, temperature = statistics
    maxima, sums = largest_and_sums(words)
    shares = tl.where(sums == 0, 0.0, sums * tl.exp2((maxima - largest) * scale))
    if index >= 0:
        logits, indices = load_one_tile(row, index // TILE, vocab_size)
        is_kept = (scaled_order(logits, temperature) >= kept) & (indices != index)
        share = tl.sum(tl.where(is_kept, exp2_terms(logits, largest, scale), 0.0))
        shares = tl.where(tl.arange(0, words.shape[0]) == index // TILE, share, shares)
    return (shares * ONE).to(tl.int64)


@triton.jit
def draw_from_tiles(row, words, index, kept, statistics, vocab_size, uniform):
    """Return a token's index: a tile by its share, then an entry of that tile."""
    shares = _without(row, words, index, kept, statistics, vocab_size)
    tile, within = draw_index(shares, uniform)
    logits, indices = load_one_tile(row, tl.maximum(tile, 0), vocab_size)
    is_kept = (scaled_order(logits, statistics.temperature) >= kept) & (indices != index)
    # Over the tile's own largest, so that a tile far below the row's is drawn from as exactly.
    tile_largest = tl.max(tl.where(is_kept, logits, float("-inf")))
    terms = tl.where(is_kept, exp2_terms(logits, tile_largest, statistics.scale), 0.0)
    entry, _ = draw_index((terms * ONE).to(tl.int64), within)
    return tl.where((tile < 0) | (entry < 0), -1, tile * TILE + entry)


@triton.jit
def argmax_token(row, words, vocab_size, EDITS: tl.constexpr):
    """Return the token of a greedy row: of all as large as the largest, the lowest id. Takes `words` [TILES] int64."""
    orders = (words >> 32).to(tl.int32)
    best = tl.max(orders)
    tile = tl.min(tl.where(orders == best, tl.arange(0, words.shape[0]), NO_ID))
    logits, indices = load_one_tile(row, tile, vocab_size)
    token = tl.min(tl.where(argmax_order(logits) == best, ids_of(row, indices, vocab_size), NO_ID))
    if EDITS > 0:  # an edited id may be lower than one of an earlier tile
        for first in range(tl.cdiv(vocab_size, TILE), tl.cdiv(vocab_size, TILE) + tl.cdiv(EDITS, TILE)):
            logits, indices = load_one_tile(row, first, vocab_size)
            ids = ids_of(row, indices, vocab_size)
            is_best = (argmax_order(logits) == best) & (ids >= 0)  # a mention of no token is -1
            token = tl.minimum(token, tl.min(tl.where(is_best, ids, NO_ID)))
    return tl.where(token == NO_ID, 0, token)


@triton.jit
def _rest_of_block(lists, begin, row, found, best, row_sum, removed, draft_row, vocab_size, is_whole):
    """Return [FEW] int64 and int32: weights of `max(target - draft, 0)`, or of the target, and indices, of a block."""
    indices, orders, scaled = load_candidates(lists, begin, found.size, FEW)
    is_kept = (orders >= found.kept) & (indices != NO_ID)
    weights = tl.where(is_kept, weights_of(scaled, best), 0)
    rest = tl.where(indices == removed, 0, weights)
    if draft_row.drafts.dense_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if draft_row.has_draft:
            ids = tl.where(is_kept, ids_of(row, tl.where(is_kept, indices, 0), vocab_size), 0)
            target = tl.exp2((scaled - best) * LOG2_E) / row_sum
            rest = tl.maximum(target - draft_probs_of(draft_row, ids, is_kept), 0.0)
            rest = tl.where(is_kept, (rest * ONE).to(tl.int64), 0)
    return tl.where(is_whole, weights, rest), indices


@triton.jit
def draw_from_list(lists, row, found, statistics, removed, draft_row, vocab_size, uniform):
    """Return the index that replaces a draft token, or follows: by the weights of `max(target - draft, 0)`, or of the
    target if that is empty.

    Takes `removed`: the index of a one-hot draft, or -1."""
    best, row_sum = tl.div_rn(statistics.largest, statistics.temperature), statistics.row_sum
    is_whole = tl.full((), 0, tl.int1)
    total = tl.zeros((), tl.int64)
    # Add up what is left.
    for begin in range(0, found.size, FEW):
        rest, _ = _rest_of_block(lists, begin, row, found, best, row_sum, removed, draft_row, vocab_size, is_whole)
        total += tl.sum(rest)
    is_whole = total == 0
    if is_whole:
        total = weigh(lists, found.size, found.kept, best, FEW)
    # Draw from it.
    threshold = cdf_thresholds(uniform, total)
    drawn = tl.full((), -1, tl.int32)
    for begin in range(0, found.size, FEW):
        rest, indices = _rest_of_block(
            lists, begin, row, found, best, row_sum, removed, draft_row, vocab_size, is_whole
        )
        ends = tl.cumsum(rest)
        falls = (ends > threshold) & (threshold >= ends - rest)
        drawn = tl.maximum(drawn, tl.max(tl.where(falls, indices, -1)))
        threshold -= tl.sum(rest)
    return drawn
