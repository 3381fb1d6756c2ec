"""6xx: sizes and layouts. Each vocabulary of a model is a check of its own, so that none is left to chance."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from fairdraw._core.checks import Check, check
from fairdraw.properties._rejection_asserts import (
    covered,
    emit_case,
    equals_the_oracle,
    same_rows,
    same_tokens,
    sound,
    works_or_refuses,
)
from fairdraw.properties._rejection_cases import accepting, ordinary, rejecting
from fairdraw.protocols import MAX_SPEC_LEN, Capabilities, Capability, RejectionSampler
from fairdraw.strategies import LAYOUTS, RejectionCase, RequestRecipe

if TYPE_CHECKING:
    from hypothesis import strategies as st

_EXPLICIT = (Capability.EXPLICIT_NOISE,)
_STRIDED = (Capability.STRIDED_INPUTS,)


def _is_right(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The output is sound; for a sampler that races on given numbers it equals the oracle's."""
    batch, _, emission = emit_case(sampler, case)
    sound(batch, emission)
    if case.explicit and Capability.REFERENCE_RACE in sampler.capabilities:
        equals_the_oracle(sampler, case)


def _with_greedy_twins(case: RejectionCase) -> RejectionCase:
    """Every request once as it is and once greedy, so that few cases see both kernels."""
    twins = tuple(dataclasses.replace(r, greedy=True) for r in case.requests)
    return case.replace(requests=(*case.requests, *twins))


def _vocabulary_check(code: str, vocab_size: int) -> Check:
    def body(sampler: RejectionSampler, case: RejectionCase) -> None:
        """The vocabularies of Llama 3, Qwen 2 and Gemma 3.

        Ids pass through 17 and 18 bits, and the last tile of a kernel is not full. Serving traces walk all others.
        """
        _is_right(sampler, case)

    body.__name__ = f"a_vocabulary_of_{vocab_size}_is_handled"

    def cases(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
        drawn = rejecting(can, min_vocab_size=vocab_size, max_vocab_size=vocab_size, max_requests=1, max_drafts=1)
        return drawn.map(_with_greedy_twins) if Capability.GREEDY in can else drawn

    return check(code, cases, needs=(Capability.LARGE_VOCAB,), weight=0.08)(body)


VOCABULARY_CHECKS = tuple(
    _vocabulary_check(code, size) for code, size in (("REJ612", 128256), ("REJ613", 151936), ("REJ614", 262144))
)


def _with_long_drafts(case: RejectionCase, num_long: int) -> RejectionCase:
    """The only draft of the first `num_long` requests, over and over, up to the greatest number of drafts."""
    count = MAX_SPEC_LEN - case.seed % 3
    long = tuple(RequestRecipe(request.drafts * count, request.greedy) for request in case.requests[:num_long])
    return case.replace(requests=(*long, *case.requests[num_long:]), slack=0)


def _long_drafts(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
    """In the first of two requests; in both for a sampler that takes equal numbers of drafts only."""
    drawn = accepting(can, max_vocab_size=8, min_drafts=1, max_drafts=1, max_requests=2)
    return drawn.map(partial(_with_long_drafts, num_long=1 if Capability.RAGGED in can else 2))


@check(
    "REJ622",
    _long_drafts,
    needs=(Capability.LONG_DRAFTS,),
    weight=0.2,
)
def up_to_128_drafts_are_verified(sampler: RejectionSampler, case: RejectionCase) -> None:
    """126 to 128 drafts are verified like fewer, beside a request with a single draft.

    Buffers of 32 positions were enough for years; a longer request then lost its tail, or wrote into the next row.
    """
    _is_right(sampler, case)


def _equals_contiguous(sampler: RejectionSampler, case: RejectionCase) -> None:
    batch, noise = case.batch(sampler.device), case.noise(sampler.device)
    seen = works_or_refuses(sampler, batch, noise, "target_logits")
    if seen is not None:
        _, _, expected = emit_case(sampler, case.replace(layout="contiguous"))
        rows = covered(sampler, batch, noise)
        same_rows(expected.tokens[rows], seen.tokens[rows], f"{case.layout} target_logits")


@check(
    "REJ631",
    lambda can: ordinary(can, explicit=True, min_drafts=1, min_vocab_size=2, layouts=LAYOUTS[1:3]),
    needs=(*_STRIDED, *_EXPLICIT),
)
def strided_logits_work_or_are_refused_by_name(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Transposed and sliced tensors, all of the batch, give a contiguous copy's tokens, or an error that names one.

    A kernel that multiplies the row number by the vocabulary size reads other tokens' logits.
    """
    _equals_contiguous(sampler, case)


@check(
    "REJ633",
    lambda can: ordinary(can, explicit=True, dense=True, min_drafts=1, min_vocab_size=2, greedy=False),
    needs=(*_STRIDED, *_EXPLICIT, Capability.DENSE_DRAFTS),
)
def strided_draft_probs_work_or_are_refused_by_name(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Transposed `draft_probs` give the tokens of a contiguous copy, or an error that names the argument.

    Drafters stack their distributions step by step, so a transposed view is what an engine really passes.
    """
    batch, noise, expected = emit_case(sampler, case)
    strided = {name: tensor.t().contiguous().t() for name, tensor in batch.tensors().items() if name == "draft_probs"}
    seen = works_or_refuses(sampler, batch.replace(**strided), noise, "draft_probs")
    if seen is not None:
        same_tokens(expected, seen, "transposed draft_probs")
