"""Relations between calls: what a row gets depends on that row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.logprobs_harness import call_logprobs
from fairdraw.properties._logprobs_asserts import (
    INVARIANT,
    TOP,
    Row,
    broken,
    cases,
    check,
    require_values,
    rows_of,
    same_rows,
)
from fairdraw.protocols import ALL_LOGPROBS, NOT_EMITTED, LogprobsBatch, LogprobsSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.strategies.logprobs import LogprobsCase


def _rows(sampler: LogprobsSampler, batch: LogprobsBatch) -> list[Row]:
    """The rows of one call."""
    return list(rows_of(batch, call_logprobs(sampler, batch)))


def _in_calls(sampler: LogprobsSampler, batch: LogprobsBatch, parts: Sequence[Sequence[int]]) -> list[Row]:
    """The rows of `batch`, computed in these parts; each row is a request of its own."""
    found: list[Row] = []
    for rows in parts:
        part = batch.select(rows)
        if any(number is not None for number in part.num_logprobs):
            found += _rows(sampler, part)
    return found


def _read(batch: LogprobsBatch) -> list[int]:
    """The rows that are read."""
    tokens = batch.token_ids.tolist()
    return [i for i, n in enumerate(batch.row_logprobs) if n is not None and tokens[i] != NOT_EMITTED]


@check("LPR141", lambda can: cases(can, max_requests=3), needs=TOP)
def values_do_not_depend_on_how_many_are_asked_for(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """For 0, 1, 5, 20 and all, values are the same, bit for bit, and shorter lists are the beginning of longer ones.

    Normalised over the listed tokens, or another kernel for long lists. vLLM #44319 is of this kind.
    """
    batch = case.batch(sampler.device)
    longest = _rows(sampler, batch.replace(num_logprobs=[ALL_LOGPROBS] * batch.batch_size))
    for number in (0, 1, 5, 20):
        asked = batch.replace(num_logprobs=[min(number, batch.vocab_size)] * batch.batch_size)
        same_rows(sampler, longest, _rows(sampler, asked), f"with {number} log-probabilities")


@check("LPR142", cases, needs=INVARIANT)
def rows_do_not_depend_on_other_rows(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Each row gets in a batch what it gets alone, bit for bit.

    A maximum, a sum or a number of log-probabilities of the whole batch.
    """
    batch = case.batch(sampler.device)
    alone = _in_calls(sampler, batch, [[row] for row in _read(batch)])
    same_rows(sampler, alone, _rows(sampler, batch), "beside other rows")


@check("LPR147", lambda can: cases(can, num_logprobs=(0,)))
def asking_for_zero_gives_the_emitted_token(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """`logprobs=0` asks for the emitted token alone; it is not the same as not to ask.

    `if num_logprobs:` takes 0 for none, as tpu-inference and LMDeploy do.
    """
    require_values(iter(_rows(sampler, case.batch(sampler.device))))


@check("LPR148", lambda can: cases(can, num_logprobs=(ALL_LOGPROBS,), max_vocab_size=100), needs=TOP)
def asking_for_all_is_asking_for_the_whole_vocabulary(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """-1 gives what `vocab_size` gives, and every token is listed.

    -1 taken for a number, or a limit of 20 that cuts the list without a word.
    """
    batch = case.batch(sampler.device)
    rows = _rows(sampler, batch)
    numbered = batch.replace(num_logprobs=[batch.vocab_size] * batch.batch_size)
    same_rows(sampler, _rows(sampler, numbered), rows, "with -1")
    for row in rows:
        if len(np.unique(row.ids)) < batch.vocab_size:
            broken(f"row {row.row} lists {len(np.unique(row.ids))} of {batch.vocab_size} tokens")
