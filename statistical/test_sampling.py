"""The laws of the sampling contract, asked of the sampler that `--sampler` names; and that these checks can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.mutants.sampling_laws import LAW_MUTANTS
from fairdraw.statistical.sampling import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.mutants.rejection import Mutant
    from fairdraw.statistical.law_check import LawCheck


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_sampling(check: LawCheck, fairdraw_run: Callable[[LawCheck], None]) -> None:
    fairdraw_run(check)


@pytest.mark.parametrize("mutant", LAW_MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in LAW_MUTANTS])
def test_mutant_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
