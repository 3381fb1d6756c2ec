"""Greedy requests, and two runs that must agree though neither is known to be right."""

from __future__ import annotations

import numpy as np
import torch

from fairdraw._oracles.sampling import Request, requests_of
from fairdraw.contracts import Capability, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties._sampling_asserts import (
    POSITIVE,
    RACE,
    broken,
    call,
    check,
    covered_rows,
    ordinary,
    same_tokens,
)
from fairdraw.strategies.sampling import SamplingCase

_GREEDY = (Capability.GREEDY,)


@check("SAM121", lambda can: ordinary(can, min_vocab_size=2), needs=_GREEDY)
def greedy_requests_take_the_largest_logit(sampler: TokenSampler, case: SamplingCase) -> None:
    """A request of temperature 0 gets the token with the largest logit, the lowest id on ties.

    Ties are common in half precision. A tie that the tile size decides makes two devices disagree.
    """
    batch, _, seen = call(sampler, case)
    for row, request in enumerate(requests_of(batch)):
        best = int(np.argmax(request.logits))
        if request.is_greedy and not _may_be_argmax(sampler, request, int(seen.tokens[row]), best):
            broken(f"greedy request {row} got token {seen.tokens[row]} instead of {best}")


def _may_be_argmax(sampler: TokenSampler, request: Request, token: int, best: int) -> bool:
    """It is the argmax, or tied with it and the sampler leaves ties open."""
    is_tied = 0 <= token < request.logits.size and request.logits[token] == request.logits[best]
    return token == best or bool(is_tied and Capability.LOWEST_ID_TIES not in sampler.capabilities)


@check(
    "SAM126",
    lambda can: ordinary(can, explicit=True, filters=(), logits=POSITIVE, temperatures=(2.0, 0.5, 4.0, 0.125)),
    needs=RACE,
)
def the_temperature_divides_the_logits(sampler: TokenSampler, case: SamplingCase) -> None:
    """Sampling at temperature 2, 1/2, 4 or 1/8 equals sampling logits divided before, which is exact in any float.

    Suspect a temperature that is multiplied, applied twice, applied after the filters, or taken from another request.
    """
    batch, noise, seen = call(sampler, case)
    scale = torch.where(batch.is_greedy, 1.0, batch.temperature)
    logits = (batch.logits.double() / scale.double()[:, None]).to(batch.logits.dtype)
    ones = torch.where(batch.is_greedy, 0.0, torch.ones_like(batch.temperature))
    divided = batch.replace(logits=logits, temperature=ones)
    other, rows = sample_tokens(sampler, divided, noise), covered_rows(sampler, batch, noise)
    same_tokens(other.tokens, seen.tokens, "against logits that were divided before", rows)
