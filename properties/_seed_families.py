"""Seeds of a family: all of them draw different numbers, and each draws the same ones again.

A seed's *signature* is what it draws from flat rows in some consecutive calls. Two seeds of one signature are asked
anew, and so are the seeds that the same two changes make of other numbers, before they count as taken for each other.
"""

from collections.abc import Callable

import numpy as np

from fairdraw._core.array_types import Ints
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capabilities
from fairdraw.strategies._seed_families import seed_family

Signatures = Callable[[list[int], int], "Ints"]
"""From seeds and a number to `[num_seeds, num_draws] int64`: what each draws; another number, other draws."""


def families_are_apart(
    signatures: Signatures, can: Capabilities, seed: int, *, num_bits: int = 32, of_calls: bool = False
) -> None:
    """Raise unless all seeds of some families have signatures of their own, which repeat.

    Args:
        num_bits: In the lower of which seeds differ: torch's generator on a CPU takes no more than 32.
        of_calls: Each seed takes a call of its own. There is one family then, and a slow sampler is asked for a fifth.

    Error rates:
        Two seeds count as one if signatures are equal for three numbers: below 1e-5 for a correct sampler whose
        calls with one seed repeat one uniform of 11 bits (a signature is that number then), else below 1e-20.
    """
    bases = (derive_seed("base", seed) | 1, -(derive_seed("base", seed, 1) >> 1), 40 + seed % 10)
    for number, base in enumerate(bases[:1] if can.slow or of_calls else bases):
        family = seed_family(base, num_bits=num_bits)
        if can.slow and of_calls:
            family = dict(list(family.items())[seed % 5 :: 5])
        seeds = list(family)
        first = signatures(seeds, 2 * number)
        again = signatures(seeds[::-1], 2 * number)[::-1]
        changed = np.flatnonzero((first != again).any(axis=1))
        if changed.size:
            words = family[seeds[changed[0]]]
            raise CheckFailure(
                f"seed {seeds[changed[0]]} ({words}, s = {base}) drew other tokens when it was asked again"
            )
        _are_distinct(signatures, first, family, base, 2 * number + 1)


def _are_distinct(signatures: Signatures, found: Ints, family: dict[int, str], base: int, number: int) -> None:
    seeds = list(family)
    places: dict[bytes, int] = {}
    for place, row in enumerate(found):
        other = places.setdefault(row.tobytes(), place)
        if other != place:
            pair = [seeds[other], seeds[place]]
            pairs = [pair, *(_changed_alike(family, pair, base ^ fresh) for fresh in _FRESH)]
            if all(np.array_equal(*signatures(one, number)) for one in pairs):
                words = [f"{one} ({family[one]})" for one in pair]
                raise CheckFailure(f"seeds {words[0]} and {words[1]} draw the same tokens, with s = {base}")


_FRESH = (0x5A17_93C5, 0x2D0F_6B39)
"""Differences, below 2**32, of the other numbers whose seeds are compared."""


def _changed_alike(family: dict[int, str], pair: list[int], base: int) -> list[int]:
    """Return the seeds that the changes of this pair make of another number; the pair itself if they are one seed."""
    made = {words: seed for seed, words in seed_family(base).items()}
    found = [made.get(family[seed], seed) for seed in pair]
    return found if found[0] != found[1] else pair
