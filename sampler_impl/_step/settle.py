"""The kernel that settles each row: what is kept, whether the draft token is accepted, and which token replaces it.

One program per row. Filters read a few runs only: the k-th largest of the runs' largest is at most the k-th largest
logit, so whatever top-k keeps lies in runs whose largest reaches it.

    largest of the runs   [ 7.1 | 3.0 | 9.2 | 5.5 | ... ]        top-k 2: the bound is 7.1
    runs to be read          x           x
    candidates            entries whose quotient is at least the bound's, in the order of their indices: a few dozens
    kept                  by bisection on integers in the order of scaled logits: by count for top-k, by sum for top-p

For top-p without top-k the bound is where the runs' largest alone have nearly that sum; it is lowered until the
candidates have it. A row whose candidates do not fit (a flat one) is bisected by reading it again and again: correct
and slow. Then its words are made anew from what is kept.

So a row ends as a **list** of candidates, or as **tiles** with a threshold. Its token is drawn from either by the
inverse CDF, over integers. Only a row of tiles with dense draft probabilities is left to `emit`, which reads it whole,
and for the rejected row alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import (
    LOG2_E,
    NO_ID,
    VERIFY_STREAM,
    argmax_order,
    cdf_thresholds,
    philox_uniforms,
    unpack,
)
from .output import count_accepted, write_tokens
from .rows import (
    LEAST,
    MIN_TEMPERATURE,
    NOTHING,
    RUNS,
    TILE,
    WORDS,
    find_request,
    ids_of,
    index_of,
    indices_of,
    let_next_kernel_start,
    load_logits,
    load_one_tile,
    load_or,
    locate,
    order_to_float,
    scaled_by,
    scaled_order,
    wait_for_kernel_before,
    words_of_runs,
    words_of_tiles,
)
from .scan import exp2_terms, exponent_scale, sum_tiles

ONE = tl.constexpr(1099511627776.0)  # 2**40: the integer weight of the row's best token
FEW = tl.constexpr(128)
MANY = tl.constexpr(1024)
"""Candidates in a block. Most rows have few: one block is bisected without being loaded again."""
NO_BOUND = tl.constexpr(-0x8000)
"""A **bound** is the upper 16 bits of an order: what is compared with the 16 bits that runs have."""
NEIGHBOURS = tl.constexpr(32)
"""Logits below a bound among which its quotient ends."""
ENOUGH = tl.constexpr(1.00001)
"""A factor of sums in float32 that is surely enough."""
MOST_TRIES = tl.constexpr(8)
STEP = tl.constexpr(0.7)
"""By how much the bound is lowered where the runs' largest do not help, as a power of 2 of probability."""
LIKELY = tl.constexpr(0.9)
"""Of the sum that is needed, what the runs' largest have where the candidates, which are more, may have all of it."""
MOST_SURE = tl.constexpr(160)
"""Runs that are rather read at once than a part of them, and then more: their largest have the whole sum."""
STREAMED = tl.constexpr(-2)
"""In place of a token: `emit` draws it."""


# Thresholds. Orders are integers. A threshold is the order of an entry, so a bisection goes on from entry to entry: it
# ends after some log2(entries) steps, and not after as many as an order has bits.


@triton.jit
def middle_of(low, high):
    """Between two orders, above the lower one. Their difference may not be an int32."""
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def reached_with(reached, weights, need):
    """The highest bound such that the runs that reach it weigh at least `need`; NO_BOUND if all together do not.

    Takes `reached` [runs] int32, 16 bits; `weights` [runs] float32."""
    low = tl.full((), NO_BOUND, tl.int32)
    if tl.sum(weights) >= need:
        high = tl.max(reached)
        low = tl.min(tl.where(weights > 0, reached, high))
        while low < high:
            middle = (low + high + 1) >> 1
            reaches = reached >= middle
            if tl.sum(tl.where(reaches, weights, 0.0)) >= need:
                low = tl.min(tl.where(reaches & (weights > 0), reached, high))
            else:
                high = tl.max(tl.where(reaches | (weights <= 0), low, reached))
    return low


@triton.jit
def highest_with(orders, weights, floor, need):
    """The highest order such that those at or above it weigh at least `need`; the floor if all of them do not.

    Takes `orders` [size] int32; `weights` [size] int64, 0 below the floor."""
    low = floor
    high = tl.maximum(tl.max(tl.where(weights > 0, orders, floor)), floor)
    while low < high:
        middle = middle_of(low, high)
        if tl.sum(tl.where(orders >= middle, weights, 0)) >= need:
            low = tl.min(tl.where((orders >= middle) & (weights > 0), orders, high))
        else:
            high = tl.max(tl.where((orders < middle) & (weights > 0), orders, low))
    return low


@triton.jit
def weights_of(scaled, largest):
    """[...] int64: `exp(scaled - largest)` over 2**-40. Takes `scaled` [...] float32."""
    return (tl.exp2((scaled - largest) * LOG2_E) * ONE).to(tl.int64)


# The candidates of a row.


@triton.jit
def _list_runs(
    runs_ptr,  # [num_runs] int32, written
    reached,
    bound,
):
    """Write the numbers of runs that reach the bound, in order. Returns how many."""
    reaches = (reached >= bound).to(tl.int32)
    places = tl.cumsum(reaches) - 1
    tl.store(runs_ptr + places, tl.arange(0, reached.shape[0]), mask=reaches != 0)
    return tl.sum(reaches)


@triton.jit
def _least_with_quotient_of(bound, temperature):
    """The order of the least logit whose quotient is not below the bound's. Rounded, some neighbours have the same."""
    order = tl.maximum(bound << 16, NOTHING + 1)
    below = tl.maximum(order - tl.arange(0, NEIGHBOURS), NOTHING + 1)
    is_equal = scaled_order(order_to_float(below), temperature) >= scaled_order(order_to_float(order), temperature)
    least = tl.min(tl.where(is_equal, below, order))
    # More of them: the logits are denormal. The next bound is below every one of a moderate temperature.
    return tl.where(tl.min(is_equal.to(tl.int32)) == 0, least, tl.maximum((bound - 1) << 16, NOTHING + 1))


@triton.jit
def _collect(scratch, row, reached, bound, temperature, vocab_size, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """Write index and logit of every entry whose quotient is at least the bound's, in the order of indices.
    Returns how many, of which at most MOST are written.

    Takes `scratch`: runs [TILES * RUNS] int32, indices [MOST] int32, logits [MOST] float32, the temperature; `reached`
    of the runs."""
    runs_ptr, indices_ptr, logits_ptr, _ = scratch
    least = _least_with_quotient_of(bound, temperature)
    tl.debug_barrier()
    num_listed = _list_runs(runs_ptr, reached, least >> 16)
    tl.debug_barrier()
    size = tl.zeros((), tl.int32)
    for begin in range(0, num_listed, BLOCK):
        listed = begin + tl.arange(0, BLOCK)
        # A run behind the row holds nothing.
        words = words_of_runs(tl.load(runs_ptr + listed, mask=listed < num_listed, other=2 * reached.shape[0]))
        logits = load_logits(row, words, vocab_size)
        is_candidate = (argmax_order(logits) >= least) & (logits > float("-inf"))
        # Places are counted within words, which is cheap, and then over words, which are few.
        within = tl.cumsum(is_candidate.to(tl.int32), axis=2)
        of_words = tl.reshape(tl.sum(is_candidate.to(tl.int32), axis=2), (BLOCK * WORDS,))
        before = tl.reshape(tl.cumsum(of_words) - of_words, (BLOCK, WORDS))
        places = size + before[:, :, None] + within - 1
        writes = is_candidate & (places < MOST)
        tl.store(indices_ptr + places, indices_of(words), mask=writes)
        tl.store(logits_ptr + places, logits, mask=writes)
        size += tl.sum(of_words)
    tl.debug_barrier()
    return size


@triton.jit
def _load_candidates(scratch, begin, size, BLOCK: tl.constexpr):
    """[BLOCK] int32 twice and float32: indices, orders and scaled logits, from one on; LEAST behind the last."""
    _, indices_ptr, logits_ptr, temperature = scratch
    entries = begin + tl.arange(0, BLOCK)
    indices = tl.load(indices_ptr + entries, mask=entries < size, other=NO_ID)
    # Divided here and not where they were found: few of what is read there are candidates.
    scaled = scaled_by(tl.load(logits_ptr + entries, mask=entries < size, other=0.0), temperature)
    scaled = tl.where(entries < size, scaled, float("-inf"))
    return indices, tl.where(entries < size, argmax_order(scaled), LEAST), scaled


@triton.jit
def _sum_of_words(words, largest, scale):
    """float32: the sum of all exp2 terms over the row's largest logit. Takes `words` [TILES] int64."""
    maxima, sums = _unpack(words)
    return tl.sum(tl.where(sums == 0, 0.0, sums * tl.exp2((maxima - largest) * scale)))


@triton.jit
def _unpack(words):
    """[TILES] float32 twice: largest logits and sums."""
    return order_to_float((words >> 32).to(tl.int32)), unpack(words)[1]


@triton.jit
def _weigh(scratch, size, least, best, BY_SUM: tl.constexpr, BLOCK: tl.constexpr):
    """Count or sum of the candidates at or above an order."""
    total = tl.zeros((BLOCK,), tl.int64)
    for begin in range(0, size, BLOCK):
        _, orders, scaled = _load_candidates(scratch, begin, size, BLOCK)
        total += tl.where(orders >= least, _weights(scaled, best, BY_SUM), 0)
    return tl.sum(total)


@triton.jit
def _weights(scaled, best, BY_SUM: tl.constexpr):
    """[...] int64: by which entries are summed, or 1 each. Takes `scaled` [...] float32."""
    weights = tl.full(scaled.shape, 1, tl.int64)
    if BY_SUM:
        weights = weights_of(scaled, best)
    return weights


@triton.jit
def _highest_listed(scratch, size, best, floor, need, BY_SUM: tl.constexpr, BLOCK: tl.constexpr):
    """As `highest_with`, of more candidates than a block has."""
    low = floor
    high = tl.maximum(argmax_order(best), floor)
    while low < high:
        middle = middle_of(low, high)
        total, above, below = _split(scratch, size, middle, best, BY_SUM, BLOCK)
        if total >= need:
            low = tl.minimum(above, high)
        else:
            high = tl.maximum(below, low)
    return low


@triton.jit
def _split(scratch, size, middle, best, BY_SUM: tl.constexpr, BLOCK: tl.constexpr):
    """Count or sum of the candidates at or above an order, the least order of these, and the largest of the others."""
    total = tl.zeros((BLOCK,), tl.int64)
    above = tl.full((BLOCK,), NO_ID, tl.int32)
    below = tl.full((BLOCK,), LEAST, tl.int32)
    for begin in range(0, size, BLOCK):
        _, orders, scaled = _load_candidates(scratch, begin, size, BLOCK)
        weights = _weights(scaled, best, BY_SUM)
        total += tl.where(orders >= middle, weights, 0)
        above = tl.minimum(above, tl.where((orders >= middle) & (weights > 0), orders, NO_ID))
        below = tl.maximum(below, tl.where(orders < middle, orders, LEAST))
    return tl.sum(total), tl.min(above), tl.max(below)


@triton.jit
def _need_of(total, row_sum, top_p):
    """The integer sum that top-p keeps at least."""
    total = tl.where(row_sum >= 0, row_sum.to(tl.float64) * ONE, total.to(tl.float64))
    return tl.maximum((total * top_p.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _thresholds_of_few(scratch, size, best, floor, top_k, top_p, row_sum):
    """What is kept of at most FEW candidates: the order of the least one.

    Takes `row_sum`: float32, of everything that top-p sees, or a negative number: of what top-k left."""
    _, orders, scaled = _load_candidates(scratch, 0, size, FEW)
    kept = tl.maximum(floor, tl.min(tl.where(orders > LEAST, orders, NO_ID)))
    if top_k > 0:
        kept = highest_with(orders, (orders > LEAST).to(tl.int64), kept, top_k.to(tl.int64))
    if top_p < 1:
        seen = tl.where(orders >= kept, weights_of(scaled, best), 0)
        kept = highest_with(orders, seen, kept, _need_of(tl.sum(seen), row_sum, top_p))
    return kept


@triton.jit
def _thresholds_of_many(scratch, size, best, floor, top_k, top_p, row_sum):
    """The same of more."""
    kept = floor
    if top_k > 0:
        kept = _highest_listed(scratch, size, best, kept, top_k.to(tl.int64), False, MANY)
    if top_p < 1:
        need = _need_of(_weigh(scratch, size, kept, best, True, MANY), row_sum, top_p)
        kept = _highest_listed(scratch, size, best, kept, need, True, MANY)
    return kept


# Rows that do not fit a list.


@triton.jit
def _measure(
    row, all_tiles, middle, floor, largest, temperature, vocab_size, BY_SUM: tl.constexpr, BLOCK: tl.constexpr
):
    """As `_split`, of everything at or above the floor; reads the row."""
    total = tl.zeros((BLOCK, WORDS, 32), tl.int64)
    above = tl.full((BLOCK, WORDS, 32), NO_ID, tl.int32)
    below = tl.full((BLOCK, WORDS, 32), LEAST, tl.int32)
    for begin in range(0, all_tiles * RUNS, BLOCK):
        logits = load_logits(row, words_of_runs(begin + tl.arange(0, BLOCK)), vocab_size)
        scaled = scaled_by(logits, temperature)
        orders = argmax_order(scaled)
        is_there = (orders >= floor) & (logits > float("-inf"))
        weights = tl.where(is_there, _weights(scaled, largest, BY_SUM), 0)
        total += tl.where(orders >= middle, weights, 0)
        above = tl.minimum(above, tl.where((orders >= middle) & (weights > 0), orders, NO_ID))
        below = tl.maximum(below, tl.where(is_there & (orders < middle), orders, LEAST))
    above = tl.min(tl.min(tl.min(above, axis=2), axis=1))
    return tl.sum(tl.sum(tl.sum(total, axis=2), axis=1)), above, tl.max(tl.max(tl.max(below, axis=2), axis=1))


@triton.jit
def _bisect(row, all_tiles, need, floor, largest, temperature, vocab_size, BY_SUM: tl.constexpr, BLOCK: tl.constexpr):
    """As `highest_with`, of a whole row."""
    low = tl.full((), LEAST, tl.int32)
    high = argmax_order(largest)
    while low < high:
        middle = middle_of(low, high)
        total, above, below = _measure(row, all_tiles, middle, floor, largest, temperature, vocab_size, BY_SUM, BLOCK)
        if total >= need:
            low = tl.minimum(above, high)
        else:
            high = tl.maximum(below, low)
    return low


@triton.jit
def _bisect_row(row, all_tiles, largest, floor, top_k, top_p, temperature, vocab_size, BLOCK: tl.constexpr):
    """What is kept of a row, as the order of the least one, by reading it some 20 times for each filter."""
    kept = floor
    if top_k > 0:
        need = top_k.to(tl.int64)
        kept = tl.maximum(kept, _bisect(row, all_tiles, need, kept, largest, temperature, vocab_size, False, BLOCK))
    if top_p < 1:
        least = tl.full((), LEAST, tl.int32)
        total, _, _ = _measure(row, all_tiles, least, kept, largest, temperature, vocab_size, True, BLOCK)
        need = tl.maximum((total.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64), 1)
        kept = tl.maximum(kept, _bisect(row, all_tiles, need, kept, largest, temperature, vocab_size, True, BLOCK))
    return kept


@triton.jit
def _filter_words(
    row_words_ptr,  # [all_tiles] int64, written
    row,
    all_tiles,
    kept,
    scale,
    temperature,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Words of the tiles again, of what is kept alone."""
    for begin in range(0, all_tiles, BLOCK // RUNS):
        tiles = begin + tl.arange(0, BLOCK // RUNS)
        logits = load_logits(row, words_of_tiles(tiles), vocab_size)
        logits = tl.where(scaled_order(logits, temperature) >= kept, logits, float("-inf"))
        words, _ = sum_tiles(logits, scale)
        tl.store(row_words_ptr + tiles, words, mask=tiles < all_tiles)


# Drawing.


@triton.jit
def draw_index(weights, uniform):
    """Which of some integer weights a uniform falls on, and how far into it, in [0, 1); -1 if all are 0."""
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
def _without(row, words, index, kept, largest, scale, temperature, vocab_size):
    """Shares of the tiles as integers, without one index. Takes `words` [TILES] int64."""
    maxima, sums = _unpack(words)
    shares = tl.where(sums == 0, 0.0, sums * tl.exp2((maxima - largest) * scale))
    if index >= 0:
        logits, indices = load_one_tile(row, index // TILE, vocab_size)
        is_kept = (scaled_order(logits, temperature) >= kept) & (indices != index)
        share = tl.sum(tl.where(is_kept, exp2_terms(logits, largest, scale), 0.0))
        shares = tl.where(tl.arange(0, words.shape[0]) == index // TILE, share, shares)
    return (shares * ONE).to(tl.int64)


@triton.jit
def _draw_from_tiles(row, words, index, kept, largest, scale, temperature, vocab_size, uniform):
    """A token's index: a tile by its share, then an entry of that tile."""
    shares = _without(row, words, index, kept, largest, scale, temperature, vocab_size)
    tile, within = draw_index(shares, uniform)
    logits, indices = load_one_tile(row, tl.maximum(tile, 0), vocab_size)
    is_kept = (scaled_order(logits, temperature) >= kept) & (indices != index)
    # Over the tile's own largest, so that a tile far below the row's is drawn from as exactly.
    tile_largest = tl.max(tl.where(is_kept, logits, float("-inf")))
    terms = tl.where(is_kept, exp2_terms(logits, tile_largest, scale), 0.0)
    entry, _ = draw_index((terms * ONE).to(tl.int64), within)
    return tl.where((tile < 0) | (entry < 0), -1, tile * TILE + entry)


@triton.jit
def _argmax(row, words, vocab_size, EDITS: tl.constexpr):
    """The token of a greedy row: of all as large as the largest, the lowest id. Takes `words` [TILES] int64."""
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


# One row.


@triton.jit
def _terms_of_runs(reached, largest, scale):
    """[runs] float32: what the largest entry of each run adds to the row's sum. Takes `reached` [runs] int32."""
    terms = tl.exp2((order_to_float(reached << 16) - largest) * scale)
    return tl.where(reached > NOTHING >> 16, terms, 0.0)


@triton.jit
def _bound_of_sum(reached, largest, scale, need):
    """The bound at which the runs' largest alone have some sum."""
    return reached_with(reached, _terms_of_runs(reached, largest, scale), need)


@triton.jit
def _least_bound(reached):
    """That of all runs in which there is something."""
    return tl.min(tl.where(reached > NOTHING >> 16, reached, NO_ID))


@triton.jit
def _first_bound(reached, floor, largest, scale, top_k, wanted, min_p):
    """The bound to begin with, and the sum that the runs' largest have at it. Takes `reached` [runs] int32.

    Two of the best tokens in one run: the runs' largest have not got all of the sum, and yet few runs are read."""
    bound = floor
    guess = wanted
    if top_k > 0:
        bound = reached_with(reached, (reached > NOTHING >> 16).to(tl.float32), top_k.to(tl.float32))
    elif min_p <= 0:  # with min-p everything that reaches the floor is wanted
        bound = _bound_of_sum(reached, largest, scale, wanted)
        if (bound == NO_BOUND) | (tl.sum((reached >= bound).to(tl.int32)) > MOST_SURE):
            guess = LIKELY * tl.minimum(wanted, tl.sum(_terms_of_runs(reached, largest, scale)))
            bound = _bound_of_sum(reached, largest, scale, guess)
    if bound == NO_BOUND:  # the runs' largest are not enough
        bound = _least_bound(reached)
    return tl.maximum(bound, floor), guess


@triton.jit
def _list_candidates(scratch, row, reached, floor, statistics, filters, vocab_size, BLOCK, MOST: tl.constexpr):
    """Collect, with a lower bound each time, until the candidates hold whatever the filters keep. Returns how many, of
    which more than MOST do not fit, -1 if that took too long; and whether they are all that reaches the floor.

    Takes `floor`: the least bound; `statistics`: largest logit, sum over it, scale, temperature; `filters`: top_k,
    top_p, min_p."""
    largest, row_sum, scale, temperature = statistics
    top_k, top_p, min_p = filters
    wanted = top_p * row_sum * ENOUGH
    bound, need = _first_bound(reached, floor, largest, scale, top_k, wanted, min_p)
    size = tl.zeros((), tl.int32)
    tries = tl.zeros((), tl.int32)
    state = tl.zeros((), tl.int32)  # 1: enough
    while (state == 0) & (tries < MOST_TRIES):
        size = _collect(scratch, row, reached, bound, temperature, vocab_size, BLOCK, MOST)
        if (bound <= floor) | (size > MOST):
            state = tl.full((), 1, tl.int32)
        elif top_k > 0:
            state = (size >= top_k).to(tl.int32)
        else:
            found = _weigh(scratch, size, LEAST, tl.div_rn(largest, temperature), True, MANY).to(tl.float32) / ONE
            state = (found >= wanted).to(tl.int32)
            need = need * tl.maximum(wanted / found, 1.02)
        if state == 0:
            lower = tl.full((), NO_BOUND, tl.int32)
            if top_k <= 0:
                lower = _bound_of_sum(reached, largest, scale, need)
            below = _least_bound(reached)  # the runs' largest have not got that: all runs, and then less
            if bound <= below:
                below = argmax_order(order_to_float(bound << 16) - tl.div_rn(STEP, scale)) >> 16
            bound = tl.maximum(tl.minimum(tl.where(lower == NO_BOUND, below, lower), bound - 1), floor)
        tries += 1
    return tl.where(state == 0, -1, size), bound <= floor


@triton.jit
def _draft_of(row, drafts, row_idx, slot, offset, count, vocab_size, max_spec_len, EDITS: tl.constexpr):
    """Id and index of the draft token behind a row; -1 if there is none, or none that could be accepted."""
    draft_token_ids_ptr = drafts[0]
    token_id = tl.full((), -1, tl.int32)
    if draft_token_ids_ptr is not None:
        drafted = tl.load(draft_token_ids_ptr + row_idx, mask=offset + 1 < count, other=-1)
        token_id = tl.where((drafted >= 0) & (drafted < vocab_size), drafted, -1).to(tl.int32)
    index = token_id
    if token_id >= 0:
        index = index_of(row, token_id, vocab_size, EDITS)
    return token_id, index


@triton.jit
def _logit_at(row, index, vocab_size):
    """The edited logit at an index; -inf at -1."""
    logit = tl.full((), float("-inf"), tl.float32)
    if index >= 0:
        logits, indices = load_one_tile(row, index // TILE, vocab_size)
        logit = tl.max(tl.where(indices == index, logits, float("-inf")))
    return logit


@triton.jit
def probs_row(drafts, slot, offset):
    """Where a row's draft probabilities begin."""
    _, probs_ptr, slot_stride, position_stride = drafts
    return probs_ptr + slot * slot_stride + offset.to(tl.int64) * position_stride


@triton.jit
def _rest_of_block(scratch, begin, size, row, statistics, removed, draft_row, vocab_size, is_whole):
    """[FEW] int64 and int32: weights of `max(target - draft, 0)`, or of the target, and indices, of one block."""
    best, row_sum, kept = statistics
    drafts, slot, offset, has_draft = draft_row
    indices, orders, scaled = _load_candidates(scratch, begin, size, FEW)
    is_kept = (orders >= kept) & (indices != NO_ID)
    weights = tl.where(is_kept, weights_of(scaled, best), 0)
    rest = tl.where(indices == removed, 0, weights)
    if drafts[1] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if has_draft:
            ids = tl.where(is_kept, ids_of(row, tl.where(is_kept, indices, 0), vocab_size), 0)
            target = tl.exp2((scaled - best) * LOG2_E) / row_sum
            draft = tl.load(probs_row(drafts, slot, offset) + ids, mask=is_kept, other=0.0)
            rest = tl.where(is_kept, (tl.maximum(target - draft, 0.0) * ONE).to(tl.int64), 0)
    return tl.where(is_whole, weights, rest), indices


@triton.jit
def _draw_from_list(scratch, size, row, statistics, removed, draft_row, vocab_size, uniform):
    """The index that replaces a draft token, or follows: by the weights of `max(target - draft, 0)`, or of the target
    if that is empty.

    Takes `statistics`: largest scaled logit, sum, order of the least kept; `removed`: the index of a one-hot draft,
    or -1; `draft_row`: dense ones, slot, offset, whether there is a draft."""
    is_whole = tl.full((), 0, tl.int1)
    total = tl.zeros((), tl.int64)
    for begin in range(0, size, FEW):
        rest, _ = _rest_of_block(scratch, begin, size, row, statistics, removed, draft_row, vocab_size, is_whole)
        total += tl.sum(rest)
    is_whole = total == 0
    if is_whole:
        total = _weigh(scratch, size, statistics[2], statistics[0], True, FEW)
    threshold = cdf_thresholds(uniform, total)
    drawn = tl.full((), -1, tl.int32)
    for begin in range(0, size, FEW):
        rest, indices = _rest_of_block(scratch, begin, size, row, statistics, removed, draft_row, vocab_size, is_whole)
        ends = tl.cumsum(rest)
        falls = (ends > threshold) & (threshold >= ends - rest)
        drawn = tl.maximum(drawn, tl.max(tl.where(falls, indices, -1)))
        threshold -= tl.sum(rest)
    return drawn


# The phases of the kernel.


@triton.jit
def _load_words(
    row_words_ptr,  # [all_tiles] int64
    all_tiles,
    TILES: tl.constexpr,
):
    """[TILES] int64: words of the tiles; behind the last, of a tile in which there is nothing."""
    tiles = tl.arange(0, TILES)
    words = tl.load(row_words_ptr + tiles, mask=tiles < all_tiles, other=0)
    return tl.where(tiles < all_tiles, words, tl.full((TILES,), NOTHING, tl.int64) << 32)


@triton.jit
def _load_reached(
    row_reached_ptr,  # [num_runs] int16
    all_tiles,
    TILES: tl.constexpr,
):
    """[TILES * RUNS] int32: what the runs reach.

    Not by `other`: of two masked int16 in one register Triton 3.6 gives the second one -1 for any negative number."""
    runs = tl.arange(0, TILES * RUNS)
    reached = tl.load(row_reached_ptr + runs, mask=runs < all_tiles * RUNS, other=0).to(tl.int32)
    return tl.where(runs < all_tiles * RUNS, reached, NO_BOUND)


@triton.jit
def _load_filters(parameters, slot, vocab_size):
    """top_k, 0 if it is off, top_p, min_p."""
    top_k = load_or(parameters[1], slot, tl.zeros((), tl.int32))
    top_p = load_or(parameters[2], slot, tl.full((), 1.0, tl.float32))
    min_p = load_or(parameters[3], slot, tl.zeros((), tl.float32))
    return tl.where(top_k >= vocab_size, 0, top_k), top_p, min_p


@triton.jit
def _filter(memory, row, statistics, filters, vocab_size, all_tiles, TILES: tl.constexpr, BLOCK, MOST: tl.constexpr):
    """The order of the least that is kept, how many candidates are listed, -1 if words were made anew, and the sum.

    Takes `memory`: of this row, the words, what runs reach, and the list; `statistics`: as `_list_candidates`."""
    words_ptr, reached_ptr, listed = memory
    largest, row_sum, scale, temperature = statistics
    top_k, top_p, min_p = filters
    best = tl.div_rn(largest, temperature)
    floor = tl.maximum(argmax_order(best + tl.log(min_p)), NOTHING + 1)
    reached = _load_reached(reached_ptr, all_tiles, TILES)
    # Rounded down, and once more for the rounding of quotients.
    least = tl.maximum((argmax_order(order_to_float(floor) * temperature) >> 16) - 1, NOTHING >> 16)
    size, is_all = _list_candidates(listed, row, reached, least, statistics, filters, vocab_size, BLOCK, MOST)
    kept = floor
    if (size < 0) | (size > MOST):
        size = tl.full((), -1, tl.int32)
        kept = _bisect_row(row, all_tiles, best, floor, top_k, top_p, temperature, vocab_size, BLOCK)
        _filter_words(words_ptr, row, all_tiles, kept, scale, temperature, vocab_size, BLOCK)
        tl.debug_barrier()
        row_sum = _sum_of_words(_load_words(words_ptr, all_tiles, TILES), largest, scale)
    else:
        seen = tl.where((top_k > 0) | is_all, -1.0, row_sum)
        if size <= FEW:
            kept = _thresholds_of_few(listed, size, best, floor, top_k, top_p, seen)
        else:
            kept = _thresholds_of_many(listed, size, best, floor, top_k, top_p, seen)
        row_sum = (_weigh(listed, size, kept, best, True, FEW).to(tl.float64) / ONE).to(tl.float32)
    return kept, size, row_sum


@triton.jit
def _probability(logit, size, statistics):
    """Of one kept logit. A list's sum is one of quotients, and these are rounded: so are they here, or probabilities
    would not add up to 1. Takes `statistics`: as `_list_candidates`."""
    largest, row_sum, scale, temperature = statistics
    of_quotients = (scaled_by(logit, temperature) - tl.div_rn(largest, temperature)) * LOG2_E
    return tl.div_rn(tl.exp2(tl.where(size >= 0, of_quotients, (logit - largest) * scale)), row_sum)


@triton.jit
def _is_accepted(row, draft_row, token_id, index, kept, size, statistics, uniform, vocab_size):
    """Whether the draft token is, and its probability. Takes `statistics`: as `_list_candidates`."""
    drafts, slot, offset, _ = draft_row
    logit = _logit_at(row, index, vocab_size)
    is_kept = (token_id >= 0) & (scaled_order(logit, statistics[3]) >= kept)
    target = tl.where(is_kept, _probability(logit, size, statistics), 0.0)
    draft = tl.full((), 1.0, tl.float32)
    if drafts[1] is not None:
        draft = tl.load(probs_row(drafts, slot, offset) + token_id, mask=token_id >= 0, other=0.0)
    ratio = tl.div_rn(target, draft)
    return (target > 0) & (draft > 0) & (ratio.to(tl.float64) >= uniform), target


@triton.jit
def _draw(memory, row, draft_row, index, kept, size, statistics, uniform, vocab_size, all_tiles, TILES: tl.constexpr):
    """The index of the token that replaces the draft token, or follows; STREAMED if `emit` has to read the row."""
    words_ptr, _, listed = memory
    largest, row_sum, scale, temperature = statistics
    drafts, _, _, has_draft = draft_row
    removed = tl.where(drafts[1] is None, index, -1)
    drawn = tl.full((), STREAMED, tl.int32)
    if size >= 0:
        kept_of = (tl.div_rn(largest, temperature), row_sum, kept)
        drawn = _draw_from_list(listed, size, row, kept_of, removed, draft_row, vocab_size, uniform)
    elif (drafts[1] is None) | (not has_draft):
        words = _load_words(words_ptr, all_tiles, TILES)
        drawn = _draw_from_tiles(row, words, removed, kept, largest, scale, temperature, vocab_size, uniform)
        if drawn < 0:  # nothing else is kept
            drawn = _draw_from_tiles(row, words, -1, kept, largest, scale, temperature, vocab_size, uniform)
    return drawn


@triton.jit
def _settle_greedy(results, row, row_idx, words, token_id, vocab_size, EDITS: tl.constexpr, LOGPROBS: tl.constexpr):
    """Accept the draft token if it is the argmax. Takes `words` [TILES] int64."""
    accepted_ptr, tokens_ptr, _, _, logprobs_ptr = results
    token = _argmax(row, words, vocab_size, EDITS)
    tl.store(accepted_ptr + row_idx, (token == token_id).to(tl.int32))
    tl.store(tokens_ptr + row_idx, token)
    if LOGPROBS:
        tl.store(logprobs_ptr + 2 * row_idx, 0.0)
        tl.store(logprobs_ptr + 2 * row_idx + 1, 0.0)


@triton.jit
def _publish(
    results, row, row_idx, accepted, target, drawn, kept, size, statistics, vocab_size, LOGPROBS: tl.constexpr
):
    """What `emit` needs of a random row."""
    accepted_ptr, tokens_ptr, kept_ptr, statistics_ptr, logprobs_ptr = results
    token = tl.where(drawn == STREAMED, STREAMED, 0)
    if drawn >= 0:
        token = ids_of(row, drawn, vocab_size)
    tl.store(accepted_ptr + row_idx, accepted.to(tl.int32))
    tl.store(tokens_ptr + row_idx, token)
    tl.store(kept_ptr + row_idx, kept)
    tl.store(statistics_ptr + 2 * row_idx, statistics[0])
    tl.store(statistics_ptr + 2 * row_idx + 1, statistics[1])
    if LOGPROBS:
        own = _logit_at(row, tl.where(drawn >= 0, drawn, -1), vocab_size)
        tl.store(logprobs_ptr + 2 * row_idx, tl.log(target))
        tl.store(logprobs_ptr + 2 * row_idx + 1, tl.log(_probability(own, size, statistics)))


@triton.jit
def _emit_as_last(
    output,
    results,
    arrivals_ptr,  # [batch_size] int32, 0 before and after a step
    drafts,
    request,
    max_spec_len,
    vocab_size,
    LOGPROBS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """The last of a request's programs emits its tokens: a kernel less to wait for. Takes `request`: `write_tokens`."""
    req_idx, first, count = request
    tl.debug_barrier()  # every thread has written what it found, before one of them says so
    arrived = tl.atomic_add(arrivals_ptr + req_idx, 1)
    if arrived + 1 == tl.maximum(count, 1):
        tl.store(arrivals_ptr + req_idx, 0)
        num_accepted = count_accepted(results[0], first, count, POSITIONS)
        token_ptr = results[1] + (first + num_accepted).to(tl.int64)
        token = tl.load(token_ptr, mask=count > 0, other=-1, cache_modifier=".cg")
        write_tokens(
            output, results[4], drafts[0], request, num_accepted, token, max_spec_len, vocab_size, LOGPROBS, POSITIONS
        )


@triton.jit(do_not_specialize=["num_rows", "max_spec_len"])
def settle_kernel(
    output,  # token_ids [batch_size, max_spec_len + 1] int32, num_tokens [batch_size] int32, logprobs; or three None
    arrivals_ptr,  # [batch_size] int32, 0 before and after a step
    results,  # accepted [max_rows] int32, tokens [max_rows] int32, kept [max_rows] int32, statistics and logprobs
    words_ptr,  # [max_rows, all_tiles] int64
    run_reached_ptr,  # [max_rows, num_runs] int16, or None
    scratch,  # runs [max_rows, TILES * RUNS] int32, indices [max_rows, MOST] int32, logits [max_rows, MOST] float32
    inputs,
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32, or None
    seeds_ptr,  # [num_slots] int64
    positions_ptr,  # [batch_size] int64
    parameters,  # temperature, top_k, top_p, min_p: [num_slots] each, or None
    drafts,  # ids [num_rows] int32, probabilities [num_slots, max_spec_len, vocab_size] float32 and their strides
    num_rows,
    max_spec_len,
    vocab_size,
    all_tiles,
    FILTERS: tl.constexpr,
    EDITS: tl.constexpr,
    LOGPROBS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    POSITIONS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_kernel_before(OVERLAPS)
    let_next_kernel_start(OVERLAPS)
    # Find the row.
    req_idx = tl.program_id(0)
    offset = tl.program_id(1)
    first, count, slot = find_request(cu_num_rows_ptr, slots_ptr, req_idx, num_rows, max_spec_len)
    row_idx = (first + offset).to(tl.int64)
    if offset < count:
        row = (inputs, locate(inputs, row_idx, slot))
        words_ptr += row_idx * all_tiles
        words = _load_words(words_ptr, all_tiles, TILES)
        token_id, index = _draft_of(row, drafts, row_idx, slot, offset, count, vocab_size, max_spec_len, EDITS)
        given = tl.load(parameters[0] + slot)
        if given == 0:
            _settle_greedy(results, row, row_idx, words, token_id, vocab_size, EDITS, LOGPROBS)
        else:
            # Softmax statistics of the whole row.
            temperature = tl.maximum(given, MIN_TEMPERATURE)
            scale = exponent_scale(temperature)
            largest = order_to_float(tl.max((words >> 32).to(tl.int32)))
            row_sum = _sum_of_words(words, largest, scale)
            has_quotients = tl.abs(tl.div_rn(largest, temperature)) < float("inf")
            row_sum = tl.where(has_quotients, row_sum, float("nan"))
            is_valid = (row_sum > 0) & (row_sum < float("inf"))
            # Filter.
            listed = (scratch[0], scratch[1], scratch[2], temperature)
            memory = (words_ptr, run_reached_ptr, listed)
            kept = tl.full((), NOTHING + 1, tl.int32)
            size = tl.full((), -1, tl.int32)
            if FILTERS:
                runs_ptr, indices_ptr, logits_ptr = scratch
                indices_ptr += row_idx * MOST
                listed = (runs_ptr + row_idx * TILES * RUNS, indices_ptr, logits_ptr + row_idx * MOST, temperature)
                memory = (words_ptr, run_reached_ptr + row_idx * all_tiles * RUNS, listed)
                filters = _load_filters(parameters, slot, vocab_size)
                if is_valid & ((filters[0] > 0) | (filters[1] < 1) | (filters[2] > 0)):
                    whole = (largest, row_sum, scale, temperature)
                    kept, size, row_sum = _filter(
                        memory, row, whole, filters, vocab_size, all_tiles, TILES, BLOCK, MOST
                    )
            statistics = (largest, row_sum, scale, temperature)
            # Accept or reject the draft token, and draw the one that replaces it, or follows.
            position = tl.load(positions_ptr + req_idx) + offset
            accepting, drawing = philox_uniforms(tl.load(seeds_ptr + slot), position, VERIFY_STREAM)
            draft_row = (drafts, slot, offset, offset + 1 < count)
            accepted, target = _is_accepted(
                row, draft_row, token_id, index, kept, size, statistics, accepting, vocab_size
            )
            drawn = tl.full((), -1, tl.int32)
            if is_valid:
                drawn = _draw(
                    memory, row, draft_row, index, kept, size, statistics, drawing, vocab_size, all_tiles, TILES
                )
            accepted = accepted & is_valid
            _publish(results, row, row_idx, accepted, target, drawn, kept, size, statistics, vocab_size, LOGPROBS)
    # Emit the tokens of the request.
    if output[0] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if offset < tl.maximum(count, 1):
            request = (req_idx, first, count)
            _emit_as_last(output, results, arrivals_ptr, drafts, request, max_spec_len, vocab_size, LOGPROBS, POSITIONS)
