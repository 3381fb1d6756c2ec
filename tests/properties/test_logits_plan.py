"""The checks of the logits-plan contract: correct planners pass, mutants are caught and shrunk."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings

from fairdraw._core.checks import PROFILES, Profile
from fairdraw._core.failures import CaseRaised, CheckFailure
from fairdraw._mutants._logits_mutant import OraclePlanner
from fairdraw._mutants.logits_plan import right
from fairdraw.adapters import load
from fairdraw.contracts import Capability, LogitsBatch, LogitsPlanner, PlanSetup, logits_planner
from fairdraw.properties.logits_plan import CHECKS
from fairdraw.strategies.logits_plan import EVENT_KINDS, LogitsCase, logits_cases, sets_of_kinds

BY_CODE = {check.code: check for check in CHECKS}
FEW = Profile("few", 10, 10)
quick = settings(max_examples=40)


def reference() -> OraclePlanner:
    return dataclasses.replace(right(), name="reference")


def test_planner_that_always_copies_passes_all_but_the_checks_of_copies() -> None:
    """`make check` runs `logits_plan`; odd ones, and the specification, are in `test_odd_samplers.py`."""
    planner = load("logits_plan/always-copy", "cpu")
    able = [check for check in CHECKS if check.why_not(planner, reference()) is None]
    assert {check.code for check in CHECKS if check not in able} == {"PLAN101", "PLAN102", "PLAN103"}
    for check in able:
        check.run(planner, profile=PROFILES["smoke"].scaled(0.25), reference=reference())


def test_answer_of_another_shape_is_caught() -> None:
    def first_row(batch: LogitsBatch, setup: PlanSetup) -> torch.Tensor:
        return batch.logits[0]

    with pytest.raises(CaseRaised, match=r"process returned \[12\], but it must return logits of shape"):
        BY_CODE["PLAN112"].run(logits_planner(first_row), profile=FEW)


def test_plain_function_is_a_planner() -> None:
    def mine(batch: LogitsBatch, setup: PlanSetup) -> torch.Tensor:
        return batch.logits

    planner = logits_planner(mine, unsupported={"custom-processors": "has none"})
    assert isinstance(planner, LogitsPlanner)
    assert planner.name == "mine"
    assert Capability.CUSTOM_PROCESSORS not in planner.capabilities
    BY_CODE["PLAN101"].run(planner, profile=FEW)
    with pytest.raises(CheckFailure):
        BY_CODE["PLAN112"].run(planner, profile=FEW)


@quick
@given(logits_cases(max_events=3))
def test_case_builds_the_same_batches_at_every_call(case: LogitsCase) -> None:
    for one, other in zip(case.batches(), case.batches(), strict=True):
        assert torch.equal(one.logits.nan_to_num(), other.logits.nan_to_num())
        assert [r.output_token_ids for r in one.requests] == [r.output_token_ids for r in other.requests]
        assert one.requests[0].output_token_ids is not other.requests[0].output_token_ids


@quick
@given(sets_of_kinds(size=1))
def test_every_parameter_is_drawn_alone(case: LogitsCase) -> None:
    assert len({request.kinds[0].partition(":")[0] for request in case.requests}) == 12


def test_every_event_is_drawn() -> None:
    seen: set[str] = set()

    @settings(max_examples=80)
    @given(logits_cases(max_events=4))
    def draw(case: LogitsCase) -> None:
        seen.update(event.kind for event in case.events)

    draw()
    assert seen == set(EVENT_KINDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_requests": 0}, "1 <= min_requests"),
        ({"kinds": ("bias", "spice")}, "kinds='spice', but it must be one of"),
        ({"events": ("grows",)}, "events='grows', but it must be one of"),
        ({"min_drafts": 3, "max_drafts": 1}, "min_drafts=3, max_drafts=1"),
    ],
)
def test_strategy_refuses_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    @settings(max_examples=1)
    @given(logits_cases(**arguments))  # type: ignore[arg-type]  # wrong on purpose
    def draw(case: LogitsCase) -> None: ...

    with pytest.raises(ValueError, match=message):
        draw()
