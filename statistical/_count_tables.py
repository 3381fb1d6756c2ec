"""Count tables: observations become integer codes, codes become counts, counts add up.

A table of `num_cells` cells is an int64 array with **one more entry**: the last one counts observations that are no
cell at all (an id outside the vocabulary, a token after a placeholder). Tables are sums, so they can be counted in
parts: call by call, or on several GPUs with one all-reduce.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._pooling import MIN_EXPECTED
from fairdraw.statistical._validation import refuse

NO_CELL = -1
"""The code of an observation that is no cell of its table."""

_MAX_CELLS = 2**26

Counts = Mapping[str, "NDArray[np.int64]"]
"""Count tables by name, each `[num_cells + 1] int64`."""

Label = Callable[[int], str]
"""From the number of a cell to its name in a report."""


@dataclass(frozen=True, eq=False)
class Table:
    """What is counted, and the distribution of the counts if the sampler is correct.

    Args:
        possible: Cells that a correct sampler may reach; `None` for those of positive probability. A single observation
            of any other cell is a failure.
        label: Name of a cell.
        num_draws: Draws per checkpoint.
        observed_per_draw: Probability, at least, that a draw is an observation of this table.
        event_prob: The same without counting a pair as two draws. It turns a distance between conditional
            distributions into one between distributions of whole rows.
        is_optional: Without power it is left out, and nothing is claimed by it.
        outside: What the last entry of the counts stands for, in words.
        min_expected: As `pool_cells` takes it; 0 keeps a rare cell by itself, which is then judged by few observations.
        is_binomial: Each draw is an observation with probability `observed_per_draw`, exactly and independently of
            others. Too few of them are then evidence by themselves.
        weight: Share of the table in the mean of e-values, relative to the other tables of its check.
        seen_by: Order or family of projections by which a row's tokens are counted; empty if each is a cell.
    """

    probs: NDArray[np.float64]  # [num_cells] float64
    possible: NDArray[np.bool_] | None = None  # [num_cells] bool
    label: Label = str
    num_draws: int = 1
    observed_per_draw: float = 1.0
    event_prob: float = 1.0
    is_optional: bool = False
    outside: str = "what is no cell of this table"
    is_binomial: bool = False
    min_expected: float = MIN_EXPECTED
    weight: float = 1.0
    seen_by: str = ""


def digit_label(sizes: tuple[int, ...], words: tuple[str, ...] = (), placeholder: int | None = None) -> Label:
    """Names cells by their digits: `(rejected 2, recovered 4)`.

    Args:
        sizes: Of the digits that make a cell.
        words: What each digit is; none for rows of tokens.
        placeholder: The digit that stands for "no token", shown as -1.
    """

    def label(cell: int) -> str:
        found = (int(digit) for digit in np.unravel_index(cell, sizes))
        digits = [str(PLACEHOLDER_TOKEN_ID if digit == placeholder else digit) for digit in found]
        named = map(" ".join, zip(words, digits, strict=True)) if words else digits
        return f"({', '.join(named)})"

    return label


def count_codes(
    codes: NDArray[np.int64],  # [num_samples] int64
    num_cells: int,
    weights: NDArray[np.int64] | None = None,  # [num_samples] int64
) -> NDArray[np.int64]:  # [num_cells + 1] int64
    """How often each code occurs; codes outside `[0, num_cells)` are counted in the last entry.

    Args:
        weights: How often each sample is counted; once if `None`.

    Raises:
        ValueError: If there is no cell, or there are too many for memory.
    """
    if not 0 < num_cells <= _MAX_CELLS:
        raise refuse("count_codes", f"num_cells={num_cells}", f"it must lie in [1, {_MAX_CELLS}]", "Use fewer tokens.")
    cells = np.where((codes < 0) | (codes >= num_cells), num_cells, codes).ravel()
    # Weighted counts are returned as float64, which is exact below 2**53.
    return np.asarray(np.bincount(cells, weights, minlength=num_cells + 1)).astype(np.int64)


def sum_counts(parts: Iterable[Counts]) -> dict[str, NDArray[np.int64]]:
    """The tables of all observations, from the tables of their parts; all parts have the same tables.

    Raises:
        ValueError: If two parts of a table have different cells.
    """
    totals: dict[str, NDArray[np.int64]] = {}
    for part in parts:
        for name, counts in part.items():
            known = totals.get(name, np.zeros_like(counts))
            if known.shape != counts.shape:
                widths = sorted({known.shape, counts.shape})
                raise refuse("sum_counts", f"shapes={widths}", "a table must keep its cells", "Merge like with like.")
            totals[name] = known + counts
    return totals


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
