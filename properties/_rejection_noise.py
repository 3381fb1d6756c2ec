"""3xx, continued: which number of a call's noise, bonus tokens and rates may influence which token."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fairdraw._core.checks import check
from fairdraw._core.harness import emit
from fairdraw.properties._rejection_asserts import (
    answers,
    broken,
    covered,
    emit_case,
    emitted,
    explicit_noise,
    other_explicit_noise,
    same_rows,
    same_tokens,
)
from fairdraw.properties._rejection_cases import POSITIVE, lively, ordinary, rejecting, synthetic
from fairdraw.protocols import Capability, ExplicitNoise, RejectionSampler
from fairdraw.strategies import RejectionCase, rejection_cases
from fairdraw.strategies.rows import bulk_rng

_EXPLICIT = (Capability.EXPLICIT_NOISE,)
_THRESHOLD = (Capability.EXPLICIT_NOISE, Capability.TOKEN_VERIFICATION)
_RACE = (Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE)


@check(
    "REJ321",
    lambda can: rejection_cases(
        can,
        explicit=True,
        greedy=False,
        min_drafts=1,
        targets=POSITIVE,
        drafts=("independent",),
        tokens=("drawn",),
        uniforms=("zero",),
    ),
    needs=_THRESHOLD,
)
def uniform_zero_accepts_every_possible_draft(sampler: RejectionSampler, case: RejectionCase) -> None:
    """At uniform 0 every draft is accepted to which target and drafter give any probability.

    This fixes the direction of the comparison. A sampler that compares with 1 - uniform has the right distribution, but
    does not use the given noise as documented.
    """
    for answer in emitted(sampler, case):
        answer.forbid(not answer.is_fully_accepted, ", but every uniform is 0")


@check(
    "REJ322", lambda can: ordinary(can, explicit=True, greedy=False, min_drafts=1, min_vocab_size=2), needs=_THRESHOLD
)
def larger_uniforms_never_accept_more(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If every uniform grows, no request accepts more drafts.

    Acceptance is a threshold: monotone in the uniform. Hashing or reusing uniforms, or reading another row's, breaks
    it.
    """
    batch, noise, emission = emit_case(sampler, case)
    raised = noise.uniforms + (1 - 2.0**-53 - noise.uniforms) * 0.5
    seen = emit(sampler, batch, ExplicitNoise(raised, noise.exponentials))
    for before, after in zip(answers(batch, emission), answers(batch, seen), strict=True):
        if after.num_accepted > before.num_accepted:
            broken(f"with larger uniforms, {after}; before, {before.tokens}")


@check(
    "REJ323",
    lambda can: rejecting(can, explicit=True, greedy=False),
    needs=(*_EXPLICIT, Capability.TOKEN_VERIFICATION),
)
def uniforms_influence_nothing_but_acceptance(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Smaller uniforms where a draft was accepted, and larger ones where it was rejected, do not change the tokens.

    A recovered token that moves with the uniform was drawn from the same random number that rejected the draft, hence
    not from the residual.
    """
    batch, noise, emission = emit_case(sampler, case)
    uniforms = noise.uniforms.clone()
    for answer in answers(batch, emission):
        rows = slice(answer.first_row, answer.first_row + answer.num_accepted)
        uniforms[rows] *= 0.5
        if answer.is_cut_short:
            uniforms[answer.last_row] += (1 - 2.0**-53 - uniforms[answer.last_row]) * 0.5
            behind = slice(answer.last_row + 1, answer.first_row + len(answer.drafts))
            uniforms[behind] = 1 - 2.0**-53 - uniforms[behind]
    seen = emit(sampler, batch, ExplicitNoise(uniforms, noise.exponentials))
    same_tokens(emission, seen, "with other uniforms and the same decisions")


@check("REJ324", lambda can: lively(can, explicit=True, min_drafts=1, min_vocab_size=2), needs=_THRESHOLD)
def exponentials_influence_only_recovered_tokens(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Other exponentials do not change the number of accepted drafts, the accepted drafts or the bonus token.

    If acceptance changes, uniforms and exponentials share a buffer or a generator state.
    """
    batch, noise, emission = emit_case(sampler, case)
    other = other_explicit_noise(case, batch)
    seen = emit(sampler, batch, ExplicitNoise(noise.uniforms, other.exponentials))
    for before, after in zip(answers(batch, emission), answers(batch, seen), strict=True):
        kept = before.num_accepted if before.is_cut_short else None
        if len(after.tokens) != len(before.tokens) or after.tokens[:kept] != before.tokens[:kept]:
            broken(f"with other exponentials, {after}; before, {before.tokens}")


@check("REJ325", lambda can: rejecting(can, explicit=True, exponentials=("random", "coarse")), needs=_RACE)
def exponentials_matter_only_by_their_ratios(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If all exponentials of a request are multiplied by a power of two, the same token wins.

    Only their ratios matter. A constant added to exponentials, to guard a division, breaks this.
    """
    batch, noise, emission = emit_case(sampler, case)
    scaled = ExplicitNoise(noise.uniforms, noise.exponentials * 2.0**-60)
    seen, rows = emit(sampler, batch, scaled), covered(sampler, batch, scaled)
    same_rows(emission.tokens[rows], seen.tokens[rows], "with all exponentials divided by 2**60")


@check("REJ326", lambda can: lively(can, explicit=True, min_vocab_size=2, max_vocab_size=8), needs=_EXPLICIT)
def bonus_tokens_influence_only_fully_accepted_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Another bonus token changes the last token of requests whose drafts were all accepted, and nothing else.

    The bonus token was drawn before verification; it says nothing about rejected requests.
    """
    batch, noise, emission = emit_case(sampler, case)
    bonus = (batch.bonus_token_ids + 1) % batch.vocab_size
    seen = emit(sampler, batch.replace(bonus_token_ids=bonus), noise)
    expected = emission.tokens.copy()
    for answer in answers(batch, emission):
        if answer.is_fully_accepted:
            expected[answer.request, answer.num_accepted] = int(bonus[answer.request, 0])
    same_rows(expected, seen.tokens, "with other bonus tokens")


@check("REJ327", lambda can: rejecting(can, explicit=True, max_requests=2), needs=(*_EXPLICIT, Capability.NAN_LOGITS))
def rows_with_nan_do_not_disturb_other_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A request whose target rows are NaN does not change the tokens of other requests.

    A maximum or a sum over all rows of the batch spreads NaN to every request.
    """
    first = case.requests[0]
    poisoned = dataclasses.replace(first, drafts=tuple(dataclasses.replace(d, target="nan") for d in first.drafts))
    healthy = case.replace(requests=(first, *case.requests))
    _, _, expected = emit_case(sampler, healthy)
    _, _, seen = emit_case(sampler, case.replace(requests=(poisoned, *case.requests)))
    same_rows(expected.tokens[1:], seen.tokens[1:], "beside a request with NaN")


@check("REJ328", lambda can: synthetic(can, min_drafts=1), needs=(Capability.SYNTHETIC_RATES,))
def synthetic_rates_of_one_accept_and_of_zero_reject_every_draft(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """With rate 1 all drafts are accepted, with rate 0 the first is rejected, at every uniform, greedy or not.

    `uniform <= rate` accepts at rate 0 and uniform 0.
    """
    batch = case.batch(sampler.device)
    for rate in (1.0, 0.0):
        rates = torch.full((batch.max_spec_len,), rate, dtype=torch.float32, device=batch.device)
        forced = batch.replace(synthetic_rates=rates)
        for answer in answers(forced, emit(sampler, forced, case.noise(sampler.device))):
            if answer.num_accepted != len(answer.drafts) * rate:
                broken(f"{answer} at synthetic rate {rate}")


@check(
    "REJ329",
    lambda can: synthetic(can, explicit=True, min_drafts=1),
    needs=(*_EXPLICIT, Capability.SYNTHETIC_RATES),
)
def synthetic_acceptance_depends_on_the_rate_of_the_position_alone(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """Drafts are accepted up to the first position whose uniform is not below its rate, whatever the distributions.

    Rates are given per position and shared by all requests. Indexed by the flattened row, they reach the wrong
    requests.
    """
    batch, noise = case.batch(sampler.device), explicit_noise(case, sampler.device)
    rates = bulk_rng("rates by position", case.seed).choice([0.0, 0.25, 0.5, 1.0], size=batch.max_spec_len)
    batch = batch.replace(synthetic_rates=torch.tensor(rates, dtype=torch.float32, device=batch.device))
    uniforms = noise.uniforms.cpu().numpy()
    for answer in answers(batch, emit(sampler, batch, noise)):
        own = uniforms[answer.first_row : answer.first_row + len(answer.drafts)]
        accepted = int(np.argmin([*(own < rates[: len(own)]), False]))
        if answer.num_accepted != accepted:
            broken(f"{answer}, but synthetic rates accept {accepted}")
