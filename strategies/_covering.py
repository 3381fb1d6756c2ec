"""Covering arrays: few rows in which every combination of values of any two (or three) parameters occurs.

Most faults of combination need two parameters with certain values. All combinations are too many: ten parameters with
four values each have a million, but every *pair* of values occurs in about 30 rows [Cohen et al. 1997, "The AETG
System: An Approach to Testing Based on Combinatorial Design", IEEE Transactions on Software Engineering 23(7)].
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

_KEPT = (1, 2, 3, 5, 8, 16)
"""A failing batch shrinks to that many of its requests."""


def places_of_all(draw: st.DrawFn, count: int, fewest: int = 1) -> list[int]:
    """The places of all requests of a wide batch, from any one on; of fewer while it shrinks."""
    fewer = tuple(kept for kept in _KEPT if kept >= fewest)
    kept, first = draw(st.sampled_from(fewer + (count,) * 40)), draw(st.integers(0, count - 1))
    return [(first + i) % count for i in range(kept)]


_CANDIDATES = 8
"""Rows that are tried for each row that is taken. More gives a few rows less, and costs time."""

Combination = tuple[tuple[int, int], ...]  # (parameter, value) of each of `strength` parameters, by parameter
Flags = dict[tuple[int, Combination], bytearray]
"""A parameter and values of others, to a flag per value: 1 if it completes a missing combination."""


@lru_cache(maxsize=256)  # every sampler of a run is asked with the same seeds
def covering_rows(num_values: tuple[int, ...], strength: int = 2, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """Rows of value numbers in which every combination of values of any `strength` parameters occurs.

    Args:
        num_values: How many values each parameter has.
        strength: 2 for pairs, 3 for triples.
        seed: Another seed gives other rows: a run with fresh seeds sees other combinations of more parameters.

    Returns:
        For each row, the number of the value of each parameter.

    Raises:
        ValueError: If a parameter has no value, or there are fewer parameters than `strength`.

    Randomness:
        From `seed` alone.

    Example:
        >>> covering_rows((2, 2, 2))
        ((0, 1, 0), (1, 0, 0), (1, 1, 1), (0, 0, 1))
    """
    if not 1 <= strength <= len(num_values) or min(num_values) < 1:
        raise ValueError(
            f"covering_rows: num_values={num_values}, strength={strength}, but each parameter needs a value, and there "
            "must be as many parameters as the strength. Give more."
        )
    rng = np.random.default_rng(seed)
    ordered = sorted(_combinations(num_values, strength))
    missing = set(ordered)
    flags = _flags(num_values, missing)
    rows = []
    while missing:
        candidates = [_candidate(num_values, strength, flags, ordered, rng) for _ in range(_CANDIDATES)]
        best = max(candidates, key=lambda row: len(missing & _within(row, strength)))
        completed = missing & _within(best, strength)
        for key, number in chain.from_iterable(map(_completions, completed)):
            flags[key][number] = 0
        missing -= completed
        ordered = [combination for combination in ordered if combination not in completed]
        rows.append(best)
    return tuple(rows)


def covering_settings(
    values: Mapping[str, Sequence[Any]],  # Any: whatever the parameter takes
    strength: int = 2,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """`covering_rows` with names and values.

    Example:
        >>> covering_settings({"top_k": [0, 1], "top_p": [0.5, 1.0]})[0]
        {'top_k': 1, 'top_p': 1.0}
    """
    rows = covering_rows(tuple(map(len, values.values())), strength, seed)
    return [{name: choice[number] for (name, choice), number in zip(values.items(), row, strict=True)} for row in rows]


def _combinations(num_values: tuple[int, ...], strength: int) -> list[Combination]:
    """Every combination of values of every `strength` parameters."""
    found = []
    for chosen in combinations(range(len(num_values)), strength):
        for numbers in product(*(range(num_values[parameter]) for parameter in chosen)):
            found.append(tuple(zip(chosen, numbers, strict=True)))
    return found


def _within(row: tuple[int, ...], strength: int) -> set[Combination]:
    """The combinations that a row holds."""
    return set(combinations(enumerate(row), strength))


def _completions(combination: Combination) -> Iterator[tuple[tuple[int, Combination], int]]:
    """Each parameter with the others' values, and its own value."""
    for i, (parameter, number) in enumerate(combination):
        yield (parameter, combination[:i] + combination[i + 1 :]), number


def _flags(num_values: tuple[int, ...], missing: set[Combination]) -> Flags:
    """Of each parameter and values of others: which values of it complete a missing combination."""
    found: Flags = {}
    for combination in missing:
        for key, number in _completions(combination):
            found.setdefault(key, bytearray(num_values[key[0]]))[number] = 1
    return found


def _candidate(
    num_values: tuple[int, ...], strength: int, flags: Flags, ordered: list[Combination], rng: np.random.Generator
) -> tuple[int, ...]:
    """A row that begins with a missing combination; each further parameter, in random order, completes most others."""
    row = dict(ordered[rng.integers(len(ordered))])
    for parameter in rng.permutation(len(num_values)).tolist():
        if parameter not in row:
            others = combinations(sorted(row.items()), strength - 1)
            gains = list(map(sum, zip(*(flags[parameter, other] for other in others), strict=True)))
            most = max(gains)
            best = [number for number, gain in enumerate(gains) if gain == most]
            row[parameter] = best[rng.integers(len(best))]
    return tuple(row[parameter] for parameter in range(len(num_values)))
