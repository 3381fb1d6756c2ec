"""What kernels see of the drafter: the probabilities of ids of a row, given as such or as logits."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import LOG2_E, unpack
from .bisection import ONE
from .rows import MIN_TEMPERATURE, NOTHING, TILE, order_to_float, scaled_by


@triton.jit
def draft_probs_of(draft_row, ids, mask):
    """Return float32: the draft probabilities of some ids of a row; 0 outside of the mask. What is no number is
    infinity: then the draft is not accepted, and nothing is left of the target.

    Takes `ids` [...] int32, `mask` [...] bool."""
    drafts = draft_row.drafts
    # Where two requests lay claim to a row, the list has ids of one and logits of the other: -1 may weigh something.
    mask = mask & (ids >= 0)
    row_ptr = _row_ptr(drafts, draft_row.slot, draft_row.offset)
    values = tl.load(row_ptr + ids, mask=mask, other=0.0).to(tl.float32)
    if drafts.row_words_ptr is not None:
        logprobs = _divided(drafts, values, draft_row.temperature) - draft_row.logsumexp
        values = tl.where(mask, tl.exp(logprobs), 0.0)
    return tl.where(values == values, values, float("inf"))


@triton.jit
def find_draft_row(drafts, place, is_needed, sizes, TILES: tl.constexpr):
    """Return logsumexp and temperature of a draft row. The former is NaN if it is not finite, and anything for
    probabilities, and where it is not needed. (Triton 3.6 cannot return a tuple that holds None.)"""
    logsumexp = tl.zeros((), tl.float32)
    if drafts.row_words_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_needed:
            if drafts.draft_logsumexp_ptr is not None:
                slot_logsumexp_ptr = drafts.draft_logsumexp_ptr + place.slot * drafts.logsumexp_stride
                logsumexp = tl.load(slot_logsumexp_ptr + place.offset)
            else:
                logsumexp = _logsumexp(drafts.row_words_ptr + place.row_idx * sizes.all_tiles, sizes.vocab_size, TILES)
            logsumexp = tl.where(tl.abs(logsumexp) < float("inf"), logsumexp, float("nan"))
    return logsumexp, _temperature(drafts, place.slot)


@triton.jit
def _row_ptr(drafts, slot, offset):
    """Return where a row of the drafter begins."""
    return drafts.dense_ptr + slot * drafts.slot_stride + offset.to(tl.int64) * drafts.position_stride


@triton.jit
def _temperature(drafts, slot):
    """Return a float32: what draft logits of a slot are divided by."""
    temperature = tl.full((), 1.0, tl.float32)
    if drafts.draft_temperature_ptr is not None:
        temperature = tl.maximum(tl.load(drafts.draft_temperature_ptr + slot), MIN_TEMPERATURE)
    return temperature


@triton.jit
def _divided(drafts, logits, temperature):
    """Return draft logits over their temperature, if there is one."""
    if drafts.draft_temperature_ptr is not None:
        logits = scaled_by(logits, temperature)
    return logits


@triton.jit
def load_draft_logits(drafts, slot, offset, ids, vocab_size):
    """Return [...] float32: draft logits over their temperature; -inf behind the vocabulary.

    Takes `ids` [...] int32."""
    row_ptr = _row_ptr(drafts, slot, offset)
    logits = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    return _divided(drafts, logits, _temperature(drafts, slot))


@triton.jit
def _logsumexp(words_ptr, vocab_size, TILES: tl.constexpr):  # [all_tiles] int64
    """Return a float32: that of the words of a row's tiles, which the scan wrote. Not finite if the row has none."""
    tiles = tl.arange(0, TILES)
    words = tl.load(words_ptr + tiles, mask=tiles < tl.cdiv(vocab_size, TILE), other=0)
    _, sums = unpack(words)
    # A tile of nothing has 0 as its sum, and no largest logit.
    orders = tl.where(sums == 0, NOTHING, (words >> 32).to(tl.int32))
    best = order_to_float(tl.max(orders))
    terms = tl.where(sums == 0, 0.0, sums * tl.exp2((order_to_float(orders) - best) * LOG2_E))
    # Integers add up alike in any order, so in plans of any number of warps. NaN and infinity have no integer.
    total = tl.sum((tl.where(terms < float("inf"), terms, 0.0) * ONE).to(tl.int64)).to(tl.float64) / ONE
    return best + tl.log(total.to(tl.float32))
