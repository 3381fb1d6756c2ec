"""What the counter kernels hand on to each other, and how they wait for it."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

ONE_HOT = tl.constexpr(0)
PROBS = tl.constexpr(1)
LOGITS = tl.constexpr(2)

DONE = tl.constexpr(-1)
"""Verdict on a request whose token is written; otherwise the verdict is the rejected draft row."""

PROGRESS = tl.constexpr(4)
"""Words of the workspace per request, all 0 between steps (the fourth is there for alignment)."""
MEASURED = tl.constexpr(0)
"""Strips of the request's rows whose masses are stored."""
JUDGED = tl.constexpr(1)
"""When its verdict is stored: 1 if it is done, else 2 and how many drafts it accepted, so that nobody waits twice."""
ARRIVED = tl.constexpr(2)
"""Strips of the row that is drawn from whose masses are."""

PATIENCE = tl.constexpr(1 << 21)
"""Looks at a word before its reader gives up, about a second: only arguments that contradict each other need them."""


@triton.jit
def wait_until(
    word_ptr,  # [1] int32
    at_least,
):
    """What others have set, once it is enough; or, if the arguments contradict each other, after a second or so."""
    polls = 0
    word = tl.atomic_add(word_ptr, 0, sem="acquire")
    while (word < at_least) & (polls < PATIENCE):
        polls += 1
        word = tl.atomic_add(word_ptr, 0, sem="acquire")
    return word


@triton.jit
def end_after_predecessor():
    """One program of a kernel that did not wait for the one before it must, or what comes next would not either."""
    if tl.program_id(0) == 0:
        gdc_wait()


@triton.jit
def pack(high, low):
    """Two float32 in one int64."""
    low_bits = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (high.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low_bits


@triton.jit
def unpack(word):
    high = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return high, (word & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)
