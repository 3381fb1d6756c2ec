"""Each mutant fails every check that it names, through the engine that users run.

The mutation controls of CI (`make check`, `properties/test_controls.py`, `statistical/test_*.py`) run each mutant on
the check that names it best; the other pairs are run here, so that none is run twice. So are those of the checks that
need a reference, which a machine without vLLM skips there: here the specification is the reference. And so are all
pairs of contracts of which no run of CI has the controls.
"""

import pytest
from helpers import CHECKS

from fairdraw._core.checks import PROFILES, Check
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.failures import AdapterError, CaseRaised
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants import rejection
from fairdraw._mutants._mutant import Mutant
from fairdraw._run.controls import mutants_for, sees
from fairdraw._run.loading import all_checks
from fairdraw.statistical._distribution_check import DistributionCheck

MUTANTS = {name: [m for path in contract.mutants for m in load_part(path)] for name, contract in CONTRACTS.items()}
CONTROLS = {name: {(mutant.name, mutant.caught_by[0]) for mutant in mutants_for(name)} for name in CONTRACTS}
HAVE_CONTROLS = ("rejection", "sampling", "logits_plan", "penalties", "thinking_budget")
PAIRS = [
    (mutant, code)
    for name, mutants in MUTANTS.items()
    for mutant in mutants
    for code in mutant.caught_by
    if (mutant.name, code) not in CONTROLS[name] or CHECKS[code].differential or name not in HAVE_CONTROLS
    if mutant.min_draws <= PROFILES["ci"].draws
]
BY_NAME = {mutant.name: mutant for mutant in rejection.MUTANTS}


@pytest.mark.parametrize(("mutant", "code"), PAIRS, ids=[f"{code} {mutant}" for mutant, code in PAIRS])
def test_mutant_is_caught_by_every_check_that_it_names(mutant: Mutant, code: str) -> None:
    """With the numbers of a mutation control. Checks that judge at the end of their draws only first get fewer."""
    check = CHECKS[code]
    few = check.plays_traces or not isinstance(check, Check | DistributionCheck)
    profiles = ["smoke"] * few + ["ci"] * (not check.plays_traces)
    assert any(sees(check, mutant.make(), PROFILES[name], DEFAULT_SEED)[0] for name in profiles)


def test_no_code_stands_for_two_checks() -> None:
    assert len(CHECKS) == len(all_checks())


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_check_has_a_mutant(contract: str) -> None:
    """Checks that compare with vLLM's own scanners have none (the manual's page of mutants)."""
    named = {code for mutant in MUTANTS[contract] for code in mutant.caught_by}
    assert set(CHECKS) >= named
    assert {check.code for check in all_checks(contract=contract)} - named <= {"PEN401", "THK401"}


def test_no_mutant_was_lost() -> None:
    assert sum(map(len, MUTANTS.values())) >= 264
    for name, mutants in MUTANTS.items():
        assert len({(mutant.name, mutant.caught_by[0]) for mutant in mutants}) == len(mutants), name


def test_output_of_another_type_is_caught() -> None:
    check = CHECKS["REJ101"]
    with pytest.raises(CaseRaised) as caught:
        check.run(BY_NAME["returns int64"].make(), profile=PROFILES["smoke"])
    assert isinstance(caught.value.__cause__, AdapterError)
    assert "torch.int64, but it must be torch.int32" in str(caught.value)
