"""Integers of launches, on the host: Triton's own functions of these names take microseconds there."""

from __future__ import annotations


def cdiv(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Return the least power of 2 that is not smaller; 1 for 0."""
    return 1 << max(number - 1, 0).bit_length()
