"""Traces of log-probabilities: every row of every call is compared with the specification, as arrays."""

from __future__ import annotations

import numpy as np

from fairdraw.contracts import LogprobsSampler
from fairdraw.properties._logprobs_asserts import Rows, faults
from fairdraw.properties._traces import WrongRow, left_alone, trace_check
from fairdraw.strategies.logprobs import LogprobsTrace, logprobs_trace


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


TRACES = (trace_check("LPR201", "logprobs", logprobs_trace, every_row_of_a_trace_has_its_own_log_probabilities),)
