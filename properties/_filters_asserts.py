"""What the checks of filters assert with: run a case, and compare rows with the specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core import checks
from fairdraw._oracles.filters import FilteredRow, FiltersOracle
from fairdraw.contracts import FilterBatch, FilterChain, FilterParams, LogitsFilterer, SeededNoise
from fairdraw.contracts._filters import call_filters
from fairdraw.properties._rejection_asserts import broken as broken
from fairdraw.properties._traces import WrongRow
from fairdraw.strategies.filters import FilterCase

Logits = NDArray[np.float32]  # [num_rows, vocab_size] float32, or one row

check = partial(checks.check, contract="filters")

_ULP = 2.0**-24


def call(filterer: LogitsFilterer, batch: FilterBatch, seed: int = 0) -> Logits:
    """The logits of one call."""
    return call_filters(filterer, batch, SeededNoise(seed)).logits


def specified(filterer: LogitsFilterer, batch: FilterBatch) -> list[FilteredRow]:
    """What the specification makes of it, in the order that the filterer declares."""
    return list(FiltersOracle(filterer.chain).rows(batch))


def require_rows(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Every row of one call follows the specification."""
    batch = case.batch(filterer.device)
    given, params = batch.logits.cpu().numpy().copy(), list(batch.params)
    rows = Specified.of(specified(filterer, batch), filterer.chain, params)
    require_specified(params, rows, given, call(filterer, batch, case.seed))


@dataclass(frozen=True, eq=False)
class Specified:
    """What the specification makes of rows, as arrays; fields are those of `FilteredRow`.

    Args:
        is_off: Rows without a filter, which keep their bits.
        is_one_hot: Rows that come back as the drawn token alone.
    """

    values: Any  # NDArray[np.float64], [num_rows, vocab_size]
    error: Any  # NDArray[np.float64], [num_rows, vocab_size]
    sure: Any  # NDArray[np.bool_], [num_rows, vocab_size]
    possible: Any  # NDArray[np.bool_], [num_rows, vocab_size]
    least: Any  # NDArray[np.int64], [num_rows]
    most: Any  # NDArray[np.int64], [num_rows]
    is_off: Any  # NDArray[np.bool_], [num_rows]
    is_one_hot: Any  # NDArray[np.bool_], [num_rows]

    @classmethod
    def of(cls, rows: Sequence[FilteredRow], chain: FilterChain, params: Sequence[FilterParams]) -> Specified:
        """Return the rows, one after the other."""
        fields = ("values", "error", "sure", "possible", "least", "most")
        parts = {name: np.array([getattr(row, name) for row in rows]) for name in fields}
        off, hot = ([not one.enabled for one in params], [is_one_hot(one, chain) for one in params])
        return cls(**parts, is_off=np.array(off), is_one_hot=np.array(hot))

    def taken(self, places: NDArray[np.int64]) -> Specified:  # [num_rows] int64
        """Return some of the rows, any of them as often as it is named."""
        return Specified(*(getattr(self, one.name)[places] for one in dataclasses.fields(self)))


def require_specified(
    params: Sequence[FilterParams], rows: Specified, given: Logits, found: Logits, call_number: int | None = None
) -> None:
    """What stays, how many of what may stay, the distances between the logits that stay, and bits of what is off.

    Args:
        call_number: Within a trace; `None` outside of one.
    """
    for is_wrong, text in _faults(rows, given, found):
        wrong = is_wrong.any(axis=1) if is_wrong.ndim == 2 else is_wrong
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            tokens = np.flatnonzero(is_wrong[row]) if is_wrong.ndim == 2 else [0]
            effect = f"row {row} of {len(wrong)}, {params[row]!r}: " + text(row, int(tokens[0]), len(tokens))
            if call_number is None:
                broken(effect)
            raise WrongRow(f"{effect} ({int(wrong.sum())} rows are wrong like it)", call_number, row)


Fault = tuple[Any, "Callable[[int, int, int], str]"]
"""Which rows, or tokens of rows, are wrong; from a row, its first wrong token and their number to words. Any: bool."""


def _faults(rows: Specified, given: Logits, found: Logits) -> Iterator[Fault]:
    """Yield what may be wrong, the plainest first."""
    stays, is_normal, open_ids = np.isfinite(found), ~rows.is_one_hot, rows.possible & ~rows.sure
    number, most = (stays & open_ids).sum(axis=1), open_ids.sum(axis=1)
    yield np.isnan(found) | (found == np.inf), lambda row, token, count: f"the logits hold {found[row, token]!s}"
    yield ~stays.any(axis=1), lambda row, token, count: "no token is left"
    yield (
        (given.view(np.uint32) != found.view(np.uint32)) & rows.is_off[:, None],
        lambda row, token, count: f"token {token} has {found[row, token]!s} instead of {given[row, token]!s}",
    )
    lost = rows.sure & ~stays & is_normal[:, None]
    yield lost, lambda row, token, count: f"token {token} is out, and {count} tokens are wrong like it"
    extra = stays & ~rows.possible
    yield extra, lambda row, token, count: f"token {token} stays, and {count} tokens are wrong like it"
    fits = ((rows.least <= number) & (number <= rows.most)) | (number == most)
    yield (
        ~fits & is_normal,
        lambda row, token, count: (
            f"of {most[row]} tokens at the edge {number[row]} stay instead of {rows.least[row]} to {rows.most[row]}"
        ),
    )
    below, instead, wrong = _distances(rows, found)
    yield (
        wrong & is_normal[:, None],
        lambda row, token, count: (
            f"token {token} lies {below[row, token]:.9g} from the largest logit that stays instead of "
            f"{instead[row, token]:.9g}"
        ),
    )


def _distances(rows: Specified, found: Logits) -> tuple[Any, Any, Any]:  # Any: [num_rows, vocab_size] float64, bool
    """Return distances from the largest logit that stays, what they should be, and which are wrong."""
    judged = np.isfinite(found) & rows.possible & np.isfinite(rows.error)
    values, got, error = (np.where(judged, one, 0.0).astype(np.float64) for one in (rows.values, found, rows.error))
    top = np.where(judged, rows.values, -np.inf).argmax(axis=1)[:, None]
    tops = [np.take_along_axis(one, top, axis=1) for one in (values, got, error)]
    sizes = np.abs(values) + np.abs(got) + np.abs(tops[0]) + np.abs(tops[1])
    with np.errstate(invalid="ignore"):
        below, instead = got - tops[1], values - tops[0]
        return below, instead, judged & ~(np.abs(below - instead) <= error + tops[2] + 8 * _ULP * sizes)


def is_one_hot(params: FilterParams, chain: FilterChain) -> bool:
    """Whether the row comes back as the drawn token alone."""
    return chain.mirostat_one_hot and bool(params.mirostat_v1_tau or params.mirostat_v2_tau)
