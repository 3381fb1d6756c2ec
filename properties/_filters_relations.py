"""12x and 13x: forbidden tokens and ids have no influence on what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw.contracts import LOGIT_FILTERS, Capabilities, Capability, LogitsFilterer, capability_of
from fairdraw.properties._filters_asserts import call, cases, check, same_rows
from fairdraw.strategies.filters import FilterCase
from fairdraw.strategies.rows import bulk_rng


def _same_logits(can: Capabilities, **narrow: Any) -> st.SearchStrategy[FilterCase]:  # Any: of filter_cases
    """Rows that differ in their filters alone."""

    def with_copies(case: FilterCase) -> FilterCase:
        return case.replace(rows=(case.rows[0], *(row.replace(copy_of=0) for row in case.rows[1:])))

    return cases(can, max_rows=8, min_vocab_size=24, **narrow).map(with_copies)


_BY_ID = ("dry",)
_BY_SIZE = ("mirostat_v1", "tail_free")
"""Filters that know the size of the vocabulary, or may count tokens of probability 0."""


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in LOGIT_FILTERS if name not in names)


def _one_of(names: tuple[str, ...]) -> tuple[tuple[Capability, ...], ...]:
    """That one of these filters is supported."""
    return (tuple(map(capability_of, names)),)


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


@check(
    "FIL133",
    lambda can: cases(can, filters=without(*_BY_ID), max_rows=8, min_vocab_size=24),
    needs_one_of=_one_of(without(*_BY_ID)),
)
def ids_have_no_influence(filterer: LogitsFilterer, case: FilterCase) -> None:
    """If tokens exchange their ids, those that stay do, too.

    Sorted masks that are not put back, or not by the right permutation; a special id that is always kept.
    """
    batch = case.batch(filterer.device)
    order = bulk_rng("ids", case.seed).permutation(batch.vocab_size)
    mixed = call(filterer, batch.replace(logits=batch.logits[:, torch.from_numpy(order)]), case.seed)
    expected = call(filterer, batch, case.seed)
    same_rows(filterer, batch, expected, mixed[:, np.argsort(order)], "with other ids")
