"""Covering arrays: few rows in which every combination of values of any two (or three) parameters occurs.

Most faults of combination need two parameters with certain values. All combinations are too many: ten parameters with
four values each have a million, but every *pair* of values occurs in about 30 rows [Cohen et al. 1997, "The AETG
System: An Approach to Testing Based on Combinatorial Design", IEEE Transactions on Software Engineering 23(7)].
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CANDIDATES = 8
"""Rows that are tried for each row that is taken. More gives a few rows less, and costs time."""

Combination = tuple[tuple[int, int], ...]  # (parameter, value) of each of `strength` parameters, by parameter


@lru_cache(maxsize=32)
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
    missing = set(_combinations(num_values, strength))
    rows = []
    while missing:
        ordered = sorted(missing)
        candidates = [_candidate(num_values, strength, missing, ordered, rng) for _ in range(_CANDIDATES)]
        best = max(candidates, key=lambda row: len(missing & _within(row, strength)))
        missing -= _within(best, strength)
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


def _candidate(
    num_values: tuple[int, ...],
    strength: int,
    missing: set[Combination],
    ordered: list[Combination],
    rng: np.random.Generator,
) -> tuple[int, ...]:
    """A row that begins with a missing combination; each further parameter, in random order, completes most others."""
    row = dict(ordered[rng.integers(len(ordered))])
    for parameter in rng.permutation(len(num_values)).tolist():
        if parameter not in row:
            gains = [_gain(row, parameter, number, strength, missing) for number in range(num_values[parameter])]
            best = [number for number, gain in enumerate(gains) if gain == max(gains)]
            row[parameter] = best[rng.integers(len(best))]
    return tuple(row[parameter] for parameter in range(len(num_values)))


def _gain(row: dict[int, int], parameter: int, number: int, strength: int, missing: set[Combination]) -> int:
    """How many missing combinations the value completes."""
    others = combinations(sorted(row.items()), strength - 1)
    return sum(tuple(sorted((*other, (parameter, number)))) in missing for other in others)
