"""Cells too rare to be counted one by one are pooled, by expected probability and nothing else.

The pools are fixed before the first sample. Choosing them by observed counts would let the sampler choose which of its
errors are looked at, and the test statistic would no longer have its distribution.

Frequent cells stay single. The others are grouped by octave of probability (tokens of similar probability are lost
together: truncation, underflow), then by tile of the vocabulary (tokens of one kernel block are lost together). Groups
are merged in that order until each expects enough observations. Cells of probability 0 are not pooled: a single
observation there is a failure.

Limits:
    A check sees the total-variation distance *between pooled distributions*; reports say "TV over 32 cells". The pools
    are the same in every run. If one cell of a pool loses what another one gains, this table does not show it; tables
    that order tokens by rank and by id mix them differently.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairdraw.statistical._validation import check_probs, refuse

MIN_EXPECTED = 5.0
"""Expected observations per cell. E-values are exact for any number; 5 keeps the p-value beside them readable. If a
p-value decided, it would have to be 25: at 5, p-values of 1e-6 occur 11.5 times too often."""

TILE_SIZE = 1024
"""Cells per tile: the smallest block of vocabulary kernels. 4096 and 8192 are unions of such tiles."""


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
        """Number of pooled cells."""
        return int(self.probs.size)

    def pool(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:  # [num_pools] int64
        """Pooled counts of a count table, and the number of impossible observations.

        Raises:
            ValueError: If the table has other cells than this pooling.
        """
        if counts.shape != self.pool_of.shape:
            rule = f"it must be {list(self.pool_of.shape)} (all cells and one entry for what is no cell)"
            raise refuse("Pooling.pool", f"counts.shape={list(counts.shape)}", rule, "Use count_codes.")
        totals = np.zeros(self.num_pools + 1, dtype=np.int64)
        np.add.at(totals, self.pool_of, counts)
        return totals[:-1], int(totals[-1])

    def members(self, pool: int) -> NDArray[np.int64]:  # [num_members] int64
        """The cells of a pooled cell, in ascending order."""
        return np.flatnonzero(self.pool_of[:-1] == pool)


def pool_cells(
    probs: ArrayLike,  # [num_cells] float64
    num_samples: int,
    possible: NDArray[np.bool_] | None = None,  # [num_cells] bool
    min_expected: float = MIN_EXPECTED,
) -> Pooling:
    """Pool the cells of a distribution so that each pooled cell expects `min_expected` of `num_samples` observations.

    Args:
        num_samples: Planned observations, not observed ones.
        possible: See `Table`. A possible cell of probability 0 (rounding may reach it) joins the rarest pool.

    Returns:
        A pooling with at least one cell. With a single one nothing can be seen, and `_design` reports that.

    Raises:
        ValueError: If `probs` is not a distribution, or no samples are planned.
    """
    exact = check_probs("pool_cells", "probs", probs)
    if num_samples < 1:
        raise refuse("pool_cells", f"num_samples={num_samples}", "it must be at least 1", "Plan some samples.")
    cells = np.flatnonzero((exact > 0) if possible is None else (possible | (exact > 0)))
    is_single = exact[cells] * num_samples >= min_expected
    singles, tail = cells[is_single], cells[~is_single]
    singles = singles[np.argsort(-exact[singles], kind="stable")]
    tail_pool = _pool_tail(exact[tail], tail, min_expected / num_samples)

    pool_of = np.full(exact.size + 1, -1, dtype=np.int64)
    pool_of[singles] = np.arange(singles.size)
    # -1 marks what is too rare even together. It joins the neighbour before it: a tail pool or the rarest single cell.
    neighbour = max(singles.size + int(tail_pool.max(initial=-1)), 0)
    pool_of[tail] = np.where(tail_pool < 0, neighbour, singles.size + tail_pool)
    num_pools = int(pool_of.max()) + 1
    pool_of[pool_of < 0] = num_pools
    pooled = np.asarray(np.bincount(pool_of[:-1], weights=exact, minlength=num_pools)[:num_pools], dtype=np.float64)
    return Pooling(pooled, pool_of)


def _pool_tail(
    probs: NDArray[np.float64],  # [num_tail] float64
    cells: NDArray[np.int64],  # [num_tail] int64
    min_mass: float,
) -> NDArray[np.int64]:  # [num_tail] int64
    """The pool of each tail cell: 0, 1, ... by octave and tile, and -1 for the last, incomplete one."""
    # frexp gives the exponent of two exactly. A cell of probability 0 comes last.
    octaves = np.where(probs > 0, -np.frexp(probs)[1], np.iinfo(np.int32).max).astype(np.int64)
    _, group_of = np.unique(octaves * _MAX_TILES + cells // TILE_SIZE, return_inverse=True)
    masses = np.bincount(group_of, weights=probs)
    pools = np.full(masses.size, -1, dtype=np.int64)
    pool, first, mass = 0, 0, 0.0
    for group, group_mass in enumerate(masses):
        mass += group_mass
        if mass >= min_mass:
            pools[first : group + 1] = pool
            pool, first, mass = pool + 1, group + 1, 0.0
    return pools[group_of]


_MAX_TILES = 2**26
"""More tiles than any table has, so that octave and tile make one number."""
