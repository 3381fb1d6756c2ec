"""The exam's generator: members follow from their seed, right samplers are right, faults are found."""

from __future__ import annotations

import random

import pytest
from exam.conditions import Atom, Condition, condition_of
from exam.members import CONTRACTS, SEED, classes, member_of, right, slots
from exam.planted import catalogue

from fairdraw._core.checks import PROFILES
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check

QUICK = {
    "sampling": ("SAM102", "SAM107"),
    "rejection": ("REJ101", "REJ309"),
    "grammar": ("GRM101", "GRM102"),
    "logprobs": ("LPR101", "LPR110"),
    "filters": ("FIL101", "FIL103"),
    "penalties": ("PEN101",),
    "thinking_budget": ("THK101",),
    "logits_plan": ("PLAN101",),
    "server": ("SRV101",),
}
SESSION = Session(profile=PROFILES["smoke"], crash_folder=None)


def statuses(contract: str, sampler: object) -> set[str]:
    checks = [check for check in all_checks(contract=contract) if check.code in QUICK[contract]]
    return {run_check(check, sampler, SESSION).status for check in checks}  # type: ignore[arg-type]  # any contract's


@pytest.mark.parametrize("contract", CONTRACTS)
def test_right_samplers_are_green_and_members_follow_from_their_seed(contract: str) -> None:
    assert statuses(contract, right(contract)) == {"passed"}
    kind = classes(contract)[-1]
    assert member_of(SEED, contract, kind, 0) == member_of(SEED, contract, kind, 0)


def test_conditions_are_told_in_words() -> None:
    features = {feature.name: feature for feature in catalogue("sampling")[0]}
    both = Condition((Atom(features["batch_size"], "mod", 16, 11), Atom(features["token"], "bit", 3, 1)))
    assert both.words == "batch size % 16 == 11 and bit 3 of the token id is 1"
    assert [both.holds({"batch_size": 27, "token": token}) for token in (8, 7)] == [True, False]
    drawn = [condition_of(random.Random(number), "together", list(features.values())) for number in range(20)]
    assert {len(one.atoms) for one in drawn} == {2, 3}
    assert len(slots()) >= 300
