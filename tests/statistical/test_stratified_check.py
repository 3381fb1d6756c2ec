"""Checks by stratified noise: exact shares, small faults in few draws, and samplers that cannot have them."""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraw import adapters
from fairdraw._core.checks import PROFILES, Profile
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._distribution_sampler import DistributionSampler, Floats
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants.distributions import STRATIFIED_MUTANTS
from fairdraw._mutants.rejection import MUTANTS
from fairdraw.contracts import (
    ExplicitNoise,
    FunctionSampler,
    Noise,
    RejectionSampler,
    SpecDecodeBatch,
    rejection_sampler,
)
from fairdraw.statistical._stratified import stratified_exponentials, stratified_uniforms
from fairdraw.statistical._stratified_check import STRATIFIED_CHECKS, InjectedCheck, StratifiedCheck
from fairdraw.statistical.rejection import CHECKS, DISTRIBUTION_CHECKS
from odd.rejection import ODD as ODD_REJECTION

CI = PROFILES["ci"]
BY_CODE = {check.code: check for check in STRATIFIED_CHECKS}
INJECTED = [check for check in STRATIFIED_CHECKS if isinstance(check, InjectedCheck)]


def slow(sampler: RejectionSampler) -> RejectionSampler:
    """The same sampler with the draws of an interpreter."""
    capabilities = dataclasses.replace(sampler.capabilities, slow=True)
    return FunctionSampler(sampler.name, sampler.verify, sampler.device, capabilities)


@pytest.mark.parametrize("check", STRATIFIED_CHECKS, ids=str)
@pytest.mark.parametrize("name", ["rejection/torch", "rejection/oracle"])
def test_correct_sampler_has_exact_shares(check: StratifiedCheck, name: str) -> None:
    assert check.run(adapters.load(name, "cpu"), profile=CI) > 0


@pytest.mark.parametrize("sampler", ODD_REJECTION, ids=lambda sampler: sampler.name)
@pytest.mark.parametrize("check", INJECTED, ids=str)
def test_right_sampler_of_any_way_to_draw_is_not_accused(check: StratifiedCheck, sampler: RejectionSampler) -> None:
    """One draws request by request, with a generator of its own for each."""
    with contextlib.suppress(CapabilityUnsupported):
        assert check.run(sampler, profile=PROFILES["smoke"]) > 0


@pytest.mark.parametrize("chunk", [1, 3, 4, 8, 9, 64, 256])
@pytest.mark.parametrize("check", INJECTED, ids=str)
def test_right_sampler_that_works_through_its_batch_in_parts_is_judged(check: StratifiedCheck, chunk: int) -> None:
    """Halves of the batch have as many drafts as the batch has requests: the probe may find that out, and skip."""

    def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        uniforms, exponentials = [], []
        for first in range(0, batch.batch_size, chunk):
            requests = range(first, min(first + chunk, batch.batch_size))
            uniforms += [torch.rand(sum(batch.num_draft_tokens[request] for request in requests), dtype=torch.float64)]
            exponentials += [torch.empty(len(requests), batch.vocab_size).exponential_()]
        return DistributionSampler().verify(batch, ExplicitNoise(torch.cat(uniforms), torch.cat(exponentials)))

    with contextlib.suppress(CapabilityUnsupported) if chunk in (4, 256) else contextlib.nullcontext():
        assert check.run(rejection_sampler(verify), profile=PROFILES["smoke"]) > 0


# Faults in what is done with given noise, and the check that sees them at the smallest budget.
FAULTS = {
    "accepts by the target alone": "DIST601",
    "takes the root of the ratio": "DIST601",
    "accepts by the exponentials": "DIST601",
    "recovers from the target": "DIST602",
    "keeps the rejected draft in the race": "DIST602",
    "never recovers the last token": "DIST602",
    "recovers with the rejecting uniform": "DIST602",
    "recovers the runner up": "DIST602",
    "takes the distribution of the last position": "DIST602",
    "takes the next requests bonus token": "DIST601",
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_the_use_of_noise_is_caught(name: str) -> None:
    mutant = next(found for found in MUTANTS if found.name == name)
    with pytest.raises(CheckFailure, match="no chance is involved"):
        BY_CODE[FAULTS[name]].run(mutant.make(), profile=PROFILES["smoke"].scaled(0.04))


def test_single_wrong_answer_is_caught() -> None:
    """One row of thousands."""
    calls: list[object] = []

    def nearly_correct(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        calls.append(batch)
        tokens = DistributionSampler().verify(batch, noise)
        if len(calls) == 1:
            tokens[3] = 5
        return tokens

    with pytest.raises(CheckFailure, match=r"strata: no chance is involved; \d output rows that no noise can give"):
        BY_CODE["DIST602"].run(rejection_sampler(nearly_correct), profile=CI)


def test_strata_have_the_moments_of_their_distributions() -> None:
    assert stratified_uniforms(1000).mean() == pytest.approx(0.5)
    assert stratified_exponentials(1000).mean() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("mutant", STRATIFIED_MUTANTS[:3], ids=str)
def test_small_fault_at_the_budget_of_an_interpreter_is_caught(mutant: Mutant) -> None:
    with pytest.raises(CheckFailure, match="no chance is involved"):
        BY_CODE[mutant.caught_by[0]].run(slow(mutant.make()), profile=CI)


def test_sampling_at_the_budget_of_an_interpreter_does_not_see_what_strata_see() -> None:
    flattens = next(mutant for mutant in STRATIFIED_MUTANTS if mutant.name == "flattens the residual")
    for check in DISTRIBUTION_CHECKS:
        if check.code in ("DIST101", "DIST111", "DIST203", "DIST213"):
            assert check.run(slow(flattens.make()), profile=CI, seed=DEFAULT_SEED) > 0


@pytest.mark.parametrize("factor", [0.98, 0.9, 0.5])
def test_probability_off_by_more_than_a_stratum_is_caught(factor: float) -> None:
    """A draft token that is always accepted is accepted in a share `factor`, which is off by more than 1 / 64."""

    class Factor(DistributionSampler):
        def acceptance(self, target: Floats, draft: Floats) -> Floats:
            return np.asarray(np.float32(factor) * np.minimum(target / draft, 1))

    with pytest.raises(CheckFailure, match=r"draft token . at position . is accepted in"):
        BY_CODE["DIST601"].run(rejection_sampler(Factor().verify, slow=True), profile=CI)


def test_fewer_draws_than_strata_are_inconclusive() -> None:
    sampler = adapters.load("rejection/torch", "cpu")
    with pytest.raises(Inconclusive, match="fill fewer than 8 strata"):
        BY_CODE["DIST601"].run(sampler, profile=Profile("tiny", 2, 2, 100, 100))


def test_end_of_the_time_budget_is_inconclusive() -> None:
    answers = iter([False, False, True])
    with pytest.raises(Inconclusive, match="the time budget ended: 1 shares were measured"):
        BY_CODE["DIST601"].run(adapters.load("rejection/torch", "cpu"), profile=CI, out_of_time=lambda: next(answers))


@pytest.mark.parametrize("unsupported", ["explicit-noise", "reference-race", "token-verification"])
def test_sampler_that_takes_no_numbers_is_skipped(unsupported: str) -> None:
    sampler = rejection_sampler(DistributionSampler().verify, unsupported={unsupported: "not this one"})
    with pytest.raises(CapabilityUnsupported, match="not this one"):
        BY_CODE["DIST602"].run(sampler)


def test_stratified_checks_take_no_share_of_alpha() -> None:
    assert set(CHECKS) - set(DISTRIBUTION_CHECKS) == set(STRATIFIED_CHECKS)
    assert not any(hasattr(check, "share") for check in STRATIFIED_CHECKS)
