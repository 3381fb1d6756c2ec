"""2xx: greedy requests are argmax decoding, and nothing that belongs to random requests touches them.

210 is about rows of low logits: only their differences count, whatever number a kernel puts where there is no logit.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capabilities, Capability, RejectionSampler, SpecDecodeBatch
from fairdraw.contracts._rejection import emit
from fairdraw.properties import _rejection_asserts as asserts
from fairdraw.properties._rejection_asserts import broken, check
from fairdraw.properties._rejection_cases import accepting, ordinary
from fairdraw.strategies import DTYPES, RejectionCase

_GREEDY = (Capability.GREEDY,)


def _equal_argmax_decoding(sampler: RejectionSampler, of_call: list[asserts.Answer]) -> None:
    """Every greedy request of a call is decoded as if there were no drafts."""
    for answer in of_call:
        if answer.is_greedy and not asserts.decodes_argmax(sampler, answer):
            broken(f"{answer}, but argmax decoding gives {asserts.argmax_decoding(answer)}")


def _equals_argmax_decoding(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Fail if a greedy request of a case emits other tokens than argmax decoding does."""
    _equal_argmax_decoding(sampler, asserts.emitted(sampler, case))


_greedy = partial(check, needs=_GREEDY, body=_equals_argmax_decoding)


@_greedy("REJ201", lambda can: ordinary(can, greedy=True, min_drafts=1))
def greedy_requests_equal_argmax_decoding() -> None:
    """Each position emits the argmax of its logits; the first draft that differs from it ends the request.

    Speculation must not change greedy text at all. A mismatch usually means that the random path was taken.
    """


@_greedy(
    "REJ202",
    lambda can: ordinary(
        can, greedy=True, min_drafts=1, min_vocab_size=2, targets=("flat", "tied"), tokens=("last", "likely")
    ),
    needs=(*_GREEDY, Capability.LOWEST_ID_TIES),
)
def greedy_ties_go_to_the_lowest_id() -> None:
    """Among equal largest logits the lowest id wins, in and across kernel tiles.

    bfloat16 logits tie often. A tie rule that depends on the tile size makes greedy text depend on the kernel.
    """


def _exact_dtypes(can: Capabilities) -> tuple[str, ...]:
    """Dtypes whose last bit the sampler's word covers: half precision is exact in float32."""
    single = DTYPES[:1] * (Capability.REFERENCE_ROUNDING in can)
    return (*single, *DTYPES[1:]) if Capability.HALF_LOGITS in can else single


@check(
    "REJ205",
    lambda can: ordinary(
        can, greedy=True, min_vocab_size=2, min_drafts=1, targets=("flat",), dtypes=_exact_dtypes(can) or None
    ),
    needs=_GREEDY,
    needs_one_of=((Capability.REFERENCE_ROUNDING, Capability.HALF_LOGITS),),
)
def greedy_requests_see_the_last_bit_of_a_logit(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A logit that is larger by one step of its dtype wins, though its probability may round to the same number.

    Argmax of probabilities instead of logits answers a lower id. float16 logits that pass through bfloat16, or a
    softmax in half precision, make ties of such logits.
    """
    batch = case.batch(sampler.device)
    # Flat rows, where one logit is the next larger number of its dtype: probabilities round to a tie.
    logits = torch.full_like(batch.target_logits, 0.125)
    best = [1 + derive_seed("best", case.seed, row) % (batch.vocab_size - 1) for row in range(batch.num_tokens)]
    logits[torch.arange(batch.num_tokens), best] = 0.125 * (1 + torch.finfo(logits.dtype).eps)
    batch = batch.replace(target_logits=logits)
    _equal_argmax_decoding(sampler, asserts.answers(batch, emit(sampler, batch, case.noise(sampler.device))))


def _greedy_and_random(case: RejectionCase) -> RejectionCase:
    """Greedy and random requests in turn."""
    recipes = [type(r)(r.drafts, i % 2 == case.seed % 2, r.exponentials) for i, r in enumerate(case.requests)]
    return case.replace(requests=tuple(recipes))


@_greedy("REJ211", lambda can: ordinary(can, min_requests=2, min_drafts=1, min_vocab_size=2).map(_greedy_and_random))
def greedy_requests_beside_random_ones_equal_argmax_decoding() -> None:
    """In a batch that random requests are in, too, a greedy request emits the argmax at each position.

    All-greedy batches take a path of their own. In a mixed batch the mark of a greedy request, 0 or -1, is easily taken
    for a temperature: then logits are divided by it, and their signs may turn.
    """


# -- low logits -------------------------------------------------------------------------------------------------------


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
    """Append a draft that cannot have been drawn: what is accepted and what is recovered are then both seen."""
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
    for answer in asserts.answers(batch, emit(sampler, batch, case.noise(sampler.device))):
        if not asserts.decodes_argmax(sampler, answer):
            expected, largest = asserts.argmax_decoding(answer), answer.target_logits.max(-1).tolist()
            broken(f"{answer}, but argmax decoding gives {expected}; its largest logits are {largest}")
