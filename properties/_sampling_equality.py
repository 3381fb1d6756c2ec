"""Bit for bit: against the executable specification, and against a reference sampler (the real vLLM)."""

from __future__ import annotations

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, TokenSampler
from fairdraw.contracts._sampling import Sampled, sample_tokens
from fairdraw.properties import _sampling_asserts as asserts
from fairdraw.properties._sampling_asserts import broken, check
from fairdraw.strategies import LARGE_VOCAB_SIZES, SampledRequest
from fairdraw.strategies.sampling import SamplingCase, sampling_cases

_STREAM = (Capability.SEEDED_NOISE, Capability.REFERENCE_RACE, Capability.UPSTREAM_STREAM)


@check("SAM141", lambda can: sampling_cases(can, explicit=True), needs=asserts.RACE, body=asserts.equals_the_oracle)
def tokens_equal_the_oracle_on_the_same_noise() -> None:
    """The executable specification and the sampler draw the same tokens from the same numbers.

    The broadest check: whatever it finds, a check with a narrower title usually explains. Rows whose support hangs on
    rounding are left out.
    """


@check("SAM143", lambda can: asserts.ordinary(can, explicit=False), needs=_STREAM, body=asserts.equals_the_oracle)
def tokens_equal_the_oracle_on_the_same_seeds() -> None:
    """Numbers are drawn from the generators in the documented order, so equal seeds give the oracle's tokens.

    If explicit noise agrees and seeds do not, the order of draws differs, or a request takes another's numbers.
    """


def _same_states(expected: Sampled, seen: Sampled, whose: str) -> None:
    moved = [i for i, state in expected.generator_states.items() if seen.generator_states[i] != state]
    if moved:
        broken(f"the generators of requests {moved} are not in the state of {whose}")
    if seen.default_state != expected.default_state:
        broken(f"torch's default generator is not in the state of {whose}")


@check("SAM144", lambda can: sampling_cases(can, explicit=False, max_vocab_size=100), needs=_STREAM)
def generators_end_in_the_documented_state(sampler: TokenSampler, case: SamplingCase) -> None:
    """Each generator has drawn what the contract says: `batch_size * vocab_size` exponentials, and own rows.

    The default generator draws nothing if every request has its own, and none does if all requests are greedy. Servers
    rewind generators by known amounts.
    """
    _, _, seen = asserts.call(sampler, case)
    expected = sample_tokens(asserts.ORACLE, case.batch(sampler.device), case.noise(sampler.device))
    _same_states(expected, seen, "the oracle")


_FREE = tuple(
    SampledRequest(kind, temperature) for kind, temperature in (("normal", 0.5), ("zipf", 1.3), ("zipf", 2.0))
)
"""Requests that any of thousands of tokens can be drawn for."""


def _with_a_large_vocabulary(can: Capabilities, case: SamplingCase) -> SamplingCase:
    """Return the case at a large vocabulary, and with requests beside its own that keep thousands of tokens.

    Drawn filters mostly keep a few: then neither the temperature nor the sum of top-p decides anything.
    """
    nucleus = (_FREE[0].replace(top_p=0.9),) if Capability.TOP_P in can else ()
    return case.replace(vocab_size=asserts.pick(case, LARGE_VOCAB_SIZES), requests=(*case.requests, *_FREE, *nucleus))


def _upstream(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """One case in ten has a large vocabulary, if it is not wide."""
    is_possible = Capability.LARGE_VOCAB in can
    return asserts.ordinary(can, explicit=False).map(
        lambda case: (
            _with_a_large_vocabulary(can, case) if is_possible and not (case.num_rows or case.seed % 10) else case
        )
    )


def _equals_the_reference(sampler: TokenSampler, case: SamplingCase, reference: TokenSampler) -> None:
    batch, _, seen = asserts.call(sampler, case)
    _, _, expected = asserts.call(reference, case)
    rows = asserts.covered_rows(sampler, batch, case.noise(sampler.device))
    asserts.same_tokens(expected.tokens, seen.tokens, f"{reference.name} disagrees", rows)


@asserts.differential("SAM151", _upstream, needs=_STREAM, body=_equals_the_reference)
def tokens_equal_upstream() -> None:
    """Same seeds, greedy and random requests side by side, with filters and without: the tokens of the real vLLM.

    The oracle is our reading of the contract; this compares with the code that people run. If the oracle agrees and
    this does not, upstream has changed. Vocabularies go up to 262144, where sums over many tokens decide the edge of
    top-p; rows where rounding decides are left out.
    """


@asserts.differential("SAM153", lambda can: sampling_cases(can, explicit=False, max_vocab_size=100), needs=_STREAM)
def generators_end_where_upstream_leaves_them(
    sampler: TokenSampler, case: SamplingCase, reference: TokenSampler
) -> None:
    """torch's default generator and every per-request generator end in the states in which the real vLLM leaves them.

    Equal tokens now but other states mean other tokens at the next step.
    """
    _, _, seen = asserts.call(sampler, case)
    _, _, expected = asserts.call(reference, case)
    _same_states(expected, seen, reference.name)


@asserts.differential(
    "SAM155",
    lambda can: asserts.ordinary(can, explicit=False, greedy=True),
    needs=(Capability.SEEDED_NOISE, Capability.GREEDY),
    body=_equals_the_reference,
)
def greedy_tokens_equal_upstream() -> None:
    """Batches of greedy requests, filtered or not, give the tokens of the real vLLM, whatever noise either side has.

    So vLLM's model runner V2, which draws its own numbers, can be the reference, too. Look at ties, and at filters that
    a greedy request does not skip.
    """
