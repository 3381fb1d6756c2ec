"""4xx: bit for bit. Against the executable specification, and against a reference sampler (the real vLLM)."""

from __future__ import annotations

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, RejectionSampler
from fairdraw.properties import _rejection_asserts as asserts
from fairdraw.properties._rejection_asserts import broken, check
from fairdraw.properties._rejection_cases import Cases, lively, rejecting, synthetic
from fairdraw.strategies import LARGE_VOCAB_SIZES, RejectionCase

_RACE = (Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE)
_STREAM = (Capability.SEEDED_NOISE, Capability.REFERENCE_RACE, Capability.UPSTREAM_STREAM)


@check("REJ401", lambda can: lively(can, explicit=True), needs=_RACE, body=asserts.equals_the_oracle)
def tokens_equal_the_oracle_on_the_same_noise() -> None:
    """The executable specification and the sampler emit the same tokens from the same numbers.

    The broadest check: whatever it finds, a check with a narrower title usually explains.
    """


@check(
    "REJ406",
    lambda can: rejecting(can, explicit=True, exponentials=("denormal",)),
    needs=(*_RACE, Capability.REFERENCE_ROUNDING, Capability.LOWEST_ID_TIES),
    body=asserts.equals_the_oracle,
)
def a_race_with_denormal_exponentials_equals_the_oracle() -> None:
    """If exponentials are so small that their reciprocal is infinite, the lowest id of infinite score wins.

    A masked token never wins, whether the race divides or multiplies by the reciprocal. 0 times infinity is NaN, and
    NaN in an argmax may win. torch's generators do not draw such exponentials.
    """


def _equals_the_reference(sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler) -> None:
    batch, _, emission = asserts.emit_case(sampler, case)
    _, _, expected = asserts.emit_case(reference, case)
    rows = asserts.covered(sampler, batch, case.noise(sampler.device))
    asserts.same_rows(expected.tokens[rows], emission.tokens[rows], f"{reference.name} disagrees")
    moved = [i for i, state in expected.generator_states.items() if emission.generator_states[i] != state]
    same = not moved and emission.default_state == expected.default_state
    if Capability.UPSTREAM_STREAM in sampler.capabilities and not same:
        broken(f"{reference.name} leaves other states: {f'requests {moved}' if moved else 'the default generator'}")


def _with_a_large_vocabulary(case: RejectionCase) -> RejectionCase:
    return case.replace(vocab_size=asserts.pick(case, LARGE_VOCAB_SIZES))


def _of_all_kinds(can: Capabilities) -> Cases:
    """Steps of any kind, one in six with synthetic rates, and one in twelve at the vocabulary of a model."""
    large = rejecting(can, explicit=False, greedy=None, max_drafts=2, max_requests=2).map(_with_a_large_vocabulary)
    rated = synthetic(can, explicit=False, min_drafts=1)
    parts = [lively(can, explicit=False)] * 9
    parts += [rated, rated] * (Capability.SYNTHETIC_RATES in can) + [large] * (Capability.LARGE_VOCAB in can)
    return st.sampled_from(range(len(parts))).flatmap(lambda number: parts[number])


@asserts.differential("REJ421", _of_all_kinds, needs=_STREAM, body=_equals_the_reference)
def tokens_and_generators_equal_upstream() -> None:
    """With the same seeds, tokens equal those of the real vLLM, and all generators end where it leaves them.

    The oracle is our reading of the contract; this compares with the code that people run: one-hot and dense drafts,
    greedy and random requests, own and shared seeds, synthetic rates, vocabularies up to 151936. If the oracle agrees
    and this does not, upstream has changed its acceptance test, its race, or the order of its draws. Equal tokens now
    but other states mean other tokens at the next step.
    """


@asserts.differential(
    "REJ427",
    lambda can: lively(can, explicit=False, greedy=True),
    needs=(Capability.SEEDED_NOISE, Capability.GREEDY),
    body=_equals_the_reference,
)
def greedy_tokens_equal_upstream() -> None:
    """Batches of greedy requests give the tokens of the real vLLM, whatever noise either side has.

    So vLLM's model runner V2, which draws its own numbers, can be the reference, too. Look at ties.
    """
