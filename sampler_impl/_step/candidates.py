"""The candidates of a row: the few entries that hold whatever the filters keep, and what the filters keep of them.

Filters read a few runs only: the k-th largest of the runs' largest is at most the k-th largest logit, so whatever top-k
keeps lies in runs whose largest reaches it.

    largest of the runs   [ 7.1 | 3.0 | 9.2 | 5.5 | ... ]        top-k 2: the bound is 7.1
    runs to be read          x           x
    candidates            entries whose quotient is at least the bound's, in the order of their indices: a few dozens
    kept                  by bisection on integers in the order of scaled logits: by count for top-k, by sum for top-p

For top-p without top-k the bound is where the runs' largest alone have that sum, if few runs do; it is lowered until
the candidates have it.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import NO_ID, argmax_order
from .bisection import NO_BOUND, ONE, highest_with, reached_with, weights_of
from .named import Candidates
from .rows import (
    LEAST,
    NOTHING,
    RUNS,
    WORDS,
    indices_of,
    load_logits,
    order_to_float,
    scaled_by,
    scaled_order,
    words_of_runs,
)

FEW = tl.constexpr(128)
"""Candidates in a block. Most rows have fewer."""
NEIGHBOURS = tl.constexpr(32)
"""Logits below a bound among which its quotient ends."""
ENOUGH = tl.constexpr(1.00001)
"""A factor of sums in float32 that is surely enough."""
MOST_TRIES = tl.constexpr(4)
STEP = tl.constexpr(0.7)
"""Distance by which the bound is lowered where the runs' largest do not help, as a power of 2 of probability."""
LIKELY = tl.constexpr(0.9)
"""Share of the sum that is needed: where the runs' largest have it, the candidates, which are more, may have all."""
MOST_SURE = tl.constexpr(160)
"""Runs that are rather read at once than a part of them, and then more: their largest have the whole sum."""


@triton.jit
def _list_runs(
    runs_ptr,  # [num_runs] int32, written
    reached,
    bound,
):
    """Write the numbers of runs that reach the bound, in order, and return how many."""
    reaches = (reached >= bound).to(tl.int32)
    places = tl.cumsum(reaches) - 1
    tl.store(runs_ptr + places, tl.arange(0, reached.shape[0]), mask=reaches != 0)
    return tl.sum(reaches)


@triton.jit
def _least_with_quotient_of(bound, temperature):
    """Return the order of the least logit whose quotient is not below the bound's. Rounded, some have the same."""
    order = tl.maximum(bound << 16, NOTHING + 1)
    below = tl.maximum(order - tl.arange(0, NEIGHBOURS), NOTHING + 1)
    is_equal = scaled_order(order_to_float(below), temperature) >= scaled_order(order_to_float(order), temperature)
    least = tl.min(tl.where(is_equal, below, order))
    # More of them: the logits are denormal. The next bound is below every one of a moderate temperature.
    return tl.where(tl.min(is_equal.to(tl.int32)) == 0, least, tl.maximum((bound - 1) << 16, NOTHING + 1))


@triton.jit
def _collect(lists, row, reached, bound, vocab_size, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """Write index and logit of every entry whose quotient is at least the bound's, in the order of indices, and return
    how many, of which at most MOST are written. Takes `reached` of the runs."""
    least = _least_with_quotient_of(bound, lists.temperature)
    tl.debug_barrier()
    num_listed = _list_runs(lists.runs_ptr, reached, least >> 16)
    tl.debug_barrier()
    size = tl.zeros((), tl.int32)
    for begin in range(0, num_listed, BLOCK):
        listed = begin + tl.arange(0, BLOCK)
        # A run behind the row holds nothing.
        words = words_of_runs(tl.load(lists.runs_ptr + listed, mask=listed < num_listed, other=2 * reached.shape[0]))
        logits = load_logits(row, words, vocab_size)
        is_candidate = (argmax_order(logits) >= least) & (logits > float("-inf"))
        places, count = places_among(is_candidate, BLOCK)
        writes = is_candidate & (size + places < MOST)
        tl.store(lists.indices_ptr + size + places, indices_of(words), mask=writes)
        tl.store(lists.logits_ptr + size + places, logits, mask=writes)
        size += count
    tl.debug_barrier()
    return size


@triton.jit
def places_among(is_candidate, BLOCK: tl.constexpr):
    """Return where each candidate of a block is among them, and how many there are. Takes [BLOCK, WORDS, 32] bool."""
    # Places are counted within words, which is cheap, and then over words, which are few.
    within = tl.cumsum(is_candidate.to(tl.int32), axis=2)
    of_words = tl.reshape(tl.sum(is_candidate.to(tl.int32), axis=2), (BLOCK * WORDS,))
    before = tl.reshape(tl.cumsum(of_words) - of_words, (BLOCK, WORDS))
    return before[:, :, None] + within - 1, tl.sum(of_words)


@triton.jit
def load_candidates(lists, begin, size, BLOCK: tl.constexpr):
    """Return [BLOCK] int32 twice and float32: indices, orders and scaled logits, from one on; LEAST behind the last."""
    entries = begin + tl.arange(0, BLOCK)
    indices = tl.load(lists.indices_ptr + entries, mask=entries < size, other=NO_ID)
    # Divided here and not where they were found: few of what is read there are candidates.
    scaled = scaled_by(tl.load(lists.logits_ptr + entries, mask=entries < size, other=0.0), lists.temperature)
    scaled = tl.where(entries < size, scaled, float("-inf"))
    return indices, tl.where(entries < size, argmax_order(scaled), LEAST), scaled


@triton.jit
def weigh(lists, size, least, best, BLOCK: tl.constexpr):
    """Return the sum of the candidates at or above an order."""
    total = tl.zeros((BLOCK,), tl.int64)
    for begin in range(0, size, BLOCK):
        _, orders, scaled = load_candidates(lists, begin, size, BLOCK)
        total += tl.where(orders >= least, weights_of(scaled, best), 0)
    return tl.sum(total)


@triton.jit
def _need_of(total, row_sum, top_p):
    """Return the integer sum that top-p keeps at least."""
    total = tl.where(row_sum >= 0, row_sum.to(tl.float64) * ONE, total.to(tl.float64))
    return tl.maximum((total * top_p.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def thresholds_of(lists, size, best, floor, top_k, top_p, row_sum, BLOCK: tl.constexpr):
    """Return what is kept of at most BLOCK candidates: the order of the least one.

    Takes `row_sum`: float32, of everything that top-p sees, or a negative number: of what top-k left."""
    _, orders, scaled = load_candidates(lists, 0, size, BLOCK)
    kept = tl.maximum(floor, tl.min(tl.where(orders > LEAST, orders, NO_ID)))
    if top_k > 0:
        kept = highest_with(orders, (orders > LEAST).to(tl.int64), kept, top_k.to(tl.int64))
    if top_p < 1:
        seen = tl.where(orders >= kept, weights_of(scaled, best), 0)
        kept = highest_with(orders, seen, kept, _need_of(tl.sum(seen), row_sum, top_p))
    return kept


@triton.jit
def _terms_of_runs(reached, largest, scale):
    """Return [runs] float32: what the largest entry of each run adds to the row's sum. Takes `reached` [runs] int32."""
    terms = tl.exp2((order_to_float(reached << 16) - largest) * scale)
    return tl.where(reached > NOTHING >> 16, terms, 0.0)


@triton.jit
def _bound_of_sum(reached, largest, scale, need):
    """Return the bound at which the runs' largest alone have some sum."""
    return reached_with(reached, _terms_of_runs(reached, largest, scale), need)


@triton.jit
def _least_bound(reached):
    """Return the bound of all runs in which there is something."""
    return tl.min(tl.where(reached > NOTHING >> 16, reached, NO_ID))


@triton.jit
def _first_bound(reached, floor, statistics, filters, wanted):
    """Return the bound to begin with, and the sum that the runs' largest have at it.

    Two of the best tokens in one run: the runs' largest have not got all of the sum, and yet few runs are read. Takes
    `reached` [runs] int32."""
    largest, scale = statistics.largest, statistics.scale
    bound = floor
    guess = wanted
    if filters.top_k > 0:
        bound = reached_with(reached, (reached > NOTHING >> 16).to(tl.float32), filters.top_k.to(tl.float32))
    elif filters.min_p <= 0:  # with min-p everything that reaches the floor is wanted
        bound = _bound_of_sum(reached, largest, scale, wanted)
        if (bound == NO_BOUND) | (tl.sum((reached >= bound).to(tl.int32)) > MOST_SURE):
            guess = LIKELY * tl.minimum(wanted, tl.sum(_terms_of_runs(reached, largest, scale)))
            bound = _bound_of_sum(reached, largest, scale, guess)
    if bound == NO_BOUND:  # the runs' largest are not enough
        bound = _least_bound(reached)
    return tl.maximum(bound, floor), guess


@triton.jit
def _is_enough(lists, size, bound, floor, statistics, filters, wanted, need, MOST: tl.constexpr):
    """Whether the candidates hold whatever the filters keep, 1 or 0; and the sum that the runs' largest are to have."""
    state = tl.zeros((), tl.int32)
    if (bound <= floor) | (size > MOST):
        state = tl.full((), 1, tl.int32)
    elif filters.top_k > 0:
        state = (size >= filters.top_k).to(tl.int32)
    else:
        best = tl.div_rn(statistics.largest, statistics.temperature)
        found = weigh(lists, size, LEAST, best, MOST).to(tl.float32) / ONE
        state = (found >= wanted).to(tl.int32)
        need = need * tl.maximum(wanted / found, 1.02)
    return state, need


@triton.jit
def _lower_bound(reached, bound, floor, largest, scale, top_k, need):
    """Return the bound after one at which the candidates were not enough."""
    lower = tl.full((), NO_BOUND, tl.int32)
    if top_k <= 0:
        lower = _bound_of_sum(reached, largest, scale, need)
    below = _least_bound(reached)  # the runs' largest have not got that: all runs, and then less
    if bound <= below:
        below = argmax_order(order_to_float(bound << 16) - tl.div_rn(STEP, scale)) >> 16
    return tl.maximum(tl.minimum(tl.where(lower == NO_BOUND, below, lower), bound - 1), floor)


@triton.jit
def list_candidates(lists, row, reached, floor, statistics, filters, vocab_size, BLOCK, MOST: tl.constexpr):
    """Collect, with a lower bound each time, until the candidates hold whatever the filters keep. Return how many, of
    which more than MOST do not fit, -1 if that takes too long; and whether they are all that reaches the floor.

    Takes `floor`: the least bound."""
    wanted = filters.top_p * statistics.row_sum * ENOUGH
    bound, need = _first_bound(reached, floor, statistics, filters, wanted)
    size = tl.zeros((), tl.int32)
    tries = tl.zeros((), tl.int32)
    state = tl.zeros((), tl.int32)  # 1: enough
    while (state == 0) & (tries < MOST_TRIES) & (tl.sum((reached >= bound).to(tl.int32)) <= MOST_SURE):
        size = _collect(lists, row, reached, bound, vocab_size, BLOCK, MOST)
        state, need = _is_enough(lists, size, bound, floor, statistics, filters, wanted, need, MOST)
        if state == 0:
            bound = _lower_bound(reached, bound, floor, statistics.largest, statistics.scale, filters.top_k, need)
        tries += 1
    return tl.where(state == 0, -1, size), bound <= floor


@triton.jit
def load_reached(memory, row_idx, all_tiles, TILES: tl.constexpr):
    """Return [TILES * RUNS] int32: what the runs reach.

    Not by `other`: of two masked int16 in one register Triton 3.6 gives the second one -1 for any negative number."""
    runs = tl.arange(0, TILES * RUNS)
    reached_ptr = memory.run_reached_ptr + row_idx * all_tiles * RUNS
    reached = tl.load(reached_ptr + runs, mask=runs < all_tiles * RUNS, other=0).to(tl.int32)
    return tl.where(runs < all_tiles * RUNS, reached, NO_BOUND)


@triton.jit
def lists_of(lists, row_idx, temperature, TILES: tl.constexpr, MOST: tl.constexpr):
    """Return the lists of a row."""
    runs_ptr, first = lists.runs_ptr + row_idx * TILES * RUNS, row_idx * MOST
    return Candidates(runs_ptr, lists.indices_ptr + first, lists.candidates_ptr + first, temperature)
