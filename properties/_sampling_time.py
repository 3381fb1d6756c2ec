"""Over time, and at sizes of production: what an earlier call leaves behind, rare faults, wide ids, far strides."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._core.sampling_harness import sample_tokens
from fairdraw.properties._rejection_asserts import fresh
from fairdraw.properties._sampling_asserts import (
    ORACLE,
    RACE,
    aimed_at,
    broken,
    call,
    check,
    ordinary,
    same_tokens,
    supports_of,
)
from fairdraw.protocols import Capability, TokenSampler
from fairdraw.strategies._cases import require_far_memory, reserved
from fairdraw.strategies.rows import bulk_seeds
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw._oracles.supports import Support
    from fairdraw.protocols import Capabilities

_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_STREAM = (*_OWN, Capability.REFERENCE_RACE, Capability.UPSTREAM_STREAM)
_FILTERS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}

# -- production vocabularies ------------------------------------------------------------------------------------------

_VOCAB_SIZES = (151_936, 262_144, 32_768, 131_073)
_LARGE_REQUESTS = (
    SampledRequest("normal", 0.7, top_p=0.9),
    SampledRequest("normal", 1.3, top_k=100_000),
    SampledRequest("zipf", 2.0, min_p=0.01),
    SampledRequest("zipf", 0.7, top_k=50, top_p=0.95),
    SampledRequest("normal", 2.0, top_k=20_000, top_p=0.5, min_p=0.001),
    SampledRequest("tied", 1.0, top_k=1),
    SampledRequest("half", 1.0, top_p=1e-7),
    SampledRequest("flat", 1.0, top_k=7),
    SampledRequest("normal", 9.0, top_p=0.8),
    SampledRequest("normal", 3.0, top_p=0.995),
)
"""Edges in the middle of the vocabulary, in its first and its last tokens, and ties over all tiles."""


def _large(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Two sizes at least, even if there are two examples."""
    requests = tuple(_without(request, can) for request in _LARGE_REQUESTS)
    explicit = Capability.EXPLICIT_NOISE in can
    return st.builds(
        lambda seed, first: SamplingCase(
            _VOCAB_SIZES[seed % 2 + 2 * (seed % 7 == 0)],
            (*requests[first:], *requests[:first])[: 4 if can.slow else len(requests)],
            explicit,
            seed=seed,
        ),
        bulk_seeds(),
        st.sampled_from(range(len(requests))),
    )


def _without(request: SampledRequest, can: Capabilities) -> SampledRequest:
    """The request without filters that are unsupported."""
    off: dict[str, Any] = {name: None for name, need in _FILTERS.items() if need not in can}  # Any: keyword arguments
    return dataclasses.replace(request, **off)


@check("SAM181", _large, needs=(Capability.LARGE_VOCAB,), needs_one_of=(tuple(_FILTERS.values()),), weight=0.03)
def supports_hold_at_production_vocabularies(sampler: TokenSampler, case: SamplingCase) -> None:
    """At 32768 to 262144 tokens filters keep what they must, and nothing else: the token at each edge, ties over tiles.

    Suspect a top-k that looks at the best of each tile only, ids of 16 bits, and sums that stop growing in float32.
    """
    batch, _, seen = call(sampler, case)
    supports = supports_of(sampler, batch)
    _are_allowed(supports, seen.tokens)
    if sampler.capabilities.why_unsupported(RACE) is not None:
        return
    outside = [0 if s is None else int(np.argmax(np.where(s.allowed, -1.0, s.probs))) for s in supports]
    _are_allowed(supports, sample_tokens(sampler, batch, aimed_at(batch, outside)).tokens)
    least = [0 if s is None else int(np.argmin(np.where(s.required, s.probs, np.inf))) for s in supports]
    tokens = sample_tokens(sampler, batch, aimed_at(batch, least)).tokens
    for request, (support, token) in enumerate(zip(supports, least, strict=True)):
        if support is not None and support.required[token] and tokens[request] != token:
            broken(f"request {request} got token {tokens[request]} with noise aimed at {token}, which must be kept")


def _are_allowed(supports: list[Support | None], tokens: NDArray[np.int64]) -> None:  # [batch_size] int64
    for request, (support, token) in enumerate(zip(supports, tokens.tolist(), strict=True)):
        if support is not None and not support.allowed[token]:
            kept = int(support.allowed.sum())
            broken(f"request {request} got token {token}, which its filters remove; they keep {kept} tokens")


# -- time -------------------------------------------------------------------------------------------------------------


_NOISE = ((Capability.EXPLICIT_NOISE, Capability.SEEDED_NOISE),)


def _small(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    explicit = True if Capability.EXPLICIT_NOISE in can else None
    return ordinary(can, explicit=explicit, min_vocab_size=8, logits=("normal", "zipf", "half"), max_rows=0)


@check("SAM191", _small, needs_one_of=_NOISE, weight=0.5, depends_on=("SAM161",))
def an_answer_does_not_depend_on_the_calls_before(sampler: TokenSampler, case: SamplingCase) -> None:
    """The same call gives the same tokens before and after calls of larger and smaller batches and vocabularies.

    Suspect a buffer that is grown and not written again, a cache whose key forgets a parameter, and noise that is kept.
    """
    # Sizes differ from case to case: a buffer that only grows is written anew in some of them.
    larger = 7 + case.seed % (7 if sampler.capabilities.slow else 601)
    contrary = tuple(dataclasses.replace(r, temperature=0.1 if r.temperature > 1 else 30.0) for r in case.requests)
    wider = case.vocab_size + (sampler.capabilities.why_unsupported((Capability.LARGE_VOCAB,)) is None)
    others = (
        case.replace(requests=contrary, num_rows=larger, seed=case.seed + 1),
        case.replace(requests=(SampledRequest("peaked", 0.1),), vocab_size=wider, seed=case.seed + 2),
        case.replace(requests=contrary, seed=case.seed + 3),
    )
    _, _, first = call(sampler, case)
    for other in others:
        call(sampler, other)
        _, _, again = call(sampler, case)
        same_tokens(first.tokens, again.tokens, f"after a call with {len(other.rows)} requests")


def _seeded_rows(_: Capabilities) -> st.SearchStrategy[SamplingCase]:
    requests = (SampledRequest(request_seed=True),) * 8
    return st.builds(SamplingCase, st.just(257), st.just(requests), explicit=st.just(False), seed=bulk_seeds())


@check("SAM192", _seeded_rows, needs=(*_STREAM, Capability.REFERENCE_ROUNDING), weight=0.1)
def generators_are_drawn_from_call_after_call(sampler: TokenSampler, case: SamplingCase) -> None:
    """Three calls with the same generators draw on from where the call before left them, as the oracle does.

    A server keeps the generator of a request. One that is made anew from its seed at every call repeats one token.
    """
    batch, noise, known = case.batch(sampler.device), case.noise(sampler.device), case.noise(sampler.device)
    for number in range(3):
        expected = sample_tokens(ORACLE, batch, known)
        same_tokens(expected.tokens, sample_tokens(sampler, batch, noise).tokens, f"call {number} with one generator")


_MANY, _MANY_SLOW = 600, 12


def _cheap(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Few requests, whose filters leave some tokens out."""
    requests = (
        SampledRequest("half", 0.7),
        SampledRequest("normal", 2.0, top_k=2),
        SampledRequest("normal", 0.7, top_p=0.5),
        SampledRequest("normal", 1.5, min_p=0.5),
    )
    kept = tuple(_without(request, can) for request in requests)
    explicit = Capability.EXPLICIT_NOISE in can
    return st.builds(SamplingCase, st.just(11), st.just(kept), explicit=st.just(explicit), seed=bulk_seeds())


@check("SAM193", _cheap, needs_one_of=_NOISE, weight=0.02, depends_on=("SAM161",))
def no_call_of_a_thousand_is_different(sampler: TokenSampler, case: SamplingCase) -> None:
    """600 calls of one batch with the same noise give the same tokens, and its tensors stay what they were.

    At least two batches are tried, one after the other.

    Suspect a buffer that is used in turn, a counter that wraps, work that is not waited for. Interpreted kernels are
    called 12 times.
    """
    batch, noise, first = call(sampler, case)
    before = {name: tensor.clone() for name, tensor in batch.tensors().items()}
    _are_allowed(supports_of(sampler, batch), first.tokens)
    for number in range(_MANY_SLOW if sampler.capabilities.slow else _MANY):
        seen = sample_tokens(sampler, batch, fresh(noise))
        same_tokens(first.tokens, seen.tokens, f"call {number + 2}")
    for name, tensor in batch.tensors().items():
        if not tensor.equal(before[name]):
            broken(f"{name} was modified")


# -- strides ----------------------------------------------------------------------------------------------------------


def _two_rows(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    require_far_memory()
    explicit = Capability.EXPLICIT_NOISE in can
    requests = (SampledRequest("one-hot"), SampledRequest("one-hot"))
    return st.builds(SamplingCase, st.just(100), st.just(requests), explicit=st.just(explicit), seed=bulk_seeds())


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
