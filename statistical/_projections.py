"""Projections of a token's id to few cells, so that a fault shows that cancels by rank and by ranges of ids.

A kernel treats ids by lane, by block and by tile, so a fault may change every second id, or every second block of 64.
The same draws are counted by the id modulo 2, 4, 8 and 32, by every bit of it, by halves of fixed hashes, and by
whether the token is the most probable of its block of 2 or 32 neighbours, as it is too often if they share noise. The
probability of a cell follows from the row's own distribution; the transform of `_pit` makes a uniform number of the
cell that was drawn, so that rows of any kind pool exactly.

Limits:
    What cancels within the cells of all projections is invisible, such as two equally probable tokens that are swapped.
    In a row whose halves weigh `m` and `1 - m`, a fault between them shows `0.5 / max(m, 1 - m)` of its distance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.array_types import Flags, Float64s, Ints
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._pit import IMPOSSIBLE, Order, PitCells, randomised_pit

LANES = "id modulo "
_LANE_SIZES = (2, 4, 8, 32)
_BLOCKS = (2, 32)
_NUM_HASHES = 4
_BLOCK = 4096
"""Ids whose cells are looked up at once: bounds the memory of a wide vocabulary."""


@dataclass(frozen=True)
class Projection:
    """A named function from ids to cells: `(id >> shift) % num_cells`, of the id itself or of its hash.

    Args:
        family: The word under which the header reports it.
        block: Instead, whether a token is the most probable one of its block of so many ids; 0 for none.
    """

    name: str
    family: str
    num_cells: int
    shift: int = 0
    is_hashed: bool = False
    block: int = 0

    def cells(self, ids: NDArray[np.integer]) -> Ints:  # [...] int64
        """Return the cell of each id."""
        mixed = ids.astype(np.uint64)
        if self.is_hashed:  # Fibonacci hashing of a word whose halves were mixed: every bit depends on every bit
            mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        return np.asarray((mixed >> np.uint64(self.shift)) % np.uint64(self.num_cells), dtype=np.int64)

    def label(self, cell: int) -> str:
        """Name a cell in a report."""
        if self.block:
            return f"mass {1 - 0.5**cell:.4g} and more, with the most probable of {self.block} neighbours first"
        if self.is_hashed:
            return f"half {cell} of the ids by mass, {self.name}"
        if self.shift:
            return f"ids whose bit {self.shift} is {cell}, by mass"
        words = ("even ids", "odd ids") if self.num_cells == 2 else ()
        return f"{words[cell] if words else f'ids that are {cell} modulo {self.num_cells}'}, by mass"


@lru_cache(maxsize=16)
def projections(vocab_size: int) -> tuple[Projection, ...]:
    """Return those that tell ids of this vocabulary apart."""
    lanes = [Projection(f"{LANES}{size}", f"{LANES}{size}", size) for size in _LANE_SIZES if size <= vocab_size]
    num_bits = (vocab_size - 1).bit_length()
    bits = [Projection(f"id, bit {bit}", "bits of the id", 2, bit) for bit in range(1, num_bits)]
    # High bits of the product are the well mixed ones.
    hashes = [Projection(f"id, hash {i}", "hashed halves", 2, 40 + i, is_hashed=True) for i in range(_NUM_HASHES)]
    best = [Projection(f"id, best of {one}", "best of neighbours", 2, block=one) for one in _BLOCKS if one < vocab_size]
    return (*lanes, *bits, *hashes, *best) if vocab_size > 1 else ()


def _is_beaten(probs: Float64s, block: int) -> Flags:  # [num_rows, vocab_size] float64, to the same in bool
    """Return whether each token is less probable than another one of its block."""
    blocks = np.pad(probs, ((0, 0), (0, -probs.shape[1] % block)), constant_values=-1.0).reshape(len(probs), -1, block)
    beaten = blocks < blocks.max(axis=2, keepdims=True)
    return np.asarray(beaten.reshape(len(probs), -1)[:, : probs.shape[1]])


def _by_id(vocab_size: int) -> list[Projection]:
    """Return the projections that look at no probability."""
    return [one for one in projections(vocab_size) if not one.block]


@lru_cache(maxsize=64)
def _is_in(vocab_size: int, first: int) -> Flags:  # [<= _BLOCK, num_cells] bool
    """Return whether each id of a block lies in each cell of all projections, one after the other."""
    ids = np.arange(first, min(first + _BLOCK, vocab_size))
    own = _by_id(vocab_size)
    return np.concatenate([one.cells(ids)[:, None] == np.arange(one.num_cells) for one in own], axis=1)


def cell_masses(
    probs: Float64s,
) -> dict[str, Float64s]:  # [num_rows, vocab_size] float64, to [num_rows, num_cells] each
    """Return the probability of each cell of each projection by id, row by row."""
    vocab_size = probs.shape[1]
    own, firsts = _by_id(vocab_size), range(0, vocab_size, _BLOCK)
    if not own:
        return {}
    total = sum(probs[:, first : first + _BLOCK] @ _is_in(vocab_size, first).astype(np.float64) for first in firsts)
    parts = np.split(np.asarray(total), np.cumsum([one.num_cells for one in own])[:-1], axis=1)
    return {one.name: part for one, part in zip(own, parts, strict=True)}


def _of_beaten(probs: Float64s, is_beaten: Flags) -> Float64s:  # [num_rows, 2] float64
    beaten = (probs * is_beaten).sum(axis=1, keepdims=True)
    return np.concatenate([probs.sum(axis=1, keepdims=True) - beaten, beaten], axis=1)


def _numbers(starts: Float64s, masses: Float64s, uniforms: Float64s, possible: Flags) -> Float64s:  # [num_samples]
    values = np.clip(starts + uniforms * masses, 0.0, np.nextafter(1.0, 0.0))
    return np.asarray(np.where(possible, values, IMPOSSIBLE))


def numbers_of_rows(
    probs: NDArray[np.floating],  # [num_samples, vocab_size] float32 | float64
    token_ids: NDArray[np.integer],  # [num_samples] int64
    uniforms: Float64s,  # [num_samples] float64
) -> dict[str, Float64s]:  # [num_samples] float64 each
    """Return the transforms of one token per row by rank, by id and by each projection; rows are used once.

    Raises:
        ValueError: As `randomised_pit`.
    """
    found = {str(order): randomised_pit(probs, token_ids, uniforms, order) for order in Order}
    exact = np.asarray(probs, dtype=np.float64)
    possible, masses = found[Order.ID] >= 0, cell_masses(exact)
    rows, tokens = np.arange(len(probs)), np.where(possible, token_ids, 0)
    for one in projections(probs.shape[1]):
        is_beaten = _is_beaten(exact, one.block) if one.block else None
        cells = one.cells(tokens) if is_beaten is None else is_beaten[rows, tokens].astype(np.int64)
        own = masses[one.name] if is_beaten is None else _of_beaten(exact, is_beaten)
        starts = np.cumsum(own, axis=1) - own
        found[one.name] = _numbers(starts[rows, cells], own[rows, cells], uniforms, possible)
    return found


class TokenTables:
    """Tables of tokens by rank, by id and by each projection of the id, in one mean of e-values.

    Projections together have the weight of one order: however many there are, the orders lose a factor of 2 at most.

    Args:
        name: Of what is counted; tables are named `NAME by WAY`.
        vocab_sizes: Of the rows that are counted together, if known; the same projections tell their ids apart.
        projected: The projections; those of the vocabulary if `None`.
        cells: Those of the orders.
    """

    def __init__(
        self,
        name: str,
        vocab_sizes: tuple[int, ...],
        cells: PitCells | None = None,
        *,
        projected: tuple[Projection, ...] | None = None,
    ) -> None:
        sizes = " or ".join(map(str, vocab_sizes))
        self._name, self._rows = name, f", in rows of {sizes} entries" if sizes else ""
        own = projected or projections(vocab_sizes[0])
        self._projections = {one.name: one for one in own}
        self._cells = dict.fromkeys(map(str, Order), cells or PitCells())
        # Beaten neighbours come last, and are few in peaked rows: there the cells are fine.
        self._cells |= {one.name: PitCells(1, 6) if one.block else PitCells(one.num_cells, 0) for one in own}

    def tables(
        self, num_draws: int, observed_per_draw: float = 1.0, event_prob: float | None = None
    ) -> dict[str, Table]:
        """Return the tables by name; arguments as of `PitCells.table`."""
        made = {way: cells.table(num_draws, observed_per_draw, event_prob) for way, cells in self._cells.items()}
        return {f"{self._name} by {way}": self._named(way, table) for way, table in made.items()}

    def _named(self, way: str, table: Table) -> Table:
        if way not in self._projections:
            return replace(table, seen_by=way)
        one = self._projections[way]
        return replace(
            table,
            label=lambda cell: one.label(cell) + self._rows,
            weight=1 / len(self._projections),
            is_optional=True,
            seen_by=one.family,
        )

    def count(self, numbers: Mapping[str, Float64s]) -> dict[str, Ints]:
        """Return the count tables of transforms by way."""
        return {f"{self._name} by {way}": cells.count(numbers[way]) for way, cells in self._cells.items()}
