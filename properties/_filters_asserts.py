"""What the checks of filters assert with: run a case, and compare rows with the specification."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core import checks
from fairdraw._core.filters_harness import call_filters
from fairdraw._oracles.filters import FiltersOracle
from fairdraw.properties._rejection_asserts import broken as broken
from fairdraw.protocols import FilterParams, SeededNoise
from fairdraw.strategies.filters import filter_cases

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hypothesis import strategies as st
    from numpy.typing import NDArray

    from fairdraw._oracles.filters import FilteredRow
    from fairdraw.protocols import Capabilities, FilterBatch, FilterChain, LogitsFilterer
    from fairdraw.strategies.filters import FilterCase

    Logits = NDArray[np.float32]  # [num_rows, vocab_size] float32, or one row

check = partial(checks.check, contract="filters")

_ULP = 2.0**-24
TRUNCATING = (
    *("top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "top_a", "tail_free", "eta", "epsilon", "xtc"),
    *("mirostat_v1", "mirostat_v2"),
)
"""Filters that leave what stays as it is."""


def cases(can: Capabilities, **narrow: Any) -> st.SearchStrategy[FilterCase]:  # Any: of filter_cases
    """Small batches of every kind."""
    return filter_cases(can, **narrow)


def call(filterer: LogitsFilterer, batch: FilterBatch, seed: int = 0) -> Logits:
    """The logits of one call."""
    return call_filters(filterer, batch, SeededNoise(seed)).logits


def specified(filterer: LogitsFilterer, batch: FilterBatch) -> list[FilteredRow]:
    """What the specification makes of it, in the order that the filterer declares."""
    return list(FiltersOracle(filterer.chain).rows(batch))


def require_rows(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Every row of one call follows the specification."""
    batch = case.batch(filterer.device)
    found = call(filterer, batch, case.seed)
    for number, row in enumerate(specified(filterer, batch)):
        require_row(number, batch.params[number], row, found[number], filterer.chain)


def require_row(number: int, params: FilterParams, row: FilteredRow, found: Logits, chain: FilterChain) -> None:
    """What stays, how many of what may stay, and the distances between the logits that stay."""
    where = f"row {number}, {params!r}"
    require_numbers(where, found)
    stays = np.isfinite(found)
    for is_wrong, text in (((row.sure & ~stays), "is out"), ((stays & ~row.possible), "stays")):
        if is_wrong.any() and not (text == "is out" and is_one_hot(params, chain)):
            token = int(np.flatnonzero(is_wrong)[0])
            broken(f"{where}: token {token} {text}, and {int(is_wrong.sum())} tokens are wrong like it")
    if not is_one_hot(params, chain):
        _require_number(where, row, stays)
        _require_values(where, row, found)


def is_one_hot(params: FilterParams, chain: FilterChain) -> bool:
    """Whether the row comes back as the drawn token alone."""
    return chain.mirostat_one_hot and bool(params.mirostat_v1_tau or params.mirostat_v2_tau)


def require_numbers(where: str, found: Logits) -> None:
    """No NaN and no infinity but -inf, and one token at least."""
    if np.isnan(found).any() or (found == np.inf).any():
        broken(f"{where}: the logits hold {found[np.isnan(found) | (found == np.inf)][0]!s}")
    if not np.isfinite(found).any():
        broken(f"{where}: no token is left")


def _require_number(where: str, row: FilteredRow, stays: Any) -> None:  # Any: [vocab_size] bool
    number, open_ids = int((stays & row.maybe).sum()), int(row.maybe.sum())
    if not (row.least <= number <= row.most or number == open_ids):
        broken(f"{where}: of {open_ids} tokens at the edge {number} stay instead of {row.least} to {row.most}")


def _require_values(where: str, row: FilteredRow, found: Logits) -> None:
    """Up to one constant, that of the largest logit that stays."""
    ids = np.flatnonzero(np.isfinite(found) & row.possible & np.isfinite(row.error))
    if len(ids) < 2:
        return
    values, got, error = row.values[ids], found[ids].astype(np.float64), row.error[ids]
    top = int(values.argmax())
    shift = got[top] - values[top]
    slack = error + error[top] + 8 * _ULP * (np.abs(values) + np.abs(got) + np.abs(got[top]) + np.abs(values[top]))
    wrong = ~(np.abs(got - values - shift) <= slack)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        below, instead = got[place] - got[top], values[place] - values[top]
        broken(
            f"{where}: token {ids[place]} lies {below:.9g} from the largest logit that stays instead of {instead:.9g}"
        )


def same_rows(
    filterer: LogitsFilterer, batch: FilterBatch, expected: Logits, seen: Logits, why: str, rows: Sequence[int] = ()
) -> None:
    """Two answers about the rows of `batch` keep the same tokens, but for those at an edge.

    Args:
        rows: Those that are compared; all if empty.
    """
    for number, row in enumerate(specified(filterer, batch)):
        if (rows and number not in rows) or is_one_hot(batch.params[number], filterer.chain):
            continue
        where = f"row {number}, {batch.params[number]!r}, {why}"
        require_numbers(where, seen[number])
        differing = (np.isfinite(expected[number]) != np.isfinite(seen[number])) & ~row.maybe
        if differing.any():
            token = int(np.flatnonzero(differing)[0])
            broken(f"{where}: token {token} {'stays' if np.isfinite(seen[number][token]) else 'is out'}")


def require_bits(where: str, before: Logits, after: Logits) -> None:
    """The same bits."""
    wrong = np.flatnonzero(before.view(np.uint32) != after.view(np.uint32))
    if wrong.size:
        token = int(wrong[0])
        broken(f"{where}: the logit of token {token} is {after[token]!s} instead of {before[token]!s}")
