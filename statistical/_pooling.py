"""Cells too rare to be counted one by one are pooled, by expected probability and nothing else.

Pooling is fixed before the first sample. Choosing cells by observed counts instead would let the sampler choose which
of its errors are looked at, and the test statistic would no longer have its distribution.

Frequent tokens stay single. The tail is grouped first by octave of probability (tokens of like probability are lost
together: truncation, underflow), then by tile of the vocabulary (tokens of one kernel block are lost together), and
groups are merged along that order until each expects enough observations. Cells of probability 0 are not pooled: an
observation there is a failure by itself.

Limits:
    A check sees the total-variation distance *that pooling leaves visible*; reports say "TV over 32 cells". An error in
    which one token of a pool loses what another gains stays hidden for ever: `rehash_seed` would shuffle the tiles, but
    no check passes one, so pools are the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairdraw.statistical._validation import check_probs, refuse

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["MIN_EXPECTED", "Pooling", "pool_cells"]

MIN_EXPECTED = 5.0
"""Expected observations per cell. E-values are exact for any number; 5 keeps the p-value beside them readable. If a
p-value decided, it would have to be 25: at 5, p-values of 1e-6 occur 11.5 times too often."""

TILE_SIZE = 1024
"""Smallest block size of vocabulary kernels; 4096 and 8192 are unions of such tiles."""


@dataclass(frozen=True)
class Pooling:
    """A map from cells to pooled cells, and the distribution of the pooled cells.

    Args:
        probs: Every pooled cell has positive probability.
        pool_of: The pooled cell of each cell; `num_pools` for impossible cells and for observations that are no cell.
    """

    probs: NDArray[np.float64]  # [num_pools] float64
    pool_of: NDArray[np.int64]  # [num_cells + 1] int64

    @property
    def num_pools(self) -> int:
        return int(self.probs.size)

    def pool(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:  # [num_pools] int64
        """Pooled counts of a count table, and the number of impossible observations.

        Raises:
            ValueError: If the table has other cells than this pooling.
        """
        if counts.shape != self.pool_of.shape:
            raise refuse(
                "Pooling.pool",
                f"counts.shape={list(counts.shape)}",
                f"it must be {list(self.pool_of.shape)} (all cells and one entry for what is no cell)",
                "Use count_codes.",
            )
        totals = np.zeros(self.num_pools + 1, dtype=np.int64)
        np.add.at(totals, self.pool_of, counts)
        return totals[:-1], int(totals[-1])

    def members(self, pool: int, at_most: int = 4) -> tuple[list[int], int]:
        """The first cells of a pooled cell, and how many it has in all."""
        cells = np.flatnonzero(self.pool_of[:-1] == pool)
        return [int(cell) for cell in cells[:at_most]], int(cells.size)


def pool_cells(
    probs: ArrayLike,  # [num_cells] float64
    num_samples: int,
    *,
    possible: NDArray[np.bool_] | None = None,  # [num_cells] bool
    min_expected: float = MIN_EXPECTED,
    tile_size: int = TILE_SIZE,
    rehash_seed: int | None = None,
) -> Pooling:
    """Pool the cells of a distribution so that each pooled cell expects `min_expected` of `num_samples` observations.

    Args:
        num_samples: Planned observations, not observed ones.
        possible: Cells that are no failure if observed; `None` for those of positive probability. A possible cell of
            probability 0 (rounding leaves it open) joins the rarest pool.
        min_expected: See `MIN_EXPECTED`.
        tile_size: Neighbouring cells that stay together in the tail.
        rehash_seed: Shuffles the tiles; `None` keeps vocabulary order.

    Returns:
        A pooling with at least one cell; with one only, nothing can be seen and `design` says so.

    Raises:
        ValueError: If `probs` is not a distribution, or no samples are planned.
    """
    distribution = check_probs("pool_cells", "probs", probs)
    if num_samples < 1:
        raise refuse("pool_cells", f"num_samples={num_samples}", "it must be at least 1", "Plan some samples.")
    open_cells = np.flatnonzero((distribution > 0) if possible is None else (possible | (distribution > 0)))
    single = distribution[open_cells] * num_samples >= min_expected
    heads, tail = open_cells[single], open_cells[~single]
    heads = heads[np.argsort(-distribution[heads], kind="stable")]
    tail, tail_pool = _pool_tail(
        distribution, tail, min_expected / num_samples, _tiles(distribution.size, tile_size, rehash_seed)
    )

    pool_of = np.full(distribution.size + 1, -1, dtype=np.int64)
    pool_of[heads] = np.arange(heads.size)
    # -1 marks what is too rare even together: it joins the neighbour before it, a tail pool or the rarest head.
    neighbour = max(heads.size + int(tail_pool.max(initial=-1)), 0)
    pool_of[tail] = np.where(tail_pool < 0, neighbour, heads.size + tail_pool)
    num_pools = int(pool_of.max()) + 1
    pool_of[pool_of < 0] = num_pools
    pooled = np.zeros(num_pools + 1)
    np.add.at(pooled, pool_of[:-1], distribution)
    return Pooling(pooled[:-1], pool_of)


def _tiles(num_cells: int, tile_size: int, rehash_seed: int | None) -> NDArray[np.int64]:  # [num_cells] int64
    """The tile of every cell: blocks of neighbours, or of cells shuffled by a seed."""
    places = np.arange(num_cells)
    if rehash_seed is not None:
        places = np.random.default_rng(rehash_seed).permutation(num_cells)
    return places // tile_size


def _pool_tail(
    distribution: NDArray[np.float64],  # [num_cells] float64
    tail: NDArray[np.int64],  # [num_tail] int64
    min_mass: float,
    tiles: NDArray[np.int64],  # [num_cells] int64
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tail cells in pooling order, and their pools: 0, 1, ... and -1 for the last, incomplete one."""
    # frexp gives the exponent of two exactly, and 0 for a cell of probability 0, which comes last.
    octaves = np.where(distribution[tail] > 0, -np.frexp(distribution[tail])[1], np.iinfo(np.int32).max)
    order = np.lexsort((tiles[tail], octaves))
    tail, octaves = tail[order], octaves[order]
    is_first = np.ones(tail.size, dtype=bool)
    is_first[1:] = (np.diff(octaves) != 0) | (np.diff(tiles[tail]) != 0)
    starts = np.flatnonzero(is_first)

    pools = np.full(starts.size, -1, dtype=np.int64)
    pool, first, mass = 0, 0, 0.0
    for group, group_mass in enumerate(np.add.reduceat(distribution[tail], starts) if starts.size else ()):
        mass += group_mass
        if mass >= min_mass:
            pools[first : group + 1] = pool
            pool, first, mass = pool + 1, group + 1, 0.0
    return tail, np.repeat(pools, np.diff(np.append(starts, tail.size)))
