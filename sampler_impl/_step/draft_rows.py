"""What kernels see of the drafter: the probabilities of ids of a row, given as such or as logits.

`drafts` is as `launch` makes it: ids; probabilities or logits, and their strides; of logits also their logsumexp, or
None if the step computes it, the stride of that, temperatures, or None if there is nothing to divide by, and the plan's
own memory for a logsumexp per row, which is None for probabilities.

A **draft row** is `(drafts, slot, offset, whether it has a distribution to subtract, logsumexp, temperature)`.
"""
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
    """float32: the draft probability of some ids of a row; 0 outside of the mask. What is no number is infinity: then
    the draft is not accepted, and nothing is left of the target. Takes `ids` [...] int32, `mask` [...] bool."""
    drafts, slot, offset, _, logsumexp, temperature = draft_row
    # Where two requests lay claim to a row, the list has ids of one and logits of the other: -1 may weigh something.
    mask = mask & (ids >= 0)
    values = tl.load(_row_ptr(drafts, slot, offset) + ids, mask=mask, other=0.0).to(tl.float32)
    if drafts[7] is not None:
        values = tl.where(mask, tl.exp(_divided(drafts, values, temperature) - logsumexp), 0.0)
    return tl.where(values == values, values, float("inf"))


@triton.jit
def find_draft_row(drafts, slot, offset, row_idx, has_draft, token_id, is_needed, vocab_size):
    """The last three of a draft row. A placeholder has no distribution among logits: there it stands for a draft that
    was never made, as in vLLM's model runner V2. (Triton 3.6 cannot return a tuple that holds None.)"""
    if drafts[7] is not None:
        has_draft = has_draft & (token_id >= 0)
    temperature = _temperature(drafts, slot)
    logsumexp = _find_logsumexp(drafts, slot, offset, row_idx, temperature, is_needed & has_draft, vocab_size)
    return has_draft, logsumexp, temperature


@triton.jit
def load_draft_row(drafts, slot, row_idx):
    """The last two, in a later kernel, of a row that has a distribution to subtract."""
    logsumexp = tl.zeros((), tl.float32)
    if drafts[7] is not None:
        logsumexp = tl.load(drafts[7] + row_idx)
    return logsumexp, _temperature(drafts, slot)


@triton.jit
def _find_logsumexp(drafts, slot, offset, row_idx, temperature, is_needed, vocab_size):
    """float32: that of a row of draft logits, given or computed; NaN if it is not finite. Anything for probabilities,
    and where it is not needed. The plan keeps it for `emit`."""
    logsumexp = tl.zeros((), tl.float32)
    if drafts[7] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_needed:
            if drafts[4] is not None:
                logsumexp = tl.load(drafts[4] + slot * drafts[5] + offset)
            else:
                logsumexp = _logsumexp(drafts, slot, offset, temperature, vocab_size)
            logsumexp = tl.where(tl.abs(logsumexp) < float("inf"), logsumexp, float("nan"))
            tl.store(drafts[7] + row_idx, logsumexp)
    return logsumexp


@triton.jit
def _row_ptr(drafts, slot, offset):
    """Where a row of the drafter begins."""
    _, dense_ptr, slot_stride, position_stride, _, _, _, _ = drafts
    return dense_ptr + slot * slot_stride + offset.to(tl.int64) * position_stride


@triton.jit
def _temperature(drafts, slot):
    """float32: what draft logits of a slot are divided by."""
    temperature = tl.full((), 1.0, tl.float32)
    if drafts[6] is not None:
        temperature = tl.maximum(tl.load(drafts[6] + slot), MIN_TEMPERATURE)
    return temperature


@triton.jit
def _divided(drafts, logits, temperature):
    if drafts[6] is not None:
        logits = scaled_by(logits, temperature)
    return logits


@triton.jit
def _logsumexp(drafts, slot, offset, temperature, vocab_size):
    """float32, in one pass: each place of a block keeps its largest logit and its sum over that."""
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
