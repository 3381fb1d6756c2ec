"""6xx: sizes and layouts. Each named vocabulary size is a check of its own, so that none is left to chance."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from hypothesis import strategies as st

from fairdraw._core.checks import Check, check
from fairdraw._core.harness import emit
from fairdraw.properties._rejection_asserts import (
    broken,
    covered,
    emit_case,
    emitted,
    equals_the_oracle,
    same_rows,
    same_tokens,
    sound,
    works_or_refuses,
)
from fairdraw.properties._rejection_cases import accepting, ordinary, rejecting
from fairdraw.protocols import MAX_SPEC_LEN, Capabilities, Capability, RejectionSampler
from fairdraw.strategies import DTYPES, LAYOUTS, RejectionCase, RequestRecipe
from fairdraw.strategies._cases import require_far_memory
from fairdraw.strategies._sizes import BATCH_SIZES

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
    is_large = vocab_size > 1025

    def body(sampler: RejectionSampler, case: RejectionCase) -> None:
        """Vocabulary sizes at the edges of powers of two, of kernel tiles, and of real models.

        One id more than a tile is where a tail is lost; one less is where lanes beyond the end take part.
        """
        _is_right(sampler, case)

    body.__name__ = f"a_vocabulary_of_{vocab_size}_is_handled"
    most = 1 if is_large else 3

    def cases(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
        drawn = rejecting(can, min_vocab_size=vocab_size, max_vocab_size=vocab_size, max_requests=most, max_drafts=most)
        return drawn.map(_with_greedy_twins) if Capability.GREEDY in can else drawn

    return check(
        code,
        cases,
        needs=(Capability.LARGE_VOCAB,) if is_large else (),
        weight=0.08 if is_large else 0.2,
    )(body)


VOCABULARY_CHECKS = tuple(
    _vocabulary_check(f"REJ{number}", size)
    for number, size in zip(
        range(601, 615),
        (1, 2, 31, 100, 1023, 1024, 1025, 8191, 8192, 8193, 32000, 128256, 151936, 262144),
        strict=True,
    )
)
"""The smallest, the edges of kernel tiles of 1024 and 8192 lanes, and the vocabularies of Llama 2, Llama 3, Qwen 2 and
Gemma 3."""


@check(
    "REJ621", lambda can: rejecting(can, targets=("last-only",), drafts=("elsewhere",), tokens=("drawn",), greedy=None)
)
def the_last_id_of_the_vocabulary_can_be_emitted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If all target mass is on the last id, that id is emitted, at every vocabulary size.

    A loop over full tiles only, or a mask with `<` against `vocab_size - 1`, never reaches it.
    """
    for answer in emitted(sampler, case):
        if answer.tokens != [answer.batch.vocab_size - 1]:
            broken(f"{answer}, but only the last id {answer.batch.vocab_size - 1} is possible")


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


_SLOW_SIZES = (67, 67, 131, 521)


def _repeated(case: RejectionCase, size: int) -> RejectionCase:
    """The drawn requests, again and again."""
    requests = case.requests * size
    return case.replace(requests=requests[:size])


def _crowds(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
    """Up to five requests again and again, so that periods are no powers of two only."""
    drawn = ordinary(can, max_vocab_size=8, max_drafts=2, max_requests=5)
    return st.builds(_repeated, drawn, st.sampled_from(_SLOW_SIZES if can.slow else (67, *BATCH_SIZES, *(1100,) * 5)))


@check("REJ623", _crowds, weight=0.2)
def many_requests_are_verified(sampler: RejectionSampler, case: RejectionCase) -> None:
    """All of up to 1,100 requests are verified; the batch is ragged if the sampler supports that.

    The 65th is lost where a grid, a warp or a bit mask was sized for 64; other sizes stand for 128 to 1,024. An
    interpreted sampler is given up to 521.
    """
    _is_right(sampler, case)


@check("REJ624", lambda can: ordinary(can, max_drafts=0), needs=(Capability.RAGGED,))
def batches_without_any_draft_emit_their_bonus_tokens(sampler: RejectionSampler, case: RejectionCase) -> None:
    """In a batch without any drafts every request emits its bonus token.

    Suspect tensors of zero rows: empty launch grids, and `max()` of an empty list.
    """
    for answer in emitted(sampler, case):
        if answer.tokens != [answer.bonus_token_id]:
            broken(f"{answer}, but only the bonus token {answer.bonus_token_id} is expected")


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


def _far_apart(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
    require_far_memory()
    return ordinary(
        can, explicit=True, min_requests=2, min_drafts=1, max_drafts=4, min_vocab_size=2, layouts=("huge-stride",)
    )


@check("REJ632", _far_apart, needs=(*_STRIDED, *_EXPLICIT), weight=0.4)
def logits_with_a_huge_row_stride_work_or_are_refused_by_name(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Rows that lie far apart (a view into a padded buffer) give a contiguous copy's tokens, or an error that names it.

    The later half of them begins beyond 2**31 elements: a row number times a stride, both of 32 bits, wraps round and
    reads other memory. Where that much memory cannot be reserved, the check is skipped.
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


@check(
    "REJ634",
    lambda can: ordinary(can, explicit=True, greedy=False, min_drafts=1, min_vocab_size=2, dtypes=DTYPES[1:]),
    needs=(*_EXPLICIT, Capability.HALF_LOGITS),
)
def half_precision_logits_equal_the_same_numbers_in_float32(sampler: RejectionSampler, case: RejectionCase) -> None:
    """bfloat16 and float16 logits give the tokens of the same numbers in float32.

    The softmax must be computed in float32. Computed in bfloat16 its rows sum to 1 within a percent, and the
    distribution is off by as much.
    """
    batch, noise, half = emit_case(sampler, case)
    wide = emit(sampler, batch.replace(target_logits=batch.target_logits.to(torch.float32)), noise)
    same_tokens(wide, half, f"from {case.dtype} logits")
