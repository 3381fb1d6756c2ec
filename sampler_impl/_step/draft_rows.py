"""What kernels see of the drafter: the probabilities of ids of a row, given as such or as logits.

`drafts` is as `launch` makes it: ids; probabilities or logits, and their strides; of logits also their logsumexp, or
None if the step computes it, the stride of that, and the plan's own memory of it, which is None for probabilities.

A **draft row** is `(drafts, slot, offset, whether there is a draft, logsumexp)`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(4096)
"""Logits in flight while a row's logsumexp is computed. One number for all plans: sums within its places are float32."""
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite float32: -inf over it weighs nothing, and over -inf it would be NaN."""
ONE = tl.constexpr(float(1 << 40))
"""The integer weight of the largest logit: 2**19 of them add up in an int64."""


@triton.jit
def draft_probs_of(draft_row, ids, mask):
    """float32: the draft probability of some ids of a row; 0 outside of the mask. Of a row of logits without a
    distribution it is NaN. Takes `ids` [...] int32, `mask` [...] bool."""
    drafts, slot, offset, _, logsumexp = draft_row
    values = tl.load(_row_ptr(drafts, slot, offset) + ids, mask=mask, other=0.0).to(tl.float32)
    if drafts[6] is not None:
        values = tl.where(mask, tl.exp(values - logsumexp), 0.0)
    return values


@triton.jit
def find_logsumexp(drafts, slot, offset, row_idx, is_needed, vocab_size):
    """float32: that of a row of draft logits, given or computed; NaN if it is not finite. Anything for probabilities,
    and where it is not needed. The plan keeps it for `emit`."""
    logsumexp = tl.zeros((), tl.float32)
    if drafts[6] is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if is_needed:
            if drafts[4] is not None:
                logsumexp = tl.load(drafts[4] + slot * drafts[5] + offset)
            else:
                logsumexp = _logsumexp(_row_ptr(drafts, slot, offset), vocab_size)
            logsumexp = tl.where(tl.abs(logsumexp) < float("inf"), logsumexp, float("nan"))
            tl.store(drafts[6] + row_idx, logsumexp)
    return logsumexp


@triton.jit
def load_logsumexp(drafts, row_idx):
    """float32: what `find_logsumexp` found."""
    logsumexp = tl.zeros((), tl.float32)
    if drafts[6] is not None:
        logsumexp = tl.load(drafts[6] + row_idx)
    return logsumexp


@triton.jit
def _row_ptr(drafts, slot, offset):
    """Where a row of the drafter begins."""
    _, dense_ptr, slot_stride, position_stride, _, _, _ = drafts
    return dense_ptr + slot * slot_stride + offset.to(tl.int64) * position_stride


@triton.jit
def _logsumexp(
    logits_ptr,  # [vocab_size] any
    vocab_size,
):
    """float32, in one pass: each place of a block keeps its largest logit and its sum over that."""
    largest = tl.full((BLOCK,), LOWEST, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, vocab_size, BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
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
