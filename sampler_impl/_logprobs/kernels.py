"""The Triton backend of `logprobs`: each logit is read once, and no row of log-probabilities is ever written.

    scan     one program per strip of tiles       running maximum and sum of exp (rescaled when the maximum grows), the
                                                  number of logits as large as the row's token, and the best words
    merge    one program per row                  the strips become a log-softmax, a rank and a sorted list

    row      [ tile | tile | tile | tile ][ tile | tile | tile | tile ][ tile ...
                strip 0                      strip 1
    strip    max, sum, count, {best words}   -> merge ->   values, rank, ids

A strip keeps its best words unsorted in registers. A tile replaces the least of them as long as it has a better one:
the first tile fills the list, and later ones hardly ever have work. Words (`_shared.kernels`) hold the order of a logit
and its id, so that no two are equal and ties go to the lowest id, however the vocabulary is cut.

Tiles and strips are constants, and a row is nobody else's: its bits do not depend on the batch. Values are
`(logit - max) - log(sum)`, whatever the number that is asked for; a rounded log-sum-exp is never subtracted.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._shared.kernels import LOG2_E, NO_WORD, argmax_order, argmax_token, argmax_word, quiet_numpy

if TYPE_CHECKING:
    from .._shared.tensors import LogitRows, RowInts

TILE = 4096
"""Vocabulary entries that are in registers at once."""

STRIP_TILES = 4
"""Tiles of one program of the scan. Constant, because sums depend on it."""

ROWS = 1
"""Rows of one program. A GPU is filled by a program for each row."""

LN_2 = tl.constexpr(0.6931471805599453)


def top_logprobs(
    logits: LogitRows, emitted_token_ids: RowInts, number: int, *, normalise: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # [num_rows, 1 + num_logprobs] int64, as below
    """Return ids, values as float32, ranks [num_rows] int64, and statistics [num_rows, 2] float32: the maximum and the
    logarithm of the sum.

    Args:
        number: At most `MOST_STREAMED`.

    Traffic:
        The logits once, and of each strip a list of `number` words.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    num_rows, vocab_size = logits.shape
    tile = min(TILE, triton.next_power_of_2(vocab_size))
    num_strips = triton.cdiv(vocab_size, tile * STRIP_TILES)
    slots = triton.next_power_of_2(max(number, 1))

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:  # [...] any
        return torch.empty(shape, dtype=dtype, device=logits.device)

    words = empty(num_rows, num_strips, slots, dtype=torch.int64)
    sums = empty(num_rows, num_strips, 2, dtype=torch.float32)
    counts = empty(num_rows, num_strips, dtype=torch.int32)
    found_ids = empty(num_rows, 1 + number, dtype=torch.int64)
    values = empty(num_rows, 1 + number, dtype=torch.float32)
    ranks, statistics = empty(num_rows, dtype=torch.int64), empty(num_rows, 2, dtype=torch.float32)
    if num_rows == 0:
        return found_ids, values, ranks, statistics
    shared = {
        "words_ptr": words,
        "sums_ptr": sums,
        "strip_counts_ptr": counts,
        "logits_ptr": logits,
        "emitted_token_ids_ptr": emitted_token_ids.contiguous(),
        "num_rows": num_rows,
        "vocab_size": vocab_size,
        "row_stride": logits.stride(0),
        "NUMBER": number,
        "SLOTS": slots,
        "ROWS": ROWS,
    }
    blocks = triton.cdiv(num_rows, ROWS)
    with quiet_numpy(), torch.cuda.device_of(logits):
        _scan_kernel[(blocks, num_strips)](**shared, TILE=tile, STRIP_TILES=STRIP_TILES, num_warps=4)
        _merge_kernel[(blocks,)](
            **shared,
            found_ids_ptr=found_ids,
            logprobs_ptr=values,
            ranks_ptr=ranks,
            statistics_ptr=statistics,
            num_strips=num_strips,
            STRIPS=triton.next_power_of_2(num_strips),
            NORMALISE=normalise,
            num_warps=4,
        )
    return found_ids, values, ranks, statistics


@triton.jit
def _token_logits(
    logits_ptr,  # [num_rows, vocab_size] float32
    emitted_token_ids_ptr,  # [num_rows] int64
    rows,
    is_row,
    vocab_size,
    row_stride,
):
    """Return token and logit of each row; id 0 if it emitted nothing. Takes `rows` [...] int64; `is_row` [...] bool."""
    tokens = tl.load(emitted_token_ids_ptr + rows, mask=is_row, other=0).to(tl.int64)
    tokens = tl.where((tokens >= 0) & (tokens < vocab_size), tokens, 0)
    return tokens, tl.load(logits_ptr + rows * row_stride + tokens, mask=is_row, other=0.0).to(tl.float32)


@triton.jit
def _reference(maxima):
    """Return the maximum, or 0 where there is nothing finite to subtract. Takes `maxima` [...] float32."""
    return tl.where(tl.abs(maxima) < float("inf"), maxima, 0.0)


@triton.jit
def _scan_kernel(
    words_ptr,  # [num_rows, num_strips, num_candidates] int64, written
    sums_ptr,  # [num_rows, num_strips, 2] float32, written
    strip_counts_ptr,  # [num_rows, num_strips] int32, written
    logits_ptr,  # [num_rows, vocab_size] float32
    emitted_token_ids_ptr,  # [num_rows] int64
    num_rows,
    vocab_size,
    row_stride,
    NUMBER: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STRIP_TILES: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    strip, num_strips = tl.program_id(1), tl.num_programs(1)
    is_row = rows < num_rows
    _tokens, own = _token_logits(logits_ptr, emitted_token_ids_ptr, rows, is_row, vocab_size, row_stride)

    maxima = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.full([ROWS], 0.0, tl.float32)
    counts = tl.full([ROWS], 0, tl.int32)
    slots = tl.arange(0, SLOTS)[None, :]
    # Slots behind the list are full from the beginning, so that nothing replaces them.
    best = tl.where(slots < NUMBER, NO_WORD, -NO_WORD - 1) + tl.zeros([ROWS, SLOTS], tl.int64)
    tile = tl.zeros((), tl.int32)
    # Not `for`: Triton 3.6 ends in an assertion (OptimizeThreadLocality) where a sum is added to a sum that is scaled.
    while tile < STRIP_TILES:
        token_ids = ((strip * STRIP_TILES + tile) * TILE + tl.arange(0, TILE))[None, :]
        is_token = (token_ids < vocab_size) & is_row[:, None]
        pointers = logits_ptr + rows[:, None] * row_stride + token_ids
        logits = tl.load(pointers, mask=is_token, other=float("-inf")).to(tl.float32)

        # Online log-sum-exp. Subtracted before scaling: the difference of near logits is exact.
        larger = tl.maximum(maxima, tl.max(logits, 1))
        rescale = tl.where(maxima == larger, 1.0, tl.exp2((maxima - larger) * LOG2_E))
        sums = sums * rescale + tl.sum(tl.exp2((logits - _reference(larger)[:, None]) * LOG2_E), 1)
        maxima = larger

        # Rank: padded lanes are -inf and must not count beside a token that is.
        counts += tl.sum((is_token & (logits >= own[:, None])).to(tl.int32), 1)

        # List: the tile's best word replaces the least of the list, as long as it is better.
        if NUMBER > 0:
            words = tl.where(is_token, argmax_word(argmax_order(logits), token_ids), NO_WORD)
            candidate, least = tl.max(words, 1), tl.min(best, 1)
            while tl.max((candidate > least).to(tl.int32), 0) > 0:
                enters = (candidate > least)[:, None]
                # Empty slots are equal: only the first of them is replaced.
                is_least = best == least[:, None]
                first = tl.min(tl.where(is_least, slots, SLOTS), 1)
                best = tl.where(enters & (slots == first[:, None]), candidate[:, None], best)
                words = tl.where(enters & (words == candidate[:, None]), NO_WORD, words)
                candidate, least = tl.max(words, 1), tl.min(best, 1)
        tile += 1

    place = rows * num_strips + strip
    tl.store(sums_ptr + place * 2, maxima, mask=is_row)
    tl.store(sums_ptr + place * 2 + 1, sums, mask=is_row)
    tl.store(strip_counts_ptr + place, counts, mask=is_row)
    if NUMBER > 0:
        tl.store(words_ptr + place[:, None] * SLOTS + slots, best, mask=is_row[:, None] & (slots < NUMBER))


@triton.jit
def _merge_kernel(
    words_ptr,  # [num_rows, num_strips, num_candidates] int64
    sums_ptr,  # [num_rows, num_strips, 2] float32
    strip_counts_ptr,  # [num_rows, num_strips] int32
    logits_ptr,  # [num_rows, vocab_size] float32
    emitted_token_ids_ptr,  # [num_rows] int64
    found_ids_ptr,  # [num_rows, 1 + num_logprobs] int64, written
    logprobs_ptr,  # [num_rows, 1 + num_logprobs] float32, written
    ranks_ptr,  # [num_rows] int64, written
    statistics_ptr,  # [num_rows, 2] float32, written
    num_rows,
    vocab_size,
    row_stride,
    num_strips,
    NUMBER: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIPS: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    strips = tl.arange(0, STRIPS)[None, :]
    is_strip = is_row[:, None] & (strips < num_strips)
    places = rows[:, None] * num_strips + strips

    # Statistics of the row.
    strip_max = tl.load(sums_ptr + places * 2, mask=is_strip, other=float("-inf"))
    strip_sum = tl.load(sums_ptr + places * 2 + 1, mask=is_strip, other=0.0)
    row_max = _reference(tl.max(strip_max, 1))
    total = tl.sum(strip_sum * tl.exp2((strip_max - row_max[:, None]) * LOG2_E), 1)
    log_sum = tl.log2(total) * LN_2
    tl.store(statistics_ptr + rows * 2, row_max, mask=is_row)
    tl.store(statistics_ptr + rows * 2 + 1, log_sum, mask=is_row)

    # The row's own token.
    counts = tl.load(strip_counts_ptr + places, mask=is_strip, other=0)
    tl.store(ranks_ptr + rows, tl.sum(counts.to(tl.int64), 1), mask=is_row)
    tokens, own = _token_logits(logits_ptr, emitted_token_ids_ptr, rows, is_row, vocab_size, row_stride)
    columns = rows * (1 + NUMBER)
    tl.store(found_ids_ptr + columns, tokens, mask=is_row)
    tl.store(logprobs_ptr + columns, (own - row_max) - log_sum if NORMALISE else own, mask=is_row)

    # The list, best first.
    if NUMBER > 0:
        flat = tl.arange(0, STRIPS * SLOTS)[None, :]
        is_word = is_row[:, None] & (flat < num_strips * SLOTS) & (flat % SLOTS < NUMBER)
        words = tl.load(words_ptr + rows[:, None] * num_strips * SLOTS + flat, mask=is_word, other=NO_WORD)
        for place in range(NUMBER):
            word = tl.max(words, 1)
            words = tl.where(words == word[:, None], NO_WORD, words)
            token_ids = argmax_token(word)
            logits = tl.load(logits_ptr + rows * row_stride + token_ids, mask=is_row, other=0.0).to(tl.float32)
            tl.store(found_ids_ptr + columns + 1 + place, token_ids, mask=is_row)
            tl.store(
                logprobs_ptr + columns + 1 + place, (logits - row_max) - log_sum if NORMALISE else logits, mask=is_row
            )
