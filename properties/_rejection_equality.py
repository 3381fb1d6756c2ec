"""4xx: bit for bit. Against the executable specification, and against a reference sampler (the real vLLM)."""

from __future__ import annotations

import torch

from fairdraw._core.checks import check, differential
from fairdraw._core.harness import emit
from fairdraw.properties._rejection_asserts import (
    broken,
    covered,
    emit_case,
    equals_the_oracle,
    equals_the_oracle_on,
    explicit_noise,
    pick,
    same_rows,
)
from fairdraw.properties._rejection_cases import (
    UPSTREAM_WIDTHS,
    lively,
    ordinary,
    rejecting,
    seeded,
    synthetic,
    widths_for,
    withdrawing,
)
from fairdraw.properties._rejection_near_ties import close_steps
from fairdraw.protocols import Capability, ExplicitNoise, RejectionSampler
from fairdraw.strategies import LARGE_VOCAB_SIZES, DraftRecipe, RejectionCase, RequestRecipe, rejection_cases
from fairdraw.strategies.rows import bulk_rng

_RACE = (Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE)
_ROUNDING = (*_RACE, Capability.REFERENCE_ROUNDING)
_STREAM = (Capability.SEEDED_NOISE, Capability.REFERENCE_RACE, Capability.UPSTREAM_STREAM)


@check("REJ401", lambda can: lively(can, explicit=True), needs=_RACE)
def tokens_equal_the_oracle_on_the_same_noise(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The executable specification and the sampler emit the same tokens from the same numbers.

    The broadest check: whatever it finds, a check with a narrower title usually explains.
    """
    equals_the_oracle(sampler, case)


@check(
    "REJ402",
    lambda can: ordinary(
        can,
        explicit=True,
        greedy=False,
        min_drafts=1,
        min_vocab_size=2,
        targets=("normal", "zipf", "peaked"),
        drafts=("independent",),
        tokens=("drawn",),
        uniforms=("ratio", "above", "below"),
    ),
    needs=_ROUNDING,
)
def acceptance_at_the_exact_ratio_equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A uniform equal to the float32 quotient target / draft accepts, and one float64 step more rejects.

    `>` for `>=`, a uniform rounded to float32, a product for the quotient, or an approximate division move the
    threshold.
    """
    equals_the_oracle(sampler, case)


@check(
    "REJ403",
    lambda can: rejecting(can, explicit=True, dense=True, drafts=("dominating",), uniforms=("largest",)),
    needs=(*_ROUNDING, Capability.DENSE_DRAFTS),
)
def recovery_without_residual_equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If rounding left no residual, the race runs over the target.

    The choice is ours (vLLM answers id 0): it is the limit of the distribution, and never a masked token.
    """
    equals_the_oracle(sampler, case)


@check(
    "REJ404",
    lambda can: rejecting(
        can, explicit=True, targets=("flat", "tied"), exponentials=("equal", "coarse"), uniforms=("half",)
    ),
    needs=(*_ROUNDING, Capability.LOWEST_ID_TIES),
)
def race_ties_go_to_the_lowest_id(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Among tokens of equal score the lowest id with residual wins.

    Real exponentials hardly ever tie, but a rule that depends on the tile size makes kernels disagree where they do.
    """
    equals_the_oracle(sampler, case)


@check(
    "REJ405",
    lambda can: rejecting(
        can,
        explicit=True,
        min_vocab_size=1023,
        targets=("flat",),
        drafts=("elsewhere",),
        tokens=("drawn",),
        uniforms=("largest",),
        dtypes=("float32",),
        max_requests=2,
        max_drafts=1,
    ),
    needs=(*_ROUNDING, Capability.LOWEST_ID_TIES),
    weight=0.4,
)
def ties_across_kernel_tiles_go_to_the_lowest_id(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If two tokens far apart share the best score of a race, the lower id wins.

    Inside a tile the reduction decides, between tiles the comparison of the scan; `>=` there lets the last tile win.
    """
    batch, noise = case.batch(sampler.device), explicit_noise(case, sampler.device)
    tied = sorted(1 + bulk_rng("tied", case.seed).choice(batch.vocab_size - 1, 2, replace=False))
    exponentials = torch.ones_like(noise.exponentials)
    exponentials[:, tied] = 0.125
    seen = emit(sampler, batch, ExplicitNoise(noise.uniforms, exponentials))
    if not (seen.tokens[:, 0] == tied[0]).all():
        broken(f"ids {tied} tie, but the first column is {seen.tokens[:, 0].tolist()}")


@check(
    "REJ406",
    lambda can: rejecting(can, explicit=True, exponentials=("denormal",)),
    needs=(*_ROUNDING, Capability.LOWEST_ID_TIES),
)
def a_race_with_denormal_exponentials_equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """If exponentials are so small that their reciprocal is infinite, the lowest id of infinite score wins.

    A masked token never wins, whether the race divides or multiplies by the reciprocal. 0 times infinity is NaN, and
    NaN in an argmax may win. torch's generators do not draw such exponentials.
    """
    equals_the_oracle(sampler, case)


@check(
    "REJ407",
    lambda can: withdrawing(can, explicit=True, greedy=False),
    needs=(*_RACE, Capability.PLACEHOLDER_DRAFTS),
)
def recovery_from_placeholder_drafts_equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A placeholder draft is replaced by a token from max(target - draft, 0), or from the target if that is all 0.

    With one-hot drafts nothing is removed from the target, because nothing was proposed.
    """
    equals_the_oracle(sampler, case)


_IMPOSSIBLE = DraftRecipe(target="last-only", draft="dominating", token="first", uniform="zero")


def _with_impossible_request(case: RejectionCase) -> RejectionCase:
    """Behind the others stands a request whose draft no target would emit, at uniform 0."""
    count = max(1, *case.num_draft_tokens)
    return case.replace(requests=(*case.requests, RequestRecipe((_IMPOSSIBLE,) * count)))


@check(
    "REJ408",
    lambda can: rejection_cases(can, explicit=True, min_vocab_size=2, widths=widths_for(can)).map(
        _with_impossible_request
    ),
    needs=_RACE,
)
def tokens_equal_the_oracle_in_the_adversarial_batches(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Everything at once: placeholder and impossible drafts, rows without residual, adversarial noise of both kinds.

    If only this check fails, two rare conditions occur together; the smallest example has both.
    """
    equals_the_oracle(sampler, case)


@check("REJ409", lambda can: lively(can, explicit=False), needs=_STREAM)
def tokens_equal_the_oracle_on_the_same_seeds(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Numbers are drawn from the generators in the documented order, so equal seeds give the oracle's tokens.

    If explicit noise agrees and seeds do not, the order of draws differs, or their dtype, or a request takes another's
    numbers.
    """
    equals_the_oracle(sampler, case)


@check("REJ410", lambda can: synthetic(can, explicit=True), needs=(*_RACE, Capability.SYNTHETIC_RATES))
def synthetic_acceptance_equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """With synthetic rates greedy requests emit accepted drafts, then the argmax; random ones recover as usual.

    Only acceptance is synthetic. A sampler that skips recovery in this mode benchmarks something else.
    """
    equals_the_oracle(sampler, case)


@check(
    "REJ411",
    lambda can: rejecting(
        can, explicit=True, targets=("normal", "zipf", "tied", "half"), max_vocab_size=100, exponentials=("random",)
    ),
    needs=_RACE,
)
def decisions_by_a_thousandth_equal_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """With uniforms 0.1 % above or below the ratio, and races won by 0.1 %, tokens equal the oracle's.

    Also run on samplers that round in their own way: no float32 arithmetic moves a score that far. Suspect bfloat16 on
    the way, an approximate logarithm or reciprocal, or a constant that is added to a probability.
    """
    batch = case.batch(sampler.device)
    equals_the_oracle_on(sampler, batch, close_steps(batch, explicit_noise(case, sampler.device), case.seed))


def _equals_the_reference(sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler) -> None:
    batch, _, emission = emit_case(sampler, case)
    _, _, expected = emit_case(reference, case)
    rows = covered(sampler, batch, case.noise(sampler.device))
    same_rows(expected.tokens[rows], emission.tokens[rows], f"{reference.name} disagrees")


@differential(
    "REJ421",
    lambda can: lively(can, explicit=False, dense=False, greedy=False, min_drafts=1, widths=UPSTREAM_WIDTHS),
    needs=(*_STREAM, Capability.ONE_HOT_DRAFTS),
)
def tokens_equal_upstream_on_one_hot_drafts(
    sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler
) -> None:
    """With the same seeds and n-gram drafts, tokens equal those of the real vLLM.

    The oracle is our reading of the contract; this compares with the code that people run.
    """
    _equals_the_reference(sampler, case, reference)


@differential(
    "REJ422",
    lambda can: lively(can, explicit=False, dense=True, greedy=False, min_drafts=1, widths=UPSTREAM_WIDTHS),
    needs=(*_STREAM, Capability.DENSE_DRAFTS),
)
def tokens_equal_upstream_on_dense_drafts(
    sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler
) -> None:
    """With the same seeds and draft distributions, tokens equal those of the real vLLM.

    If the oracle agrees and this does not, upstream has changed its acceptance test or its race.
    """
    _equals_the_reference(sampler, case, reference)


@differential(
    "REJ423",
    lambda can: lively(can, explicit=False, min_requests=2, widths=UPSTREAM_WIDTHS),
    needs=(*_STREAM, Capability.GREEDY),
)
def tokens_equal_upstream_in_mixed_batches(
    sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler
) -> None:
    """Greedy and random requests, own and shared seeds, with and without drafts: the tokens of the real vLLM.

    Upstream draws for greedy requests too if there is a random one; a sampler that skips them shifts all later numbers.
    """
    _equals_the_reference(sampler, case, reference)


@differential("REJ424", lambda can: seeded(can, widths=UPSTREAM_WIDTHS), needs=_STREAM)
def generators_end_where_upstream_leaves_them(
    sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler
) -> None:
    """torch's default generator and every per-request generator end in the states in which the real vLLM leaves them.

    Equal tokens now but other states mean other tokens at the next step.
    """
    _, _, emission = emit_case(sampler, case)
    _, _, expected = emit_case(reference, case)
    moved = [i for i, state in expected.generator_states.items() if emission.generator_states[i] != state]
    if moved or emission.default_state != expected.default_state:
        broken(
            f"{reference.name} leaves other states: requests {moved}"
            if moved
            else "the default generator's state differs"
        )


@differential(
    "REJ425",
    lambda can: synthetic(can, explicit=False, min_drafts=1, widths=UPSTREAM_WIDTHS),
    needs=(*_STREAM, Capability.SYNTHETIC_RATES),
)
def tokens_equal_upstream_with_synthetic_rates(
    sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler
) -> None:
    """Same seeds and rates, greedy requests among them: the tokens of the real vLLM (0.20.0 and later)."""
    _equals_the_reference(sampler, case, reference)


def _with_a_large_vocabulary(case: RejectionCase) -> RejectionCase:
    return case.replace(vocab_size=pick(case, LARGE_VOCAB_SIZES))


@differential(
    "REJ426",
    lambda can: rejecting(can, explicit=False, greedy=None, max_drafts=2, max_requests=2).map(_with_a_large_vocabulary),
    needs=(*_STREAM, Capability.LARGE_VOCAB),
    weight=0.1,
)
def tokens_equal_upstream_on_large_vocabularies(
    sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler
) -> None:
    """Vocabularies of several kernel tiles, up to 151936: the tokens of the real vLLM.

    Tiles of another size must not show: neither at their seams nor in the order of ties.
    """
    _equals_the_reference(sampler, case, reference)


@differential(
    "REJ427",
    lambda can: lively(can, explicit=False, greedy=True, widths=UPSTREAM_WIDTHS),
    needs=(Capability.SEEDED_NOISE, Capability.GREEDY),
)
def greedy_tokens_equal_upstream(sampler: RejectionSampler, case: RejectionCase, reference: RejectionSampler) -> None:
    """Batches of greedy requests give the tokens of the real vLLM, whatever noise either side has.

    So vLLM's model runner V2, which draws its own numbers, can be the reference, too. Look at ties.
    """
    _equals_the_reference(sampler, case, reference)
