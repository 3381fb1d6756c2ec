"""A few hundred cases contain every kind, flag and branch; mutants shrink to one request and a tiny vocabulary."""

import importlib
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from helpers import drawn
from hypothesis import Phase, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw import strategies as fst
from fairdraw._core.checks import PROFILES, Profile, check
from fairdraw._core.failures import CheckFailure
from fairdraw._mutants.rejection import MUTANTS
from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw.contracts import RejectionSampler, rejection_sampler
from fairdraw.contracts._rejection import emit
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe, rejection_cases

EVERYTHING = rejection_cases(targets=(*fst.TARGET_KINDS, *fst.INVALID_KINDS), layouts=fst.LAYOUTS)
equal = partial(RequestRecipe, exponentials="equal")
ORACLE = rejection_sampler(RejectionOracle().verify, name="oracle")


@cache
def many_cases() -> list[RejectionCase]:
    """About 500, the same at every run."""
    return drawn(EVERYTHING, 500)


class Witness(RejectionOracle):
    """The oracle; it records which branches were taken."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def accepts(self, step: DraftStep) -> bool:
        accepted = super().accepts(step)
        self.seen.add("placeholder" if not step.is_token else "accepted" if accepted else "rejected")
        return accepted

    def greedy_token(self, step: DraftStep) -> int:
        best = super().greedy_token(step)
        self.seen.add("greedy accepted" if best == step.draft_token_id else "greedy rejected")
        if (step.target_logits == step.target_logits[best]).sum() > 1:
            self.seen.add("greedy tie")
        return best

    def recovered_token(self, step: DraftStep) -> int:
        has_residual, has_target = ((probs > 0).any() for probs in (self.residual(step), step.target_probs))
        self.seen.add(
            "recovered" if has_residual else "recovered without residual" if has_target else "no distribution"
        )
        return super().recovered_token(step)

    def race(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        with np.errstate(all="ignore"):
            scores = weights * (np.float32(1) / exponentials)
        self.seen.add("race tie" if (scores == scores.max()).sum() > 1 else "race won")
        return super().race(weights, exponentials)


# -- coverage


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("target", {*fst.TARGET_KINDS, *fst.INVALID_KINDS}),
        ("draft", {*fst.DRAFT_KINDS}),
        ("token", {*fst.TOKEN_KINDS}),
        ("uniform", {*fst.UNIFORM_KINDS}),
        ("exponentials", {*fst.EXPONENTIAL_KINDS}),
        *((flag, {False, True}) for flag in ("greedy", "request_seed", "dense", "explicit")),
        ("slack", {0, 1}),
        ("dtype", {*fst.DTYPES}),
        ("layout", {*fst.LAYOUTS}),
        ("vocab_size", {*range(1, 9), *fst.AWKWARD_VOCAB_SIZES}),
    ],
)
def test_every_kind_of_batch_request_and_draft_occurs(field: str, values: set[object]) -> None:
    requests = [request for case in many_cases() for request in case.requests]
    parts = [*many_cases(), *requests, *(draft for request in requests for draft in request.drafts)]
    assert {getattr(part, field) for part in parts if hasattr(part, field)} == values


def test_ragged_draftless_and_mixed_batches_occur() -> None:
    counts = [case.num_draft_tokens for case in many_cases()]
    assert any(len(set(c)) > 1 for c in counts)
    assert any(0 in c and any(c) for c in counts)
    assert any(len(c) > 1 and not any(c) for c in counts)
    assert any(len({request.greedy for request in case.requests}) == 2 for case in many_cases())
    assert any(len({request.request_seed for request in case.requests}) == 2 for case in many_cases())


def test_every_branch_of_the_oracle_is_taken() -> None:
    witness = Witness()
    for case in many_cases():
        witness.verify(case.batch(), case.noise())
    assert witness.seen == {
        "accepted", "rejected", "placeholder", "greedy accepted", "greedy rejected", "greedy tie",
        "recovered", "recovered without residual", "no distribution", "race won", "race tie",
    }  # fmt: skip


def equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The sampler and the specification emit the same tokens."""
    expected, seen = emit(ORACLE, case.batch(), case.noise()), emit(sampler, case.batch(), case.noise())
    if not np.array_equal(expected.tokens, seen.tokens):
        raise CheckFailure(f"{seen.tokens.tolist()} instead of {expected.tokens.tolist()}")


EQUALITY = check("TST001", lambda can: EVERYTHING, contract="rejection")(equals_the_oracle)


def smallest_failure(name: str) -> RejectionCase:
    """The case to which the mutant's fault shrinks."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with pytest.raises(CheckFailure) as caught:
        EQUALITY.run(mutant.make(), profile=Profile("test", 400, 400))
    return caught.value.case


# -- shrinking


@pytest.mark.parametrize(
    "name",
    [
        "divides draft by target", "accepts strictly above the uniform", "accepts placeholders", "accepts nan",
        "goes on after a rejection", "forgets the bonus token", "recovers from the target",
        "keeps the rejected draft in the race", "race ties go to the highest id",
        "greedy takes the highest id on ties", "greedy accepts by chance", "never recovers the last token",
    ],
)  # fmt: skip
def test_mutant_shrinks_to_one_request_and_a_tiny_vocabulary(name: str) -> None:
    case = smallest_failure(name)
    assert len(case.requests) == 1
    assert case.vocab_size <= 4


def test_fault_between_requests_shrinks_to_two_of_them() -> None:
    case = smallest_failure("takes the next requests bonus token")
    assert (case.num_draft_tokens, case.vocab_size) == ([0, 0], 2)


@pytest.mark.parametrize(
    ("is_wanted", "smallest"),
    [
        (lambda case: case.dense and case.vocab_size > 2, RejectionCase(3, (equal(),), dense=True)),
        (
            lambda case: any(draft.token == "placeholder" for r in case.requests for draft in r.drafts),
            RejectionCase(1, (equal((DraftRecipe(token="placeholder", uniform="half"),)),)),
        ),
        (
            lambda case: len(set(case.num_draft_tokens)) > 1,
            RejectionCase(1, (equal(), equal((DraftRecipe(uniform="half"),)))),
        ),
        (
            lambda case: any(r.request_seed for r in case.requests),
            RejectionCase(1, (RequestRecipe(request_seed=True),), explicit=False),
        ),
        (
            lambda case: case.vocab_size > 500 and case.dtype != "float32",
            RejectionCase(1023, (equal(),), dtype="bfloat16"),
        ),
    ],
    ids=["dense", "placeholder", "ragged", "per-request seed", "half precision beyond 500 tokens"],
)
def test_wanted_case_shrinks_to_the_smallest_of_its_kind(
    is_wanted: Callable[[RejectionCase], bool], smallest: RejectionCase
) -> None:
    limits = settings(max_examples=400, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)
    assert hypothesis.find(EVERYTHING, is_wanted, settings=limits, random=random.Random(0)) == smallest


def test_seed_means_the_same_cases_whatever_modules_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis would mix the numbers of a user's modules into wide draws."""

    def drawn_numbers() -> list[int]:
        seen: list[int] = []
        look = check("REJ999", lambda can: st.integers(0, 2**40), contract="rejection")(
            lambda sampler, case: seen.append(case)
        )
        look.run(ORACLE, profile=PROFILES["ci"], seed=3)
        return seen

    before = drawn_numbers()
    (tmp_path / "numbers_of_a_user.py").write_text(f"NUMBERS = {[7919 * i for i in range(1000, 2000)]}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("numbers_of_a_user")
    assert drawn_numbers() == before
