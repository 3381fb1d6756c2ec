"""Calls of a function that treats each row by itself: rows are taken, in any number and order, from a library.

The library is one batch of different rows, with every pair of what a row may have. Each row is judged once; a call of
a thousand rows then compares arrays. Who stands beside whom follows from chance.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw.protocols import Capability
from fairdraw.strategies._arguments import one_of
from fairdraw.strategies._recipe import DTYPES, LAYOUTS, Recipe
from fairdraw.strategies._serving import WALKS, sizes_of
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

TENSOR_NEEDS: dict[tuple[str, Any], Capability] = {  # Any: a word
    **{("dtype", dtype): Capability.HALF_LOGITS for dtype in DTYPES[1:]},
    **{("layout", layout): Capability.STRIDED_INPUTS for layout in LAYOUTS[1:]},
}
"""Features of a call to what they need, for `settings_of_calls`."""

_LIKE = ("any", "plain between", "any", "one", "one and plain")
"""How rows of a call differ: any beside any; every second plain; all the same; the same beside plain ones."""

MOST_ROWS = 300
"""Rows of a call that take long: to be filtered by Python, or to be built."""

_WIDE, _WIDE_ROWS, _FEW_ROWS = 2**13, 20, 48
"""A library for a few small calls has few rows, in vocabularies from the first on even fewer."""


@dataclass(frozen=True)
class RowCall:
    """One call: which row of the library stands in each row of the batch.

    Args:
        number: Of the call within its trace, from 0.
        places: `[num_rows] int64`.
    """

    number: int
    places: Ints


@dataclass(frozen=True, repr=False)
class RowTrace(Recipe):
    """Calls with rows of one library, as data; fields are those of `SamplingTrace`.

    Raises:
        ValueError: If a size is below 1, or the walk is unknown.
    """

    seed: int
    vocab_size: int
    most_rows: int = MOST_ROWS
    walk: str = "edges"
    without: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        one_of(name, "walk", self.walk, WALKS)
        for field in ("vocab_size", "most_rows"):
            if getattr(self, field) < 1:
                raise ValueError(f"{name}: {field}={getattr(self, field)}, but it must be at least 1. Use 1.")

    @abstractmethod
    def library(self) -> Any:  # Any: a case of the contract
        """Return the case whose batch holds the rows; the first `num_plain` of them ask for nothing."""

    def chosen(self, rows: list[Any], num_plain: int) -> tuple[Any, ...]:  # Any: rows of the case
        """Return the rows of the library: plain ones, then all others; for a few small calls some of the others."""
        if self.walk != "few":
            return tuple(rows)
        others = bulk_rng("few rows", self.seed).permutation(np.arange(num_plain, len(rows)))
        most = _WIDE_ROWS if self.vocab_size >= _WIDE else _FEW_ROWS
        return (*rows[:num_plain], *(rows[place] for place in others[:most]))

    def played(self, num_rows: int, num_plain: int) -> Iterator[RowCall]:
        """Yield the calls over a library of `num_rows` rows."""
        last = max(self.calls, default=-1)
        for number, size in enumerate(sizes_of(self.walk, self.most_rows, self.seed, 0)):
            if not self.calls or number in self.calls:
                places = self._places(number, size, num_rows, min(num_plain, num_rows))
                yield RowCall(number, places[list(self.rows)] if self.rows and number == last else places)
            if number == last:
                return

    def _places(self, number: int, size: int, num_rows: int, num_plain: int) -> Ints:
        rng, like = bulk_rng("rows of a call", self.seed, number), _LIKE[number % len(_LIKE)]
        places = rng.integers(num_rows, size=size)
        if "one" in like:
            places[:] = places[0]
        if "plain" in like:
            places[rng.integers(2) :: 2] = rng.integers(num_plain)
        return places

    def build(self) -> None:
        """Build the library; raises what a damaged recipe raises."""
        self.library().build()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RowTrace:  # Any: JSON
        """Return the trace that `to_json` described."""
        return cls(**{**data, **{name: tuple(data[name]) for name in ("without", "calls", "rows")}})
