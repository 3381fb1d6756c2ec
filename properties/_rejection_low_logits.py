"""Rows of low logits: only their differences count, whatever number a kernel puts where there is no logit."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, RejectionSampler, SpecDecodeBatch
from fairdraw.contracts._rejection import emit
from fairdraw.properties._rejection_asserts import answers, argmax_decoding, broken, check, decodes_argmax
from fairdraw.properties._rejection_cases import accepting
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


# One request: an interpreter pays for every tile.
_SMALL_BATCH = {"min_vocab_size": _MANY_TILES, "max_vocab_size": _MANY_TILES, "min_drafts": 1, "max_requests": 1}


def _then_an_impossible_draft(case: RejectionCase) -> RejectionCase:
    """Of the only request: what it accepts and what it recovers are then both seen."""
    (request,) = case.requests
    impossible = dataclasses.replace(request.drafts[-1], draft="elsewhere", token="drawn")
    return case.replace(requests=(dataclasses.replace(request, drafts=(*request.drafts, impossible)),))


def _with_a_greedy_twin(case: RejectionCase) -> RejectionCase:
    return case.replace(requests=(*case.requests, dataclasses.replace(case.requests[0], greedy=True)))


def _without_a_choice(can: Capabilities) -> st.SearchStrategy[RejectionCase]:
    """A random request with a draft that is certain to the target, and then one that is impossible; its greedy twin."""
    certain = accepting(can, **_SMALL_BATCH, max_drafts=1, greedy=False, targets=("one-hot", "last-only"))
    one = certain.map(_then_an_impossible_draft)
    return one.map(_with_a_greedy_twin) if Capability.GREEDY in can else one


@check("REJ210", _without_a_choice, needs=(Capability.LARGE_VOCAB,), weight=0.12)
def the_only_possible_token_of_a_large_vocabulary_is_emitted_however_low_its_logit_is(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """If all but one of 151936 tokens are masked, that one is emitted, also if its logit is -3, -300 or -30000.

    Kernels read such a row in tiles. Suspect the step that compares or adds them: their number is padded to a power of
    two, and a tile that is not there must lose to every logit and add nothing to a sum.
    """
    batch = _lowered(case.batch(sampler.device), case.seed)
    for answer in answers(batch, emit(sampler, batch, case.noise(sampler.device))):
        if not decodes_argmax(sampler, answer):
            expected, largest = argmax_decoding(answer), answer.target_logits.max(-1).tolist()
            broken(f"{answer}, but argmax decoding gives {expected}; its largest logits are {largest}")
