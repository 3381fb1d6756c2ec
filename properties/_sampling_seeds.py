"""Seeds, generators and counters: what is repeatable, and what must not be shared."""

from __future__ import annotations

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, SeededNoise, TokenSampler
from fairdraw.properties._sampling_asserts import (
    broken,
    call,
    check,
    ordinary,
    same_tokens,
)
from fairdraw.strategies.sampling import SamplingCase

_COUNTER = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS, Capability.COUNTER_NOISE)


def _request_seeds(case: SamplingCase) -> SamplingCase:
    return case.replace(requests=tuple(r.replace(request_seed=True) for r in case.requests))


def _random_with_request_seeds(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    return ordinary(can, explicit=False, greedy=False, min_requests=2, min_vocab_size=2).map(_request_seeds)


@check("SAM161", lambda can: ordinary(can, explicit=False), needs=(Capability.SEEDED_NOISE,))
def the_same_seeds_give_the_same_tokens(sampler: TokenSampler, case: SamplingCase) -> None:
    """Two calls with fresh generators from the same seeds draw the same tokens.

    If not, some number comes from elsewhere: the clock, memory that was not initialised, a race between threads, or a
    generator that no seed reaches. The global ones of torch, NumPy and Python are seeded. If you mean to draw from
    another, declare `seeded-noise` unsupported.
    """
    _, _, first = call(sampler, case)
    _, _, second = call(sampler, case)
    same_tokens(first.tokens, second.tokens, "a second call with the same seeds")


@check("SAM166", _random_with_request_seeds, needs=_COUNTER)
def counters_leave_every_generator_alone(sampler: TokenSampler, case: SamplingCase) -> None:
    """A sampler with counter noise advances no generator: neither torch's own nor a request's.

    A counter that is mixed with a generator's state depends on what was drawn before.
    """
    _, noise, seen = call(sampler, case)
    assert isinstance(noise, SeededNoise)
    untouched = SeededNoise(noise.seed, noise.request_seeds).generators(sampler.device)
    for request, state in seen.generator_states.items():
        if state != untouched[request].get_state().numpy().tobytes():
            broken(f"the generator of request {request} moved")
