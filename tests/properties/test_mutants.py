"""No check is vacuous and no fault goes unseen: faults are caught, each check catches one, odd samplers pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw._core.checks import Check, Profile
from fairdraw._core.failures import AdapterError, CapabilityUnsupported, CheckFailure
from fairdraw._mutants.rejection import MUTANTS, ODD_BUT_RIGHT, Mutant
from fairdraw._mutants.table import catches, caught_table, drawn_cases
from fairdraw._oracles.rejection import verify
from fairdraw._run.runner import one_torch_thread
from fairdraw.properties.rejection import CHECKS
from fairdraw.protocols import rejection_sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_CODE = {check.code: check for check in CHECKS}
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
ORACLE = rejection_sampler(verify, name="oracle")
FEW = Profile("few", 5, 5)

# Its answer is refused before any check sees it.
REFUSED = "returns int64"


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name != REFUSED], ids=str)
def test_mutant_is_caught(mutant: Mutant) -> None:
    missed = [
        code for code in mutant.caught_by if not catches(BY_CODE[code], mutant.make(), drawn_cases(BY_CODE[code], 40))
    ]
    assert not missed


def test_output_of_another_type_is_caught() -> None:
    with pytest.raises(AdapterError, match=r"torch\.int64, but it must be torch\.int32"):
        CHECKS[0].run(BY_NAME[REFUSED].make(), profile=FEW)


def test_every_check_catches_a_planted_fault() -> None:
    assert set(BY_CODE) == {code for mutant in MUTANTS if mutant.name != REFUSED for code in mutant.caught_by}


def test_there_are_enough_of_both() -> None:
    assert len(CHECKS) >= 40
    assert len(MUTANTS) >= 30
    assert len(BY_CODE) == len(CHECKS)
    assert len(BY_NAME) == len(MUTANTS)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_odd_but_right_samplers_pass(check: Check) -> None:
    asked = 0
    for sampler in ODD_BUT_RIGHT:
        try:
            asked += check.run(sampler, profile=FEW, reference=ORACLE)
        except CapabilityUnsupported:
            continue
    assert asked


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("recovers from the target", "REJ109"),
        ("keeps the rejected draft in the race", "REJ401"),
        ("forgets the bonus token", "REJ103"),
        ("never recovers the last token", "REJ621"),
        ("greedy takes the highest id on ties", "REJ202"),
        ("accepts placeholders", "REJ110"),
        ("answers zero without residual", "REJ403"),
        ("divides draft by target", "REJ311"),
        ("race ties go to the highest id", "REJ404"),
        ("draws exponentials first", "REJ409"),
    ],
)
def test_mutant_is_caught_on_one_request_and_four_tokens(name: str, code: str) -> None:
    with pytest.raises(CheckFailure) as caught:
        BY_CODE[code].run(BY_NAME[name].make())
    case = caught.value.case
    assert len(case.requests) == 1
    assert case.vocab_size <= 4


def test_table_names_the_checks_that_catch_each_mutant() -> None:
    checks = [BY_CODE["REJ104"], BY_CODE["REJ321"], BY_CODE["REJ624"]]
    mutants = [BY_NAME["fills the output with zeros"], BY_NAME["accepts against one minus the uniform"]]
    assert caught_table(checks, mutants) == {
        "fills the output with zeros": ("REJ104", "REJ321", "REJ624"),
        "accepts against one minus the uniform": ("REJ321",),
    }
