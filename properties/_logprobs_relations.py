"""What a row gets depends on that row alone; the order of an answer, and ranks; a function that draws; traces.

In traces every row of every call is compared with the specification, as arrays.
"""

from __future__ import annotations

import numpy as np

from fairdraw._core.checks import Stage
from fairdraw._oracles.supports import log_error
from fairdraw.contracts import ALL_LOGPROBS, Capability, DrawingLogprobsSampler, LogprobsSampler, SamplingBatch
from fairdraw.contracts._logprobs import Returned, call_draw
from fairdraw.properties._logprobs_asserts import Rows, another_first, check, faults, require, require_same, wrong_ranks
from fairdraw.properties._rejection_asserts import broken
from fairdraw.properties._traces import WrongRow, left_alone, trace_check
from fairdraw.strategies.logprobs import LogprobsCase, LogprobsTrace, logprobs_cases
from fairdraw.strategies.sampling import SamplingCase, sampling_cases


@check("LPR101", logprobs_cases, stage=Stage.SHAPE)
def the_emitted_token_comes_first(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """The first column is the token that the row emitted, also if it is not the most probable one.

    A client that reads the first entry as the sampled token computes a reward or a perplexity of another text.
    """
    rows = Rows.of(sampler, case.batch(sampler.device))
    require(rows, another_first(rows))


@check(
    "LPR136",
    lambda can: logprobs_cases(can, logits=("half", "one-hot", "last-only"), tokens=("unlikely",)),
    needs=(Capability.TOKEN_RANKS,),
)
def ranks_of_impossible_tokens_lie_in_the_vocabulary(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A token whose logit is -inf, as one of a prompt may be, ties with all others that are impossible, and no more.

    Padded lanes of the last tile, which are -inf, too, and count: the rank is beyond the vocabulary.
    """
    rows = Rows.of(sampler, case.batch(sampler.device))
    require(rows, wrong_ranks(rows, sampler))


@check("LPR141", lambda can: logprobs_cases(can, max_requests=3), needs=(Capability.TOP_LOGPROBS,))
def values_do_not_depend_on_how_many_are_asked_for(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """For 0, 1, 5, 20 and all, values are the same, bit for bit, and shorter lists are the beginning of longer ones.

    Normalised over the listed tokens, or another kernel for long lists. vLLM #44319 is of this kind.
    """
    batch = case.batch(sampler.device)
    longest = Rows.of(sampler, batch.replace(num_logprobs=[ALL_LOGPROBS] * batch.batch_size))
    for number in (0, 1, 5, 20):
        numbers = [min(number, batch.vocab_size)] * batch.batch_size
        fewer = Rows.of(sampler, batch.replace(num_logprobs=numbers))
        for row in range(len(longest.places)):
            require_same(sampler, longest, row, fewer, row, f"with {number} log-probabilities")


@check("LPR142", logprobs_cases, needs=(Capability.BATCH_INVARIANT,))
def rows_do_not_depend_on_other_rows(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Each row gets in a batch what it gets alone, bit for bit.

    A maximum, a sum or a number of log-probabilities of the whole batch.
    """
    batch = case.batch(sampler.device)
    together = Rows.of(sampler, batch)
    for row, place in enumerate(together.places.tolist()):
        alone = Rows.of(sampler, batch.select([place]))
        require_same(sampler, alone, 0, together, row, "beside other rows")


# -- a function that draws --------------------------------------------------------------------------------------------

_SUM = 2.0**-16
"""Absolute: how far the logarithm of a float32 sum may be off."""


def _drawn(sampler: DrawingLogprobsSampler, case: SamplingCase) -> tuple[SamplingBatch, Returned]:
    """Build the case, with seeds of requests that have one, and draw."""
    batch = case.batch(sampler.device)
    return batch, call_draw(sampler, batch, case.noise(sampler.device))


@check(
    "LPR161",
    lambda can: sampling_cases(can, explicit=False, greedy=False, logits=("flat", "normal", "half", "one-hot", "tied")),
    needs=(Capability.DRAWN_TOKENS,),
)
def drawn_tokens_are_possible_under_what_is_returned(sampler: DrawingLogprobsSampler, case: SamplingCase) -> None:
    """A drawn token has a finite log-probability, and the list is the softmax over the temperature of what it has left.

    Raw log-probabilities under the name of processed ones, those of requests with a seed at another temperature, or a
    mask that only one of the two has seen.
    """
    batch, seen = _drawn(sampler, case)
    scaled = (batch.logits.double() / batch.temperature[:, None]).cpu().numpy()
    for row, (token, *ids) in enumerate(seen.token_ids.tolist()):
        own, *values = seen.logprobs[row].astype(np.float64)
        if not np.isfinite(own):
            broken(f"request {row} drew token {token}, of log-probability {own}")
        if not {*ids} <= {*range(batch.vocab_size)}:
            broken(f"request {row}: the list names a token outside of [0, {batch.vocab_size})")
        left = np.where(np.isfinite(values), scaled[row, ids], -np.inf)
        right = left - np.logaddexp.reduce(left)
        slack = _SUM + log_error(np.abs(left[np.isfinite(left)]).max(initial=0.0))
        for other, value, expected in zip(ids, values, right, strict=True):
            if not (value == expected or abs(value - expected) <= slack):
                broken(f"request {row}: token {other} has {value:.9g} in the list, but {expected:.9g} by its logits")


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
    _, seen = _drawn(sampler, case)
    for row, (token, own) in enumerate(zip(seen.token_ids[:, 0], seen.logprobs[:, 0], strict=True)):
        ids, values = seen.token_ids[row, 1:], seen.logprobs[row, 1:].astype(np.float64)
        for listed in values[ids == token]:
            slack = 2.0**-23 * (64 + 2 * abs(values.max() - listed) + 4 * abs(values.max()))
            if not abs(float(own) - listed) <= slack:
                broken(f"request {row}: token {token} comes with {own!s}, and the list has {listed:.9g} for it")


# -- traces -----------------------------------------------------------------------------------------------------------


def every_row_of_a_trace_has_its_own_log_probabilities(sampler: LogprobsSampler, trace: LogprobsTrace) -> None:
    """In calls of every size and vocabulary, each row has the values, the list and the rank of its own logits.

    The emitted token comes first; then come as many as its request asks for, the most probable ones, sorted, each
    once and with the value that the softmax of its own stage has in float64, within rounding. Excluded tokens have
    -inf, and rows with NaN give NaN. What is given is not written. Stages, dtypes, strides, types of ids, lengths of
    lists, rows of a request (or of no request) and rows without a token change from call to call, in every pair.
    Suspect a value of the other stage, one that is normalised over the list, in half precision or before the mask;
    ranks of rounded values; rows that are computed in chunks, an index of requests that slips behind one of many rows
    or of none, a last tile, ids or counts of 16 bits, 0 that is taken for none, and what an earlier call left in a
    buffer.
    """
    for call, batch in trace.batches(sampler.device):
        with left_alone(batch, number=call.number):
            rows = Rows.of(sampler, batch)
            for is_wrong, words in faults(rows, sampler) if len(rows.places) else ():
                if is_wrong.any():
                    row = int(np.flatnonzero(is_wrong)[0])
                    how = f"{int(is_wrong.sum())} of {len(batch.token_ids)} rows are wrong like it"
                    setting = f"{how}; {batch.stage}, {batch.logits.dtype}"
                    raise WrongRow(
                        f"row {rows.places[row]}: {words(row)} ({setting})", call.number, int(rows.places[row])
                    )


TRACES = (trace_check("LPR201", "logprobs", LogprobsTrace.of, every_row_of_a_trace_has_its_own_log_probabilities),)
