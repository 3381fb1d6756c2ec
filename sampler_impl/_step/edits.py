"""The first kernel of a step with edits: one program per row makes its list of edited ids, each with its new logit.

    allowed ids | biased | stop tokens | ends of bad words | forced      (ids, some twice)
                                    |
             kind and value of every mention are added up per id      bias 1.5 + allowed + excluded
                                    |
             (id, edited logit), the first mention of each id; its bit is set in the row's excluded words, and that
                                    |                            of its block among the row's moved blocks
             the words of the tiles of edits, as `scan` makes those of the vocabulary

A row of which only some ids are allowed, or one is forced, has nothing but its list: `num_edits` is negative then, and
its logits are not read. Bits of the step before are cleared first, by the list that set them.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._counter.arithmetic import store_by_warps
from .rows import (
    BLOCK_WORDS,
    TILE,
    find_request,
    indices_of,
    let_next_kernel_start,
    load_penalties,
    penalised,
    times_drafted,
    words_of_tiles,
)
from .scan import exponent_scale, sum_tiles

ALLOWED = tl.constexpr(1)
BIASED = tl.constexpr(2)
EXCLUDED = tl.constexpr(3)
FORCED = tl.constexpr(4)
CHUNK = tl.constexpr(8)
"""Mentions that are compared with all others at once."""
COUNT_BITS = tl.constexpr(12)
"""Of a count of mentions; those of all kinds are added up in one integer."""


@triton.jit
def _append(
    list_ptrs,
    size,
    mentioned_ptr,  # [max_edits] int32
    values_ptr,  # [max_edits] float32, or None
    count,
    vocab_size,
    KIND: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Write mentions of one kind behind those that are there; what is no token becomes -1. Returns the new size.

    Takes `list_ptrs`: ids [CAPACITY] int32, kinds [CAPACITY] int32, values [CAPACITY] float32."""
    ids_ptr, kinds_ptr, values_out_ptr = list_ptrs
    entries = tl.arange(0, CAPACITY)
    count = tl.maximum(tl.minimum(count, CAPACITY - size), 0)
    mask = entries < count
    mentioned = tl.load(mentioned_ptr + entries, mask=mask, other=0)
    mentioned = tl.where((mentioned >= 0) & (mentioned < vocab_size), mentioned, -1).to(tl.int32)
    tl.store(ids_ptr + size + entries, mentioned, mask=mask)
    tl.store(kinds_ptr + size + entries, entries * 0 + KIND, mask=mask)
    if values_ptr is not None:
        values = tl.load(values_ptr + entries, mask=mask, other=0.0)
        tl.store(values_out_ptr + size + entries, values, mask=mask)
    return size + count


@triton.jit
def _count(
    counts_ptr,  # [num_slots] int32, or None
    slot,
    length,
):
    """How many entries of a slot's list count, whatever the count says."""
    count = tl.zeros((), tl.int32)
    if counts_ptr is not None:
        count = tl.minimum(tl.load(counts_ptr + slot), length)
    return count


@triton.jit
def _token_of_text(
    slot_text_ptr,  # [length] int32, of one slot
    length,
    drafts_ptr,  # [num_rows] int32, of one request, or None
    draft,
    position,
):
    """Return the token of a request's text at `position + draft`: a draft from 0 on, before it one of its text.

    Takes `draft`: at most the row's; known by the draft's number, because a sum with any int64 may wrap round."""
    at = position + draft
    token = tl.load(slot_text_ptr + at, mask=(draft < 0) & (at >= 0) & (at < length), other=-1)
    if drafts_ptr is not None:
        token = tl.where(draft < 0, token, tl.load(drafts_ptr + draft, mask=draft >= 0, other=-1))
    return token


@triton.jit
def _end_of_word(
    offset_ptr,  # [2] int32: where the word begins, and where the next one does
    tokens_ptr,  # [length] int32, of one slot
    slot_text_ptr,  # [length] int32, of one slot
    lengths,
    drafts_ptr,  # [num_rows] int32, of one request, or None
    offset,
    position,
    num_output,
):
    """Where a bad word's last token is, and whether the others end the text of this row."""
    begin = tl.load(offset_ptr)
    last = tl.load(offset_ptr + 1) - 1
    matches = (begin >= 0) & (last >= begin) & (last < lengths[1]) & (num_output >= last - begin)
    for j in range(0, tl.where(matches, last - begin, 0)):
        seen = _token_of_text(slot_text_ptr, lengths[2], drafts_ptr, offset - (last - begin - j), position)
        matches = matches & (seen == tl.load(tokens_ptr + begin + j))
    return last, matches


@triton.jit
def _append_bad_words(
    list_ptrs,
    size,
    words,
    drafts_ptr,  # [num_rows] int32, of one request, or None
    slot,
    position,
    offset,
    vocab_size,
    CAPACITY: tl.constexpr,
):
    """The last token of every bad word whose others end the text of this row."""
    counts_ptr, offsets_ptr, tokens_ptr, text_ptr, starts_ptr, strides, lengths = words
    ids_ptr, kinds_ptr, _ = list_ptrs
    if counts_ptr is not None:
        offsets_ptr += slot * strides[0]
        tokens_ptr += slot * strides[1]
        text_ptr += slot * strides[2]
        num_output = position + offset - tl.load(starts_ptr + slot)
        for word in range(0, _count(counts_ptr, slot, lengths[0] - 1)):
            last, matches = _end_of_word(
                offsets_ptr + word, tokens_ptr, text_ptr, lengths, drafts_ptr, offset, position, num_output
            )
            token_id = tl.load(tokens_ptr + last, mask=matches, other=-1)
            is_listed = (token_id >= 0) & (token_id < vocab_size) & (size < CAPACITY)
            tl.store(ids_ptr + size, token_id, mask=is_listed)
            tl.store(kinds_ptr + size, EXCLUDED, mask=is_listed)
            size += is_listed.to(tl.int32)
    return size


@triton.jit
def _clear_bits(
    excluded_ptr,  # [num_words] int32
    blocks_ptr,  # [num_block_words] int32
    ids_ptr,  # [max_edits] int32
    count,
    vocab_size,
    CAPACITY: tl.constexpr,
):
    """Of the list that the step before left."""
    block_words = tl.arange(0, BLOCK_WORDS)
    tl.store(blocks_ptr + block_words, block_words * 0)
    entries = tl.arange(0, CAPACITY)
    token_ids = tl.load(ids_ptr + entries, mask=entries < tl.abs(count), other=-1)
    tl.store(excluded_ptr + token_ids // 32, token_ids * 0, mask=(token_ids >= 0) & (token_ids < vocab_size))


@triton.jit
def _times(counts, KIND: tl.constexpr):
    """How often an id is mentioned by a kind. Takes `counts` [CAPACITY] int64, as `_add_up` makes them."""
    return ((counts >> (COUNT_BITS * KIND)) & 0xFFF).to(tl.int32)


@triton.jit
def _add_up(list_ptrs, size, token_ids, CAPACITY: tl.constexpr):
    """What all mentions say of each id: its bias, and how often each kind mentions it; as kind 0, how often it was
    mentioned before.

    Takes `token_ids` [CAPACITY] int32."""
    ids_ptr, kinds_ptr, values_ptr = list_ptrs
    entries = tl.arange(0, CAPACITY)
    bias = tl.zeros((CAPACITY,), tl.float32)
    counts = tl.zeros((CAPACITY,), tl.int64)
    for chunk in range(0, tl.cdiv(size, CHUNK)):
        others = chunk * CHUNK + tl.arange(0, CHUNK)
        mask = others < size
        same = token_ids[:, None] == tl.load(ids_ptr + others, mask=mask, other=-1)[None, :]
        kinds = tl.load(kinds_ptr + others, mask=mask, other=0)
        values = tl.load(values_ptr + others, mask=mask & (kinds == BIASED), other=0.0)
        one_of_kind = tl.full((CHUNK,), 1, tl.int64) << tl.where(kinds == FORCED, 0, kinds * COUNT_BITS)
        mentioned = tl.where(kinds == FORCED, 0, one_of_kind)[None, :] + (others[None, :] < entries[:, None])
        bias += tl.sum(tl.where(same, values[None, :], 0.0), axis=1)
        counts += tl.sum(tl.where(same, mentioned, 0), axis=1)
    return bias, counts


@triton.jit
def _list_groups(list_ptrs, groups, slot, position, vocab_size, CAPACITY: tl.constexpr):
    """Mentions of allowed and biased ids and of stop tokens. Returns the size and how many are allowed.

    Takes `groups`: as `edit_kernel`; `position`: of the row's token."""
    allowed, biased, stop = groups
    size = tl.zeros((), tl.int32)
    num_allowed = _count(allowed[0], slot, allowed[3])
    if allowed[0] is not None:
        ids = allowed[1] + slot * allowed[2]
        size = _append(list_ptrs, size, ids, None, num_allowed, vocab_size, ALLOWED, CAPACITY)
    if biased[0] is not None:
        ids = biased[1] + slot * biased[2]
        values = biased[4] + slot * biased[5]
        num_biased = _count(biased[0], slot, biased[3])
        size = _append(list_ptrs, size, ids, values, num_biased, vocab_size, BIASED, CAPACITY)
    if stop[0] is not None:
        num_stop = tl.where(position < tl.load(stop[4] + slot), _count(stop[0], slot, stop[3]), 0)
        size = _append(list_ptrs, size, stop[1] + slot * stop[2], None, num_stop, vocab_size, EXCLUDED, CAPACITY)
    return size, num_allowed


@triton.jit
def _append_forced(
    list_ptrs,
    size,
    forced_ptr,  # [num_rows] int32, or None
    row,
    vocab_size,
    CAPACITY: tl.constexpr,
):
    """The row's forced token. Returns the new size, and the token, -1 if there is none."""
    forced = tl.full((), -1, tl.int32)
    if forced_ptr is not None:
        forced = tl.load(forced_ptr + row)
        forced = tl.where(forced < vocab_size, forced, -1)
        if (forced >= 0) & (size < CAPACITY):
            tl.store(list_ptrs[0] + size, forced)
            tl.store(list_ptrs[1] + size, FORCED)
            size += 1
    return size, forced


@triton.jit
def _penalised(penalties, slot, token_ids, drafted, known, logits, factors):
    """[CAPACITY] float32: logits as the output, the drafts before the row and the prompt make them.

    Takes `drafted`: as `times_drafted`."""
    times = tl.load(penalties[3] + slot * penalties[5] + token_ids, mask=known, other=0)
    times += times_drafted(drafted[0], drafted[1], drafted[2], token_ids)
    word = tl.load(penalties[4] + slot * penalties[6] + token_ids // 32, mask=known, other=0)
    in_prompt = ((word >> (token_ids % 32)) & 1) != 0
    return penalised(logits, times.to(tl.float32), in_prompt, factors)


@triton.jit
def _set_bits(
    mask_ptr,  # [num_words] int32
    places,
    is_there,
):
    """Takes `places` [CAPACITY] int32."""
    tl.atomic_or(mask_ptr + places // 32, tl.full(places.shape, 1, tl.int32) << (places % 32), mask=is_there)


@triton.jit
def _publish(lists, token_ids, logits, is_listed, size, BLOCK: tl.constexpr):
    """Edited logits, and the bits of ids and of blocks. Takes `lists`: pointers to excluded words, moved blocks and
    logits of one row."""
    excluded_ptr, blocks_ptr, edit_logits_ptr = lists
    entries = tl.arange(0, token_ids.shape[0])
    tl.store(edit_logits_ptr + entries, logits, mask=entries < size)
    _set_bits(excluded_ptr, token_ids, is_listed)
    _set_bits(blocks_ptr, token_ids // (BLOCK * TILE), is_listed)


@triton.jit
def _sum_tiles_of_edits(
    tile_words,
    row,
    edit_logits_ptr,  # [max_edits] float32
    size,
    scale,
    vocab_size,
):
    """The words of a row's tiles of edits, and what their runs reach. Takes `tile_words`: as `edit_kernel`."""
    words_ptr, reached_ptr, all_tiles = tile_words
    num_tiles = tl.cdiv(vocab_size, TILE)
    for tile in range(0, all_tiles - num_tiles):
        tiles = tl.zeros((1,), tl.int32) + tile
        entries = indices_of(words_of_tiles(tiles))
        logits = tl.load(edit_logits_ptr + entries, mask=entries < size, other=float("-inf"))
        words, reached = sum_tiles(logits, scale)
        at = row * all_tiles + num_tiles + tiles
        store_by_warps(words_ptr + at, words, tiles >= 0)
        if reached_ptr is not None:
            store_by_warps(reached_ptr + at, reached, tiles >= 0)


@triton.jit(do_not_specialize=["num_rows", "num_slots", "max_spec_len"])
def edit_kernel(
    tile_words,  # words and what runs reach, [max_rows, all_tiles] int64 each, the latter or None; all_tiles
    edits,  # excluded [max_rows, num_words] int32, ids, logits, num_edits, capacity, blocks: see `rows.locate`
    scratch,  # kinds [max_rows, CAPACITY] int32, values [max_rows, CAPACITY] float32
    logits_ptr,  # [num_rows, vocab_size] any
    grammar_ptr,  # [num_rows, num_words] int32, or None
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32, or None
    positions_ptr,  # [batch_size] int64
    draft_token_ids_ptr,  # [num_rows] int32, or None
    penalties,
    groups,  # allowed, biased, stop: counts, ids, their stride and length, and more, as `launch` makes them
    words,  # bad words: counts, lists, starts, strides and lengths of the lists
    forced_ptr,  # [num_rows] int32, or None
    temperature_ptr,  # [num_slots] float32
    num_rows,
    num_slots,
    max_spec_len,
    vocab_size,
    logits_stride,
    grammar_stride,
    num_words,
    BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_kernel_start(OVERLAPS)
    # Find the row.
    req_idx = tl.program_id(0)
    offset = tl.program_id(1)
    first, count, slot = find_request(cu_num_rows_ptr, slots_ptr, req_idx, num_rows, num_slots, max_spec_len)
    row = (first + offset).to(tl.int64)
    if offset < count:
        excluded_ptr, ids_ptr, edit_logits_ptr, num_edits_ptr, _, blocks_ptr = edits
        excluded_ptr += row * num_words
        blocks_ptr += row * BLOCK_WORDS
        ids_ptr += row * CAPACITY
        edit_logits_ptr += row * CAPACITY
        list_ptrs = (ids_ptr, scratch[0] + row * CAPACITY, scratch[1] + row * CAPACITY)
        # What is needed of the request; asked for here, as each barrier would wait for it.
        position = tl.load(positions_ptr + req_idx)
        factors = load_penalties(penalties, slot)
        scale = exponent_scale(tl.load(temperature_ptr + slot))
        count_before = tl.load(num_edits_ptr + row)
        _clear_bits(excluded_ptr, blocks_ptr, ids_ptr, count_before, vocab_size, CAPACITY)
        tl.debug_barrier()
        # List all mentions.
        drafts_ptr = draft_token_ids_ptr
        if draft_token_ids_ptr is not None:
            drafts_ptr += first
        size, num_allowed = _list_groups(list_ptrs, groups, slot, position + offset, vocab_size, CAPACITY)
        size = _append_bad_words(list_ptrs, size, words, drafts_ptr, slot, position, offset, vocab_size, CAPACITY)
        size, forced = _append_forced(list_ptrs, size, forced_ptr, row, vocab_size, CAPACITY)
        tl.debug_barrier()
        # Edit the logit of every id.
        entries = tl.arange(0, CAPACITY)
        token_ids = tl.load(ids_ptr + entries, mask=entries < size, other=-1)
        known = (token_ids >= 0) & (token_ids < vocab_size)
        bias, counts = _add_up(list_ptrs, size, token_ids, CAPACITY)
        logits = tl.load(logits_ptr + row * logits_stride + token_ids, mask=known, other=float("-inf")).to(tl.float32)
        logits += bias
        if penalties[3] is not None:  # noqa: SIM102  # the outer one is decided when compiling
            if factors[3]:
                drafted = (draft_token_ids_ptr, row, offset)
                logits = _penalised(penalties, slot, token_ids, drafted, known, logits, factors)
        is_allowed = (num_allowed <= 0) | (_times(counts, ALLOWED) > 0)
        if grammar_ptr is not None:
            word = tl.load(grammar_ptr + row * grammar_stride + token_ids // 32, mask=known, other=0)
            is_allowed = is_allowed & (((word >> (token_ids % 32)) & 1) != 0)
        logits = tl.where(is_allowed & (_times(counts, EXCLUDED) == 0), logits, float("-inf"))
        logits = tl.where(forced < 0, logits, tl.where(token_ids == forced, 0.0, float("-inf")))
        logits = tl.where(known & (_times(counts, 0) == 0), logits, float("-inf"))
        # Publish the list.
        is_listed = known & (entries < size)
        only = (num_allowed > 0) | (forced >= 0)
        _publish((excluded_ptr, blocks_ptr, edit_logits_ptr), token_ids, logits, is_listed, size, BLOCK)
        tl.store(num_edits_ptr + row, tl.where(only, -size, size))
        tl.debug_barrier()
        _sum_tiles_of_edits(tile_words, row, edit_logits_ptr, size, scale, vocab_size)
