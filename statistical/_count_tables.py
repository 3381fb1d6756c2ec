"""Count tables: observations become integer codes, codes become counts, counts add up.

A table of `num_cells` cells is an int64 array with **one entry more**: the last counts observations that are no cell at
all (an id outside the vocabulary, a token after a placeholder). Because tables are sums, they shard: over calls, over
pytest-xdist workers, over GPUs with one all-reduce; `merge_counts` is `+` with a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["NO_CELL", "count_codes", "joint_codes", "merge_counts"]

NO_CELL = -1
"""The code of an observation that is no cell of its table."""

_MAX_CELLS = 2**26


def count_codes(
    codes: NDArray[np.int64],  # [num_samples] int64
    num_cells: int,
    weights: NDArray[np.int64] | None = None,  # [num_samples] int64
) -> NDArray[np.int64]:  # [num_cells + 1] int64
    """How often each code occurs; codes outside `[0, num_cells)` are counted in the last entry.

    Args:
        weights: How often each sample stands for one; once if `None`.

    Raises:
        ValueError: If there is no cell, or more cells than memory is for.
    """
    if not 0 < num_cells <= _MAX_CELLS:
        raise refuse("count_codes", f"num_cells={num_cells}", f"it must lie in [1, {_MAX_CELLS}]", "Use fewer tokens.")
    outside = (codes < 0) | (codes >= num_cells)
    cells = np.where(outside, num_cells, codes).ravel()
    # Weighted counts come as float64, which is exact below 2**53.
    return np.asarray(np.bincount(cells, weights, minlength=num_cells + 1)).astype(np.int64)


def merge_counts(tables: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:  # [num_cells + 1] int64
    """The table of all observations, from the tables of their parts.

    Raises:
        ValueError: If there is no table, or the tables have different cells.
    """
    parts = list(tables)
    widths = sorted({part.shape for part in parts})
    if len(widths) != 1:
        raise refuse("merge_counts", f"shapes={widths}", "all tables must have the same cells", "Merge like with like.")
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))


def joint_codes(
    *digits: NDArray[np.integer],  # each [num_samples] int
    sizes: tuple[int, ...],
) -> NDArray[np.int64]:  # [num_samples] int64
    """One code per observation of several variables, row-major; `NO_CELL` if one of them is out of its range."""
    codes = np.zeros(digits[0].shape, dtype=np.int64)
    known = np.ones(digits[0].shape, dtype=bool)
    for digit, size in zip(digits, sizes, strict=True):
        known &= (digit >= 0) & (digit < size)
        codes = codes * size + digit
    return np.where(known, codes, NO_CELL)
