"""The statistical checks of the sampling contract on the sampler that `--sampler` names, and their mutants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw._mutants._dependence import SAMPLING_MUTANTS
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants.sampling_distributions import DISTRIBUTION_MUTANTS
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical.sampling import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_sampling(check: DistributionCheck, fairdraw_run: Callable[[DistributionCheck], None]) -> None:
    fairdraw_run(check)


MUTANTS = (*DISTRIBUTION_MUTANTS, *SAMPLING_MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in MUTANTS])
def test_mutant_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
