"""The statistical checks of the rejection contract on the sampler that `--sampler` names, and their mutants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw._mutants._dependence import REJECTION_MUTANTS
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants._pairs import PAIR_MUTANTS
from fairdraw._mutants._trimming import TRIM_MUTANTS
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical.rejection import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_distribution(check: DistributionCheck, fairdraw_run: Callable[[DistributionCheck], None]) -> None:
    fairdraw_run(check)


MUTANTS = (*DISTRIBUTION_MUTANTS, *REJECTION_MUTANTS, *PAIR_MUTANTS, *TRIM_MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in MUTANTS])
def test_mutant_of_the_distribution_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
