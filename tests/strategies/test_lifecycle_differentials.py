"""The checks that compare with a reference scanner can fail, too: each catches mutants of the specification."""

import pytest
from helpers import CHECKS

from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._run.controls import Planned, run_control
from fairdraw._run.runner import Session


@pytest.mark.parametrize(("contract", "code"), [("penalties", "PEN401"), ("thinking_budget", "THK401")])
def test_fault_beside_the_reference_is_caught(contract: str, code: str) -> None:
    right = load_part(CONTRACTS[contract].right)()
    mutants = [mutant for path in CONTRACTS[contract].mutants for mutant in load_part(path)][:6]
    assert any(run_control(Planned(mutant, CHECKS[code]), right, Session()).caught for mutant in mutants)
