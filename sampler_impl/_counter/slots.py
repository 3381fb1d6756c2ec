"""What the counter kernels pass on to each other: self-flagging slots in the workspace.

Each slot is its own ready flag: 0 means not yet published, and no published value is 0. Consumers spin on the slot; it
needs neither a second word nor a fence. (Only early-exit bounds may be 0: nothing known yet.) The last consumer resets
a slot to 0, once all producers are known to have written:

    partial_sums  [batch_size, max_spec_len, num_words] int64    partial sum or argmax word of a tile, by `slot_of_tile`
    exit_bounds   [batch_size, max_spec_len, 4] float32    sum over strips, factor, number of strips
    status        [batch_size, 3] int64    DONE, or OPEN + accepted drafts; then target and draft statistics of that row
    draw_sums     [batch_size, num_tiles] int64    of the row that is drawn from; residuals: float32 with the sign set
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .step import THREADS

# Kinds of drafts.
ONE_HOT = tl.constexpr(0)
PROBS = tl.constexpr(1)
LOGITS = tl.constexpr(2)

DONE = tl.constexpr(1)
"""Status of a request whose token is written."""
OPEN = tl.constexpr(2)
"""Status of any other, less the number of accepted drafts."""
STATUS_WORDS = tl.constexpr(3)

BOUND_WORDS = tl.constexpr(4)
"""Sum over strips, its factor, how many strips it has, and padding."""

SNAPSHOT = tl.constexpr(THREADS)
"""Least elements of a load on which programs decide while others still write: then each element is loaded by one thread
only. Two warps that load the same element at different times could decide differently."""

MAX_SPINS = tl.constexpr(1 << 21)
"""Polls of a slot before its consumer gives up, about a second: reached only if arguments contradict each other."""


@triton.jit
def find_drafts(
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    req_idx,
    batch_size,
    num_tokens,
    max_spec_len,
):
    """Return a request's first draft token and how many it has: tokens that exist, whatever the sums say.

    All kernels must agree, or one of them waits for what no other publishes."""
    start = req_idx * max_spec_len
    count = max_spec_len
    if num_tokens != batch_size * max_spec_len:  # else all have as many, and nothing has to be loaded
        first = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
        start = tl.minimum(tl.maximum(first, 0), num_tokens).to(tl.int32)
        # Not below the first: the difference of any two int32 is no int32.
        end = tl.minimum(tl.maximum(tl.load(cu_num_draft_tokens_ptr + req_idx), start), num_tokens).to(tl.int32)
        count = tl.minimum(end - start, max_spec_len)
    return start, count


@triton.jit
def wait_for_status(
    request_status_ptr,  # [3] int64
):
    """Return the status word once it is published; 0 if it never is."""
    polls = 0
    status = tl.atomic_add(request_status_ptr, 0, sem="relaxed")  # one load for all threads
    while (status == 0) & (polls < MAX_SPINS):
        polls += 1
        status = tl.atomic_add(request_status_ptr, 0, sem="relaxed")
    return status


@triton.jit
def wait_for_statistics(
    request_status_ptr,  # [3] int64
):
    """Return the packed softmax statistics of target and draft, which follow the status word."""
    polls = 0
    target = tl.load(request_status_ptr + 1, volatile=True)
    draft = tl.load(request_status_ptr + 2, volatile=True)
    while ((target == 0) | (draft == 0)) & (polls < MAX_SPINS):
        polls += 1
        target = tl.load(request_status_ptr + 1, volatile=True)
        draft = tl.load(request_status_ptr + 2, volatile=True)
    return target, draft


@triton.jit
def wait_for_all(pointers, mask, other):
    """Return the words of all slots, once all are published. Takes `pointers` [...] any."""
    words = tl.load(pointers, mask=mask, other=other, volatile=True)
    polls = 0
    while (tl.min((words != 0).to(tl.int32)) == 0) & (polls < MAX_SPINS):
        polls += 1
        words = tl.load(pointers, mask=mask, other=other, volatile=True)
    return words
