"""Rows that keep more than a list holds: a sample says between which two orders a threshold lies, and a reading proves
it.

    a sample           8192 entries, all over the row       where the threshold is, about
    reading 1          | below a | from a on: listed | from b on: summed |         the threshold is among the listed
    reading 2          tiles are made anew, of what is kept

Sums are of integers, and exact: a sample that misleads costs another reading, and no token. The second threshold of a
row, top-p after top-k, takes another reading. Most rows have both their thresholds among few candidates (`candidates`)
and come here never; whether they do depends on nothing but the row.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import LOG2_E, argmax_order
from .bisection import ONE, highest_with, middle_of, weights_of
from .candidates import load_candidates
from .drawing import load_words, sum_of_words
from .named import Sample
from .rows import LEAST, NOTHING, RUNS, WORDS, load_logits, order_to_float, scaled_by, words_of_runs, words_of_tiles
from .scan import exp2_terms, sum_tiles

SAMPLED_WORDS = tl.constexpr(256)
SAMPLED = tl.constexpr(256 * 32)
SURE = tl.constexpr(3.5)
"""Standard deviations between an order that a sample gives and either end of its bracket."""
FULL, SIDE = tl.constexpr(0.85), tl.constexpr(0.45)
"""Share of a list that a bracket may be expected to fill, and of that, either side of its middle."""
HALVINGS = tl.constexpr(17)
"""Steps of a search among a sample. They leave 32,768 orders at most, in which the next entry is taken: half of what is
between two bfloat16 numbers."""
NEAR = tl.constexpr(64)
"""Orders around a product in which the least one is looked for first: rounding moves it by a few."""
BEHIND_ALL = tl.constexpr(0x7F800001)
"""The order behind that of infinity: of NaN, which nothing reaches."""
TILES_AT_ONCE = tl.constexpr(16)
"""Tiles that are made anew at once: one for each warp."""
MOST_GUESSES = tl.constexpr(4)
"""Readings after which a bracket of orders is halved instead: then 32 of them end any search."""


@triton.jit
def _sample(row, all_tiles, best, temperature, vocab_size):
    """Return a `Sample` of a row: words of it that are equally far apart, or all."""
    words, num_words = tl.arange(0, SAMPLED_WORDS), all_tiles * (RUNS * WORDS)
    if num_words > SAMPLED_WORDS:
        words = words * num_words // SAMPLED_WORDS
    logits = load_logits(row, tl.reshape(words, (SAMPLED_WORDS // WORDS, WORDS)), vocab_size)
    scaled = scaled_by(tl.reshape(logits, (SAMPLED,)), temperature)
    orders = tl.where(scaled > float("-inf"), argmax_order(scaled), LEAST)
    each = tl.maximum(num_words, SAMPLED_WORDS).to(tl.float32) / SAMPLED_WORDS
    return Sample(orders, tl.exp2((scaled - best) * LOG2_E), each)


@triton.jit
def _first_rest(sample, low, whole, filters, by_sum):
    """Return about how much the filter takes of what is at or above an order: a weight, or a count.

    The sample may have none of a few heavy entries. So weights are counted from below, where they are light and many,
    and taken off the row's sum, which the scan knows."""
    below = tl.sum(tl.where(sample.orders < low, sample.weights, 0.0)) * sample.each
    count = tl.sum((sample.orders >= low).to(tl.float32)) * sample.each
    return tl.where(by_sum, (whole.row_sum - below) * (1.0 - filters.top_p), count - filters.top_k)


@triton.jit
def _order_above(orders, weights, low, high, rest):
    """Return an order from `low` to `high` that a weight of at most `rest` is below: the highest one, or one a little
    lower; that of an entry, if there is one above.

    Takes `weights` [SAMPLED] float32, 0 where an entry is not to be counted."""
    begin, end = low.to(tl.int64), high.to(tl.int64) + 1
    for _ in range(0, HALVINGS):
        middle = ((begin + end) >> 1).to(tl.int32)
        begin, end = _half_of(tl.sum(tl.where(orders < middle, weights, 0.0)) <= rest, begin, middle, end)
    return _next_entry(orders, weights, begin, high)


@triton.jit
def _orders_around(orders, counts, low, center, high, rests):
    """Return `_order_above` of what is below the center, and of what is from there on: both searches at once, so that
    the sums of one fill the waits of the other."""
    first, second = rests
    begin, end = low.to(tl.int64), center.to(tl.int64) + 1
    start, stop = center.to(tl.int64), high.to(tl.int64) + 1
    for _ in range(0, HALVINGS):
        middle, other = ((begin + end) >> 1).to(tl.int32), ((start + stop) >> 1).to(tl.int32)
        begin, end = _half_of(tl.sum(tl.where(orders < middle, counts, 0.0)) <= first, begin, middle, end)
        start, stop = _half_of(tl.sum(tl.where(orders < other, counts, 0.0)) <= second, start, other, stop)
    return _next_entry(orders, counts, begin, center), _next_entry(orders, counts, start, high)


@triton.jit
def _half_of(is_low, begin, middle, end):
    """Return the ends of the upper half, or of the lower one."""
    return tl.where(is_low, middle.to(tl.int64), begin), tl.where(is_low, end, middle.to(tl.int64))


@triton.jit
def _next_entry(orders, weights, found, high):
    """Return the order of the first entry from one on, or `high`."""
    return tl.minimum(tl.min(tl.where((orders >= found.to(tl.int32)) & (weights > 0), orders, high)), high)


@triton.jit
def _around(sample, low, high, rest, most, by_sum):
    """Return two orders with the one between them that leaves `rest` below it of what is in [low, high): by the sample,
    and with at most `most` of its entries between them. Of too many equal entries, it is theirs alone."""
    counts = ((sample.orders >= low) & (sample.orders < high)).to(tl.float32)
    weights = tl.where(by_sum, counts * sample.weights, counts)
    center = _order_above(sample.orders, weights, low, high - 1, tl.maximum(rest, 0.0) / sample.each)
    num_below = tl.sum(tl.where(sample.orders < center, counts, 0.0))
    num_from = tl.sum(counts) - num_below
    # Counts vary as their smaller part does; weights are unequal, and so vary more.
    fewer = tl.minimum(num_from, num_below)
    slack = tl.sqrt(tl.where(by_sum, 2.0 * fewer + 64.0, fewer)) * SURE + 8.0
    slack = tl.minimum(slack, most * SIDE)
    rests = num_below - slack, num_below + slack
    below, above = _orders_around(sample.orders, counts, low, center, high - 1, rests)
    lower = tl.where(num_below > slack, below, low)
    above = tl.where(num_from > slack, tl.maximum(above, center), high - 1)
    # All that is equal to the last one, if that is not too much.
    num_inside = tl.sum(tl.where((sample.orders >= lower) & (sample.orders < above), counts, 0.0))
    num_equal = tl.sum(tl.where(sample.orders == above, counts, 0.0))
    upper = tl.where(num_inside + num_equal <= most, above + 1, tl.maximum(above, center + 1))
    is_little = num_inside + tl.where(upper > above, num_equal, 0.0) <= most
    return tl.where(is_little, lower, center), tl.where(is_little, upper, center + 1)


@triton.jit
def _quotient_of(order, temperature):
    """Return the order of what the number of an order becomes by a temperature."""
    return argmax_order(tl.div_rn(order_to_float(order.to(tl.int32)), temperature))


@triton.jit
def _least_logit_of(order, temperature):
    """Return the least number whose quotient by the temperature has an order, or a higher one; NaN if none has.

    So a row is read without a division for each entry."""
    low, high = tl.full((), NOTHING, tl.int64), tl.full((), BEHIND_ALL, tl.int64)
    near = argmax_order(order_to_float(order) * temperature).to(tl.int64)
    below, above = tl.maximum(near - NEAR, low), tl.minimum(near + NEAR, high - 1)
    low = tl.where(_quotient_of(below, temperature) < order, below + 1, low)
    high = tl.where(_quotient_of(above, temperature) >= order, above, high)
    while low < high:
        middle = (low + high) >> 1
        reaches = _quotient_of(middle, temperature) >= order
        low = tl.where(reaches, low, middle + 1)
        high = tl.where(reaches, middle, high)
    return order_to_float(low.to(tl.int32))


@triton.jit
def _divide(lists, row, all_tiles, ends, whole, vocab_size, by_sum, is_listed, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """Return how many entries are from `lower` to below `upper`, and the counts or sums, over 2**-40, of what is at or
    above each of the `ends`: logits `floor`, `lower` and `upper`. List the entries between if they fit.

    Places in the list are taken one by one, which costs less than to count what is before each: no warp waits for
    another. So its order differs from call to call, and nothing depends on that. If they are not to be listed, more
    than MOST are reported."""
    floor, lower, upper = ends
    scale = tl.where(by_sum, whole.scale, 0.0)  # counted, every term is exp2(0)
    total = tl.zeros((BLOCK, WORDS), tl.int64)
    above_lower, above_upper = total, total
    # The row's list of runs is over: its first number is the size of the list now.
    tl.store(lists.runs_ptr, tl.where(is_listed, 0, MOST + 1))
    tl.debug_barrier()
    next_logits = load_logits(row, words_of_runs(tl.arange(0, BLOCK)), vocab_size)
    for begin in range(0, all_tiles * RUNS, BLOCK):
        logits = next_logits
        next_logits = load_logits(row, words_of_runs(begin + BLOCK + tl.arange(0, BLOCK)), vocab_size)
        terms = tl.where(logits >= floor, exp2_terms(logits, whole.largest, scale), 0.0)
        total += _sums_of_words(terms)
        above_lower += _sums_of_words(tl.where(logits >= lower, terms, 0.0))
        above_upper += _sums_of_words(tl.where(logits >= upper, terms, 0.0))
        is_inside = (logits >= lower) & (logits < upper) & is_listed
        size_ptrs = lists.runs_ptr + tl.zeros_like(logits).to(tl.int32)
        places = tl.atomic_add(size_ptrs, 1, mask=is_inside, sem="relaxed")
        tl.store(lists.logits_ptr + places, logits, mask=is_inside & (places < MOST))
    tl.debug_barrier()
    size = tl.load(lists.runs_ptr, cache_modifier=".cg")  # atomic additions are made in L2
    return size, _sum(total), _sum(above_lower), _sum(above_upper)


@triton.jit
def _sums_of_words(terms):
    """Return [BLOCK, WORDS] int64: sums over 2**-40. 32 terms add up alike in any program; integers do anyway.

    Takes `terms` [BLOCK, WORDS, 32] float32."""
    return (tl.sum(terms, axis=2) * ONE).to(tl.int64)


@triton.jit
def _sum(sums):
    """Return the sum of [BLOCK, WORDS] integers."""
    return tl.sum(tl.sum(sums, axis=1))


@triton.jit
def _need_of(total, filters, by_sum):
    """Return what is to be kept at least, of a count or sum over 2**-40."""
    share = tl.maximum((total.to(tl.float64) * filters.top_p.to(tl.float64)).to(tl.int64), 1)
    return tl.where(by_sum, share, tl.minimum(filters.top_k.to(tl.int64) << 40, total))


@triton.jit
def _threshold(
    lists, row, all_tiles, floor, whole, filters, vocab_size, by_sum, BLOCK: tl.constexpr, MOST: tl.constexpr
):
    """Return the order of the least that one filter keeps of what is at or above the floor."""
    best = tl.div_rn(whole.largest, whole.temperature)
    low, high = floor, tl.maximum(argmax_order(best), floor) + 1
    least = _least_logit_of(floor, lists.temperature)
    need, above, reach = tl.zeros((), tl.int64), tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    size, guesses = tl.full((), MOST + 1, tl.int32), tl.zeros((), tl.int32)
    overflows, rest = guesses > 0, tl.zeros((), tl.float32)
    while (size > MOST) & (low + 1 < high):
        # Guess where the threshold is.
        lower, upper = low, middle_of(low, high)
        if guesses < MOST_GUESSES:
            sample = _sample(row, all_tiles, best, whole.temperature, vocab_size)
            if guesses == 0:
                rest = _first_rest(sample, floor, whole, filters, by_sum)
            most = tl.where(overflows, 0.0, tl.maximum(1.0 / sample.each * MOST * FULL, 1.0))
            lower, upper = _around(sample, low, high, rest, most, by_sum)
        # Read the row.
        ends = (least, _least_logit_of(lower, lists.temperature), _least_logit_of(upper, lists.temperature))
        size, total, from_lower, from_upper = _divide(
            lists, row, all_tiles, ends, whole, vocab_size, by_sum, lower + 1 < upper, BLOCK, MOST
        )
        need = _need_of(total, filters, by_sum)
        # Go on in the part that has it.
        is_above, is_below = from_upper >= need, from_lower < need
        overflows = (size > MOST) & (not (is_above | is_below))
        size = tl.where(is_above | is_below, MOST + 1, size)
        reach = tl.where(is_above, from_upper, tl.where(is_below, tl.where(guesses == 0, total, reach), from_lower))
        above = tl.where(is_above, above, tl.where(is_below, from_lower, from_upper))
        high = tl.where(is_above, high, tl.where(is_below, lower, upper))
        low = tl.where(is_above, upper, tl.where(is_below, low, lower))
        rest = ((reach - need).to(tl.float64) / ONE).to(tl.float32)
        guesses += 1
    kept = low
    if size <= MOST:
        _, orders, scaled = load_candidates(lists, 0, size, MOST)
        weights = tl.where(orders > LEAST, tl.where(by_sum, weights_of(scaled, best), 1 << 40), 0)
        kept = highest_with(orders, weights, low, need - above)
    return kept


@triton.jit
def _write_words(memory, row, all_tiles, kept, statistics, vocab_size):
    """Write the words of a row's tiles again, of what is kept alone."""
    least = _least_logit_of(kept, statistics.temperature)
    next_logits = load_logits(row, words_of_tiles(tl.arange(0, TILES_AT_ONCE)), vocab_size)
    for begin in range(0, all_tiles, TILES_AT_ONCE):
        tiles, logits = begin + tl.arange(0, TILES_AT_ONCE), next_logits
        next_logits = load_logits(row, words_of_tiles(tiles + TILES_AT_ONCE), vocab_size)
        words, _ = sum_tiles(tl.where(logits >= least, logits, float("-inf")), statistics.scale)
        tl.store(memory.words_ptr + row.place.row_idx * all_tiles + tiles, words, mask=tiles < all_tiles)


@triton.jit
def filter_flat(memory, lists, row, whole, filters, floor, sizes, PLAN: tl.constexpr):
    """Return the order of the least that is kept of a flat row, and the sum of that.

    Takes `whole`: the statistics of the whole row; `floor`: the least order that min-p leaves."""
    kept, all_tiles, vocab_size = floor, sizes.all_tiles, sizes.vocab_size
    for which in range(0, 2):
        by_sum = which == 1
        if tl.where(by_sum, filters.top_p < 1, filters.top_k > 0):
            kept = _threshold(lists, row, all_tiles, kept, whole, filters, vocab_size, by_sum, PLAN.block, PLAN.most)
    _write_words(memory, row, all_tiles, kept, whole, vocab_size)
    tl.debug_barrier()
    words = load_words(memory, row.place.row_idx, all_tiles, PLAN.tiles)
    return kept, sum_of_words(words, whole.largest, whole.scale)
