"""Conditions: random conjunctions of what a call, a request, a row or a history has."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

CLASSES = ("size", "index", "id", "layout", "request", "seed", "history", "neighbour", "together", "rare effect")
SIGN = 63
"""The bit of a seed's sign."""


@dataclass(frozen=True)
class Feature:
    """A feature of a contract: a line of `faults.toml`. A feature without a range is there or not."""

    name: str
    kind: str
    words: str
    pattern: str
    range: tuple[float, float] = (0, 0)


OPS: dict[str, tuple[str, Callable[[Any, float, float], Any]]] = {
    "is": ("{0}", lambda value, n, other: np.asarray(value, bool)),
    "==": ("{0} is {1}", lambda value, n, other: value == n),
    ">": ("{0} above {1}", lambda value, n, other: value > n),
    "<": ("{0} below {1}", lambda value, n, other: value < n),
    "mod": ("{0} % {1} == {2}", lambda value, n, other: (value % int(n) == other) & (value >= 0)),
    "bit": ("bit {1} of the {0} is {2}", lambda value, n, other: (np.asarray(value) >> int(n) & 1) == other),
    "tile": ("{0} in an odd tile of {1}", lambda value, n, other: value // int(n) % 2 == 1),
    "range": ("{0} from {1} to {2}", lambda value, n, other: (value >= n) & (value < other)),
}
"""Words of a test, and whether it holds for values, with its number and its other number."""


@dataclass(frozen=True)
class Atom:
    """A test of one feature: `feature OP number`."""

    feature: Feature
    op: str
    number: float = 0
    other: float = 0

    @property
    def words(self) -> str:
        return OPS[self.op][0].format(self.feature.words, f"{self.number:.6g}", f"{self.other:.6g}")

    def holds(self, values: Any) -> Any:  # Any: bool, or an array of bool
        """Whether it holds, for each row (and id) of the values."""
        found = OPS[self.op][1](values[self.feature.name], self.number, self.other)
        return found & np.asarray(values["seeded"], bool) if self.feature.name == "seed" else found


@dataclass(frozen=True)
class Condition:
    """A conjunction; without atoms it always holds."""

    atoms: tuple[Atom, ...] = ()

    @property
    def words(self) -> str:
        return " and ".join(atom.words for atom in self.atoms) or "always"

    @property
    def features(self) -> list[str]:
        return [atom.feature.name for atom in self.atoms]

    def holds(self, values: Any) -> Any:  # Any: bool, or an array of bool
        """Whether all atoms hold, for each row (and id) of the values."""
        return reduce(operator.and_, (atom.holds(values) for atom in self.atoms), np.True_)


def log_uniform(rng: random.Random, low: float, high: float) -> int:
    """Return a size by its order of magnitude: as many between 10 and 20 as between 100 and 200."""
    return round(math.exp(rng.uniform(math.log(max(low, 1)), math.log(high))))


def atom_of(rng: random.Random, feature: Feature) -> Atom:
    """Draw a test of this feature."""
    low, high = feature.range
    if not high:
        return Atom(feature, "is")
    match feature.name:
        case "seed":
            return Atom(feature, "bit", rng.choice([0, rng.randrange(64), 31, 32, SIGN]), rng.randrange(2))
        case "temperature" | "top_p" | "min_p":
            start = rng.uniform(low, high)
            return Atom(feature, "range", start, min(high, start + rng.uniform(0.15, 0.5) * (high - low)))
        case "token" | "draft":
            op = rng.choice(["bit", "bit", "mod", "tile", ">"])
            numbers = {"bit": rng.randrange(11), "mod": rng.choice([3, 7, 32]), "tile": rng.choice([128, 1024, 4096])}
            number = numbers.get(
                op, rng.choice([2**15 - 1, 2**16 - 1, 2**17 - 1, 50256]) if high > 2**15 else high // 2
            )
            return Atom(feature, op, number, rng.randrange(2 if op == "bit" else 3))
    op = rng.choice(["==", ">", ">", "<", "mod", "mod"])
    if op == "mod":
        period = rng.choice([2, 3, 4, 5, 7, 8, 16, 32]) if high > 32 else rng.choice([2, 3, 4])
        return Atom(feature, op, period, rng.randrange(period))
    return Atom(feature, op, log_uniform(rng, low + (op == "<"), high) - (op == ">"))


def condition_of(rng: random.Random, kind: str, features: list[Feature]) -> Condition:
    """Draw a condition of this class: one feature of it, or several of any."""
    if kind == "rare effect":
        return Condition()
    if kind == "together":
        names = rng.sample(features, rng.choice([2, 2, 3]))
        return Condition(tuple(atom_of(rng, one) for one in names))
    own = [one for one in features if one.kind == kind]
    return Condition((atom_of(rng, rng.choice(own)),)) if own else Condition()
