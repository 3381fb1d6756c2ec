"""What the counter kernels hand on to each other: words that are their own flags.

A word of the workspace is 0 until it is written, and nothing that is written is 0. So a reader that finds a word has
what it waits for, and its writer needs neither a second word nor a fence. (Only evidence may be 0: nothing proven yet.)
The last reader of a word makes it 0 again, once all its writers are known to have written:

    stats     [batch_size, max_spec_len, num_words] int64    a tile's mass or winner, in the order of `word_of_tile`
    evidence  [batch_size, max_spec_len, 4] float32      sum over strips, factor, strips: when to stop reading
    verdicts  [batch_size, 3] int64          DONE, or OPEN + drafts accepted; then target and draft law of the row
    masses    [batch_size, num_tiles] int64  of the row that is drawn from; residuals: float32, sign set

A decision that other programs may still change by writing is taken on a snapshot, of which each element must be loaded
by one thread only: two warps that looked at different times would part ways. That is why snapshots have at least `SEEN`
elements. Words that are waited for until they are there need no such care.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from ._counter_step import THREADS

ONE_HOT = tl.constexpr(0)
PROBS = tl.constexpr(1)
LOGITS = tl.constexpr(2)

SEEN = tl.constexpr(THREADS)

DONE = tl.constexpr(1)
"""Verdict on a request whose token is written."""
OPEN = tl.constexpr(2)
"""Verdict on any other, less the number of accepted drafts."""
VERDICT = tl.constexpr(3)

EVIDENCE = tl.constexpr(4)
"""Sum over strips, its factor, how many strips it has, and nothing."""

PATIENCE = tl.constexpr(1 << 21)
"""Looks at a word before its reader gives up, about a second: only arguments that contradict each other need them."""


@triton.jit
def wait_for(
    verdict_ptr,  # [3] int64
):
    """A verdict, once it is there; or 0, if it never comes."""
    polls = 0
    verdict = tl.atomic_add(verdict_ptr, 0, sem="relaxed")  # one look for all threads
    while (verdict == 0) & (polls < PATIENCE):
        polls += 1
        verdict = tl.atomic_add(verdict_ptr, 0, sem="relaxed")
    return verdict


@triton.jit
def wait_for_laws(
    verdict_ptr,  # [3] int64
):
    """The two laws beside a verdict."""
    polls = 0
    target_law = tl.load(verdict_ptr + 1, volatile=True)
    draft_law = tl.load(verdict_ptr + 2, volatile=True)
    while ((target_law == 0) | (draft_law == 0)) & (polls < PATIENCE):
        polls += 1
        target_law = tl.load(verdict_ptr + 1, volatile=True)
        draft_law = tl.load(verdict_ptr + 2, volatile=True)
    return target_law, draft_law


@triton.jit
def all_there(
    words,  # [...] any, of a snapshot
):
    return tl.min((words != 0).to(tl.int32)) > 0


@triton.jit
def wait_for_all(
    pointers,  # [...] any
    mask,
    other,
):
    """Words, once all are there."""
    words = tl.load(pointers, mask=mask, other=other, volatile=True)
    polls = 0
    while (not all_there(words)) & (polls < PATIENCE):
        polls += 1
        words = tl.load(pointers, mask=mask, other=other, volatile=True)
    return words


@triton.jit
def pack(high, low):
    """Two float32 in one int64."""
    low_bits = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (high.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low_bits


@triton.jit
def unpack(word):
    high = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return high, (word & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)
