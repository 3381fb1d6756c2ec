"""3xx: pairs of runs that must agree, though neither is known to be correct."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from fairdraw._core.checks import check
from fairdraw._core.harness import emit
from fairdraw.properties._rejection_asserts import (
    answers,
    broken,
    covered,
    emit_case,
    is_left_to,
    pick,
    same_rows,
    same_tokens,
)
from fairdraw.properties._rejection_cases import POSITIVE, accepting, lively, ordinary, rejecting
from fairdraw.protocols import (
    Capability,
    ExplicitNoise,
    RejectionSampler,
)

if TYPE_CHECKING:
    from fairdraw.strategies import RejectionCase

_EXPLICIT = (Capability.EXPLICIT_NOISE,)


@check("REJ301", lambda can: lively(can, explicit=True, min_requests=2, min_vocab_size=2), needs=_EXPLICIT)
def tokens_do_not_depend_on_other_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A request alone gives the same tokens as in its batch, with the same noise.

    Otherwise text changes with the load of the server, and cannot be reproduced.
    """
    batch, noise, together = emit_case(sampler, case)
    request = pick(case, range(batch.batch_size))
    alone = emit(sampler, batch.select([request]), noise.select(batch, [request]))
    same_rows(alone.tokens, together.tokens[[request]], f"request {request} beside other requests")


@check(
    "REJ306",
    lambda can: ordinary(can, explicit=True, dense=False, min_drafts=1, min_vocab_size=2),
    needs=(*_EXPLICIT, Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS),
)
def one_hot_draft_probs_equal_no_draft_probs(sampler: RejectionSampler, case: RejectionCase) -> None:
    """`draft_probs=None` means probability 1 on the drafted token; one-hot `draft_probs` give the same tokens.

    The two are separate code paths. The n-gram one forgets the division or the removal of the drafted token.
    """
    batch, noise, without = emit_case(sampler, case)
    draft_probs = torch.zeros(batch.num_tokens, batch.vocab_size, dtype=torch.float32, device=batch.device)
    draft_probs[torch.arange(batch.num_tokens, device=batch.device), batch.draft_token_ids.long()] = 1.0
    same_tokens(without, emit(sampler, batch.replace(draft_probs=draft_probs), noise), "with one-hot draft_probs")


@check(
    "REJ309",
    lambda can: ordinary(can, dense=True, greedy=False, min_drafts=1, min_vocab_size=2, drafts=("same",)),
    needs=(Capability.DENSE_DRAFTS, Capability.TOKEN_VERIFICATION),
)
def drafts_from_the_target_distribution_are_all_accepted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If draft and target distribution are the same, the ratio is 1 and every draft is accepted.

    Otherwise speed is lost with a perfect drafter. Suspect the ratio's direction, or probabilities at another
    temperature on one side.
    """
    batch = case.batch(sampler.device)
    batch = batch.replace(draft_probs=batch.target_probs())
    for answer in answers(batch, emit(sampler, batch, case.noise(sampler.device))):
        if answer.tokens != [*answer.drafts, answer.bonus_token_id]:
            broken(f"{answer}, but target and draft distribution are equal")


@check(
    "REJ310",
    lambda can: accepting(
        can, targets=("one-hot", "last-only"), drafts=("independent", "uniform"), tokens=("likely",), min_drafts=1
    ),
)
def drafts_that_are_certain_to_the_target_are_accepted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A draft with target probability 1 is accepted at every uniform, whatever its draft distribution.

    A grammar often leaves one legal token: a draft that guessed it must not be lost.
    """
    batch, _, emission = emit_case(sampler, case)
    for answer in answers(batch, emission):
        is_whole = answer.tokens == [*answer.drafts, answer.bonus_token_id]
        if not (is_whole or is_left_to(sampler, answer.tokens, answer.drafts)):
            broken(f"{answer}, but every draft has target probability 1")


@check("REJ311", lambda can: rejecting(can, targets=("one-hot", "last-only"), drafts=("elsewhere",), tokens=("drawn",)))
def drafts_from_disjoint_support_are_rejected_at_once(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If target and draft share no token, the first draft is rejected, and a token of the target is recovered.

    Anything else accepts tokens that the target excludes: a smoothed ratio, or a ratio of the wrong rows.
    """
    batch, _, emission = emit_case(sampler, case)
    for answer in answers(batch, emission):
        best = int(batch.target_logits[answer.first_row].argmax())
        if answer.tokens != [best]:
            broken(f"{answer}, but only [{best}] is possible")


_TEMPERATURES = (0.25, 2.0**-126, 1.7, 1e-6, 100.0)
"""Not that of the cases, and from the edge of greedy up; as many as no power of two divides."""


@check(
    "REJ312", lambda can: ordinary(can, explicit=True, greedy=False, min_drafts=1, min_vocab_size=2), needs=_EXPLICIT
)
def the_temperature_of_a_random_request_is_not_applied_again(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Logits are already processed: a temperature other than 0 must not be applied again.

    Applied twice, temperature 0.5 samples at 0.25. The text looks better, but the distribution is wrong. A request is
    greedy at exactly 0: the smallest normal number, 1.2e-38, does not make it so.
    """
    batch, noise, emission = emit_case(sampler, case)
    places = range(case.seed, case.seed + batch.batch_size)
    temperatures = [_TEMPERATURES[place % len(_TEMPERATURES)] for place in places]
    others = torch.tensor(temperatures, dtype=torch.float32, device=batch.device)
    other = emit(sampler, batch.replace(temperature=others), noise)
    same_tokens(emission, other, f"at the temperatures {temperatures[:8]}")


@check(
    "REJ313",
    lambda can: ordinary(
        can,
        explicit=True,
        min_drafts=1,
        min_vocab_size=2,
        targets=("tied", "flat", "one-hot"),
        exponentials=("random",),
        uniforms=("random",),
        dtypes=("float32",),
    ),
    needs=_EXPLICIT,
)
def a_constant_added_to_the_logits_changes_nothing(sampler: RejectionSampler, case: RejectionCase) -> None:
    """softmax(logits + c) = softmax(logits); with small integers the sum is exact, so the tokens are the same.

    A softmax that does not subtract the maximum overflows at large logits, and shows here before it does.
    """
    batch, noise, emission = emit_case(sampler, case)
    constant = (-64.0, 16.0, 96.0)[case.seed % 3]
    moved = batch.replace(target_logits=batch.target_logits + constant)
    shifted, rows = emit(sampler, moved, noise), covered(sampler, moved, noise)
    same_rows(emission.tokens[rows], shifted.tokens[rows], f"with {constant} added to every logit")


@check(
    "REJ314",
    lambda can: ordinary(can, explicit=True, min_drafts=2, min_vocab_size=2, max_vocab_size=8, targets=POSITIVE),
    needs=(*_EXPLICIT, Capability.TOKEN_VERIFICATION),
)
def drafts_cut_off_at_the_end_keep_the_tokens_before(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Without its last draft a request emits the same prefix, then its bonus token if nothing was rejected before.

    Verification goes from left to right; a sampler that decides jointly, or counts from the end, fails here.
    """
    batch, noise, emission = emit_case(sampler, case)
    shorter = case.replace(requests=tuple(dataclasses.replace(r, drafts=r.drafts[:-1]) for r in case.requests))
    keep = [row for i in range(batch.batch_size) for row in range(*batch.token_slice(i).indices(batch.num_tokens))[:-1]]
    index = torch.tensor(keep, dtype=torch.int64, device=batch.device)
    counts = torch.tensor(shorter.num_draft_tokens, dtype=torch.int32, device=batch.device)
    cut = batch.replace(
        draft_token_ids=batch.draft_token_ids[index],
        num_draft_tokens=shorter.num_draft_tokens,
        cu_num_draft_tokens=counts.cumsum(0, dtype=torch.int32),
        max_spec_len=batch.max_spec_len - (Capability.RAGGED not in sampler.capabilities),
        draft_probs=None if batch.draft_probs is None else batch.draft_probs[index],
        target_logits=batch.target_logits[index],
    )
    seen = emit(sampler, cut, ExplicitNoise(noise.uniforms[index], noise.exponentials))
    for long, short in zip(answers(batch, emission), answers(cut, seen), strict=True):
        rejected_before = long.num_accepted < len(short.drafts)
        expected = long.tokens if rejected_before else [*short.drafts, short.bonus_token_id]
        if short.tokens != expected:
            broken(f"without its last draft, {short}; with it, {long.tokens}")
