"""The statistical checks of the log-probabilities contract on the sampler that `--sampler` names, and their mutants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants.logprobs import MUTANTS as ALL
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical.logprobs import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_logprobs(check: DistributionCheck, fairdraw_run: Callable[[DistributionCheck], None]) -> None:
    fairdraw_run(check)


MUTANTS = tuple(mutant for mutant in ALL if mutant.caught_by[0] in {check.code for check in CHECKS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in MUTANTS])
def test_mutant_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
