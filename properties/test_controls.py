"""The checks can fail: each planted fault is caught by the check that names it best, here and in this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.mutants.rejection import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.mutants.rejection import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in MUTANTS])
def test_planted_fault_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
