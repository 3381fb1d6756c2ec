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
from .named import Edits, Mentions, RowInputs
from .rows import (
    BLOCK_TILES,
    BLOCK_WORDS,
    TILE,
    find_request,
    indices_of,
    let_next_kernel_start,
    load_penalties,
    penalised,
    prompt_of,
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
"""Bits of a count of mentions; those of all kinds are added up in one integer."""


@triton.jit
def _append(
    mentions,
    size,
    mentioned_ptr,  # [max_edits] int32
    values_ptr,  # [max_edits] float32, or None
    count,
    vocab_size,
    KIND: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Write mentions of one kind behind those that are there, and return the new size; what is no token becomes -1."""
    entries = tl.arange(0, CAPACITY)
    count = tl.maximum(tl.minimum(count, CAPACITY - size), 0)
    mask = entries < count
    mentioned = tl.load(mentioned_ptr + entries, mask=mask, other=0)
    mentioned = tl.where((mentioned >= 0) & (mentioned < vocab_size), mentioned, -1).to(tl.int32)
    tl.store(mentions.ids_ptr + size + entries, mentioned, mask=mask)
    tl.store(mentions.kinds_ptr + size + entries, entries * 0 + KIND, mask=mask)
    if values_ptr is not None:
        values = tl.load(values_ptr + entries, mask=mask, other=0.0)
        tl.store(mentions.values_ptr + size + entries, values, mask=mask)
    return size + count


@triton.jit
def _count(
    counts_ptr,  # [num_slots] int32, or None
    slot,
    length,
):
    """Return how many entries of a slot's list count, whatever the count says."""
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
    slot_words_ptr,  # [length] int32, of one slot
    slot_text_ptr,  # [length] int32, of one slot
    words,
    drafts_ptr,  # [num_rows] int32, of one request, or None
    offset,
    position,
    num_output,
):
    """Return where a bad word's last token is, and whether the others end the text of this row."""
    begin = tl.load(offset_ptr)
    last = tl.load(offset_ptr + 1) - 1
    matches = (begin >= 0) & (last >= begin) & (last < words.num_word_ids) & (num_output >= last - begin)
    for j in range(0, tl.where(matches, last - begin, 0)):
        seen = _token_of_text(slot_text_ptr, words.text_length, drafts_ptr, offset - (last - begin - j), position)
        matches = matches & (seen == tl.load(slot_words_ptr + begin + j))
    return last, matches


@triton.jit
def _append_bad_words(
    mentions,
    size,
    words,
    drafts_ptr,  # [num_rows] int32, of one request, or None
    slot,
    position,
    offset,
    vocab_size,
    CAPACITY: tl.constexpr,
):
    """Write the last token of every bad word whose others end the text of this row, and return the new size."""
    if words.counts_ptr is not None:
        offsets_ptr = words.offsets_ptr + slot * words.offsets_stride
        slot_words_ptr = words.word_ids_ptr + slot * words.word_ids_stride
        slot_text_ptr = words.text_ptr + slot * words.text_stride
        num_output = position + offset - tl.load(words.starts_ptr + slot)
        for word in range(0, _count(words.counts_ptr, slot, words.num_offsets - 1)):
            last, matches = _end_of_word(
                offsets_ptr + word, slot_words_ptr, slot_text_ptr, words, drafts_ptr, offset, position, num_output
            )
            token_id = tl.load(slot_words_ptr + last, mask=matches, other=-1)
            is_listed = (token_id >= 0) & (token_id < vocab_size) & (size < CAPACITY)
            tl.store(mentions.ids_ptr + size, token_id, mask=is_listed)
            tl.store(mentions.kinds_ptr + size, EXCLUDED, mask=is_listed)
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
    """Clear the bits of the list that the step before left."""
    block_words = tl.arange(0, BLOCK_WORDS)
    tl.store(blocks_ptr + block_words, block_words * 0)
    entries = tl.arange(0, CAPACITY)
    token_ids = tl.load(ids_ptr + entries, mask=entries < tl.abs(count), other=-1)
    tl.store(excluded_ptr + token_ids // 32, token_ids * 0, mask=(token_ids >= 0) & (token_ids < vocab_size))


@triton.jit
def _times(counts, KIND: tl.constexpr):
    """Return how often an id is mentioned by a kind. Takes `counts` [CAPACITY] int64, as `_add_up` makes them."""
    return ((counts >> (COUNT_BITS * KIND)) & 0xFFF).to(tl.int32)


@triton.jit
def _add_up(mentions, size, token_ids, CAPACITY: tl.constexpr):
    """Return what all mentions say of each id: its bias, and how often each kind mentions it; as kind 0, how often it
    was mentioned before.

    Takes `token_ids` [CAPACITY] int32."""
    entries = tl.arange(0, CAPACITY)
    bias = tl.zeros((CAPACITY,), tl.float32)
    counts = tl.zeros((CAPACITY,), tl.int64)
    for chunk in range(0, tl.cdiv(size, CHUNK)):
        others = chunk * CHUNK + tl.arange(0, CHUNK)
        mask = others < size
        same = token_ids[:, None] == tl.load(mentions.ids_ptr + others, mask=mask, other=-1)[None, :]
        kinds = tl.load(mentions.kinds_ptr + others, mask=mask, other=0)
        values = tl.load(mentions.values_ptr + others, mask=mask & (kinds == BIASED), other=0.0)
        one_of_kind = tl.full((CHUNK,), 1, tl.int64) << tl.where(kinds == FORCED, 0, kinds * COUNT_BITS)
        mentioned = tl.where(kinds == FORCED, 0, one_of_kind)[None, :] + (others[None, :] < entries[:, None])
        bias += tl.sum(tl.where(same, values[None, :], 0.0), axis=1)
        counts += tl.sum(tl.where(same, mentioned, 0), axis=1)
    return bias, counts


@triton.jit
def _list_groups(mentions, edits, slot, position, vocab_size, CAPACITY: tl.constexpr):
    """Write mentions of allowed and biased ids and of stop tokens. Return their number, and how many are allowed.

    Takes `position`: that of the row's token."""
    allowed, biased, stop = edits.allowed, edits.biased, edits.stop
    size = tl.zeros((), tl.int32)
    num_allowed = _count(allowed.counts_ptr, slot, allowed.length)
    if allowed.counts_ptr is not None:
        ids = allowed.ids_ptr + slot * allowed.stride
        size = _append(mentions, size, ids, None, num_allowed, vocab_size, ALLOWED, CAPACITY)
    if biased.counts_ptr is not None:
        ids = biased.ids_ptr + slot * biased.stride
        values = edits.bias_values_ptr + slot * edits.bias_stride
        num_biased = _count(biased.counts_ptr, slot, biased.length)
        size = _append(mentions, size, ids, values, num_biased, vocab_size, BIASED, CAPACITY)
    if stop.counts_ptr is not None:
        is_early = position < tl.load(edits.min_lengths_ptr + slot)
        ids = stop.ids_ptr + slot * stop.stride
        num_stop = tl.where(is_early, _count(stop.counts_ptr, slot, stop.length), 0)
        size = _append(mentions, size, ids, None, num_stop, vocab_size, EXCLUDED, CAPACITY)
    return size, num_allowed


@triton.jit
def _append_forced(
    mentions,
    size,
    forced_token_ids_ptr,  # [num_rows] int32, or None
    row,
    vocab_size,
    CAPACITY: tl.constexpr,
):
    """Write the row's forced token. Return the new size, and the token, -1 if there is none."""
    forced = tl.full((), -1, tl.int32)
    if forced_token_ids_ptr is not None:
        forced = tl.load(forced_token_ids_ptr + row)
        forced = tl.where(forced < vocab_size, forced, -1)
        if (forced >= 0) & (size < CAPACITY):
            tl.store(mentions.ids_ptr + size, forced)
            tl.store(mentions.kinds_ptr + size, FORCED)
            size += 1
    return size, forced


@triton.jit
def _bits_at(
    mask_ptr,  # [num_words] int32
    token_ids,
    known,
):
    """Whether a mask has the bits of tokens, where they are known."""
    words = tl.load(mask_ptr + token_ids // 32, mask=known, other=0)
    return ((words >> (token_ids % 32)) & 1) != 0


@triton.jit
def _penalised(inputs, slot, row, offset, token_ids, known, logits, factors):
    """Return [CAPACITY] float32: logits as the output, the drafts before the row and the prompt make them."""
    penalties = inputs.penalties
    counts_ptr = penalties.output_counts_ptr + slot * penalties.counts_stride
    times = tl.load(counts_ptr + token_ids, mask=known, other=0)
    times += times_drafted(inputs.draft_token_ids_ptr, row, offset, token_ids)
    in_prompt = _bits_at(prompt_of(penalties, slot), token_ids, known)
    return penalised(logits, times.to(tl.float32), in_prompt, factors)


@triton.jit
def _set_bits(
    mask_ptr,  # [num_words] int32
    places,
    is_there,
):
    """Set bits of a mask. Takes `places` [CAPACITY] int32."""
    tl.atomic_or(mask_ptr + places // 32, tl.full(places.shape, 1, tl.int32) << (places % 32), mask=is_there)


@triton.jit
def _sum_tiles_of_edits(
    scanned,
    row,
    edit_logits_ptr,  # [max_edits] float32
    size,
    scale,
    sizes,
):
    """Write the words of a row's tiles of edits, and what their runs reach."""
    num_tiles = tl.cdiv(sizes.vocab_size, TILE)
    for tile in range(0, sizes.all_tiles - num_tiles):
        tiles = tl.zeros((1,), tl.int32) + tile
        entries = indices_of(words_of_tiles(tiles))
        logits = tl.load(edit_logits_ptr + entries, mask=entries < size, other=float("-inf"))
        words, reached = sum_tiles(logits, scale)
        at = row * sizes.all_tiles + num_tiles + tiles
        store_by_warps(scanned.words_ptr + at, words, tiles >= 0)
        if scanned.reached_ptr is not None:
            store_by_warps(scanned.reached_ptr + at, reached, tiles >= 0)


@triton.jit
def _edit_row(
    scanned,
    mentions,
    inputs,
    requests,
    edits,
    draft_token_ids_ptr,  # [num_rows] int32, or None
    request,
    slot,
    offset,
    sizes,
    CAPACITY: tl.constexpr,
):
    """Make the list of one row."""
    vocab_size, penalties, row = sizes.vocab_size, inputs.penalties, (request.first + offset).to(tl.int64)
    excluded_ptr = inputs.edits.excluded_ptr + row * inputs.num_words
    blocks_ptr = inputs.edits.blocks_ptr + row * BLOCK_WORDS
    ids_ptr = inputs.edits.ids_ptr + row * CAPACITY
    edit_logits_ptr = inputs.edits.logits_ptr + row * CAPACITY
    num_edits_ptr = inputs.edits.num_edits_ptr + row
    mentions = Mentions(ids_ptr, mentions.kinds_ptr + row * CAPACITY, mentions.values_ptr + row * CAPACITY)
    # Load what is needed of the request: asked for here, as each barrier would wait for it.
    position = tl.load(requests.positions_ptr + request.req_idx)
    factors = load_penalties(penalties, slot)
    scale = exponent_scale(tl.load(requests.temperature_ptr + slot))
    # Clear the bits of the step before.
    _clear_bits(excluded_ptr, blocks_ptr, ids_ptr, tl.load(num_edits_ptr), vocab_size, CAPACITY)
    tl.debug_barrier()
    # List all mentions.
    drafts_ptr = draft_token_ids_ptr
    if draft_token_ids_ptr is not None:
        drafts_ptr += request.first
    size, num_allowed = _list_groups(mentions, edits, slot, position + offset, vocab_size, CAPACITY)
    size = _append_bad_words(mentions, size, edits.bad_words, drafts_ptr, slot, position, offset, vocab_size, CAPACITY)
    size, forced = _append_forced(mentions, size, edits.forced_token_ids_ptr, row, vocab_size, CAPACITY)
    tl.debug_barrier()
    # Edit the logit of every id.
    entries = tl.arange(0, CAPACITY)
    token_ids = tl.load(ids_ptr + entries, mask=entries < size, other=-1)
    known = (token_ids >= 0) & (token_ids < vocab_size)
    bias, counts = _add_up(mentions, size, token_ids, CAPACITY)
    logits_ptr = inputs.logits_ptr + row * inputs.logits_stride
    logits = tl.load(logits_ptr + token_ids, mask=known, other=float("-inf")).to(tl.float32)
    logits += bias
    if penalties.output_counts_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if factors.is_any:
            logits = _penalised(inputs, slot, row, offset, token_ids, known, logits, factors)
    is_allowed = (num_allowed <= 0) | (_times(counts, ALLOWED) > 0)
    if inputs.grammar_mask_ptr is not None:
        row_mask_ptr = inputs.grammar_mask_ptr + row * inputs.grammar_stride
        is_allowed = is_allowed & _bits_at(row_mask_ptr, token_ids, known)
    logits = tl.where(is_allowed & (_times(counts, EXCLUDED) == 0), logits, float("-inf"))
    logits = tl.where(forced < 0, logits, tl.where(token_ids == forced, 0.0, float("-inf")))
    logits = tl.where(known & (_times(counts, 0) == 0), logits, float("-inf"))
    # Publish the list.
    is_listed = known & (entries < size)
    tl.store(edit_logits_ptr + entries, logits, mask=entries < size)
    _set_bits(excluded_ptr, token_ids, is_listed)
    _set_bits(blocks_ptr, token_ids // (BLOCK_TILES * TILE), is_listed)
    only = (num_allowed > 0) | (forced >= 0)
    tl.store(num_edits_ptr, tl.where(only, -size, size))
    tl.debug_barrier()
    # Add up its tiles.
    _sum_tiles_of_edits(scanned, row, edit_logits_ptr, size, scale, sizes)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def edit_kernel(
    scanned,
    mentions,
    inputs,
    requests,
    edits,
    draft_token_ids_ptr,  # [num_rows] int32, or None
    num_rows,
    num_slots,
    sizes,
    CAPACITY: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_kernel_start(OVERLAPS)
    inputs, edits = RowInputs(*inputs), Edits(*edits)  # as `rows` says
    # Find the row.
    offset = tl.program_id(1)
    request, slot = find_request(requests, tl.program_id(0), num_rows, num_slots, sizes.max_spec_len)
    # Make its list.
    if offset < request.count:
        _edit_row(
            scanned, mentions, inputs, requests, edits, draft_token_ids_ptr, request, slot, offset, sizes, CAPACITY
        )
