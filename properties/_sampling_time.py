"""Hundreds of equal calls, and rows that are far apart."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties._rejection_asserts import fresh
from fairdraw.properties._sampling_asserts import (
    FILTERS,
    are_allowed,
    broken,
    call,
    check,
    fixed,
    same_tokens,
    supports_of,
)
from fairdraw.properties._traces import left_alone
from fairdraw.strategies._cases import require_far_memory, reserved
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

_NOISE = ((Capability.EXPLICIT_NOISE, Capability.SEEDED_NOISE),)


_MANY, _MANY_SLOW = 600, 12


def _cheap(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Few requests, whose filters leave some tokens out."""
    requests = (
        SampledRequest("half", 0.7),
        SampledRequest("normal", 2.0, top_k=2),
        SampledRequest("normal", 0.7, top_p=0.5),
        SampledRequest("normal", 1.5, min_p=0.5),
    )
    off = {name: None for name, need in FILTERS.items() if need not in can}
    return fixed(11, *(request.replace(**off) for request in requests), explicit=Capability.EXPLICIT_NOISE in can)


@check("SAM193", _cheap, needs_one_of=_NOISE, weight=0.02, depends_on=("SAM161",))
def no_call_of_a_thousand_is_different(sampler: TokenSampler, case: SamplingCase) -> None:
    """600 calls of one batch with the same noise give the same tokens, and its tensors stay what they were.

    At least two batches are tried, one after the other.

    Suspect a buffer that is used in turn, a counter that wraps, work that is not waited for. Interpreted kernels are
    called 12 times.
    """
    batch, noise, first = call(sampler, case)
    are_allowed(supports_of(sampler, batch), first.tokens)
    with left_alone(batch):
        for number in range(_MANY_SLOW if sampler.capabilities.slow else _MANY):
            seen = sample_tokens(sampler, batch, fresh(noise))
            same_tokens(first.tokens, seen.tokens, f"call {number + 2}")


def _two_rows(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    require_far_memory()
    return fixed(100, *[SampledRequest("one-hot")] * 2, explicit=Capability.EXPLICIT_NOISE in can)


@check("SAM184", _two_rows, needs=(Capability.STRIDED_INPUTS,), weight=0.02)
def rows_may_be_2_to_the_31_elements_apart(sampler: TokenSampler, case: SamplingCase) -> None:
    """Rows of logits with a stride above 2**31 elements give the tokens of contiguous ones, or a `ValueError`.

    On a CPU the memory between them is never touched, and never taken. Offsets of 32 bits wrap, and read another row.
    """
    batch, noise, expected = call(sampler, case)
    if batch.device.type != "cpu":
        return
    stride = 2**31 + 2**16
    memory = reserved(stride + batch.vocab_size, torch.float32)
    assert memory is not None  # `require_far_memory` reserved more
    far = memory.as_strided((2, batch.vocab_size), (stride, 1))
    far.copy_(batch.logits)
    try:
        seen = sample_tokens(sampler, batch.replace(logits=far), fresh(noise))
    except ValueError as error:
        if "logits" not in str(error):
            broken(f"far strides are refused, but not by name: {error}")
        return
    same_tokens(expected.tokens, seen.tokens, f"with rows {stride} elements apart")
