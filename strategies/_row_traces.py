"""Calls of a function that treats each row by itself: rows are taken, in any number and order, from a library.

The library is one batch of different rows, with every pair of what a row may have. Each row is judged once; a call of
a thousand rows then compares arrays. Who stands beside whom follows from chance.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fairdraw._core.array_types import Ints
from fairdraw.contracts import Capability
from fairdraw.strategies._recipe import DTYPES, LAYOUTS
from fairdraw.strategies._serving import sizes_of
from fairdraw.strategies._serving_traces import ServingTrace
from fairdraw.strategies.rows import bulk_rng

TENSOR_NEEDS: dict[tuple[str, Any], Capability] = {  # Any: a word
    **{("dtype", dtype): Capability.HALF_LOGITS for dtype in DTYPES[1:]},
    **{("layout", layout): Capability.STRIDED_INPUTS for layout in LAYOUTS[1:]},
}
"""Features of a call to what they need, for `settings_of_calls`."""

_LIKE = ("any", "plain between", "one value", "one", "one and plain", "any", "one value")
"""How rows of a call differ: any beside any; every second plain; different rows that have one value in common; all the
same; the same beside plain ones."""

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


class RowTrace(ServingTrace):
    """Calls with rows of one library, as data; a call has `limit` rows at most, whatever `most_rows` is."""

    limit: ClassVar[int] = MOST_ROWS

    @classmethod
    def of(cls, sampler: Any, *fields: Any) -> Self:  # Any: of the contract; fields of a trace
        """Return a trace for `sampler`."""
        return cls(*fields)

    def sizes(self) -> list[int]:
        return sizes_of(self.walk, min(self.most_rows, self.limit), self.seed, 0)

    @abstractmethod
    def library(self) -> Any:  # Any: a case of the contract
        """Return the case whose batch holds the rows; the first of them are plain: they ask for nothing."""

    def chosen(self, rows: list[Any], num_plain: int) -> tuple[Any, ...]:  # Any: rows of the case
        """Return the rows of the library: plain ones, then all others; for a few small calls some of the others."""
        if self.walk != "few":
            return tuple(rows)
        others = bulk_rng("few rows", self.seed).permutation(np.arange(num_plain, len(rows)))
        most = _WIDE_ROWS if self.vocab_size >= _WIDE else _FEW_ROWS
        return (*rows[:num_plain], *(rows[place] for place in others[:most]))

    def rows_played(self, rows: Sequence[Mapping[str, Any]], num_plain: int) -> Iterator[RowCall]:  # Any: hashable
        """Yield the calls over a library in which each row has these named values, plain rows first."""
        last = max(self.calls, default=-1)
        for number, size in enumerate(self.sizes()):
            if not self.calls or number in self.calls:
                places = self._places(number, size, rows, min(num_plain, len(rows)))
                yield RowCall(number, places[list(self.rows)] if self.rows and number == last else places)

    def _places(self, number: int, size: int, rows: Sequence[Mapping[str, Any]], num_plain: int) -> Ints:
        rng, like = bulk_rng("rows of a call", self.seed, number), _LIKE[number % len(_LIKE)]
        places = rng.integers(len(rows), size=size)
        if like == "one value":
            names = sorted(set[str]().union(*rows))
            name = names[(self.seed + number // 3) % len(names)]
            having = [place for place, row in enumerate(rows) if name in row]
            value = rows[rng.choice(having)][name]
            places = rng.choice([place for place in having if rows[place][name] == value], size)
        elif "one" in like:
            places[:] = places[0]
        if "plain" in like:
            places[rng.integers(2) :: 2] = rng.integers(num_plain)
        return places

    def build(self) -> None:
        """Build the library; raises what a damaged recipe raises."""
        self.library().build()
