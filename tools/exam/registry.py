"""Members: correct samplers with one fault each, generated from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exam.areas import Area
    from fairdraw.protocols import AnySampler

CLASSES = ("sizes", "values", "combinations", "time", "dependence", "noise quality", "rare", "fixed seed")
CONTROL = "correct"
"""The class of the samplers without a fault."""

Wrong = tuple[str, Callable[[], Any]]  # Any: a sampler of the contract
"""What is wrong, in words with the drawn parameters; and what makes the sampler."""
Builder = Callable[[random.Random], Wrong]


@dataclass(frozen=True)
class Member:
    """One sampler of the exam.

    Args:
        name: Unique; begins with the builder's name.
        words: What is wrong.
        area: Where a right first report points.
        resolution: Why a profile is not expected to find it; empty if it should.
    """

    name: str
    words: str
    kind: str
    contract: str
    area: Area
    make: Callable[[], AnySampler]
    resolution: str = ""


@dataclass(frozen=True)
class _Entry:
    builder: Builder
    kind: str
    area: Area
    copies: int
    resolution: str


_ENTRIES: list[_Entry] = []


def fault(kind: str, area: Area, *, copies: int = 1, resolution: str = "") -> Callable[[Builder], Builder]:
    """Register a builder; it is called `copies` times, with other parameters each time."""

    def registered(builder: Builder) -> Builder:
        _ENTRIES.append(_Entry(builder, kind, area, copies, resolution))
        return builder

    return registered


def members(seed: int) -> list[Member]:
    """All members of the exam with this seed, controls first."""
    from exam import correct, faults_plan, faults_rejection, faults_sampling, faults_scanners

    assert all((faults_plan, faults_rejection, faults_sampling, faults_scanners, correct))
    entries = sorted(_ENTRIES, key=lambda entry: (CONTROL, *CLASSES).index(entry.kind))
    return [member for entry in entries for member in _copies(entry, seed)]


def _copies(entry: _Entry, seed: int) -> list[Member]:
    found: dict[str, Member] = {}
    attempt = 0
    while len(found) < entry.copies:
        rng = random.Random(f"{seed} {entry.builder.__name__} {attempt}")
        attempt += 1
        words, make = entry.builder(rng)
        sampler = make()
        name = f"{entry.builder.__name__}/{len(found)}"
        if words not in found:
            found[words] = Member(name, words, entry.kind, sampler.contract, entry.area, make, entry.resolution)
        assert attempt < 1000, entry.builder.__name__
    return list(found.values())


def between(rng: random.Random, low: int, high: int) -> int:
    """A size by its order of magnitude: as many between 10 and 20 as between 100 and 200."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))
