"""How the kernels of a step see a row: edited logits, tile by tile, from the tensors of row, request and slot.

    tiles of the vocabulary                              tiles of edits
    [ 0 | 1 | 2 | ... | num_tiles - 1 ]                  [ num_tiles | ... ]
      logit, penalised; excluded ids are -inf              (id, edited logit) of every excluded id

An id that a bias or a ban concerns is *moved*: its bit is set in the row's excluded words, and it has an
entry among the edits. So a row is read once, whatever is edited, and no sum has to be corrected: every kernel sees
`num_tiles + edit_tiles` tiles of which none is special. A row moves few ids: a bit per block of tiles says where, and
elsewhere the scan reads no excluded word. Penalties concern thousands of ids and are applied where the tile is read;
there the drafts before a row are counted, too.

An **index** is a place in this row of tiles: the id itself, or behind the vocabulary's tiles that of an edit.

Kernels put `inputs` together anew before they use them. Triton 3.6 loses the constants of a tuple within a tuple of
arguments where it copies the outer one for a loop: a stride of 1, as a mask of 32 ids has, became None.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import NO_ID, argmax_order
from . import inputs as arguments
from .inputs import BLOCK_MASK_WORDS, RUN_SIZE, TILE_SIZE

TILE = tl.constexpr(TILE_SIZE)
RUN = tl.constexpr(RUN_SIZE)
RUNS = tl.constexpr(TILE_SIZE // RUN_SIZE)
WORDS = tl.constexpr(RUN_SIZE // 32)
"""A tile's entries are laid out [RUNS, WORDS, 32]. A word is 32 ids, as many as a word of a mask has bits, so that
masks are loaded once for 32 ids. A run is what a warp loads at once, 8 entries per thread."""
BLOCK_WORDS = tl.constexpr(BLOCK_MASK_WORDS)
LEAST = tl.constexpr(-0x80000000)
"""Below the order of every number."""
NOTHING = tl.constexpr(-0x7F800001)
"""The order of -inf."""
MIN_TEMPERATURE = tl.constexpr(arguments.MIN_TEMPERATURE)
ARRIVAL_BITS = tl.constexpr(16)
"""Of a request's **arrivals**: how many of its programs have ended."""
REJECTION_BITS = tl.constexpr(15)
"""Above them one for each of its first rows that is known to be rejected: nobody will ask for the rows behind it."""


@triton.jit
def wait_for_kernel_before(OVERLAPS: tl.constexpr):
    """A kernel may be started while the one before it runs (programmatic dependent launch, from Hopper on): then it
    waits here until that one has ended, and what it has written can be read. Comes first in a kernel."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_kernel_start(OVERLAPS: tl.constexpr):
    """The next kernel may be started as soon as every program of this one is running."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def find_request(
    cu_num_rows_ptr,  # [batch_size + 1] int32
    slots_ptr,  # [batch_size] int32 | int64, or None
    req_idx,
    num_rows,
    num_slots,
    max_spec_len,
):
    """Return first row, number of rows and slot of a request: rows and slots that exist, whatever the tensors say.

    Every address of a step is made of these, so that some comparisons per program bound them all. A request without
    rows has those of another one, of which nothing is used: a batch may be filled up with slots that do not exist."""
    first = tl.minimum(tl.maximum(tl.load(cu_num_rows_ptr + req_idx), 0), num_rows)
    # Not below the first: the difference of any two int32 is no int32.
    last = tl.minimum(tl.maximum(tl.load(cu_num_rows_ptr + req_idx + 1), first), num_rows)
    count = tl.minimum(last - first, max_spec_len + 1)
    slot = req_idx.to(tl.int64)
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + req_idx).to(tl.int64)
    slot = tl.minimum(tl.maximum(slot, 0), num_slots - 1)
    return tl.where(count > 0, first, 0), count, tl.where(count > 0, slot, 0)


@triton.jit
def rejection_at(offset):
    """The bit of a row in its request's arrivals, of one that has a bit."""
    return tl.full((), 1, tl.int32) << (offset + ARRIVAL_BITS)


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

    Takes `penalties`: pointers to the three [num_slots] float32, to counts and to the prompt's mask, and the strides of
    the last two; pointers are None if a plan has no penalties."""
    presence_ptr, frequency_ptr, repetition_ptr, _, _, _, _ = penalties
    off = tl.zeros((), tl.float32)
    presence = load_or(presence_ptr, slot, off)
    frequency = load_or(frequency_ptr, slot, off)
    repetition = load_or(repetition_ptr, slot, off + 1)
    return presence, frequency, repetition, (presence != 0) | (frequency != 0) | (repetition != 1)


@triton.jit
def penalised(logits, times, in_prompt, factors):
    """vLLM's operations in its order: repetition multiplies or divides, then frequency, then presence.

    Takes `logits` [...] float32; `times` [...] float32: how often the output has the id, at most 0 if it has not;
    `in_prompt` [...] bool: the prompt has it."""
    presence, frequency, repetition, _ = factors
    # What is off costs nothing: the scan has no time left for what changes no number.
    if repetition != 1:
        inverse = tl.div_rn(1.0, repetition)
        factor = tl.where(logits > 0, inverse, repetition)
        logits = tl.where((times > 0) | in_prompt, logits * factor, logits)
    if frequency != 0:
        logits = logits - frequency * tl.maximum(times, 0.0)
    return logits - tl.where(times > 0, presence, 0.0)


@triton.jit
def locate(inputs, row_idx, slot, offset):
    """Where a row is: (its index, its slot, how many edits it has, its penalties, how many drafts are before it). A
    **row** is `(inputs, place)`.

    Takes `inputs`: pointers and strides as `launch` makes them."""
    return locate_with(inputs, row_idx, slot, offset, load_penalties(inputs[5], slot))


@triton.jit
def locate_with(inputs, row_idx, slot, offset, factors):
    """The same, with the penalties of the slot: its rows have them in common."""
    edits = inputs[4]
    num_edits = tl.zeros((), tl.int32)
    if edits[0] is not None:
        num_edits = tl.load(edits[3] + row_idx)
    return row_idx.to(tl.int64), slot, num_edits, factors, offset


@triton.jit
def words_of_runs(runs):
    """[runs, WORDS] int32: the words of some runs, which need not be neighbours. Takes `runs` [runs] int32."""
    return runs[:, None] * WORDS + tl.arange(0, WORDS)[None, :]


@triton.jit
def words_of_tiles(tiles):
    """[tiles, RUNS, WORDS] int32: the words of some tiles. Takes `tiles` [tiles] int32."""
    runs = tiles[:, None] * RUNS + tl.arange(0, RUNS)[None, :]
    return runs[:, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]


@triton.jit
def indices_of(words):
    """[..., 32] int32. Takes `words` [runs, WORDS] or [tiles, RUNS, WORDS] int32."""
    indices = tl.expand_dims(words, -1) * 32 + tl.arange(0, 32)
    if len(words.shape) == 3:
        # Triton deals out warps to dimensions in the order of their contiguity. These claims, of which only the last is
        # true, give each tile to one warp: then nothing in it waits for a barrier. Loads go by the last one alone.
        indices = tl.max_contiguous(indices, [2, 1, 4, 32])
    return indices


@triton.jit
def load_bits(
    mask_ptr,  # [num_words] int32
    words,
    vocab_size,
):
    """[..., 32] int32, 0 or 1. Bits behind the vocabulary are 0. Takes `words` [...] int32."""
    loaded = tl.load(mask_ptr + words, mask=words * 32 < vocab_size, other=0)
    return (tl.expand_dims(loaded, -1) >> tl.arange(0, 32)) & 1


@triton.jit
def load_penalised(row, words, logits, vocab_size):
    """[..., 32] float32: logits as the penalties of the row's slot make them.

    Takes `row`: inputs and place; `words` [...] int32; `logits` [..., 32] float32."""
    inputs, place = row
    penalties = inputs[5]
    row_idx, slot, _, factors, offset = place
    times = load_times(inputs, slot, words, vocab_size)
    times += times_drafted(inputs[6], row_idx, offset, indices_of(words))
    in_prompt = times < 0
    if factors[2] != 1:
        in_prompt = load_bits(penalties[4] + slot * penalties[6], words, vocab_size) != 0
    return penalised(logits, times.to(tl.float32), in_prompt, factors)


@triton.jit
def times_drafted(
    draft_token_ids_ptr,  # [num_rows] int32 | int64, or None
    row_idx,
    offset,
    token_ids,
):
    """[...] int32: how often each id is among the drafts before a row. Takes `token_ids` [...] int32."""
    times = tl.zeros_like(token_ids)
    if draft_token_ids_ptr is not None:
        for back in range(1, offset + 1):
            times += (token_ids == tl.load(draft_token_ids_ptr + row_idx - back)).to(tl.int32)
    return times


@triton.jit
def _logit_of(row, token_id, vocab_size):
    """The logit of one token of the vocabulary, edited unless it is moved."""
    inputs, place = row
    penalties = inputs[5]
    row_idx, slot, _, factors, offset = place
    logit = tl.load(inputs[0] + row_idx * inputs[1] + token_id).to(tl.float32)
    if penalties[3] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if factors[3]:
            times = tl.load(penalties[3] + slot * penalties[5] + token_id)
            times += times_drafted(inputs[6], row_idx, offset, token_id)
            in_prompt = _bit_at(penalties[4] + slot * penalties[6], token_id)
            logit = penalised(logit, times.to(tl.float32), in_prompt, factors)
    if inputs[2] is not None:
        logit = tl.where(_bit_at(inputs[2] + row_idx * inputs[7], token_id), logit, float("-inf"))
    return logit


@triton.jit
def most_of_draft(row, token_id, is_draft, vocab_size):
    """What the logit of a draft token is at most: its own, infinity if it is moved, and -inf if there is none.

    A single entry of a row, which every program that reads a part of the row can afford."""
    inputs, place = row
    edits = inputs[4]
    logit = tl.full((), float("-inf"), tl.float32)
    if is_draft & (token_id >= 0) & (token_id < vocab_size):
        known = token_id.to(tl.int32)
        logit = _logit_of(row, known, vocab_size)
        if edits[0] is not None:
            is_moved = (place[2] < 0) | _bit_at(edits[0] + place[0] * inputs[3], known)
            logit = tl.where(is_moved, float("inf"), logit)
    return logit


@triton.jit
def _bit_at(
    mask_ptr,  # [num_words] int32
    token_id,
):
    return ((tl.load(mask_ptr + token_id // 32) >> (token_id % 32)) & 1) != 0


@triton.jit
def load_times(inputs, slot, words, vocab_size):
    """[..., 32] int32: how often the output of a slot has each id."""
    penalties = inputs[5]
    indices = indices_of(words)
    return tl.load(penalties[3] + slot * penalties[5] + indices, mask=indices < vocab_size, other=0)


@triton.jit
def load_raw(row, words, vocab_size):
    """[..., 32] in the type of the logits, as they are; -inf behind the vocabulary. Takes `row`: inputs and place."""
    inputs, place = row
    indices = indices_of(words)
    inside = indices < vocab_size
    if inputs[4][0] is not None:  # a row that has nothing but its edits is not read
        inside = inside & (place[2] >= 0)
    return tl.load(inputs[0] + place[0] * inputs[1] + indices, mask=inside, other=float("-inf"))


@triton.jit
def load_logits(row, words, vocab_size):
    """[..., 32] float32: edited logits; -inf where there is nothing.

    Takes `row`: inputs and place; `words` [runs, WORDS] or [tiles, RUNS, WORDS] int32."""
    inputs, place = row
    edits = inputs[4]
    row_idx, _, num_edits, factors, _ = place
    logits = load_raw(row, words, vocab_size).to(tl.float32)
    if inputs[5][3] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if factors[3]:
            logits = load_penalised(row, words, logits, vocab_size)
    logits = masked(row, words, logits, vocab_size)
    if edits[0] is not None:  # noqa: SIM102
        if num_edits != 0:
            logits = without_moved(row, words, logits, vocab_size)
            entries = indices_of(words) - tl.cdiv(vocab_size, TILE) * TILE
            is_edit = (entries >= 0) & (entries < tl.abs(num_edits))
            known = tl.load(edits[2] + row_idx * edits[4] + entries, mask=is_edit, other=0.0)
            logits = tl.where(is_edit, known, logits)
    return logits


@triton.jit
def masked(row, words, logits, vocab_size):
    """-inf where a grammar allows no token."""
    inputs, place = row
    if inputs[2] is not None:
        allowed = load_bits(inputs[2] + place[0] * inputs[7], words, vocab_size)
        logits = tl.where(allowed != 0, logits, float("-inf"))
    return logits


@triton.jit
def without_moved(row, words, logits, vocab_size):
    """-inf where an id is among the edits."""
    inputs, place = row
    moved = load_bits(inputs[4][0] + place[0] * inputs[3], words, vocab_size)
    return tl.where(moved != 0, float("-inf"), logits)


@triton.jit
def load_one_tile(row, tile, vocab_size):
    """[TILE] float32 and int32: edited logits of one tile, and their indices. Takes `tile`: int32."""
    words = words_of_runs((tl.zeros((RUNS,), tl.int32) + tile) * RUNS + tl.arange(0, RUNS))
    return tl.reshape(load_logits(row, words, vocab_size), (TILE,)), tl.reshape(indices_of(words), (TILE,))


@triton.jit
def ids_of(row, indices, vocab_size):
    """Token ids of some indices. Takes `row`: inputs and place; `indices` [...] int32."""
    inputs, place = row
    edits = inputs[4]
    token_ids = indices
    if edits[0] is not None:
        entries = indices - tl.cdiv(vocab_size, TILE) * TILE
        is_edit = (entries >= 0) & (entries < tl.abs(place[2]))
        known = tl.load(edits[1] + place[0] * edits[4] + entries, mask=is_edit, other=0)
        token_ids = tl.where(is_edit, known, token_ids)
    return token_ids


@triton.jit
def index_of(row, token_id, vocab_size, EDITS: tl.constexpr):
    """Where a token of the vocabulary is: its id, or the index of its edit; -1 if the row does not have it.

    Takes `row`: inputs and place."""
    index = token_id
    if EDITS > 0:
        inputs, place = row
        edits = inputs[4]
        num_edits = place[2]
        word = tl.load(edits[0] + place[0] * inputs[3] + token_id // 32)
        if (num_edits < 0) | (((word >> (token_id % 32)) & 1) != 0):
            entries = tl.arange(0, EDITS)
            known = tl.load(edits[1] + place[0] * edits[4] + entries, mask=entries < tl.abs(num_edits), other=-1)
            first = tl.min(tl.where(known == token_id, entries, NO_ID))  # of equal ids only the first is not -inf
            index = tl.where(first < NO_ID, tl.cdiv(vocab_size, TILE) * TILE + first, -1)
    return index


@triton.jit
def order_to_float(order):
    """The number of an `argmax_order`; NaN of that of NaN."""
    return tl.where(order < 0, order ^ NO_ID, order).to(tl.float32, bitcast=True)


@triton.jit
def scaled_order(logits, temperature):
    """Integers in the order of `logit / temperature`, a float32 quotient."""
    return argmax_order(scaled_by(logits, temperature))


@triton.jit
def scaled_by(logits, temperature):
    return tl.div_rn(logits, tl.zeros_like(logits) + temperature)
