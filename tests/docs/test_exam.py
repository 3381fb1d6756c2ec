"""The exam's generator: members follow from their seed, have words, and are found; without a fault nothing is."""

import pytest
from exam.conditions import Atom, Condition
from exam.examined import catalogue
from exam.members import SEED, correct, member_of, slots

from fairdraw._core.checks import PROFILES
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import LOGIT_FILTERS

FOUND = {
    "sampling/rare effect/0": "DIST701", "rejection/history/0": "DIST101", "grammar/id/0": "GRM101",
    "logprobs/layout/0": "LPR201", "filters/size/0": "FIL109", "penalties/index/0": "PEN101",
    "thinking_budget/index/0": "THK101", "logits_plan/size/0": "PLAN110", "server/index/0": "DIST911",
    "masks/request/0": "MSK105", "matchers/id/0": "MAT101",
}  # fmt: skip
"""Members of the committed exam, and a check that finds them."""


@pytest.mark.parametrize(("name", "code"), FOUND.items())
def test_a_member_is_found_and_its_correct_sampler_is_not(name: str, code: str) -> None:
    contract, kind, number = name.split("/")
    member = member_of(SEED, contract, kind, int(number))
    assert member == member_of(SEED, contract, kind, int(number))
    (check,) = (one for one in all_checks(contract=contract) if one.code == code)
    session = Session(profile=PROFILES["smoke"], crash_folder=None)
    right = correct(contract, own_noise=member.own_noise)
    assert [run_check(check, one, session).status for one in (right, member.make())] == ["passed", "failed"]


def test_conditions_have_words_and_members_are_many() -> None:
    features = {feature.name: feature for feature in catalogue("sampling")[0]}
    both = Condition((Atom(features["batch_size"], "mod", 16, 11), Atom(features["token"], "bit", 3, 1)))
    assert both.words == "batch size % 16 == 11 and bit 3 of the token id is 1"
    assert [both.holds({"batch_size": 27, "token": token}) for token in (8, 7)] == [True, False]
    assert len(slots()) >= 300


def test_every_filter_has_features_and_effects() -> None:
    features, effects = catalogue("filters")
    assert set(LOGIT_FILTERS) <= {feature.name for feature in features}
    assert {f"no {name}" for name in LOGIT_FILTERS} <= effects.keys()
