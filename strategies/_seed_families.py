"""Seeds that a careless map takes for each other, made by rule: bits, signs, halves, shifts, sums, reversed words."""

from collections.abc import Iterator

_BITS = 64
_SHIFTS = (1, 2, 4, 8, 16, 24, 31, 32, 33, 48)
_SUMS = (1, 2, 3, 7, 31, 127, 1000, 2**16 + 1, 2**24 - 1, 2**31 - 1, 2**32 - 1, 2**53 - 1, 2**61 - 1)
_LIMITS = (0, 1, -1, -2, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, -(2**63))


def _signed(number: int) -> int:
    """Return the lower 64 bits as a signed number, which is what users write and torch takes."""
    kept = number % (1 << _BITS)
    return kept - (1 << _BITS) if kept >= 1 << _BITS - 1 else kept


def _related(base: int) -> Iterator[tuple[str, int]]:
    yield "s", base
    for bit in range(_BITS):
        yield f"s with bit {bit} flipped", base ^ 1 << bit
    yield "not s", ~base
    yield "-s", -base
    for by in _SHIFTS:
        yield f"s << {by}", base << by
        yield f"s >> {by}", (base % 2**_BITS) >> by
    for more in _SUMS:
        yield f"s + {more}", base + more
        yield f"s - {more}", base - more
    low, high = base % 2**32, base >> 32 & 2**32 - 1
    yield "s with its halves swapped", low << 32 | high
    yield "s with equal halves", (low ^ high) << 32 | (low ^ high)
    yield "s with its bytes reversed", int.from_bytes((base % 2**_BITS).to_bytes(8, "little"), "big")
    yield "s with its bits reversed", int(f"{base % 2**_BITS:064b}"[::-1], 2)


def seed_family(base: int, *, num_bits: int = 64) -> dict[int, str]:
    """Return seeds to what each is to `base`; all differ in their lower `num_bits` bits.

    Args:
        num_bits: That a correct sampler may do with: torch's generator on a CPU takes 32.

    Example:
        >>> seed_family(5)[-5]
        '-s'
    """
    found: dict[int, str] = {}
    kept: set[int] = set()
    limits = ((f"{limit}", limit) for limit in _LIMITS)
    for words, number in (*_related(base), *limits):
        seed = _signed(number)
        if seed % 2**num_bits not in kept:
            kept.add(seed % 2**num_bits)
            found[seed] = words
    return found
