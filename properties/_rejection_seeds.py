"""5xx: seeds and generators. What is repeatable, what must not be shared, and what a call may consume."""

from __future__ import annotations

import numpy as np

from fairdraw._core.checks import Stage, check
from fairdraw._core.harness import Emission, emit
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._rejection_asserts import broken, emit_case, emit_oracle, same_tokens
from fairdraw.properties._rejection_cases import identical_requests, ordinary, rejecting, seeded
from fairdraw.protocols import Capability, RejectionSampler, SeededNoise
from fairdraw.strategies import RejectionCase, RequestRecipe

_SEEDED = (Capability.SEEDED_NOISE,)
_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_STREAM = (Capability.SEEDED_NOISE, Capability.UPSTREAM_STREAM)

_COPIES = 64


@check("REJ501", lambda can: rejecting(can, explicit=False, greedy=None), needs=_SEEDED)
def the_same_seeds_give_the_same_tokens(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Two calls with fresh generators from the same seeds emit the same tokens.

    If not, some number comes from elsewhere: the clock, memory that was not initialised, a race between threads, or a
    generator that no seed reaches. The global ones of torch, NumPy and Python are seeded. If you mean to draw from
    another, declare `seeded-noise` unsupported.
    """
    _, _, first = emit_case(sampler, case)
    _, _, second = emit_case(sampler, case)
    same_tokens(first, second, "a second call with the same seeds")


def _copies(sampler: RejectionSampler, case: RejectionCase, noise: SeededNoise, count: int = _COPIES) -> Emission:
    """The case's only request, `count` times in one batch."""
    return emit(sampler, case.batch(sampler.device).select([0] * count), noise)


def _num_distinct(emission: Emission) -> int:
    return len({tuple(row) for row in emission.tokens.tolist()})


_FEWEST_DISTINCT = 8


def _are_apart(emission: Emission, what: str) -> None:
    """Enough different rows among 64 that are uniform over 32 outcomes.

    Independent rows take at most 7 of 32 values with probability below C(32, 7) * (7 / 32)**64 = 3e-36.
    """
    if _num_distinct(emission) < _FEWEST_DISTINCT:
        broken(f"{_COPIES} {what} gave {_num_distinct(emission)} different rows; about 28 are expected")


@check(
    "REJ502",
    lambda can: identical_requests(can, vocab_size=32, num_drafts=1),
    needs=_SEEDED,
    weight=0.12,
    stage=Stage.INDEPENDENCE,
)
def requests_do_not_share_their_recovery_noise(sampler: RejectionSampler, case: RejectionCase) -> None:
    """64 equal requests with a flat target of 32 tokens recover different tokens.

    False failures: 64 uniform draws from 32 outcomes take fewer than 8 values with probability below 1e-35.
    One row of exponentials for the whole batch makes all users say the same word at the same time.
    """
    noise = SeededNoise(derive_seed("copies", case.seed))
    _are_apart(_copies(sampler, case, noise), "equal requests")


@check(
    "REJ503",
    lambda can: identical_requests(can, vocab_size=2, num_drafts=1),
    needs=_SEEDED,
    weight=0.12,
    stage=Stage.INDEPENDENCE,
)
def requests_do_not_share_their_uniforms(sampler: RejectionSampler, case: RejectionCase) -> None:
    """64 equal requests that accept with probability 1/2 do not all decide alike.

    False failures: 2 * 2**-64 = 1e-19. Uniforms indexed by position alone make the batch accept in step.
    """
    emission = _copies(sampler, case, SeededNoise(derive_seed("copies", case.seed)))
    accepted = [len(emission.emitted(i)) > 1 for i in range(_COPIES)]
    may_refuse = Capability.TOKEN_VERIFICATION not in sampler.capabilities  # a lossless scheme may accept nothing
    if len(set(accepted)) == 1 and not (may_refuse and not accepted[0]):
        broken(f"{_COPIES} equal requests all {'accepted' if accepted[0] else 'rejected'} a draft of probability 1/2")


@check(
    "REJ505",
    lambda can: identical_requests(can, vocab_size=32, num_drafts=1),
    needs=_SEEDED,
    weight=0.2,
    stage=Stage.INDEPENDENCE,
)
def calls_with_other_seeds_do_not_share_noise(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Two calls with different seeds, 16 requests with a flat target of 32 tokens: some request differs.

    False failures: 32**-16 = 8e-25. Noise kept from the first call, or a constant seed, repeats itself at every step.
    """
    first, second = (
        _copies(sampler, case, SeededNoise(derive_seed("copies", case.seed, label)), count=16)
        for label in ("one", "two")
    )
    if np.array_equal(first.tokens, second.tokens):
        broken("two calls with different seeds emitted the same tokens in all of 16 requests")


def _with_draftless_request(case: RejectionCase) -> RejectionCase:
    place = case.seed % (len(case.requests) + 1)
    other = RequestRecipe(request_seed=True)
    return case.replace(requests=(*case.requests[:place], other, *case.requests[place:]))


@check(
    "REJ508",
    lambda can: ordinary(can, explicit=False, max_requests=3).map(_with_draftless_request),
    needs=(*_OWN, Capability.RAGGED),
)
def requests_without_drafts_consume_no_randomness(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The generator of a request without drafts does not advance.

    Otherwise a request's text depends on how often it was scheduled without drafts, which depends on the load.
    """
    _, noise, emission = emit_case(sampler, case)
    untouched = SeededNoise(noise.seed, noise.request_seeds).generators(sampler.device)
    for request, count in enumerate(case.num_draft_tokens):
        state = emission.generator_states.get(request)
        if count == 0 and state is not None and state != untouched[request].get_state().numpy().tobytes():
            broken(f"request {request} has no drafts, but its generator moved")


@check("REJ509", lambda can: ordinary(can, explicit=False, greedy=True), needs=(*_STREAM, Capability.GREEDY))
def greedy_batches_consume_no_randomness(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If every request is greedy, no generator advances.

    A greedy batch between two random ones must not change what the second draws.
    """
    _, _, emission = emit_case(sampler, case)
    _same_states(emit_oracle(sampler, case), emission)


@check("REJ510", seeded, needs=_STREAM)
def generators_end_in_the_documented_state(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Each generator has drawn what the contract says, no more and no less, in its order.

    `num_tokens` uniforms and `batch_size * vocab_size` exponentials from the default generator, the same per request
    with drafts from its own. Servers rewind generators by that amount when they discard a step.
    """
    _, _, emission = emit_case(sampler, case)
    _same_states(emit_oracle(sampler, case), emission)


def _same_states(expected: Emission, seen: Emission) -> None:
    if seen.default_state != expected.default_state:
        broken("torch's default generator is not in the documented state")
    moved = [i for i, state in expected.generator_states.items() if seen.generator_states[i] != state]
    if moved:
        broken(f"the generators of requests {moved} are not in the documented state")
