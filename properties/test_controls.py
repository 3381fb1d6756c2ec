"""The properties can fail: each mutant of every contract is put to the check that names it best, in this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.contracts import CONTRACTS
from fairdraw.controls import mutants_for
from fairdraw.loading import all_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.mutants.rejection import Mutant

CODES = {check.code for check in all_checks("properties")}
# Mutants whose distribution is wrong stand beside the statistical checks.
MUTANTS = [mutant for contract in CONTRACTS for mutant in mutants_for(contract) if mutant.caught_by[0] in CODES]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in MUTANTS])
def test_mutant_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
