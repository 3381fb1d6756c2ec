"""12x and 13x: what is off changes nothing, what is out stays out, and ids and constants have no influence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw.properties._filters_asserts import (
    TRUNCATING,
    broken,
    call,
    cases,
    check,
    require_bits,
    same_rows,
    specified,
)
from fairdraw.protocols import LOGIT_FILTERS, Capabilities, Capability, FilterParams, capability_of
from fairdraw.strategies.filters import FilterCase, FilterRow, filters_of
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from typing import Any

    from hypothesis import strategies as st

    from fairdraw.protocols import LogitsFilterer

_OFF = FilterParams()
_MASKED = ("half", "one-hot", "last-only")


def _same_logits(can: Capabilities, **narrow: Any) -> st.SearchStrategy[FilterCase]:  # Any: of filter_cases
    """Rows that differ in their filters alone."""

    def with_copies(case: FilterCase) -> FilterCase:
        return case.replace(rows=(case.rows[0], *(row.replace(copy_of=0) for row in case.rows[1:])))

    return cases(can, max_rows=8, min_vocab_size=24, **narrow).map(with_copies)


_THRESHOLDS = ("min_p", "top_a", "eta", "epsilon", "top_n_sigma", "mirostat_v2")
"""Filters that compare each token with one number."""
_BY_ID = ("dry",)
_BY_SIZE = ("mirostat_v1", "tail_free")
"""Filters that know the size of the vocabulary, or may count tokens of probability 0."""


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in LOGIT_FILTERS if name not in names)


def _one_of(names: tuple[str, ...]) -> tuple[tuple[Capability, ...], ...]:
    """That one of these filters is supported."""
    return (tuple(map(capability_of, names)),)


@check("FIL121", lambda can: cases(can, filters=()))
def a_batch_without_filters_keeps_its_bits(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Rows whose parameters are all off come back bit for bit.

    A softmax and a logarithm for everybody, a division by 1.0 plus an epsilon, an addition of 0 that changes -0.0.
    """
    batch = case.batch(filterer.device)
    before, found = batch.logits.cpu().numpy().copy(), call(filterer, batch, case.seed)
    for number in range(batch.batch_size):
        require_bits(f"row {number}", before[number], found[number])


@check("FIL124", lambda can: cases(can, logits=_MASKED, settings="any"))
def what_is_forbidden_stays_out(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A logit of -inf is -inf afterwards.

    A filter that sorts may give back the wrong ids; `-inf - -inf` is NaN, and NaN that is replaced by 0 is possible
    again.
    """
    batch = case.batch(filterer.device)
    out, found = batch.logits.cpu().numpy() == -np.inf, call(filterer, batch, case.seed)
    wrong = np.argwhere(out & (found != -np.inf))
    if wrong.size:
        row, token = map(int, wrong[0])
        broken(f"row {row}, {batch.params[row]!r}: token {token} was -inf and is {found[row, token]!s}")


@check(
    "FIL125",
    lambda can: _same_logits(can, filters=without(*_BY_ID, *_BY_SIZE), logits=("half",)),
    needs_one_of=_one_of(without(*_BY_ID, *_BY_SIZE)),
)
def forbidden_tokens_do_not_disturb_the_others(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Without its forbidden tokens, a row keeps the same ones; rows of one case have the same logits.

    An entropy of `0 * log(0)`, a standard deviation with -inf in it, a number of candidates that counts what is
    forbidden.
    """
    batch = case.batch(filterer.device)
    alive = batch.logits[0].isfinite()
    shorter = batch.replace(logits=batch.logits[:, alive])
    expected = torch.full_like(batch.logits, -torch.inf).cpu().numpy()
    expected[:, alive.cpu().numpy()] = call(filterer, shorter, case.seed)
    same_rows(filterer, batch, expected, call(filterer, batch, case.seed), "with forbidden tokens")


@check("FIL126", lambda can: cases(can, filters=TRUNCATING, max_rows=8), needs_one_of=_one_of(TRUNCATING))
def what_stays_keeps_its_distance(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Filters that cut leave the differences between the logits that stay as they were.

    Probabilities in the place of logits, a renormalisation that is done twice, a temperature that nobody asked for.
    """
    batch = case.batch(filterer.device)
    before, found = batch.logits.cpu().numpy().astype(np.float64), call(filterer, batch, case.seed)
    for number in range(batch.batch_size):
        ids = np.flatnonzero(np.isfinite(found[number]))
        moved = found[number, ids].astype(np.float64) - before[number, ids]
        largest = np.abs(before[number, ids]).max(initial=0) + np.abs(found[number, ids]).max(initial=0)
        if len(ids) and not np.ptp(moved) <= 2.0**-20 * (1 + largest):
            broken(f"row {number}, {batch.params[number]!r}: distances change by up to {np.ptp(moved):.3g}")


@check(
    "FIL127",
    lambda can: cases(can, filters=_THRESHOLDS, logits=("tied", "flat", "twins", "grid")),
    needs_one_of=_one_of(_THRESHOLDS),
)
def equal_tokens_stay_or_go_together(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Filters that compare with a threshold treat equal logits alike, unless a single token is left.

    A guard that keeps the most probable token and writes its neighbour, or tokens that are counted and not compared.
    """
    batch = case.batch(filterer.device)
    before, found = batch.logits.cpu().numpy(), call(filterer, batch, case.seed)
    for number in range(batch.batch_size):
        stays = np.isfinite(found[number])
        both = set(before[number][stays]) & set(before[number][~stays])
        both.discard(np.float32(-np.inf))
        if both and stays.sum() > 1 and not filterer.chain.mirostat_one_hot:
            broken(f"row {number}, {batch.params[number]!r}: of the tokens of logit {both.pop()!s} some stay")


@check("FIL133", lambda can: cases(can, filters=without(*_BY_ID), max_rows=8), needs_one_of=_one_of(without(*_BY_ID)))
def ids_have_no_influence(filterer: LogitsFilterer, case: FilterCase) -> None:
    """If tokens exchange their ids, those that stay do, too.

    Sorted masks that are not put back, or not by the right permutation; a special id that is always kept.
    """
    batch = case.batch(filterer.device)
    order = bulk_rng("ids", case.seed).permutation(batch.vocab_size)
    mixed = call(filterer, batch.replace(logits=batch.logits[:, torch.from_numpy(order)]), case.seed)
    expected = call(filterer, batch, case.seed)
    same_rows(filterer, batch, expected, mixed[:, np.argsort(order)], "with other ids")


@check("FIL134", lambda can: cases(can, logits=("grid", "tied", "flat"), min_rows=4, max_rows=8))
def a_constant_has_no_influence(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A constant that is added to all logits of a row changes nothing that stays.

    A threshold, an average or a temperature that is applied to logits as if they were log-probabilities.
    """
    batch = case.batch(filterer.device)
    expected = call(filterer, batch, case.seed)
    for shift in (-16.0, 24.0):
        seen = call(filterer, batch.replace(logits=batch.logits + shift), case.seed)
        same_rows(filterer, batch, expected, seen, f"with {shift:+g}")


_STRONGER: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("top_p", "typical_p", "tail_free"), (0.98, 0.7, 0.3, 0.05)),
    **dict.fromkeys(("min_p", "top_a", "eta", "epsilon"), (1e-3, 0.03, 0.2, 0.8)),
    "top_n_sigma": (3.0, 1.5, 0.7, 0.1),
    "top_k": (50, 9, 2, 1),
}
"""Filter to values that cut more and more."""


def _strengths(can: Capabilities) -> st.SearchStrategy[FilterCase]:
    def with_strengths(case: FilterCase) -> FilterCase:
        name = case.rows[0].params.enabled[0]
        first, values = case.rows[0], _STRONGER[name]
        rows = (FilterRow(first.logits, FilterParams(**{name: v}), copy_of=0) for v in values)  # type: ignore[arg-type]
        return case.replace(rows=tuple(rows))

    names = tuple(name for name in _STRONGER if name in filters_of(can))
    return cases(can, filters=names, max_rows=1).map(with_strengths)


@check("FIL135", _strengths, needs_one_of=_one_of(tuple(_STRONGER)))
def stronger_filters_keep_a_part(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A filter that is set stronger keeps none that it dropped before, and rows of one batch have different strengths.

    One value of a parameter for all rows, or a table that is looked up by the wrong row.
    """
    batch = case.batch(filterer.device)
    stays, rows = np.isfinite(call(filterer, batch, case.seed)), specified(filterer, batch)
    for number in range(1, batch.batch_size):
        wrong = stays[number] & ~stays[number - 1] & ~rows[number].maybe & ~rows[number - 1].maybe
        if wrong.any():
            token = int(np.flatnonzero(wrong)[0])
            weak, strong = (batch.params[one] for one in (number - 1, number))
            broken(f"token {token} stays with {strong!r} and is out with {weak!r}")
