"""The promises of the rejection contract, each one a check."""

from __future__ import annotations

from fairdraw.checks import Check, check, differential
from fairdraw.oracles.rejection import verify as oracle_verify
from fairdraw.properties._asserts import broken, emit_case, same_tokens
from fairdraw.protocols import Capabilities, Capability, ExplicitNoise, RejectionSampler, rejection_sampler
from fairdraw.strategies import RejectionCase, rejection_cases

__all__ = ["CHECKS"]

ORACLE = rejection_sampler(oracle_verify, name="oracle")


@check("REJ101", rejection_cases)
def token_ids_lie_in_the_vocabulary(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Every emitted id is in [0, vocab_size).

    An id beyond the end usually comes from the tail tile: lanes past the vocabulary took part in the argmax.
    """
    batch, _, emission = emit_case(sampler, case)
    for request in range(batch.batch_size):
        outside = [token for token in emission.emitted(request) if not 0 <= token < batch.vocab_size]
        if outside:
            broken(f"request {request} emitted {outside[0]}, outside [0, {batch.vocab_size})")


@check("REJ401", lambda can: rejection_cases(can, explicit=True), needs=(Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE))
def tokens_equal_the_oracle_on_the_same_noise(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Bit for bit: the executable specification and the sampler emit the same tokens from the same numbers."""
    batch, noise, emission = emit_case(sampler, case)
    _, _, expected = emit_case(ORACLE, case)
    same_tokens(expected, emission, "the oracle disagrees")


CHECKS: tuple[Check, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Check))
