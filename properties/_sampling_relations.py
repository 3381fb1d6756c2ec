"""Greedy requests, runs that must agree though neither is known to be right, and what must not be shared."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._oracles.sampling import Request, requests_of
from fairdraw.contracts import Capabilities, Capability, SeededNoise, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties import _sampling_asserts as asserts
from fairdraw.properties._rejection_asserts import fresh
from fairdraw.properties._sampling_asserts import broken, check
from fairdraw.properties._traces import left_alone
from fairdraw.strategies.sampling import SampledRequest, SamplingCase


@check("SAM121", lambda can: asserts.ordinary(can, min_vocab_size=2), needs=(Capability.GREEDY,))
def greedy_requests_take_the_largest_logit(sampler: TokenSampler, case: SamplingCase) -> None:
    """A request of temperature 0 gets the token with the largest logit, the lowest id on ties.

    Ties are common in half precision. A tie that the tile size decides makes two devices disagree.
    """
    batch, _, seen = asserts.call(sampler, case)
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
    lambda can: asserts.ordinary(
        can, explicit=True, filters=(), logits=asserts.POSITIVE, temperatures=(2.0, 0.5, 4.0, 0.125)
    ),
    needs=asserts.RACE,
)
def the_temperature_divides_the_logits(sampler: TokenSampler, case: SamplingCase) -> None:
    """Sampling at temperature 2, 1/2, 4 or 1/8 equals sampling logits divided before, which is exact in any float.

    Suspect a temperature that is multiplied, applied twice, applied after the filters, or taken from another request.
    """
    batch, noise, seen = asserts.call(sampler, case)
    scale = torch.where(batch.is_greedy, 1.0, batch.temperature)
    logits = (batch.logits.double() / scale.double()[:, None]).to(batch.logits.dtype)
    ones = torch.where(batch.is_greedy, 0.0, torch.ones_like(batch.temperature))
    divided = batch.replace(logits=logits, temperature=ones)
    other, rows = sample_tokens(sampler, divided, noise), asserts.covered_rows(sampler, batch, noise)
    asserts.same_tokens(other.tokens, seen.tokens, "against logits that were divided before", rows)


# -- seeds, generators and counters -----------------------------------------------------------------------------------


_COUNTER = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS, Capability.COUNTER_NOISE)


def _request_seeds(case: SamplingCase) -> SamplingCase:
    return case.replace(requests=tuple(r.replace(request_seed=True) for r in case.requests))


def _random_with_request_seeds(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    return asserts.ordinary(can, explicit=False, greedy=False, min_requests=2, min_vocab_size=2).map(_request_seeds)


@check("SAM161", lambda can: asserts.ordinary(can, explicit=False), needs=(Capability.SEEDED_NOISE,))
def the_same_seeds_give_the_same_tokens(sampler: TokenSampler, case: SamplingCase) -> None:
    """Two calls with fresh generators from the same seeds draw the same tokens.

    If not, some number comes from elsewhere: the clock, memory that was not initialised, a race between threads, or a
    generator that no seed reaches. The global ones of torch, NumPy and Python are seeded. If you mean to draw from
    another, declare `seeded-noise` unsupported.
    """
    _, _, first = asserts.call(sampler, case)
    _, _, second = asserts.call(sampler, case)
    asserts.same_tokens(first.tokens, second.tokens, "a second call with the same seeds")


@check("SAM166", _random_with_request_seeds, needs=_COUNTER)
def counters_leave_every_generator_alone(sampler: TokenSampler, case: SamplingCase) -> None:
    """A sampler with counter noise advances no generator: neither torch's own nor a request's.

    A counter that is mixed with a generator's state depends on what was drawn before.
    """
    _, noise, seen = asserts.call(sampler, case)
    assert isinstance(noise, SeededNoise)
    untouched = SeededNoise(noise.seed, noise.request_seeds).generators(sampler.device)
    for request, state in seen.generator_states.items():
        if state != untouched[request].get_state().numpy().tobytes():
            broken(f"the generator of request {request} moved")


# -- hundreds of equal calls ------------------------------------------------------------------------------------------

_MANY, _MANY_SLOW = 600, 12


def _cheap(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Few requests, whose filters leave some tokens out."""
    requests = (
        SampledRequest("half", 0.7),
        SampledRequest("normal", 2.0, top_k=2),
        SampledRequest("normal", 0.7, top_p=0.5),
        SampledRequest("normal", 1.5, min_p=0.5),
    )
    off = {name: None for name, need in asserts.FILTERS.items() if need not in can}
    return asserts.fixed(
        11, *(request.replace(**off) for request in requests), explicit=Capability.EXPLICIT_NOISE in can
    )


@check(
    "SAM193",
    _cheap,
    needs_one_of=((Capability.EXPLICIT_NOISE, Capability.SEEDED_NOISE),),
    weight=0.02,
    depends_on=("SAM161",),
)
def no_call_of_a_thousand_is_different(sampler: TokenSampler, case: SamplingCase) -> None:
    """600 calls of one batch with the same noise give the same tokens, and its tensors stay what they were.

    At least two batches are tried, one after the other.

    Suspect a buffer that is used in turn, a counter that wraps, work that is not waited for. Interpreted kernels are
    called 12 times.
    """
    batch, noise, first = asserts.call(sampler, case)
    asserts.are_allowed(asserts.supports_of(sampler, batch), first.tokens)
    with left_alone(batch):
        for number in range(_MANY_SLOW if sampler.capabilities.slow else _MANY):
            seen = sample_tokens(sampler, batch, fresh(noise))
            asserts.same_tokens(first.tokens, seen.tokens, f"call {number + 2}")
