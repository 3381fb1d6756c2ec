"""1xx, 310 and 501: what every output looks like, whatever the noise; drafts that are certain; runs that must agree."""

from __future__ import annotations

from fairdraw._core.checks import Stage
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Capability, RejectionSampler
from fairdraw.contracts._rejection import emit
from fairdraw.properties import _rejection_asserts as asserts
from fairdraw.properties._rejection_asserts import broken, check
from fairdraw.properties._rejection_cases import MASKED, POSITIVE, accepting, ordinary, rejecting, withdrawing
from fairdraw.properties._traces import left_alone
from fairdraw.strategies import INVALID_KINDS, RejectionCase

_EXPLICIT = (Capability.EXPLICIT_NOISE,)


@check("REJ101", ordinary, stage=Stage.SHAPE)
def token_ids_lie_in_the_vocabulary(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Every emitted id is in [0, vocab_size).

    An id beyond the end usually comes from the tail tile: lanes past the vocabulary took part in the argmax.
    """
    for answer in asserts.emitted(sampler, case):
        answer.forbid(answer.leaves_vocabulary, f", which leaves [0, {answer.batch.vocab_size})")


@check("REJ102", ordinary, stage=Stage.SHAPE)
def placeholders_stand_only_after_the_last_token(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A row is tokens, then placeholders: after the first -1 nothing else follows.

    A gap inside a row means that a position was skipped: the accepted token and its slot are counted separately.
    """
    for answer in asserts.emitted(sampler, case):
        answer.forbid(PLACEHOLDER_TOKEN_ID in answer.tokens, ", with a placeholder before the last token")


@check("REJ103", ordinary, stage=Stage.SHAPE)
def every_request_emits_a_token(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Every request gets at least one token: a rejected first draft is replaced, and no drafts mean the bonus token.

    An empty row stops its request for ever. Often the bonus token is written only where a draft was accepted.
    """
    for answer in asserts.emitted(sampler, case):
        answer.forbid(not answer.tokens, ", but at least one token is expected")


@check("REJ104", ordinary, stage=Stage.SHAPE)
def no_request_emits_more_than_its_drafts_and_one_token(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A request gets at most `num_draft_tokens + 1` tokens, though the output may be wider.

    Longer rows come from an output that is not filled with -1, or from a loop bounded by `max_spec_len`.
    """
    for answer in asserts.emitted(sampler, case):
        most = len(answer.drafts) + 1
        answer.forbid(len(answer.tokens) > most, f", but at most {most} tokens are expected")


@check("REJ105", ordinary, stage=Stage.SHAPE)
def all_but_the_last_token_are_the_first_drafts(sampler: RejectionSampler, case: RejectionCase) -> None:
    """`tokens[:-1] == drafts[:len(tokens) - 1]`: an accepted prefix, then one token of the sampler's own.

    Otherwise requests read each other's rows (`cu_num_draft_tokens` has no leading 0), or verification does not stop at
    a rejection.
    """
    for answer in asserts.emitted(sampler, case):
        is_prefix = answer.tokens[:-1] == answer.drafts[: len(answer.tokens[:-1])]
        answer.forbid(not is_prefix, ", whose tokens before the last are not its first drafts")


@check("REJ106", accepting)
def fully_accepted_requests_end_with_their_bonus_token(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If all drafts are accepted, the token after them is the request's own bonus token.

    Otherwise bonus tokens are indexed by something else than the request, for example by its rows.
    """
    for answer in asserts.emitted(sampler, case):
        is_another = answer.is_fully_accepted and answer.tokens[-1] != answer.bonus_token_id
        answer.forbid(is_another, f", but the bonus token is {answer.bonus_token_id}")


@check(
    "REJ107",
    lambda can: rejecting(can, targets=("flat", "tied"), max_vocab_size=8),
    needs=(Capability.TOKEN_VERIFICATION,),
)
def a_rejected_draft_is_not_recovered(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The recovered token differs from the draft it replaces, whose residual max(target - draft, 0) is 0.

    One-hot drafts show it: if the drafted token stays in the race, it is emitted more often than the target wants.
    """
    for answer in asserts.emitted(sampler, case):
        if answer.is_cut_short and answer.tokens[-1] == answer.drafts[answer.num_accepted]:
            broken(f"{answer}: the draft at position {answer.num_accepted} was rejected, then emitted all the same")


@check("REJ108", lambda can: rejecting(can, targets=MASKED, greedy=None), depends_on=("REJ201", "REJ211"))
def tokens_without_target_probability_are_never_emitted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A token that is masked with -inf is neither accepted nor recovered.

    This is how grammar and top-k violations get out: probabilities smoothed by an epsilon, a race over unmasked lanes,
    or a recovered token drawn from the draft distribution.
    """
    for answer in asserts.emitted(sampler, case):
        for position, token in enumerate(answer.tokens[: len(answer.drafts)]):
            answer.forbid(
                answer.is_masked(position), f", whose token {token} at position {position} is masked with -inf"
            )


# A sampler may compute its softmax in another order, so that a probability moves by some float32 steps.
_ROUNDING = 1e-5


@check("REJ109", lambda can: rejecting(can, targets=(*POSITIVE, *MASKED)), needs=(Capability.TOKEN_VERIFICATION,))
def recovered_tokens_have_residual_mass(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A recovered token has target probability above its draft probability.

    Tokens that the draft proposes too often must not be emitted again. If they are, recovery draws from the target
    instead of the residual: outputs then look fluent, and are not distributed as the target.
    """
    batch, _, emission = asserts.emit_case(sampler, case)
    target_probs, draft_probs = asserts.probabilities(batch)
    for answer in asserts.answers(batch, emission):
        if answer.is_cut_short and 0 <= answer.tokens[-1] < batch.vocab_size:
            place = answer.first_row + answer.num_accepted, answer.tokens[-1]
            target_prob, draft_prob = float(target_probs[place]), float(draft_probs[place])
            if target_prob == 0 or target_prob < draft_prob * (1 - _ROUNDING):
                broken(
                    f"{answer}: the recovered token {answer.tokens[-1]} has target probability {target_prob:.6g}, "
                    f"but its draft probability is {draft_prob:.6g}"
                )


@check("REJ110", withdrawing, needs=(Capability.PLACEHOLDER_DRAFTS,))
def placeholder_drafts_are_never_accepted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A placeholder draft (-1) ends the accepted prefix, and the token in its place is in the vocabulary.

    A sampler that reads `probs[row, -1]` reads the previous row's last token, or memory before the tensor.
    """
    for answer in asserts.emitted(sampler, case):
        padded = [*answer.drafts, PLACEHOLDER_TOKEN_ID].index(PLACEHOLDER_TOKEN_ID)
        is_past = answer.num_accepted > padded or answer.leaves_vocabulary
        answer.forbid(is_past, f", past the placeholder draft at position {padded}")


@check(
    "REJ111",
    lambda can: rejecting(
        can,
        targets=("one-hot", "last-only"),
        drafts=("elsewhere",),
        tokens=("drawn",),
        uniforms=("zero",),
        explicit=True,
    ),
    needs=_EXPLICIT,
)
def drafts_without_target_probability_are_rejected_at_uniform_zero(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """A draft with target probability 0 is rejected even if the uniform is exactly 0.

    `0 >= 0` holds, so `target / draft >= uniform` alone accepts a masked token; float32 uniforms are 0 once in 2**24
    draws.
    """
    for answer in asserts.emitted(sampler, case):
        answer.forbid(answer.num_accepted > 0, ", but its first draft has target probability 0")


@check(
    "REJ112",
    lambda can: rejecting(
        can, dense=True, targets=("normal", "zipf"), drafts=("elsewhere",), tokens=("likely",), dtypes=("float32",)
    ),
    needs=(Capability.DENSE_DRAFTS, Capability.TOKEN_VERIFICATION),
)
def drafts_that_their_drafter_cannot_draw_are_rejected(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A draft with draft probability 0 is rejected; the quotient target / 0 is not a probability ratio.

    This holds for every sampler, also one that compares `draft * uniform < target` and never divides: such a draft
    cannot come from its distribution, so draft tokens and draft distributions do not belong together, and accepting it
    hides that fault.
    """
    batch, _, emission = asserts.emit_case(sampler, case)
    _, draft_probs = asserts.probabilities(batch)
    for answer in asserts.answers(batch, emission):
        is_possible = answer.num_accepted == 0 or draft_probs[answer.first_row, answer.drafts[0]] != 0
        answer.forbid(not is_possible, ", but its first draft has draft probability 0")


@check(
    "REJ113",
    lambda can: rejecting(
        can, dense=True, targets=("half",), drafts=("dominating",), uniforms=("largest",), explicit=True
    ),
    needs=(*_EXPLICIT, Capability.DENSE_DRAFTS),
    weight=4.0,  # rounding leaves a residual in some rows: five cases show too little
)
def a_rejection_without_residual_still_recovers_a_possible_token(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """If the residual is 0 everywhere because of rounding, the token is drawn from the target.

    An argmax over zeros returns id 0, whatever its probability.
    """
    for answer in asserts.emitted(sampler, case):
        if answer.is_cut_short and answer.is_masked(answer.num_accepted):
            broken(f"{answer}: recovered {answer.tokens[-1]} has target probability 0")


@check("REJ114", ordinary)
def inputs_are_not_modified(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Every tensor of the batch, and of explicit noise, holds the same bits after the call.

    The caller still needs its logits (log-probabilities, the next step). Temperature, a mask or a zeroed draft token
    applied in place does not show in this call's tokens.
    """
    batch, noise = case.batch(sampler.device), case.noise(sampler.device)
    with left_alone(batch, noise):
        emit(sampler, batch, noise)


@check("REJ116", lambda can: ordinary(can, min_drafts=1, targets=("nan",)), needs=(Capability.NAN_LOGITS,))
def rows_with_nan_give_the_documented_token(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A target row with NaN has no distribution: random requests reject and emit id 0, greedy ones the first NaN's id.

    NaN fails every comparison, so an accept test written as `not (ratio < uniform)` accepts, and a running maximum
    never moves.
    """
    batch, _, emission = asserts.emit_case(sampler, case)
    expected = emit(asserts.ORACLE, case.batch(sampler.device), case.noise(sampler.device))
    # Left out: accepted drafts that begin the oracle's tokens, of a sampler that may accept fewer.
    begun = [one for one in asserts.answers(batch, emission) if asserts.is_left_to(sampler, one.tokens, one.drafts)]
    left = [one.request for one in begun if one.tokens == expected.emitted(one.request)[: len(one.tokens)]]
    rows = [request for request in range(batch.batch_size) if request not in left]
    asserts.same_rows(expected.tokens[rows], emission.tokens[rows], "rows with NaN")


@check(
    "REJ118",
    lambda can: ordinary(can, min_drafts=1, targets=tuple(INVALID_KINDS)),
    needs_one_of=((Capability.NAN_LOGITS, Capability.EMPTY_ROWS),),
)
def rows_without_a_distribution_never_leave_the_vocabulary(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A row with NaN, or all -inf, still gives at least one token, and every id is in [0, vocab_size).

    An id one past the vocabulary crashes the detokenizer, or reads foreign memory in the embedding of the next step.
    """
    for answer in asserts.emitted(sampler, case):
        answer.forbid(not answer.tokens or answer.leaves_vocabulary, f", which leaves [0, {answer.batch.vocab_size})")


# -- 310 and 501 ------------------------------------------------------------------------------------------------------


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
    for answer in asserts.emitted(sampler, case):
        is_whole = answer.tokens == [*answer.drafts, answer.bonus_token_id]
        is_right = is_whole or asserts.is_left_to(sampler, answer.tokens, answer.drafts)
        answer.forbid(not is_right, ", but every draft has target probability 1")


@check("REJ501", lambda can: rejecting(can, explicit=False, greedy=None), needs=(Capability.SEEDED_NOISE,))
def the_same_seeds_give_the_same_tokens(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Two calls with fresh generators from the same seeds emit the same tokens.

    If not, some number comes from elsewhere: the clock, memory that was not initialised, a race between threads, or a
    generator that no seed reaches. The global ones of torch, NumPy and Python are seeded. If you mean to draw from
    another, declare `seeded-noise` unsupported.
    """
    _, _, first = asserts.emit_case(sampler, case)
    _, _, second = asserts.emit_case(sampler, case)
    asserts.same_rows(first.tokens, second.tokens, "a second call with the same seeds")
