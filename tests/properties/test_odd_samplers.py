"""Correct samplers that do it differently are green; wrong ones that declare the same freedom are caught."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fairdraw._core.checks import PROFILES, Check
from fairdraw._core.contracts import contract_name
from fairdraw._mutants import logits_plan, rejection, sampling
from fairdraw._oracles.sampling import requests_of
from fairdraw._oracles.supports import support_of
from fairdraw._run.controls import sees
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import (
    Capability,
    ExplicitNoise,
    FilterPolicy,
    RaceNoise,
    SamplingBatch,
    SpecDecodeBatch,
    rejection_sampler,
)
from fairdraw.properties._lifecycle_check import LifecycleCheck
from fairdraw.properties._rejection_settled import covered_requests
from fairdraw.properties._sampling_asserts import covered_rows
from fairdraw.strategies.lifecycle import PlannedTraces
from odd.abuses import ABUSES
from odd.rejection import ComputesInFloat64, DividesInTheRace, MatchesExactly, VectorRejection, as_odd
from odd.samplers import ODD
from odd.sampling import ODD as ODD_SAMPLING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._core.checks import AnyCheck, Profile
    from fairdraw._mutants._mutant import Mutant

ENOUGH = 75
REFERENCE = {"logits_plan": dataclasses.replace(logits_plan.right(), name="reference")}
CI_SEED = 0

# tools/record.py odd runs all samplers in whole, with the numbers of `ci`. Here each has few
# examples. Distributions of one are tested; `tests/statistical/` has others.
FEW = PROFILES["smoke"].scaled(0.25)
DRAWN = ("rejection", "sampling")


def accused(sampler: Any, profile: Profile, checks: Iterable[AnyCheck]) -> list[str]:  # Any: as in ODD
    reference = REFERENCE.get(str(contract_name(sampler)))
    session = Session(profile=profile, seed=CI_SEED, reference=reference, crash_folder=None)
    records = [run_check(check, sampler, session) for check in checks]
    assert any(record.status == "passed" for record in records)
    return [f"{record.id}: {record.status}" for record in records if record.status not in ("passed", "skipped")]


def is_wide(check: AnyCheck) -> bool:
    """Whether one of its cases costs as much as hundreds of others."""
    planned = isinstance(check, LifecycleCheck) and issubclass(check.machine, PlannedTraces)
    return planned or (isinstance(check, Check) and check.weight <= 0.1)


def asked(contract: str, sampler: Any) -> list[AnyCheck]:  # Any: as in ODD
    """The properties whose turn it is to run on `sampler`.

    Of the samplers that it can run on, a check has every third where there are many checks or if it plays traces, every
    eighth if those are long, and one if its cases are few but wide, because those take most of the time.
    """
    found, checks = [], all_checks("properties", contract)
    for check in checks:
        able = [one for one in ODD[contract] if check.why_not(one, REFERENCE.get(contract)) is None]
        often = 8 if check.plays_traces and contract in DRAWN else 3 if check.plays_traces or len(checks) > 20 else 1
        turns = min(len(able), len(able) if is_wide(check) else often)
        found += [check] if able and sampler in able[int(check.code[-3:]) % turns :: turns] else []
    return found


def test_there_are_enough() -> None:
    for samplers in ODD.values():
        assert len({one.name for one in samplers}) == len(samplers) >= 8
    assert sum(map(len, ODD.values())) >= ENOUGH


@pytest.mark.parametrize(
    ("contract", "sampler"),
    [(contract, sampler) for contract, samplers in ODD.items() for sampler in samplers],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_properties_do_not_accuse_a_right_sampler(contract: str, sampler: Any) -> None:  # Any: as in ODD
    assert accused(sampler, FEW, asked(contract, sampler)) == []


def test_statistics_do_not_accuse_a_right_sampler() -> None:
    (sampler,) = (one for one in ODD_SAMPLING if one.name == "adds gumbel noise")
    assert accused(sampler, FEW, all_checks("statistical", "sampling")) == []


SWITCHING = [mutant for mutant in (*sampling.MUTANTS, *rejection.MUTANTS) if mutant.make().size_switches]


@pytest.mark.parametrize("mutant", SWITCHING, ids=str)
def test_what_begins_at_a_switch_is_missed_where_it_is_not_declared(mutant: Mutant) -> None:
    silent = dataclasses.replace(mutant.make(), size_switches={})
    assert not sees(CHECKS[mutant.caught_by[0]], silent, PROFILES["smoke"].scaled(0.1), CI_SEED)[0]


CHECKS = {check.code: check for check in (*all_checks(contract="rejection"), *all_checks(contract="sampling"))}


@pytest.mark.parametrize(("mutant", "code"), [(m, code) for m in ABUSES for code in m.caught_by], ids=str)
def test_declared_freedom_does_not_hide_a_fault(mutant: Mutant, code: str) -> None:
    check, sampler = CHECKS[code], mutant.make()
    assert check.why_not(sampler) is None
    assert sees(check, sampler, PROFILES["smoke" if code.startswith("DIST") else "ci"], CI_SEED)[0]


def test_every_freedom_is_abused_by_a_mutant() -> None:
    declared = {word for contract in DRAWN for one in ODD[contract] for word in one.capabilities.unsupported}
    free = {Capability.REFERENCE_ROUNDING, Capability.LOWEST_ID_TIES, Capability.UPSTREAM_STREAM}
    free |= {Capability.TOKEN_VERIFICATION}
    assert free <= declared
    assert free <= {word for mutant in ABUSES for word in mutant.make().capabilities.unsupported}


@pytest.mark.parametrize("kind", [VectorRejection, DividesInTheRace])
def test_either_race_is_right_where_no_generator_can_tell_them_apart(kind: type[VectorRejection]) -> None:
    """Also of a sampler that supports `upstream-stream`: the manual has one formula."""
    claiming = rejection_sampler(kind().verify, name="claims everything")
    assert CHECKS["REJ406"].run(claiming, profile=PROFILES["smoke"], seed=CI_SEED) > 0


def two_scores(gap: float) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    """A rejected one-hot draft, and a race of two tokens whose scores differ by `gap`."""
    batch = SpecDecodeBatch(
        draft_token_ids=torch.tensor([2], dtype=torch.int32),
        num_draft_tokens=[1],
        cu_num_draft_tokens=torch.tensor([1], dtype=torch.int32),
        max_spec_len=1,
        draft_probs=None,
        target_logits=torch.zeros(1, 3),
        bonus_token_ids=torch.tensor([[0]], dtype=torch.int32),
        temperature=torch.ones(1),
    )
    return batch, ExplicitNoise(torch.tensor([0.9], dtype=torch.float64), torch.tensor([[1.0, 1.0 + gap, 1.0]]))


@pytest.mark.parametrize(("gap", "covered"), [(1e-2, [0]), (1e-3, [0]), (1e-6, []), (0.0, [])])
def test_only_near_ties_are_left_to_a_rounding_of_ones_own(gap: float, covered: list[int]) -> None:
    batch, noise = two_scores(gap)
    assert covered_requests(as_odd(ComputesInFloat64), batch, noise) == covered
    assert covered_requests(as_odd(VectorRejection), batch, noise) == [0]


def test_what_is_drawn_in_an_unknown_way_and_rounded_freely_is_not_compared() -> None:
    batch, noise = two_scores(1e-2)
    assert covered_requests(as_odd(MatchesExactly), batch, noise) == []


@pytest.mark.parametrize(("gap", "covered"), [(1e-3, [0]), (1e-7, [])])
def test_only_near_ties_of_a_draw_are_left_open(gap: float, covered: list[int]) -> None:
    batch = SamplingBatch(torch.zeros(1, 2), torch.ones(1), None, None, None, torch.zeros(1, dtype=torch.int64))
    noise = RaceNoise(torch.tensor([[1.0, 1.0 + gap]]))
    by_name = {one.name: one for one in ODD_SAMPLING}
    assert covered_rows(by_name["computes in float64"], batch, noise) == covered
    assert covered_rows(by_name["vector sampling"], batch, noise) == [0]


def test_support_leaves_open_what_other_roundings_may_order_otherwise() -> None:
    """Two logits a float32 step apart at the edge of top-k: an order for the oracle, none for another arithmetic."""
    logits = torch.tensor([[1.0, 1.0 + 2.0**-23, 0.0]])
    batch = SamplingBatch(
        logits, torch.ones(1), torch.tensor([1], dtype=torch.int32), None, None, torch.zeros(1, dtype=torch.int64)
    )
    strict, slack = (support_of(requests_of(batch)[0], FilterPolicy(), slack) for slack in (0.0, 1e-5))
    assert strict is not None
    assert slack is not None
    assert strict.required.tolist() == strict.allowed.tolist() == [False, True, False]
    assert (slack.required.tolist(), slack.allowed.tolist()) == ([False] * 3, [True, True, False])
