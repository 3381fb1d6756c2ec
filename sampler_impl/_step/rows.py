"""How the kernels of a step see a row: edited logits, tile by tile, from the tensors of row, request and slot.

    tiles of the vocabulary                              tiles of edits
    [ 0 | 1 | 2 | ... | num_tiles - 1 ]                  [ num_tiles | ... ]
      logit, penalised; excluded ids are -inf              (id, edited logit) of every excluded id

An id that a bias, a ban or a draft concerns is *moved*: its bit is set in the row's excluded words, and it has an entry
among the edits. So a row is read once, whatever is edited, and no sum has to be corrected: every kernel sees
`num_tiles + edit_tiles` tiles of which none is special. Penalties concern thousands of ids and are applied where the
tile is read; a tile of counts is read once for all rows of a request, as one program does these.

An **index** is a place in this row of tiles: the id itself, or behind the vocabulary's tiles that of an edit.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import NO_ID, argmax_order
from .inputs import TILE_SIZE

TILE = tl.constexpr(TILE_SIZE)
WORDS = tl.constexpr(TILE_SIZE // 32)
"""A tile has 32 words of 32 bits: its entries are laid out [WORDS, 32], so that a word is loaded once for its ids."""
LEAST = tl.constexpr(-0x80000000)
"""Below the order of every number."""
NOTHING = tl.constexpr(-0x7F800001)
"""The order of -inf."""
MIN_TEMPERATURE = tl.constexpr(2.2e-5)


@triton.jit
def find_request(
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32 | int64, or None
    req_idx,
    num_rows,
    max_spec_len,
):
    """First row, number of rows and slot of a request; whatever `cu_num_rows` says, rows exist."""
    first = tl.minimum(tl.maximum(tl.load(cu_num_rows_ptr + req_idx), 0), num_rows)
    last = tl.minimum(tl.load(cu_num_rows_ptr + req_idx + 1), num_rows)
    count = tl.minimum(last - first, max_spec_len + 1)
    slot = req_idx.to(tl.int64)
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + req_idx).to(tl.int64)
    return first, count, slot


@triton.jit
def load_or(
    ptr,  # [num_slots] any, or None
    slot,
    otherwise,
):
    """A parameter of a slot, or what stands for "off"."""
    value = otherwise
    if ptr is not None:
        value = tl.load(ptr + slot).to(otherwise.dtype)
    return value


@triton.jit
def load_penalties(penalties, slot):
    """Presence, frequency and repetition of a slot, and whether any is on.

    Takes `penalties`: pointers to the three [num_slots] float32, to counts [num_slots, vocab_size] int32, to the prompt's
    mask [num_slots, num_words] int32; the first is None if a plan has no penalties."""
    presence_ptr, frequency_ptr, repetition_ptr, counts_ptr, prompt_ptr, counts_stride, prompt_stride = penalties
    off = tl.zeros((), tl.float32)
    presence = load_or(presence_ptr, slot, off)
    frequency = load_or(frequency_ptr, slot, off)
    repetition = load_or(repetition_ptr, slot, off + 1)
    return presence, frequency, repetition, (presence != 0) | (frequency != 0) | (repetition != 1)


@triton.jit
def penalised(logits, counts, in_prompt, factors):
    """vLLM's operations in its order: repetition multiplies or divides, then frequency, then presence.

    Takes `logits` [...] float32; `counts` [...] int32; `in_prompt` [...] bool."""
    presence, frequency, repetition, _ = factors
    scale = tl.where(in_prompt | (counts > 0), repetition, 1.0)
    logits = logits * tl.where(logits > 0, tl.div_rn(1.0, scale), scale)
    logits = logits - frequency * counts.to(tl.float32)
    return logits - tl.where(counts > 0, presence, 0.0)


@triton.jit
def locate(inputs, row, slot):
    """What `load_tiles` needs of one row: pointers to its own part of every tensor, None where there is none.

    Takes `inputs`: pointers and strides as `launch` makes them."""
    logits_ptr, logits_stride, grammar_ptr, num_words, edits, penalties = inputs
    excluded_ptr, edit_ids_ptr, edit_logits_ptr, num_edits_ptr, edit_capacity = edits
    presence_ptr, frequency_ptr, repetition_ptr, counts_ptr, prompt_ptr, counts_stride, prompt_stride = penalties
    row = row.to(tl.int64)
    num_edits = tl.zeros((), tl.int32)
    if excluded_ptr is not None:
        num_edits = tl.load(num_edits_ptr + row)
        excluded_ptr += row * num_words
        edit_ids_ptr += row * edit_capacity
        edit_logits_ptr += row * edit_capacity
    if grammar_ptr is not None:
        grammar_ptr += row * num_words
    if counts_ptr is not None:
        counts_ptr += slot * counts_stride
        prompt_ptr += slot * prompt_stride
    return (
        logits_ptr + row * logits_stride,
        grammar_ptr,
        excluded_ptr,
        edit_ids_ptr,
        edit_logits_ptr,
        num_edits,
        counts_ptr,
        prompt_ptr,
        load_penalties(penalties, slot),
    )


@triton.jit
def tile_indices(tiles):
    """[tiles, WORDS, 32] int32: the indices of some tiles, which need not be neighbours."""
    words = tiles[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    return words[:, :, None] * 32 + tl.arange(0, 32)[None, None, :]


@triton.jit
def load_bits(
    words_ptr,  # [num_words] int32
    tiles,
    vocab_size,
):
    """[tiles, WORDS, 32] bool. A tile's words are loaded once each. Bits behind the vocabulary are 0."""
    words = tiles[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    loaded = tl.load(words_ptr + words, mask=words * 32 < vocab_size, other=0)
    return ((loaded[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1) != 0


@triton.jit
def load_tiles(row, tiles, vocab_size):
    """[tiles, WORDS, 32] float32: edited logits of some tiles; -inf where there is nothing.

    Takes `row` as `locate` makes it; `tiles` [tiles] int32."""
    logits_ptr, grammar_ptr, excluded_ptr, edit_ids_ptr, edit_logits_ptr, num_edits, counts_ptr, prompt_ptr, factors = row
    indices = tile_indices(tiles)
    inside = indices < vocab_size
    if excluded_ptr is not None:  # a row without its own logits is never read: see `edits`
        inside = inside & (num_edits >= 0)
    logits = tl.load(logits_ptr + indices, mask=inside, other=float("-inf")).to(tl.float32)
    if counts_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if factors[3]:
            counts = tl.load(counts_ptr + indices, mask=inside, other=0)
            logits = penalised(logits, counts, load_bits(prompt_ptr, tiles, vocab_size), factors)
    if grammar_ptr is not None:
        logits = tl.where(load_bits(grammar_ptr, tiles, vocab_size), logits, float("-inf"))
    if excluded_ptr is not None:
        if num_edits != 0:
            logits = tl.where(load_bits(excluded_ptr, tiles, vocab_size), float("-inf"), logits)
            entries = indices - tl.cdiv(vocab_size, TILE) * TILE
            is_edit = (entries >= 0) & (entries < tl.abs(num_edits))
            logits = tl.where(is_edit, tl.load(edit_logits_ptr + entries, mask=is_edit, other=0.0), logits)
    return logits


@triton.jit
def ids_of(row, indices, vocab_size):
    """Token ids of some indices. Takes `row` as `locate` makes it; `indices` [...] int32."""
    edit_ids_ptr = row[3]
    num_edits = row[5]
    token_ids = indices
    if edit_ids_ptr is not None:
        entries = indices - tl.cdiv(vocab_size, TILE) * TILE
        is_edit = (entries >= 0) & (entries < tl.abs(num_edits))
        token_ids = tl.where(is_edit, tl.load(edit_ids_ptr + entries, mask=is_edit, other=0), token_ids)
    return token_ids


@triton.jit
def index_of(row, token_id, vocab_size, EDITS: tl.constexpr):
    """Where a token of the vocabulary is: its id, or the index of its edit. Takes `row` as `locate` makes it."""
    excluded_ptr = row[2]
    num_edits = row[5]
    index = token_id
    if EDITS > 0:
        word = tl.load(excluded_ptr + token_id // 32)
        if (num_edits < 0) | (((word >> (token_id % 32)) & 1) != 0):
            entries = tl.arange(0, EDITS)
            known = tl.load(row[3] + entries, mask=entries < tl.abs(num_edits), other=-1)
            # Of equal ids only the first is not -inf.
            first = tl.min(tl.where(known == token_id, entries, NO_ID))
            behind = tl.cdiv(vocab_size, TILE) * TILE
            index = tl.where(first < NO_ID, behind + first, -1)
    return index


@triton.jit
def order_to_float(order):
    """The number of an `argmax_order`; NaN of that of NaN."""
    return tl.where(order < 0, order ^ NO_ID, order).to(tl.float32, bitcast=True)


@triton.jit
def scaled_order(logits, temperature):
    """Integers in the order of `logit / temperature`, a float32 quotient."""
    return argmax_order(tl.div_rn(logits, logits * 0 + temperature))
