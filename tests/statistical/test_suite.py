"""The statistical checks of the rejection contract: shares, verdicts, budgets, bad input; and each has a mutant."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers import fairdraw, report_of
from torch import Tensor

from fairdraw import adapters
from fairdraw._core.checks import PROFILES, Profile
from fairdraw._core.failures import CheckFailure, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._distribution_sampler import DistributionSampler
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS
from fairdraw._mutants.sampling_distributions import right_distribution
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import Capability, Noise, RejectionSampler, SeededNoise, SpecDecodeBatch, rejection_sampler
from fairdraw.statistical import sampling
from fairdraw.statistical._configurations import RequestDistributions
from fairdraw.statistical._distribution_check import DistributionCheck, fairness, false_fail_rate
from fairdraw.statistical.rejection import CHECKS, DISTRIBUTION_CHECKS

SMOKE, CI = PROFILES["smoke"], PROFILES["ci"]
FEW = SMOKE.scaled(0.4)
"""For correct samplers, of which `rejection/torch` shows the rest in `make tests`: what is new here needs no number."""
BY_CODE = {check.code: check for check in CHECKS}
DRAWN = [check for check in DISTRIBUTION_CHECKS if isinstance(check, DistributionCheck)]


def right_sampler(**unsupported: str) -> RejectionSampler:
    combined = {Capability.EXPLICIT_NOISE.value: "draws its own numbers"}
    return rejection_sampler(DistributionSampler().verify, name="right", unsupported=combined | unsupported)


CONTRACTS = [(DISTRIBUTION_CHECKS, right_sampler()), (sampling.CHECKS, right_distribution())]


@pytest.mark.parametrize(("checks", "sampler"), CONTRACTS, ids=["rejection", "sampling"])
def test_checks_share_the_whole_rate_and_every_table_has_one_judge(checks: Sequence[Any], sampler: Any) -> None:
    assert math.fsum(check.share for check in checks) == pytest.approx(1)
    drawn = [check for check in checks if isinstance(check, DistributionCheck)]
    for workload in {check.workload for check in drawn}:
        own = [check for check in drawn if check.workload == workload]
        for name in own[0].sampling_plan(sampler, SMOKE).tables:
            assert sum(name.startswith(check.tables) for check in own) == 1, name


def test_sampler_without_seeds_is_given_numbers() -> None:
    verify = adapters.load("rejection/torch", "cpu").verify
    sampler = rejection_sampler(verify, unsupported={"seeded-noise": "takes numbers"})
    assert BY_CODE["DIST101"].run(sampler, profile=SMOKE) > 0


def test_sampler_that_takes_no_noise_is_judged_by_what_it_draws() -> None:
    rng = np.random.default_rng(0)

    def drawing(batch: SpecDecodeBatch, _: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return DistributionSampler().verify(batch, SeededNoise(int(rng.integers(2**62))))

    unsupported = dict.fromkeys(("seeded-noise", "explicit-noise"), "it draws by itself")
    assert BY_CODE["DIST101"].run(rejection_sampler(drawing, unsupported=unsupported), profile=SMOKE) > 0
    with pytest.raises(CheckFailure, match="TV"):
        BY_CODE["DIST101"].run(rejection_sampler(uniform_rows, unsupported=unsupported), profile=SMOKE)


NO_DENSE, NO_HOT = frozenset({Capability.DENSE_DRAFTS}), frozenset({Capability.ONE_HOT_DRAFTS})
SIMPLE = frozenset({Capability.RAGGED, Capability.GREEDY, Capability.LARGE_VOCAB})
ADAPTED = [NO_DENSE, NO_HOT | SIMPLE, NO_DENSE | SIMPLE]


def test_check_without_draft_probabilities_sees_a_fault() -> None:
    mutant = next(mutant.make() for mutant in DISTRIBUTION_MUTANTS if mutant.name == "calls share their noise")
    unsupported = {**mutant.capabilities.unsupported, **dict.fromkeys(NO_DENSE, "for the test")}
    with pytest.raises(CheckFailure, match="TV"):
        BY_CODE["DIST322"].run(rejection_sampler(mutant.verify, unsupported=unsupported), profile=CI, seed=DEFAULT_SEED)


@pytest.mark.parametrize("lacking", ADAPTED, ids=lambda words: ", ".join(sorted(words)))
def test_right_sampler_passes_whatever_it_lacks(lacking: frozenset[Capability]) -> None:
    """Batches keep to what is supported: the adapter refuses everything else."""
    sampler = Strict(right_sampler(**dict.fromkeys(lacking, "for the test")))
    asked = [check for check in DRAWN if check.why_not(sampler) is None]
    workloads = {check.workload: check for check in asked}
    for check in workloads.values():  # checks of a workload share its draws
        assert check.run(sampler, profile=FEW, seed=DEFAULT_SEED) > 0
    assert "DIST322" in {check.code for check in asked}


class Strict:
    """A sampler that takes nothing that it declares as unsupported."""

    def __init__(self, sampler: RejectionSampler) -> None:
        self.name, self.device, self.capabilities = sampler.name, sampler.device, sampler.capabilities
        self._sampler = sampler

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        used = {
            Capability.DENSE_DRAFTS: batch.draft_probs is not None,
            Capability.ONE_HOT_DRAFTS: batch.draft_probs is None,
            Capability.GREEDY: bool(batch.is_greedy.any()),
            Capability.RAGGED: len({*batch.num_draft_tokens, batch.max_spec_len}) > 1,
            Capability.LARGE_VOCAB: batch.vocab_size > 1025,
        }
        assert not {one for one, is_used in used.items() if is_used} - {one for one in used if one in self.capabilities}
        return self._sampler.verify(batch, noise)


def uniform_rows(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Every possible token alike, whatever its probability, instead of the first draft."""
    rng = np.random.default_rng(noise.seed)
    tokens = torch.full((batch.batch_size, batch.max_spec_len + 1), -1, dtype=torch.int32)
    tokens[:, 0] = batch.bonus_token_ids[:, 0]
    for request, count in enumerate(batch.num_draft_tokens):
        if count:
            row = batch.target_logits[batch.token_slice(request).start]
            tokens[request, 0] = int(rng.choice(np.flatnonzero(row.numpy() > -np.inf)))
    return tokens


# What a person sees.


def test_alpha_is_smaller_with_the_seed_of_the_release() -> None:
    assert false_fail_rate(DEFAULT_SEED) == 1e-6
    assert false_fail_rate(DEFAULT_SEED + 1) == 1e-4


def test_header_states_error_rates_and_claims_no_distance() -> None:
    text = fairness(CHECKS, right_sampler(), CI, DEFAULT_SEED)
    assert text.startswith(f"alpha 1e-06 over {len(DISTRIBUTION_CHECKS)} checks, power 0.999; what could be seen")
    assert "TV" not in text


def test_slow_sampler_sees_less() -> None:
    slow, fast = rejection_sampler(DistributionSampler().verify, slow=True), right_sampler()
    assert "a slow sampler: few draws" in fairness(CHECKS, slow, CI, DEFAULT_SEED)
    for code in ("DIST101", "DIST601", "DIST691"):
        check = next(one for one in CHECKS if one.code == code)
        few, many = check.resolution(slow, CI, DEFAULT_SEED, 1_000), check.resolution(fast, CI, DEFAULT_SEED, 10_000)
        assert (few.tv or few.bias or 1) > (many.tv or many.bias or 1) > 0


def test_control_line_counts_and_names_the_smallest_distance() -> None:
    result = fairdraw("check", "rejection/torch", "-k", "DIST203", "--profile", "smoke")
    assert result.exit_code == 0
    assert re.search(
        r"controls \(rejection\): 2/2 caught at this run's numbers in .* s, smallest TV caught 0\.", result.output
    )


# Bad input.


def test_too_few_rows_are_an_error_of_the_adapter() -> None:
    sampler = rejection_sampler(lambda batch, noise: DistributionSampler().verify(batch, noise)[1:], name="short")
    record = run_check(BY_CODE["DIST101"], sampler, Session(profile=SMOKE, crash_folder=None))
    assert record.status == "error"
    assert report_of(record).title.startswith("sampler returned something that is not an output")


@pytest.mark.parametrize("draws", [0, 1, 10])
def test_budget_that_shows_nothing_is_inconclusive(draws: int) -> None:
    for code in ("DIST101", "DIST203"):
        with pytest.raises(Inconclusive):
            BY_CODE[code].run(right_sampler(), profile=Profile("tiny", 2, 2, draws, draws))


def test_distribution_that_does_not_sum_is_refused() -> None:
    distributions = RequestDistributions(np.zeros((2, 4), np.float32), np.full((1, 4), 0.5, np.float32))
    with pytest.raises(ValueError, match="draft_probs has a row that sums to 2, but it must sum to 1"):
        distributions.exact_draft_probs()
