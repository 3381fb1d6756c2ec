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
"""1 when its verdict is."""
ARRIVED = tl.constexpr(2)
"""Strips of its residual whose masses are."""

PATIENCE = tl.constexpr(1 << 21)


@triton.jit
def wait_until(word_ptr, at_least):
    """Until others have counted this far; or in vain, for a second or so, if the arguments contradict each other."""
    polls = 0
    while (tl.atomic_add(word_ptr, 0, sem="acquire") < at_least) & (polls < PATIENCE):
        polls += 1


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
