"""Rows of low logits: only their differences count, whatever number a kernel puts where there is no logit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from fairdraw._core.checks import check
from fairdraw._core.harness import emit
from fairdraw.properties._rejection_asserts import answers, argmax_decoding, broken, decodes_argmax
from fairdraw.properties._rejection_cases import accepting, ordinary
from fairdraw.protocols import Capabilities, Capability, RejectionSampler, SpecDecodeBatch

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from fairdraw.strategies import RejectionCase

_DEPTHS = (3.0, 300.0, 30000.0)
"""Each is below some number that is written for -inf: 0 or -1, -100, -10000."""

_MANY_TILES = 151936
"""No power of two of tiles, from 256 to 65536 entries each, and the last of them is never full."""


def _lowered(batch: SpecDecodeBatch, seed: int) -> SpecDecodeBatch:
    """The largest logit of every row moved to one of `_DEPTHS` below zero, and the others with it."""
    logits = batch.target_logits
    depths = [_DEPTHS[(seed + row) % len(_DEPTHS)] for row in range(batch.num_tokens)]
    shifts = logits.amax(-1) + torch.tensor(depths, dtype=logits.dtype, device=batch.device)
    return batch.replace(target_logits=logits - shifts[:, None])


def _take_low_argmaxes(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Of greedy requests, and of random ones that have no choice."""
    batch = _lowered(case.batch(sampler.device), case.seed)
    for answer in answers(batch, emit(sampler, batch, case.noise(sampler.device))):
        if not decodes_argmax(sampler, batch, answer):
            expected = argmax_decoding(batch, answer)
            largest = batch.target_logits[batch.token_slice(answer.request)].amax(-1).tolist()
            broken(f"{answer}, but argmax decoding gives {expected}; its largest logits are {largest}")


# One request: an interpreter pays for every tile.
_SMALL_BATCH = {"min_vocab_size": _MANY_TILES, "max_vocab_size": _MANY_TILES, "min_drafts": 1, "max_requests": 1}


def _then_an_impossible_draft(case: RejectionCase) -> RejectionCase:
    """Of the only request: what it accepts and what it recovers are then both seen."""
    (request,) = case.requests
    impossible = dataclasses.replace(request.drafts[-1], draft="elsewhere", token="drawn")
    return case.replace(requests=(dataclasses.replace(request, drafts=(*request.drafts, impossible)),))


def _without_a_choice(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
    """A random request with a draft that is certain to the target, and then one that is impossible."""
    certain = accepting(can, **_SMALL_BATCH, max_drafts=1, greedy=False, targets=("one-hot", "last-only"))
    return certain.map(_then_an_impossible_draft)


@check("REJ209", lambda can: ordinary(can, greedy=True, min_drafts=1), needs=(Capability.GREEDY,), weight=0.4)
def greedy_requests_take_the_argmax_however_low_it_is(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Only differences of logits count: rows whose largest logit is -3, -300 or -30000 are decoded like any other.

    Log-probabilities are such rows. Suspect a maximum that starts at a finite number, or lanes beyond the vocabulary
    that hold one: it wins where every logit is lower.
    """
    _take_low_argmaxes(sampler, case)


@check(
    "REJ210",
    lambda can: ordinary(can, **_SMALL_BATCH, greedy=True, max_drafts=2),
    needs=(Capability.GREEDY, Capability.LARGE_VOCAB),
    weight=0.08,
)
def greedy_requests_take_the_argmax_of_a_large_vocabulary_however_low_it_is(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """In a vocabulary of 151936, too, rows whose largest logit is -3, -300 or -30000 are decoded like any other.

    Kernels read such a row in tiles. Suspect the step that compares them: their number is padded to a power of two, and
    a tile that is not there must lose to every logit.
    """
    _take_low_argmaxes(sampler, case)


@check("REJ316", _without_a_choice, needs=(Capability.LARGE_VOCAB,), weight=0.08)
def the_only_possible_token_of_a_large_vocabulary_is_emitted_however_low_its_logit_is(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """If all but one of 151936 tokens are masked, that one is emitted, also if its logit is -3, -300 or -30000.

    Suspect the sum over tiles: a tile that does not exist must add nothing. With usual logits its contribution is too
    small to be found.
    """
    _take_low_argmaxes(sampler, case)
