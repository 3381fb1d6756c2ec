"""A function that draws: its tokens, and the log-probabilities that come with them."""

from __future__ import annotations

import numpy as np

from fairdraw.contracts import Capability, DrawingLogprobsSampler, SeededNoise
from fairdraw.contracts._logprobs import call_draw
from fairdraw.properties._logprobs_asserts import check
from fairdraw.properties._rejection_asserts import broken
from fairdraw.strategies.sampling import SamplingCase, sampling_cases


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
