"""Relations between calls: what a row gets depends on that row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core.logprobs_harness import call_logprobs
from fairdraw.properties._logprobs_asserts import (
    INVARIANT,
    TOP,
    Row,
    broken,
    call,
    cases,
    check,
    require_best,
    require_rank,
    require_values,
    rows_of,
    same_rows,
)
from fairdraw.protocols import ALL_LOGPROBS, NOT_EMITTED, Capability, LogprobsBatch, LogprobsSampler
from fairdraw.strategies.rows import bulk_rng

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


@check("LPR143", lambda can: cases(can, max_rows=9, all_emitted=True), needs=INVARIANT)
def chunks_change_nothing(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A prompt whose rows are computed in chunks, of any size, gets what it gets at once.

    A chunk that begins with the token of its own first row, or a last chunk that is padded with rows of the one before.
    """
    batch = case.batch(sampler.device)
    rows, whole = _read(batch), _rows(sampler, batch)
    for size in (2, 5):
        chunks = [rows[first : first + size] for first in range(0, len(rows), size)]
        same_rows(sampler, whole, _in_calls(sampler, batch, chunks), f"in chunks of {size}")


@check("LPR144", cases, needs=INVARIANT)
def the_order_of_rows_has_no_influence(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Rows in another order get the same.

    An index of sorted requests that is used for the rows as they were.
    """
    batch = case.batch(sampler.device)
    order = [int(row) for row in bulk_rng("order", case.seed).permutation(len(batch.token_ids))]
    mixed = {order[row.row]: row for row in _in_calls(sampler, batch, [order])}
    whole = _rows(sampler, batch)
    same_rows(sampler, whole, [mixed[row.row] for row in whole], "in another order")


@check("LPR145", lambda can: cases(can, max_rows=6), needs=(Capability.RAGGED, *INVARIANT))
def rows_with_drafts_equal_rows_without(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Rows 0..K of requests with drafts, of different numbers, get what the same rows get in plain decoding.

    Log-probabilities of the next position, offsets of drafts that leave out the bonus row, or rows of rejected drafts
    that are counted.
    """
    batch = case.batch(sampler.device)
    same_rows(sampler, _in_calls(sampler, batch, [_read(batch)]), _rows(sampler, batch), "with drafts")


@check("LPR146", cases, needs=INVARIANT)
def requests_that_ask_for_none_do_not_disturb_others(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Beside requests that ask for nothing, or for another number, a request gets what it asks for.

    Rows that are compacted to those that ask, and an index that is not.
    """
    batch = case.batch(sampler.device)
    asked = [0 if number is None else number for number in batch.num_logprobs]
    everyone = {row.row: row for row in _rows(sampler, batch.replace(num_logprobs=asked))}
    seen = _rows(sampler, batch)
    same_rows(sampler, [everyone[row.row] for row in seen], seen, "beside requests that ask for none")


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


@check("LPR151", cases)
def the_same_call_twice_gives_the_same(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Nothing is left behind by a call.

    A workspace that is not cleared, or atomics that add up in another order.
    """
    batch = case.batch(sampler.device)
    same_rows(sampler, _rows(sampler, batch), _rows(sampler, batch), "once more")


@check("LPR152", lambda can: cases(can, max_requests=3), weight=0.5)
def calls_of_other_sizes_in_between_change_nothing(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """After calls with more and fewer rows, another vocabulary, stage and number, a batch gets what it got before.

    Buffers that are kept for the largest call and read beyond the current one, or caches with too small a key.
    """
    batch = case.batch(sampler.device)
    before = _rows(sampler, batch)
    longer = tuple(request.replace(num_rows=request.num_rows + 3) for request in case.requests)
    stage = case.stage.replace("raw", "processed") if "raw" in case.stage else case.stage.replace("processed", "raw")
    between: tuple[dict[str, Any], ...] = (
        {"requests": (*longer, *longer), "seed": case.seed + 1},
        {"requests": (case.requests[0].replace(num_logprobs=0),), "vocab_size": case.vocab_size + 7},
        {"stage": stage},
    )
    for changes in between:
        call(sampler, case.replace(**changes))
    after = _rows(sampler, batch)
    same_rows(sampler, before, after, "after other calls")
    require_values(iter(after))


@check("LPR153", lambda can: cases(can, max_requests=3))
def token_ids_of_32_bits_give_the_same(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Token ids as int32, as samplers return them, give what int64 gives.

    A kernel that reads pairs of them as one id, or a gather that refuses them.
    """
    wide, narrow = (case.replace(ids=ids).batch(sampler.device) for ids in ("int64", "int32"))
    same_rows(sampler, _rows(sampler, wide), _rows(sampler, narrow), "with ids of 32 bits")


@check(
    "LPR154",
    lambda can: cases(can, layouts=("transposed", "sliced", "huge-stride")),
    needs=(Capability.STRIDED_INPUTS,),
)
def strides_of_the_logits_have_no_influence(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Logits and ids inside of a wider tensor, or column by column, have the right values, ranks and lists.

    Bits may differ from those of logits in order: a sum may be taken in another order. `view` or `data_ptr` on a slice
    of a padded vocabulary: the next row begins too early.
    """
    seen = _rows(sampler, case.batch(sampler.device))
    require_values(iter(seen))
    require_best(sampler, iter(seen))
    for row in seen:
        require_rank(sampler, row)


@check("LPR155", lambda can: cases(can, max_rows=6, max_requests=3))
def rows_that_emitted_nothing_do_not_disturb_others(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Rows after a rejected draft have no token; what they hold does not change the rows that are read.

    An id of -1 that is gathered with, a NaN that such a row spreads, or a row that is written to another's place.
    """
    batch = case.batch(sampler.device)
    unread = batch.token_ids == NOT_EMITTED
    other = batch.replace(
        logits=batch.logits.masked_fill(unread[:, None], 3.0),
        processed_logits=batch.processed_logits.masked_fill(unread[:, None], torch.inf),
    )
    same_rows(sampler, _rows(sampler, batch), _rows(sampler, other), "beside rows that emitted nothing")
