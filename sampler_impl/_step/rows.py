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

What rows are made of is `RowInputs`, which kernels put together anew before they use it. Triton 3.6 loses the constants
of a tuple within a tuple of arguments where it copies the outer one for a loop: a stride of 1, as a mask of 32 ids has,
became None.
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
from .inputs import BLOCK_MASK_WORDS, RUN_SIZE, SCAN_BLOCK, TILE_SIZE
from .named import Factors, Place, Request

TILE = tl.constexpr(TILE_SIZE)
RUN = tl.constexpr(RUN_SIZE)
RUNS = tl.constexpr(TILE_SIZE // RUN_SIZE)
WORDS = tl.constexpr(RUN_SIZE // 32)
"""A tile's entries are laid out [RUNS, WORDS, 32]. A word is 32 ids, as many as a word of a mask has bits, so that
masks are loaded once for 32 ids. A run is what a warp loads at once, 8 entries per thread."""
BLOCK_TILES = tl.constexpr(SCAN_BLOCK)
BLOCK_WORDS = tl.constexpr(BLOCK_MASK_WORDS)
LEAST = tl.constexpr(-0x80000000)
"""An integer below the order of every number."""
NOTHING = tl.constexpr(-0x7F800001)
"""The order of -inf."""
MIN_TEMPERATURE = tl.constexpr(arguments.MIN_TEMPERATURE)
ARRIVAL_BITS = tl.constexpr(16)
"""Bits of a request's **arrivals** that say how many of its programs have ended."""
REJECTION_BITS = tl.constexpr(15)
"""Bits above them, one for each of its first rows that is known to be rejected: nobody asks for the rows behind it."""


@triton.jit
def wait_for_kernel_before(OVERLAPS: tl.constexpr):
    """Wait until the kernel before this one has ended, and what it has written can be read: this one may be started
    while that one runs (programmatic dependent launch, from Hopper on)."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_kernel_start(OVERLAPS: tl.constexpr):
    """Let the next kernel be started as soon as every program of this one is running."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def find_request(requests, req_idx, num_rows, num_slots, max_spec_len):
    """Return a `Request` and its slot: rows and slots that exist, whatever the tensors say.

    Every address of a step is made of these, so that some comparisons per program bound them all. A request without
    rows has those of another one, of which nothing is used: a batch may be filled up with slots that do not exist."""
    first = tl.minimum(tl.maximum(tl.load(requests.cu_num_rows_ptr + req_idx), 0), num_rows)
    # Not below the first: the difference of any two int32 is no int32.
    last = tl.minimum(tl.maximum(tl.load(requests.cu_num_rows_ptr + req_idx + 1), first), num_rows)
    count = tl.minimum(last - first, max_spec_len + 1)
    slot = req_idx.to(tl.int64)
    if requests.slots_ptr is not None:
        slot = tl.load(requests.slots_ptr + req_idx).to(tl.int64)
    slot = tl.minimum(tl.maximum(slot, 0), num_slots - 1)
    return Request(req_idx, tl.where(count > 0, first, 0), count), tl.where(count > 0, slot, 0)


@triton.jit
def rejection_at(offset):
    """Return the bit of a row in its request's arrivals, if it has one."""
    return tl.full((), 1, tl.int32) << (offset + ARRIVAL_BITS)


@triton.jit
def load_or(ptr, slot, otherwise):  # [num_slots] any, or None
    """Return a parameter of a slot, or what stands for "off"."""
    value = otherwise
    if ptr is not None:
        value = tl.load(ptr + slot).to(otherwise.dtype)
    return value


@triton.jit
def load_penalties(penalties, slot):
    """Return the factors of a slot."""
    off = tl.zeros((), tl.float32)
    presence = load_or(penalties.presence_ptr, slot, off)
    frequency = load_or(penalties.frequency_ptr, slot, off)
    repetition = load_or(penalties.repetition_ptr, slot, off + 1)
    return Factors(presence, frequency, repetition, (presence != 0) | (frequency != 0) | (repetition != 1))


@triton.jit
def penalised(logits, times, in_prompt, factors):
    """Return penalised logits, by vLLM's operations in its order: repetition (a factor), frequency, presence.

    Takes `logits` [...] float32; `times` [...] float32: how often the output has the id, at most 0 if it has not;
    `in_prompt` [...] bool: the prompt has it."""
    # What is off costs nothing: the scan has no time left for what changes no number.
    if factors.repetition != 1:
        inverse = tl.div_rn(1.0, factors.repetition)
        factor = tl.where(logits > 0, inverse, factors.repetition)
        logits = tl.where((times > 0) | in_prompt, logits * factor, logits)
    if factors.frequency != 0:
        logits = logits - factors.frequency * tl.maximum(times, 0.0)
    return logits - tl.where(times > 0, factors.presence, 0.0)


@triton.jit
def locate(inputs, row_idx, slot, offset):
    """Return the place of a row."""
    return locate_with(inputs, row_idx, slot, offset, load_penalties(inputs.penalties, slot))


@triton.jit
def locate_with(inputs, row_idx, slot, offset, factors):
    """Return the place of a row whose slot has these penalties: its rows have them in common."""
    edits = inputs.edits
    num_edits = tl.zeros((), tl.int32)
    if edits.excluded_ptr is not None:
        num_edits = tl.load(edits.num_edits_ptr + row_idx)
    return Place(row_idx.to(tl.int64), slot, num_edits, factors, offset)


@triton.jit
def words_of_runs(runs):
    """Return [runs, WORDS] int32: the words of some runs, which need not be neighbours. Takes `runs` [runs] int32."""
    return runs[:, None] * WORDS + tl.arange(0, WORDS)[None, :]


@triton.jit
def words_of_tile(tile):
    """Return [RUNS, WORDS] int32: the words of one tile. Takes `tile`: int32."""
    return words_of_runs((tl.zeros((RUNS,), tl.int32) + tile) * RUNS + tl.arange(0, RUNS))


@triton.jit
def words_of_tiles(tiles):
    """Return [tiles, RUNS, WORDS] int32: the words of some tiles. Takes `tiles` [tiles] int32."""
    runs = tiles[:, None] * RUNS + tl.arange(0, RUNS)[None, :]
    return runs[:, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]


@triton.jit
def indices_of(words):
    """Return [..., 32] int32: the indices of words. Takes `words` [runs, WORDS] or [tiles, RUNS, WORDS] int32."""
    indices = tl.expand_dims(words, -1) * 32 + tl.arange(0, 32)
    if len(words.shape) == 3:
        # Triton deals out warps to dimensions in the order of their contiguity. These claims, of which only the last is
        # true, give each tile to one warp: then nothing in it waits for a barrier. Loads go by the last one alone.
        indices = tl.max_contiguous(indices, [2, 1, 4, 32])
    return indices


@triton.jit
def load_bits(mask_ptr, words, vocab_size):  # [num_words] int32
    """Return [..., 32] int32, 0 or 1. Bits behind the vocabulary are 0. Takes `words` [...] int32."""
    loaded = tl.load(mask_ptr + words, mask=words * 32 < vocab_size, other=0)
    return (tl.expand_dims(loaded, -1) >> tl.arange(0, 32)) & 1


@triton.jit
def load_penalised(row, words, logits, vocab_size):
    """Return [..., 32] float32: logits as the penalties of the row's slot make them.

    Takes `words` [...] int32; `logits` [..., 32] float32."""
    penalties, place = row.inputs.penalties, row.place
    times = load_times(penalties, place.slot, words, vocab_size)
    times += times_drafted(row.inputs.draft_token_ids_ptr, place.row_idx, place.offset, indices_of(words))
    in_prompt = times < 0
    if place.factors.repetition != 1:
        in_prompt = load_bits(prompt_of(penalties, place.slot), words, vocab_size) != 0
    return penalised(logits, times.to(tl.float32), in_prompt, place.factors)


@triton.jit
def prompt_of(penalties, slot):
    """Return a pointer to the prompt's mask of a slot."""
    return penalties.prompt_mask_ptr + slot * penalties.prompt_stride


@triton.jit
def times_drafted(
    draft_token_ids_ptr,  # [num_rows] int32 | int64, or None
    row_idx,
    offset,
    token_ids,
):
    """Return [...] int32: how often each id is among the drafts before a row. Takes `token_ids` [...] int32."""
    times = tl.zeros_like(token_ids)
    if draft_token_ids_ptr is not None:
        for back in range(1, offset + 1):
            times += (token_ids == tl.load(draft_token_ids_ptr + row_idx - back)).to(tl.int32)
    return times


@triton.jit
def _logit_of(row, token_id, vocab_size):
    """Return the logit of one token of the vocabulary, edited unless it is moved."""
    inputs, place = row
    penalties = inputs.penalties
    logit = tl.load(inputs.logits_ptr + place.row_idx * inputs.logits_stride + token_id).to(tl.float32)
    if penalties.output_counts_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if place.factors.is_any:
            times = tl.load(penalties.output_counts_ptr + place.slot * penalties.counts_stride + token_id)
            times += times_drafted(inputs.draft_token_ids_ptr, place.row_idx, place.offset, token_id)
            in_prompt = bit_at(prompt_of(penalties, place.slot), token_id)
            logit = penalised(logit, times.to(tl.float32), in_prompt, place.factors)
    if inputs.grammar_mask_ptr is not None:
        is_allowed = bit_at(inputs.grammar_mask_ptr + place.row_idx * inputs.grammar_stride, token_id)
        logit = tl.where(is_allowed, logit, float("-inf"))
    return logit


@triton.jit
def most_of_draft(row, token_id, is_draft, vocab_size):
    """Return what the logit of a draft token is at most: its own, infinity if it is moved, and -inf if there is none.

    Every program that reads a part of the row can afford it: it is a single entry."""
    inputs, place = row
    edits = inputs.edits
    logit = tl.full((), float("-inf"), tl.float32)
    if is_draft & (token_id >= 0) & (token_id < vocab_size):
        known = token_id.to(tl.int32)
        logit = _logit_of(row, known, vocab_size)
        if edits.excluded_ptr is not None:
            is_moved = (place.num_edits < 0) | bit_at(edits.excluded_ptr + place.row_idx * inputs.num_words, known)
            logit = tl.where(is_moved, float("inf"), logit)
    return logit


@triton.jit
def bit_at(mask_ptr, token_id):  # [num_words] int32
    """Whether a mask has the bit of a token."""
    return ((tl.load(mask_ptr + token_id // 32) >> (token_id % 32)) & 1) != 0


@triton.jit
def load_times(penalties, slot, words, vocab_size):
    """Return [..., 32] int32: how often the output of a slot has each id."""
    indices = indices_of(words)
    counts_ptr = penalties.output_counts_ptr + slot * penalties.counts_stride
    return tl.load(counts_ptr + indices, mask=indices < vocab_size, other=0)


@triton.jit
def load_raw(row, words, vocab_size):
    """Return [..., 32] in the type of the logits, as they are; -inf behind the vocabulary."""
    inputs, place = row
    indices = indices_of(words)
    inside = indices < vocab_size
    if inputs.edits.excluded_ptr is not None:  # a row that has nothing but its edits is not read
        inside = inside & (place.num_edits >= 0)
    row_ptr = inputs.logits_ptr + place.row_idx * inputs.logits_stride
    return tl.load(row_ptr + indices, mask=inside, other=float("-inf"))


@triton.jit
def load_logits(row, words, vocab_size):
    """Return [..., 32] float32: edited logits; -inf where there is nothing.

    Takes `words` [runs, WORDS] or [tiles, RUNS, WORDS] int32."""
    inputs, place = row
    edits = inputs.edits
    logits = load_raw(row, words, vocab_size).to(tl.float32)
    if inputs.penalties.output_counts_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if place.factors.is_any:
            logits = load_penalised(row, words, logits, vocab_size)
    logits = masked(row, words, logits, vocab_size)
    if edits.excluded_ptr is not None:  # noqa: SIM102
        if place.num_edits != 0:
            logits = without_moved(row, words, logits, vocab_size)
            entries = indices_of(words) - tl.cdiv(vocab_size, TILE) * TILE
            is_edit = (entries >= 0) & (entries < tl.abs(place.num_edits))
            known = tl.load(edits.logits_ptr + place.row_idx * edits.capacity + entries, mask=is_edit, other=0.0)
            logits = tl.where(is_edit, known, logits)
    return logits


@triton.jit
def masked(row, words, logits, vocab_size):
    """Return the logits, -inf where a grammar allows no token."""
    inputs, place = row
    if inputs.grammar_mask_ptr is not None:
        row_mask_ptr = inputs.grammar_mask_ptr + place.row_idx * inputs.grammar_stride
        logits = tl.where(load_bits(row_mask_ptr, words, vocab_size) != 0, logits, float("-inf"))
    return logits


@triton.jit
def without_moved(row, words, logits, vocab_size):
    """Return the logits, -inf where an id is among the edits."""
    inputs, place = row
    row_excluded_ptr = inputs.edits.excluded_ptr + place.row_idx * inputs.num_words
    return tl.where(load_bits(row_excluded_ptr, words, vocab_size) != 0, float("-inf"), logits)


@triton.jit
def load_one_tile(row, tile, vocab_size):
    """Return [TILE] float32 and int32: edited logits of one tile, and their indices. Takes `tile`: int32."""
    words = words_of_tile(tile)
    return tl.reshape(load_logits(row, words, vocab_size), (TILE,)), tl.reshape(indices_of(words), (TILE,))


@triton.jit
def ids_of(row, indices, vocab_size):
    """Return the token ids of some indices. Takes `indices` [...] int32."""
    edits, place = row.inputs.edits, row.place
    token_ids = indices
    if edits.excluded_ptr is not None:
        entries = indices - tl.cdiv(vocab_size, TILE) * TILE
        is_edit = (entries >= 0) & (entries < tl.abs(place.num_edits))
        known = tl.load(edits.ids_ptr + place.row_idx * edits.capacity + entries, mask=is_edit, other=0)
        token_ids = tl.where(is_edit, known, token_ids)
    return token_ids


@triton.jit
def index_of(row, token_id, vocab_size, EDITS: tl.constexpr):
    """Return where a token of the vocabulary is: its id, or the index of its edit; -1 if the row does not have it."""
    index = token_id
    if EDITS > 0:
        edits, place = row.inputs.edits, row.place
        is_moved = bit_at(edits.excluded_ptr + place.row_idx * row.inputs.num_words, token_id)
        if (place.num_edits < 0) | is_moved:
            entries = tl.arange(0, EDITS)
            is_edit = entries < tl.abs(place.num_edits)
            known = tl.load(edits.ids_ptr + place.row_idx * edits.capacity + entries, mask=is_edit, other=-1)
            first = tl.min(tl.where(known == token_id, entries, NO_ID))  # of equal ids only the first is not -inf
            index = tl.where(first < NO_ID, tl.cdiv(vocab_size, TILE) * TILE + first, -1)
    return index


@triton.jit
def order_to_float(order):
    """Return the number of an `argmax_order`; NaN of that of NaN."""
    return tl.where(order < 0, order ^ NO_ID, order).to(tl.float32, bitcast=True)


@triton.jit
def scaled_order(logits, temperature):
    """Return integers in the order of `logit / temperature`, a float32 quotient."""
    return argmax_order(scaled_by(logits, temperature))


@triton.jit
def scaled_by(logits, temperature):
    """Return the quotients, correctly rounded."""
    return tl.div_rn(logits, tl.zeros_like(logits) + temperature)
