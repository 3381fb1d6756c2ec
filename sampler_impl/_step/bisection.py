"""Thresholds by bisection: the largest number such that what reaches it has some count or weight.

A threshold is the order of an entry, so a bisection goes on from entry to entry: it ends after some log2(entries)
steps, and not after as many as an order has bits. Orders are integers; weights of candidates are, too, so that sums are
exact.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false, reportOptionalMemberAccess=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import LOG2_E

ONE = tl.constexpr(1099511627776.0)  # 2**40: the integer weight of the row's best token
NO_BOUND = tl.constexpr(-0x8000)
"""A **bound** is the upper 16 bits of an order: what is compared with the 16 bits that runs have."""


@triton.jit
def middle_of(low, high):
    """Return the middle of two orders, above the lower one. Their difference may not be an int32."""
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def reached_with(reached, weights, need):
    """Return the highest bound such that the runs that reach it weigh at least `need`; NO_BOUND if all together do not.

    Takes `reached` [runs] int32, 16 bits; `weights` [runs] float32."""
    low = tl.full((), NO_BOUND, tl.int32)
    if tl.sum(weights) >= need:
        high = tl.max(reached)
        low = tl.min(tl.where(weights > 0, reached, high))
        while low < high:
            low, high = _halved(reached, weights, need, low, high)
    return low


@triton.jit
def _halved(reached, weights, need, low, high):
    """Return the ends after one step of `reached_with`."""
    reaches = reached >= (low + high + 1) >> 1
    is_enough = tl.sum(tl.where(reaches, weights, 0.0)) >= need
    if is_enough:
        low = tl.min(tl.where(reaches & (weights > 0), reached, high))
    else:
        high = tl.max(tl.where(reaches | (weights <= 0), low, reached))
    return low, high


@triton.jit
def highest_with(orders, weights, floor, need):
    """Return the highest order such that those at or above it weigh at least `need`; the floor if all do not.

    Takes `orders` [size] int32; `weights` [size] int64, 0 below the floor."""
    low = floor
    high = tl.maximum(tl.max(tl.where(weights > 0, orders, floor)), floor)
    while low < high:
        low, high = _closer(orders, weights, need, low, high)
    return low


@triton.jit
def _closer(orders, weights, need, low, high):
    """Return the ends after one step of `highest_with`."""
    middle = middle_of(low, high)
    is_enough = tl.sum(tl.where(orders >= middle, weights, 0)) >= need
    if is_enough:
        low = tl.min(tl.where((orders >= middle) & (weights > 0), orders, high))
    else:
        high = tl.max(tl.where((orders < middle) & (weights > 0), orders, low))
    return low, high


@triton.jit
def weights_of(scaled, largest):
    """Return [...] int64: `exp(scaled - largest)` over 2**-40. Takes `scaled` [...] float32."""
    return (tl.exp2((scaled - largest) * LOG2_E) * ONE).to(tl.int64)
