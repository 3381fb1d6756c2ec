"""Rules that trim drafts: each mutant is caught by DIST821, right rules pass, and bad answers are named."""

from typing import Any

import pytest
import torch

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import AdapterError, CapabilityUnsupported, CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._mutant import Mutant, as_rejection
from fairdraw._mutants._trimming import TRIM_MUTANTS, Trims
from fairdraw.contracts import ProposedDrafts, rejection_sampler
from fairdraw.statistical._trimming import TRIM_CHECKS
from odd.rejection_draws import ODD_TRIMS

SMOKE = PROFILES["smoke"]
CHECK = TRIM_CHECKS[0]


@pytest.mark.parametrize("mutant", TRIM_MUTANTS, ids=str)
def test_mutant_is_caught_in_smoke(mutant: Mutant) -> None:
    with pytest.raises(CheckFailure):
        CHECK.run(mutant.make(), profile=SMOKE, seed=DEFAULT_SEED)


@pytest.mark.parametrize("kind", ODD_TRIMS)
def test_right_rule_passes(kind: type[Trims]) -> None:
    assert CHECK.run(as_rejection(kind()), profile=SMOKE, seed=DEFAULT_SEED) > 0


def test_sampler_that_verifies_all_drafts_is_not_asked() -> None:
    with pytest.raises(CapabilityUnsupported, match=r"trim is unsupported: it verifies all drafts"):
        CHECK.run(rejection_sampler(Trims().verify), profile=SMOKE)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda drafts: drafts.num_draft_tokens, "returned list, but it must return a tensor"),
        (lambda drafts: torch.full((drafts.batch_size,), 9), "each must lie between 0 and the request's number of dr"),
    ],
)
def test_bad_answer_is_named(answer: Any, message: str) -> None:  # Any: of any type
    def trim(drafts: ProposedDrafts) -> Any:
        return answer(drafts)

    with pytest.raises(AdapterError, match=message):
        CHECK.run(rejection_sampler(Trims().verify, trim=trim, name="bad"), profile=SMOKE)
