"""Seeds of calls that a sampler may take for each other."""

import numpy as np

from fairdraw._core.seeds import derive_seed


def related_seeds(count: int, seed: int) -> list[int]:
    """Different seeds below 2**32, in the same order for every `seed`: see `seed_words`.

    Bits 0 to 31 are flipped, because torch's CPU generator reads no others.

    Example:
        >>> related_seeds(9, 0)[1] - related_seeds(9, 0)[0]
        1
    """
    rng = np.random.default_rng(derive_seed("related seeds", seed))
    # Multiples of 64, so that those that a sampler takes for each other are the same ones in every call.
    first, flipped = (64 * int(high) for high in rng.integers(2**16, 2**25, 2))
    doubled = int(rng.integers(2**16, 2**19))
    found = [first + i for i in range(count // 3)]
    found += [flipped, *(flipped ^ (1 << bit) for bit in _bits(count))]
    found += [doubled << i for i in range(min(12, count // 6))]
    found += rng.integers(2**32, size=2 * count).tolist()
    return list(dict.fromkeys(found))[:count]


def seed_words(count: int, number: int) -> str:
    """How seed `number` of so many was made.

    Example:
        >>> [seed_words(9, number) for number in (1, 3, 4, 8)]
        ['s + 1', 't', 't with bit 0 flipped', 'another']
    """
    words = ["s", *(f"s + {i}" for i in range(1, count // 3))]
    words += ["t", *(f"t with bit {bit} flipped" for bit in _bits(count))]
    words += ["u", *(f"{2**i} u" for i in range(1, min(12, count // 6)))]
    return words[number] if number < len(words) else "another"


def _bits(count: int) -> list[int]:
    """The bits that are flipped, one in each of a third of the seeds."""
    return sorted(set(np.linspace(0, 31, min(32, max(1, count // 3 - 1))).astype(int).tolist()))
