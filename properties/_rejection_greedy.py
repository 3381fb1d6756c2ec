"""2xx: greedy requests are argmax decoding, and nothing that belongs to random requests touches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fairdraw._core.checks import check
from fairdraw._core.harness import emit
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._rejection_asserts import (
    Answer,
    answers,
    argmax_decoding,
    broken,
    decodes_argmax,
    emit_case,
    emitted,
    other_noise,
    same_rows,
    same_tokens,
)
from fairdraw.properties._rejection_cases import POSITIVE, ordinary
from fairdraw.protocols import Capability, RejectionSampler, SpecDecodeBatch
from fairdraw.strategies import DTYPES, RejectionCase

if TYPE_CHECKING:
    from fairdraw.properties._rejection_cases import Cases
    from fairdraw.protocols import Capabilities

_GREEDY = (Capability.GREEDY,)


def _equals_argmax_decoding(sampler: RejectionSampler, batch: SpecDecodeBatch, answer: Answer) -> None:
    if answer.is_greedy and not decodes_argmax(sampler, batch, answer):
        broken(f"{answer}, but argmax decoding gives {argmax_decoding(batch, answer)}")


@check("REJ201", lambda can: ordinary(can, greedy=True, min_drafts=1), needs=_GREEDY)
def greedy_requests_equal_argmax_decoding(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Each position emits the argmax of its logits; the first draft that differs from it ends the request.

    Speculation must not change greedy text at all. A mismatch usually means that the random path was taken.
    """
    batch, _, emission = emit_case(sampler, case)
    for answer in answers(batch, emission):
        _equals_argmax_decoding(sampler, batch, answer)


@check(
    "REJ202",
    lambda can: ordinary(
        can, greedy=True, min_drafts=1, min_vocab_size=2, targets=("flat", "tied"), tokens=("last", "likely")
    ),
    needs=(*_GREEDY, Capability.LOWEST_ID_TIES),
)
def greedy_ties_go_to_the_lowest_id(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Among equal largest logits the lowest id wins, in and across kernel tiles.

    bfloat16 logits tie often. A tie rule that depends on the tile size makes greedy text depend on the kernel.
    """
    batch, _, emission = emit_case(sampler, case)
    for answer in answers(batch, emission):
        _equals_argmax_decoding(sampler, batch, answer)


@check("REJ203", lambda can: ordinary(can, greedy=True, min_vocab_size=2, targets=POSITIVE), needs=_GREEDY)
def greedy_requests_ignore_the_noise(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A greedy request gets the same tokens with other seeds, uniforms and exponentials.

    If they differ, a greedy request was accepted or recovered by chance.
    """
    batch, _, first = emit_case(sampler, case)
    second = emit(sampler, batch, other_noise(case, batch))
    same_tokens(first, second, "with other noise")


@check(
    "REJ204",
    lambda can: ordinary(can, greedy=True, dense=True, min_vocab_size=2, min_drafts=1),
    needs=(*_GREEDY, Capability.DENSE_DRAFTS),
)
def greedy_requests_ignore_the_draft_distribution(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A greedy request gets the same tokens with and without `draft_probs`.

    Without one-hot support it gets flat ones instead. Argmax decoding does not use the draft distribution: if it
    matters, the argmax was taken of the residual.
    """
    batch, _noise, dense = emit_case(sampler, case)
    assert batch.draft_probs is not None
    has_one_hot = Capability.ONE_HOT_DRAFTS in sampler.capabilities
    other = None if has_one_hot else torch.full_like(batch.draft_probs, 1 / batch.vocab_size)
    seen = emit(sampler, batch.replace(draft_probs=other), case.noise(sampler.device))
    same_tokens(dense, seen, "without draft_probs" if has_one_hot else "with flat draft_probs")


def _largest_by_one_step(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Flat rows at 1/8, where one logit is the next larger number of its dtype: probabilities round to a tie."""
    batch = case.batch(sampler.device)
    logits = torch.full_like(batch.target_logits, 0.125)
    best = [1 + derive_seed("best", case.seed, row) % (batch.vocab_size - 1) for row in range(batch.num_tokens)]
    logits[torch.arange(batch.num_tokens), best] = 0.125 * (1 + torch.finfo(logits.dtype).eps)
    batch = batch.replace(target_logits=logits)
    for answer in answers(batch, emit(sampler, batch, case.noise(sampler.device))):
        _equals_argmax_decoding(sampler, batch, answer)


@check(
    "REJ205",
    lambda can: ordinary(can, greedy=True, min_vocab_size=2, min_drafts=1, targets=("flat",), dtypes=("float32",)),
    needs=(*_GREEDY, Capability.REFERENCE_ROUNDING),
)
def greedy_requests_see_the_last_bit_of_a_logit(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A logit that is larger by one float32 step wins, though its probability rounds to the same number.

    Argmax of probabilities instead of logits, or of logits rounded to bfloat16, answers a lower id.
    """
    _largest_by_one_step(sampler, case)


@check(
    "REJ206",
    lambda can: ordinary(can, greedy=True, min_vocab_size=2, min_drafts=1, targets=("flat",), dtypes=DTYPES[1:]),
    needs=(*_GREEDY, Capability.HALF_LOGITS),
)
def greedy_requests_see_the_last_bit_of_a_half_precision_logit(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A bfloat16 or float16 logit that is larger by one step of its dtype wins.

    Both are exact in float32. float16 logits that pass through bfloat16, or a softmax in half precision, make ties of
    them.
    """
    _largest_by_one_step(sampler, case)


def _greedy_and_random(case: RejectionCase) -> RejectionCase:
    """Greedy and random requests in turn."""
    recipes = [type(r)(r.drafts, i % 2 == case.seed % 2, r.exponentials) for i, r in enumerate(case.requests)]
    return case.replace(requests=tuple(recipes))


@check(
    "REJ207",
    lambda can: ordinary(can, explicit=True, min_requests=2, min_drafts=1, min_vocab_size=2).map(_greedy_and_random),
    needs=(*_GREEDY, Capability.EXPLICIT_NOISE),
)
def mixed_batches_equal_greedy_and_random_batches_apart(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A batch of greedy and random requests gives what its greedy and its random requests give apart.

    Samplers have fast paths for all-greedy and all-random batches; the mixed path is the one that is not benchmarked.
    """
    batch, noise, mixed = emit_case(sampler, case)
    for kind in (True, False):
        requests = [i for i, is_greedy in enumerate(batch.is_greedy.tolist()) if is_greedy is kind]
        apart = emit(sampler, batch.select(requests), noise.select(batch, requests))
        same_rows(apart.tokens, mixed.tokens[requests], f"{'greedy' if kind else 'random'} requests in a mixed batch")


@check(
    "REJ211",
    lambda can: ordinary(can, min_requests=2, min_drafts=1, min_vocab_size=2).map(_greedy_and_random),
    needs=_GREEDY,
)
def greedy_requests_beside_random_ones_equal_argmax_decoding(sampler: RejectionSampler, case: RejectionCase) -> None:
    """In a batch that random requests are in, too, a greedy request emits the argmax at each position.

    All-greedy batches take a path of their own. In a mixed batch the mark of a greedy request, 0 or -1, is easily taken
    for a temperature: then logits are divided by it, and their signs may turn.
    """
    batch, _, emission = emit_case(sampler, case)
    for answer in answers(batch, emission):
        _equals_argmax_decoding(sampler, batch, answer)


def _many_drafts(can: Capabilities) -> Cases:
    most = 16 if Capability.LONG_DRAFTS in can else 8
    narrow = {"min_drafts": 5, "max_drafts": most, "min_vocab_size": 2, "max_vocab_size": 16, "max_requests": 3}
    return ordinary(can, **narrow, greedy=True, targets=("normal", "peaked", "tied"), tokens=("likely",))


@check("REJ212", _many_drafts, needs=_GREEDY, weight=0.3)
def the_drafts_of_a_long_greedy_step_see_all_before_them(sampler: RejectionSampler, case: RejectionCase) -> None:
    """5 to 16 drafts, each the argmax of its row, in small batches: rows far behind the first count as the first does.

    Steps from raw logits count the drafts before a row in penalties, and advance a grammar and bad words by them; a
    buffer of four or eight drafts, or a mask of few bits, shows in the rows behind it alone.
    """
    batch, _, emission = emit_case(sampler, case)
    for answer in answers(batch, emission):
        _equals_argmax_decoding(sampler, batch, answer)


@check(
    "REJ208",
    lambda can: ordinary(
        can,
        greedy=True,
        min_drafts=1,
        min_vocab_size=2,
        targets=("normal", "peaked"),
        tokens=("likely",),
        dtypes=("float32",),
    ),
    needs=(*_GREEDY, Capability.TOKEN_VERIFICATION),
)
def greedy_requests_accept_every_argmax_draft(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Greedy drafts that are the argmax are all accepted, and the bonus token follows, at every uniform.

    A sampler that also requires `target / draft >= uniform` gives correct text, but rejects good greedy drafts: speed
    is lost and the text does not show it.
    """
    for answer in emitted(sampler, case):
        answer.forbid(answer.tokens != [*answer.drafts, answer.bonus_token_id], ", but every draft is the argmax")
