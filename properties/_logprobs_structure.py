"""What every answer is: the emitted token, then a list; documented results where there is no distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.checks import Stage
from fairdraw._core.logprobs_harness import call_draw, call_logprobs
from fairdraw.properties._logprobs_asserts import (
    LOGPROBS,
    SOME,
    TOP,
    broken,
    call,
    cases,
    check,
    require_best,
    require_different,
    require_inside,
    require_sorted,
    rows_of,
    same_rows,
    seen_rows,
)
from fairdraw.protocols import Capability, LogprobsSampler, SeededNoise
from fairdraw.strategies.sampling import sampling_cases

if TYPE_CHECKING:
    from fairdraw.protocols import DrawingLogprobsSampler
    from fairdraw.strategies.logprobs import LogprobsCase
    from fairdraw.strategies.sampling import SamplingCase

_NAN, _EMPTY = (Capability.NAN_LOGITS,), (Capability.EMPTY_ROWS,)


@check("LPR101", cases, stage=Stage.SHAPE)
def the_emitted_token_comes_first(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """The first column is the token that the row emitted, also if it is not the most probable one.

    A client that reads the first entry as the sampled token computes a reward or a perplexity of another text.
    """
    for row in seen_rows(sampler, case):
        if row.emitted_id != row.token:
            broken(f"row {row.row} emitted token {row.token}, and token {row.emitted_id} stands in the first column")


@check("LPR102", lambda can: cases(can, num_logprobs=SOME), needs=TOP, stage=Stage.SHAPE)
def listed_ids_lie_in_the_vocabulary(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Every id that is listed is at least 0 and below `vocab_size`, also behind the last token that is possible.

    Padding of -1, or the padded lanes of a last tile: a detokeniser fails on them, or prints another token.
    """
    for row in seen_rows(sampler, case):
        require_inside(row)


@check("LPR103", lambda can: cases(can, num_logprobs=SOME), needs=TOP, stage=Stage.SHAPE)
def no_id_is_listed_twice(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """The ids of a list differ; the emitted token stands in it once at most.

    A merge of tiles that keeps a candidate twice, or an emitted token that is put in front of the list and left in it.
    """
    for row in seen_rows(sampler, case):
        require_different(row)


@check("LPR104", lambda can: cases(can, num_logprobs=SOME), needs=TOP)
def lists_are_sorted(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """From the largest value to the smallest.

    `topk(sorted=False)`, or tiles that follow each other.
    """
    for row in seen_rows(sampler, case):
        require_sorted(row)


@check("LPR105", lambda can: cases(can, num_logprobs=SOME), needs=TOP)
def no_better_token_is_missing_from_a_list(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A list of N holds the N most probable tokens; which of equal ones is free.

    A tile that keeps too few candidates, an emitted token that was taken out, a mask of the wrong stage.
    """
    require_best(sampler, seen_rows(sampler, case))


@check("LPR106", lambda can: cases(can, num_logprobs=SOME), needs=TOP)
def the_emitted_token_has_the_value_of_its_entry(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """If the emitted token is listed, both of its values are equal, bit for bit.

    Two formulas for one number: a client that merges both, as servers do, returns one or the other.
    """
    for row in seen_rows(sampler, case):
        found = row.values[row.ids == row.token]
        if row.has_distribution and len(found) and found[0] != row.emitted_value:
            broken(f"row {row.row}: token {row.token} has {row.emitted_value!s}, and {found[0]!s} in the list")


@check(
    "LPR107",
    lambda can: cases(can, num_logprobs=SOME, logits=("flat", "tied", "twins", "half")),
    needs=(*TOP, Capability.LOWEST_ID_TIES, Capability.EXACT_RANKS),
)
def of_equal_tokens_the_lowest_id_comes_first(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Tokens with equal logits are listed by their ids, and the lowest ids are kept where a list ends.

    Tiles that are merged in the order in which they finished.
    """
    for row in seen_rows(sampler, case):
        expected = np.argsort(-row.logits, kind="stable")[: row.number]
        differing = np.flatnonzero(expected != row.ids)
        if row.has_distribution and len(differing):
            place = int(differing[0])
            broken(f"row {row.row}: place {place + 1} has id {row.ids[place]} instead of {expected[place]}")


@check("LPR108", cases)
def the_batch_is_not_modified(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """After the call both logits and the token ids are what they were, bit for bit.

    A softmax in place, or a mask that is written into the logits: later stages of the same step read them.
    """
    batch = case.batch(sampler.device)
    before = {name: tensor.clone() for name, tensor in batch.tensors().items()}
    call_logprobs(sampler, batch)
    for name, tensor in batch.tensors().items():
        if not tensor.nan_to_num(nan=7e4).equal(before[name].nan_to_num(nan=7e4)):
            broken(f"{name} was modified")


def _without_distribution(sampler: LogprobsSampler, case: LogprobsCase, *, may_be_low: bool) -> None:
    for row in seen_rows(sampler, case):
        values = np.append(row.emitted_value, row.values)
        documented = np.isnan(values) | (may_be_low & (values == -np.inf))
        if not row.has_distribution and not documented.all():
            broken(f"row {row.row} has no distribution, and a value of {values[~documented][0]!s}")
        if ((row.ids < 0) | (row.ids >= len(row.logits))).any():
            broken(f"row {row.row} has no distribution, and lists an id outside of [0, {len(row.logits)})")


@check("LPR110", lambda can: cases(can, logits=("nan", "normal"), stages=LOGPROBS), needs=_NAN)
def rows_with_nan_give_nan(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Log-probabilities of a row with a NaN are NaN, and its ids lie in the vocabulary.

    Numbers that look right hide that the model broke. `max` and `topk` treat NaN in different ways on each device.
    """
    _without_distribution(sampler, case, may_be_low=False)


@check("LPR111", lambda can: cases(can, logits=("empty", "normal"), stages=LOGPROBS), needs=_EMPTY)
def rows_without_any_token_give_no_finite_number(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Log-probabilities of a row that is all -inf are -inf or NaN, and its ids lie in the vocabulary.

    This happens when a grammar has ended. A softmax with an epsilon makes a uniform distribution of it.
    """
    _without_distribution(sampler, case, may_be_low=True)


@check("LPR112", lambda can: cases(can, stages=LOGPROBS, max_requests=3), needs=_NAN)
def rows_with_nan_do_not_disturb_others(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A request whose logits hold a NaN does not change what others get.

    A maximum over the whole batch, or a check for NaN that returns early.
    """
    first = case.requests[0].replace(num_logprobs=0, logits="normal", processing="none")
    healthy, poisoned = (
        case.replace(requests=(first.replace(logits=kind), *case.requests)) for kind in ("normal", "nan")
    )
    before, after = (
        [row for row in rows_of(*call(sampler, one)) if row.row >= first.num_rows] for one in (healthy, poisoned)
    )
    same_rows(sampler, before, after, "beside a request with NaN")


@check("LPR113", lambda can: cases(can, max_requests=2), needs=(Capability.NO_ROWS,))
def batches_without_rows_give_empty_tensors(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Requests without a row get an empty answer of the right width, as for a prompt of one token; the next batch gets
    what it got before.

    A reduction over no rows raises, a kernel is launched on an empty grid, or a buffer is left without memory.
    """
    before = list(seen_rows(sampler, case))
    call(sampler, case.replace(requests=tuple(request.replace(num_rows=0) for request in case.requests)))
    same_rows(sampler, before, list(seen_rows(sampler, case)), "after a batch without rows")


# -- a function that draws --------------------------------------------------------------------------------------------


@check(
    "LPR161",
    lambda can: sampling_cases(can, explicit=False, greedy=False, logits=("flat", "normal", "half", "one-hot", "tied")),
    needs=(Capability.DRAWN_TOKENS,),
)
def drawn_tokens_are_possible_under_what_is_returned(sampler: DrawingLogprobsSampler, case: SamplingCase) -> None:
    """A drawn token has a finite log-probability, and those of all tokens sum to 1: the distribution that it came from.

    Raw log-probabilities under the name of processed ones, or a mask that only one of the two has seen.
    """
    batch = case.batch(sampler.device)
    seen = call_draw(sampler, batch, SeededNoise(case.seed))
    for row in range(batch.batch_size):
        total = float(np.exp(seen.logprobs[row, 1:].astype(np.float64)).sum())
        if not abs(total - 1) <= 2.0**-16:
            broken(f"request {row}: the probabilities that are returned sum to {total:.9g}")
        if not np.isfinite(seen.logprobs[row, 0]):
            broken(f"request {row} drew token {seen.token_ids[row, 0]}, of log-probability {seen.logprobs[row, 0]}")


@check(
    "LPR162",
    lambda can: sampling_cases(can, explicit=False, greedy=False, logits=("flat", "normal", "half", "zipf")),
    needs=(Capability.DRAWN_TOKENS,),
)
def drawn_tokens_have_the_value_of_their_entry(sampler: DrawingLogprobsSampler, case: SamplingCase) -> None:
    """The log-probability that comes with a drawn token is the one that the whole list has for it, within rounding.

    A kernel that draws and a kernel that lists: the first returns a value before filters, of a rejected draft, or in a
    lower precision.
    """
    batch = case.batch(sampler.device)
    seen = call_draw(sampler, batch, SeededNoise(case.seed))
    for row, (token, own) in enumerate(zip(seen.token_ids[:, 0], seen.logprobs[:, 0], strict=True)):
        ids, values = seen.token_ids[row, 1:], seen.logprobs[row, 1:].astype(np.float64)
        for listed in values[ids == token]:
            slack = 2.0**-23 * (64 + 2 * abs(values.max() - listed) + 4 * abs(values.max()))
            if not abs(float(own) - listed) <= slack:
                broken(f"request {row}: token {token} comes with {own!s}, and the list has {listed:.9g} for it")
