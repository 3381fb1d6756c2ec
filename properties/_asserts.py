"""Words that the checks share: run a case, and say what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from fairdraw.failures import CheckFailure
from fairdraw.harness import Emission, emit
from fairdraw.protocols import Noise, RejectionSampler, SpecDecodeBatch

if TYPE_CHECKING:
    from fairdraw.strategies import RejectionCase

__all__ = ["broken", "emit_case", "same_tokens"]


def emit_case(sampler: RejectionSampler, case: RejectionCase) -> tuple[SpecDecodeBatch, Noise, Emission]:
    """Build the case on the sampler's device and run it once."""
    batch, noise = case.batch(sampler.device), case.noise(sampler.device)
    return batch, noise, emit(sampler, batch, noise)


def broken(effect: str) -> NoReturn:
    """The promise does not hold; `effect` says what was seen, and where."""
    raise CheckFailure(effect)


def same_tokens(expected: Emission, seen: Emission, why: str) -> None:
    """Two emissions agree, request by request, placeholders included."""
    differing = np.flatnonzero((expected.tokens != seen.tokens).any(axis=1))
    if differing.size:
        request = int(differing[0])
        broken(
            f"{why}: request {request} emitted {seen.tokens[request].tolist()} "
            f"instead of {expected.tokens[request].tolist()} ({differing.size} of {len(seen.tokens)} requests differ)"
        )
