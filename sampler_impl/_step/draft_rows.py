"""What kernels see of the drafter: the probabilities of ids of a row, given as such or as logits."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .rows import MIN_TEMPERATURE, scaled_by

BLOCK = tl.constexpr(4096)
"""Logits in flight while a row's logsumexp is computed. One number for all plans: its places have float32 sums."""
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite float32: -inf over it weighs nothing, and over -inf it would be NaN."""
ONE = tl.constexpr(float(1 << 40))
"""The integer weight of the largest logit: 2**19 of them add up in an int64."""


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
    if drafts.row_logsumexp_ptr is not None:
        logprobs = _divided(drafts, values, draft_row.temperature) - draft_row.logsumexp
        values = tl.where(mask, tl.exp(logprobs), 0.0)
    return tl.where(values == values, values, float("inf"))


@triton.jit
def find_draft_row(drafts, place, has_draft, token_id, is_needed, vocab_size):
    """Return the last three of a draft row. A placeholder has no distribution among logits: there it stands for a draft
    that was never made, as in vLLM's model runner V2. (Triton 3.6 cannot return a tuple that holds None.)"""
    if drafts.row_logsumexp_ptr is not None:
        has_draft = has_draft & (token_id >= 0)
    temperature = _temperature(drafts, place.slot)
    logsumexp = _find_logsumexp(drafts, place, temperature, is_needed & has_draft, vocab_size)
    return has_draft, logsumexp, temperature


@triton.jit
def load_draft_row(drafts, slot, row_idx):
    """Return the last two, in a later kernel, of a row that has a distribution to subtract."""
    logsumexp = tl.zeros((), tl.float32)
    if drafts.row_logsumexp_ptr is not None:
        logsumexp = tl.load(drafts.row_logsumexp_ptr + row_idx)
    return logsumexp, _temperature(drafts, slot)


@triton.jit
def _find_logsumexp(drafts, place, temperature, is_needed, vocab_size):
    """Return a float32: that of a row of draft logits, given or computed; NaN if it is not finite. Anything for
    probabilities, and where it is not needed. The plan keeps it for `emit`."""
    logsumexp = tl.zeros((), tl.float32)
    if drafts.row_logsumexp_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_needed:
            if drafts.draft_logsumexp_ptr is not None:
                slot_logsumexp_ptr = drafts.draft_logsumexp_ptr + place.slot * drafts.logsumexp_stride
                logsumexp = tl.load(slot_logsumexp_ptr + place.offset)
            else:
                logsumexp = _logsumexp(drafts, place.slot, place.offset, temperature, vocab_size)
            logsumexp = tl.where(tl.abs(logsumexp) < float("inf"), logsumexp, float("nan"))
            tl.store(drafts.row_logsumexp_ptr + place.row_idx, logsumexp)
    return logsumexp


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
def _logsumexp(drafts, slot, offset, temperature, vocab_size):
    """Return a float32, in one pass: each place of a block keeps its largest logit and its sum over that."""
    logits_ptr = _row_ptr(drafts, slot, offset)
    largest = tl.full((BLOCK,), LOWEST, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, vocab_size, BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        logits = _divided(drafts, logits, temperature)
        is_larger = logits > largest
        term = tl.exp(-tl.abs(logits - largest))
        sums = tl.where(is_larger, sums * term + 1.0, sums + term)  # NaN is not larger, and its sum is NaN
        largest = tl.where(is_larger, logits, largest)
    best = tl.max(largest)
    terms = sums * tl.exp(largest - best)
    # Integers add up alike in any order, so in plans of any number of warps. NaN has no integer.
    total = (tl.sum((tl.where(terms == terms, terms, 0.0) * ONE).to(tl.int64)).to(tl.float64) / ONE).to(tl.float32)
    has_nan = tl.max((terms != terms).to(tl.int32)) > 0
    return tl.where(has_nan, float("nan"), best + tl.log(total))
