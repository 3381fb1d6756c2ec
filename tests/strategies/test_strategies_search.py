"""A few hundred cases hold every kind, flag and branch; mutants shrink to one request and a tiny vocabulary."""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fairdraw import strategies as fst
from fairdraw._core.checks import Profile, check
from fairdraw._core.failures import CheckFailure
from fairdraw._core.harness import emit
from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw.protocols import Noise, RejectionSampler, SpecDecodeBatch, rejection_sampler
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe, rejection_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

EVERYTHING = rejection_cases(targets=(*fst.TARGET_KINDS, *fst.INVALID_KINDS), layouts=fst.LAYOUTS)
ORACLE = rejection_sampler(RejectionOracle().verify, name="oracle")


@cache
def many_cases() -> list[RejectionCase]:
    """About 500, the same at every run."""
    cases: list[RejectionCase] = []

    def collect(case: RejectionCase) -> None:
        cases.append(case)

    limits = settings(
        max_examples=500,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    limits(hypothesis.seed(0)(given(EVERYTHING)(collect)))()
    return cases


class Witness(RejectionOracle):
    """The oracle, which remembers what it had to do."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def accepts(self, step: DraftStep) -> bool:
        accepted = super().accepts(step)
        self.seen.add("placeholder draft" if not step.is_token else "accepted" if accepted else "rejected")
        return accepted

    def greedy_token(self, step: DraftStep) -> int:
        best = super().greedy_token(step)
        self.seen.add("greedy accepted" if best == step.draft_token_id else "greedy rejected")
        if (step.target_logits == step.target_logits[best]).sum() > 1:
            self.seen.add("greedy tie")
        return best

    def recovered_token(self, step: DraftStep) -> int:
        has_residual, has_target = (
            (distribution > 0).any() for distribution in (self.residual(step), step.target_probs)
        )
        self.seen.add(
            "recovered" if has_residual else "recovered without residual" if has_target else "no distribution"
        )
        return super().recovered_token(step)

    def race(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        with np.errstate(all="ignore"):
            scores = weights * (np.float32(1) / exponentials)
        self.seen.add("race tie" if (scores == scores.max()).sum() > 1 else "race won")
        return super().race(weights, exponentials)


class TestCoverage:
    @pytest.mark.parametrize(
        ("field", "kinds"),
        [
            ("target", (*fst.TARGET_KINDS, *fst.INVALID_KINDS)),
            ("draft", fst.DRAFT_KINDS),
            ("token", fst.TOKEN_KINDS),
            ("uniform", fst.UNIFORM_KINDS),
        ],
    )
    def test_every_kind_of_draft_occurs(self, field: str, kinds: tuple[str, ...]) -> None:
        drafts = [draft for case in many_cases() for request in case.requests for draft in request.drafts]
        assert {getattr(draft, field) for draft in drafts} == set(kinds)

    @pytest.mark.parametrize(
        ("field", "values"),
        [("greedy", {False, True}), ("request_seed", {False, True}), ("exponentials", set(fst.EXPONENTIAL_KINDS))],
    )
    def test_every_kind_of_request_occurs(self, field: str, values: set[object]) -> None:
        assert {getattr(request, field) for case in many_cases() for request in case.requests} == values

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("dense", {False, True}),
            ("explicit", {False, True}),
            ("slack", {0, 1}),
            ("dtype", set(fst.DTYPES)),
            ("layout", set(fst.LAYOUTS)),
            ("vocab_size", {*range(1, 9), *fst.AWKWARD_VOCAB_SIZES}),
        ],
    )
    def test_every_kind_of_batch_occurs(self, field: str, values: set[object]) -> None:
        assert {getattr(case, field) for case in many_cases()} == values

    def test_ragged_draftless_and_mixed_batches_occur(self) -> None:
        counts = [case.num_draft_tokens for case in many_cases()]
        assert any(len(set(c)) > 1 for c in counts)
        assert any(0 in c and any(c) for c in counts)
        assert any(len(c) > 1 and not any(c) for c in counts)
        assert any(len({request.greedy for request in case.requests}) == 2 for case in many_cases())
        assert any(len({request.request_seed for request in case.requests}) == 2 for case in many_cases())

    def test_every_branch_of_the_oracle_is_taken(self) -> None:
        witness = Witness()
        for case in many_cases():
            witness.verify(case.batch(), case.noise())
        assert witness.seen == {
            "accepted", "rejected", "placeholder draft", "greedy accepted", "greedy rejected", "greedy tie",
            "recovered", "recovered without residual", "no distribution", "race won", "race tie",
        }  # fmt: skip


def equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The sampler and the specification emit the same tokens."""
    expected, seen = emit(ORACLE, case.batch(), case.noise()), emit(sampler, case.batch(), case.noise())
    if not np.array_equal(expected.tokens, seen.tokens):
        raise CheckFailure(f"{seen.tokens.tolist()} instead of {expected.tokens.tolist()}")


EQUALITY = check("TST001", lambda can: EVERYTHING)(equals_the_oracle)


def smallest_failure(planted: RejectionOracle) -> RejectionCase:
    """The case to which the mutant shrinks."""
    with pytest.raises(CheckFailure) as caught:
        EQUALITY.run(rejection_sampler(planted.verify, name="planted"), profile=Profile("test", 400, 400))
    case = caught.value.case
    assert isinstance(case, RejectionCase)
    return case


class AcceptsAtTwiceTheRatio(RejectionOracle):
    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, uniform=step.uniform / 2))


class AcceptsByTheInverseRatio(RejectionOracle):
    def accepts(self, step: DraftStep) -> bool:
        if step.draft_probs is None:
            return super().accepts(step)
        return super().accepts(dataclasses.replace(step, target_probs=step.draft_probs, draft_probs=step.target_probs))


class AcceptsOnlyAboveTheUniform(RejectionOracle):
    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, uniform=float(np.nextafter(step.uniform, 2))))


class AcceptsPlaceholderDrafts(RejectionOracle):
    def accepts(self, step: DraftStep) -> bool:
        return not step.is_token or super().accepts(step)


class AcceptsRowsWithNan(RejectionOracle):
    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(step) or bool(step.is_token and np.isnan(step.target_probs).any())


class GoesOnAfterARejection(RejectionOracle):
    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return [*(s.draft_token_id if self.accepts(s) else self.recovered_token(s) for s in steps), bonus_token_id]


class ForgetsTheBonusToken(RejectionOracle):
    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return super().random_request(steps, bonus_token_id)[: max(len(steps), 1)]


class RecoversFromTheTarget(RejectionOracle):
    def residual(self, step: DraftStep) -> NDArray[np.float32]:  # [vocab_size] float32
        return step.target_probs


class RecoversTheOneHotDraft(RejectionOracle):
    def residual(self, step: DraftStep) -> NDArray[np.float32]:  # [vocab_size] float32
        return step.target_probs if step.draft_probs is None else super().residual(step)


class LosesTheTailOfTheRace(RejectionOracle):
    def race(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        return super().race(
            weights[: weights.size - weights.size % 2 or 1], exponentials[: weights.size - weights.size % 2 or 1]
        )


class RacesToTheHighestId(RejectionOracle):
    def race(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        return weights.size - 1 - super().race(weights[::-1], exponentials[::-1])


class DecodesTheHighestId(RejectionOracle):
    def greedy_token(self, step: DraftStep) -> int:
        return step.target_logits.size - 1 - int(np.argmax(step.target_logits[::-1]))


class DecodesGreedyRequestsAtRandom(RejectionOracle):
    def greedy_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return self.random_request(steps, bonus_token_id)


class ScribblesIntoLogits(RejectionOracle):
    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        batch.target_logits[:, 1:] = 0
        return super().verify(batch, noise)


PLANTED = [
    AcceptsAtTwiceTheRatio, AcceptsByTheInverseRatio, AcceptsOnlyAboveTheUniform, AcceptsPlaceholderDrafts,
    AcceptsRowsWithNan, GoesOnAfterARejection, ForgetsTheBonusToken, RecoversFromTheTarget, RecoversTheOneHotDraft,
    LosesTheTailOfTheRace, RacesToTheHighestId, DecodesTheHighestId, DecodesGreedyRequestsAtRandom, ScribblesIntoLogits,
]  # fmt: skip


class GivesAllTheFirstBonusToken(RejectionOracle):
    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        first = batch.bonus_token_ids[:1].expand_as(batch.bonus_token_ids)
        return super().verify(batch.replace(bonus_token_ids=first.contiguous()), noise)


class TestShrinking:
    @pytest.mark.parametrize("planted", PLANTED, ids=lambda fault: fault.__name__)
    def test_mutant_shrinks_to_one_request_and_a_tiny_vocabulary(self, planted: type[RejectionOracle]) -> None:
        case = smallest_failure(planted())
        assert len(case.requests) == 1
        assert case.vocab_size <= 4

    def test_fault_between_requests_shrinks_to_two_of_them(self) -> None:
        case = smallest_failure(GivesAllTheFirstBonusToken())
        assert (case.num_draft_tokens, case.vocab_size) == ([0, 0], 2)

    @pytest.mark.parametrize(
        ("is_wanted", "smallest"),
        [
            (
                lambda case: case.dense and case.vocab_size > 2,
                RejectionCase(3, (RequestRecipe(exponentials="equal"),), dense=True),
            ),
            (
                lambda case: any(draft.token == "placeholder" for r in case.requests for draft in r.drafts),
                RejectionCase(
                    1, (RequestRecipe((DraftRecipe(token="placeholder", uniform="half"),), exponentials="equal"),)
                ),
            ),
            (
                lambda case: len(set(case.num_draft_tokens)) > 1,
                RejectionCase(
                    1,
                    (
                        RequestRecipe(exponentials="equal"),
                        RequestRecipe((DraftRecipe(uniform="half"),), exponentials="equal"),
                    ),
                ),
            ),
            (
                lambda case: any(r.request_seed for r in case.requests),
                RejectionCase(1, (RequestRecipe(request_seed=True),), explicit=False),
            ),
            (
                lambda case: case.vocab_size > 500 and case.dtype != "float32",
                RejectionCase(1023, (RequestRecipe(exponentials="equal"),), dtype="bfloat16"),
            ),
        ],
        ids=["dense", "placeholder", "ragged", "per-request seed", "half precision beyond 500 tokens"],
    )
    def test_wanted_case_shrinks_to_the_smallest_of_its_kind(
        self, is_wanted: Callable[[RejectionCase], bool], smallest: RejectionCase
    ) -> None:
        limits = settings(
            max_examples=400,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        )
        assert hypothesis.find(EVERYTHING, is_wanted, settings=limits, random=random.Random(0)) == smallest
