"""Seeds, generators and counters: what is repeatable, and what must not be shared."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._core.checks import Stage
from fairdraw._core.sampling_harness import Sampled, sample_tokens
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._sampling_asserts import (
    broken,
    call,
    check,
    comparable_rows,
    ordinary,
    pick,
    same_tokens,
)
from fairdraw.protocols import Capability, SeededNoise, TokenSampler
from fairdraw.strategies.rows import bulk_seeds
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

if TYPE_CHECKING:
    from fairdraw.protocols import Capabilities

_SEEDED = (Capability.SEEDED_NOISE,)
_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_COUNTER = (*_OWN, Capability.COUNTER_NOISE)

_COPIES = 64
_FEWEST_DISTINCT = 8


def _seeded(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    return ordinary(can, explicit=False)


def _request_seeds(case: SamplingCase) -> SamplingCase:
    return case.replace(requests=tuple(dataclasses.replace(r, request_seed=True) for r in case.requests))


def _random_with_request_seeds(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    return ordinary(can, explicit=False, greedy=False, min_requests=2, min_vocab_size=2).map(_request_seeds)


def _flat(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """One request to be repeated: uniform over 32 tokens."""
    return st.builds(
        SamplingCase, st.just(32), st.just((SampledRequest(),)), explicit=st.just(False), seed=bulk_seeds()
    )


@check("SAM161", _seeded, needs=_SEEDED)
def the_same_seeds_give_the_same_tokens(sampler: TokenSampler, case: SamplingCase) -> None:
    """Two calls with fresh generators from the same seeds draw the same tokens.

    If not, some number comes from elsewhere: the clock, memory that was not initialised, a race between threads, or a
    generator that no seed reaches. The global ones of torch, NumPy and Python are seeded. If you mean to draw from
    another, declare `seeded-noise` unsupported.
    """
    _, _, first = call(sampler, case)
    _, _, second = call(sampler, case)
    same_tokens(first.tokens, second.tokens, "a second call with the same seeds")


def _copies(
    sampler: TokenSampler, case: SamplingCase, noise: SeededNoise, *, count: int = _COPIES, first_position: int = 0
) -> Sampled:
    """The case's only request, `count` times in one batch, at positions one after the other."""
    batch = case.batch(sampler.device).select([0] * count)
    positions = torch.arange(first_position, first_position + count, dtype=torch.int64, device=batch.device)
    return sample_tokens(sampler, batch.replace(positions=positions), noise)


def _are_apart(seen: Sampled, what: str) -> None:
    """Enough different tokens among 64 that are uniform over 32.

    Independent draws take at most 7 of 32 values with probability below C(32, 7) * (7 / 32)**64 = 3e-36.
    """
    num_distinct = len(set(seen.tokens.tolist()))
    if num_distinct < _FEWEST_DISTINCT:
        broken(f"{_COPIES} {what} got {num_distinct} different tokens; about 28 are expected")


@check("SAM162", _flat, needs=_SEEDED, weight=0.12, stage=Stage.INDEPENDENCE)
def requests_do_not_share_their_noise(sampler: TokenSampler, case: SamplingCase) -> None:
    """64 equal requests with a flat distribution over 32 tokens draw different tokens.

    False failures: below 1e-35. One row of noise for the whole batch makes all users say the same word at once.
    """
    _are_apart(_copies(sampler, case, SeededNoise(derive_seed("copies", case.seed))), "equal requests")


@check("SAM163", _flat, needs=_SEEDED, weight=0.2, stage=Stage.INDEPENDENCE)
def calls_with_other_seeds_do_not_share_noise(sampler: TokenSampler, case: SamplingCase) -> None:
    """Two calls with different seeds, 16 requests with a flat distribution over 32 tokens: some request differs.

    False failures: 32**-16 = 8e-25. Noise kept from the first call, or a constant seed, repeats itself at every step.
    """
    first, second = (
        _copies(sampler, case, SeededNoise(derive_seed("copies", case.seed, label)), count=16)
        for label in ("one", "two")
    )
    if np.array_equal(first.tokens, second.tokens):
        broken("two calls with different seeds drew the same tokens in all of 16 requests")


def _alone_and_together(sampler: TokenSampler, case: SamplingCase, why: str) -> None:
    batch, noise, together = call(sampler, case)
    assert isinstance(noise, SeededNoise)
    request = pick(case, range(batch.batch_size))
    own = SeededNoise(derive_seed("alone", case.seed), {0: noise.request_seeds[request]})
    alone = sample_tokens(sampler, batch.select([request]), own)
    rows = [0] if request in comparable_rows(sampler, batch) else []
    same_tokens(alone.tokens, together.tokens[[request]], f"request {request} {why}", rows)


@check("SAM165", _random_with_request_seeds, needs=_OWN)
def requests_with_per_request_seeds_do_not_depend_on_other_requests(sampler: TokenSampler, case: SamplingCase) -> None:
    """A request with a seed gets the same token alone, beside other requests, and under any seed of the call.

    This is what the user wants with `seed=`. It fails where one generator is read once for the whole batch.
    """
    _alone_and_together(sampler, case, "with its per-request seed, beside other requests")


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


@check("SAM167", _flat, needs=_COUNTER, weight=0.12, stage=Stage.INDEPENDENCE)
def positions_of_a_request_do_not_share_their_noise(sampler: TokenSampler, case: SamplingCase) -> None:
    """One seed at 64 positions draws different tokens from a flat distribution over 32.

    False failures: below 1e-35. A position that is forgotten makes a request say one word again and again.
    """
    own = dict.fromkeys(range(_COPIES), derive_seed("own", case.seed))
    seen = _copies(sampler, case, SeededNoise(derive_seed("copies", case.seed), own), first_position=case.seed)
    _are_apart(seen, "positions of one request")


@check("SAM168", _flat, needs=_COUNTER, weight=0.12)
def a_seed_and_a_position_give_one_token_wherever_they_stand(sampler: TokenSampler, case: SamplingCase) -> None:
    """The same (seed, position) in another row of a batch of another size gives the same token.

    That is batch invariance: restarts, preemption and the load of the server leave texts as they are.
    """
    own = derive_seed("own", case.seed)
    first, second = (
        _copies(
            sampler,
            case,
            SeededNoise(derive_seed("copies", case.seed, count), dict.fromkeys(range(count), own)),
            count=count,
            first_position=100 - count,
        )
        for count in (17, 5)
    )
    same_tokens(first.tokens[-5:], second.tokens, "in a smaller batch")
