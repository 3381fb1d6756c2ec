"""The statistical lens on the sampling contract: a right sampler passes, and every check has a planted fault."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fairdraw.adapters import _sampling as adapters
from fairdraw.checks import PROFILES
from fairdraw.failures import CapabilityClosed, CheckFailure
from fairdraw.mutants.sampling_laws import LAW_MUTANTS, right_law
from fairdraw.runner import one_torch_thread
from fairdraw.seeds import DEFAULT_SEED
from fairdraw.statistical._sampling_subjects import KINDS
from fairdraw.statistical.design import SamplePlan
from fairdraw.statistical.sampling import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairdraw.mutants._planted import Mutant
    from fairdraw.statistical.law_check import LawCheck

SMOKE, CI = PROFILES["smoke"], PROFILES["ci"]
BY_CODE = {check.code: check for check in CHECKS}
LARGE = ("LAW721", "LAW722")
AT_CI = [(m, code) for m in LAW_MUTANTS for code in m.caught_by if m.min_draws <= CI.draws and code not in LARGE]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


def test_shares_of_all_checks_are_the_whole_rate() -> None:
    assert math.fsum(check.share for check in CHECKS) == pytest.approx(1)


def test_every_check_has_a_planted_fault() -> None:
    assert {code for mutant in LAW_MUTANTS for code in mutant.caught_by} == set(BY_CODE)


def test_every_table_is_judged() -> None:
    sampler = right_law()
    for subject in {check.subject for check in CHECKS}:
        own = [check for check in CHECKS if check.subject == subject]
        for name in own[0].course(sampler, SMOKE).tables:
            assert sum(name.startswith(check.tables) for check in own) == 1, name


def test_every_plan_has_power_at_ci() -> None:
    for check in CHECKS:
        plans = check.plans(right_law(), CI, DEFAULT_SEED)
        assert all(isinstance(plan, SamplePlan) for plan in plans.values()), check.id


def test_small_laws_differ_from_each_other() -> None:
    course = CHECKS[0].course(right_law(), SMOKE)
    laws = [course.tables[f"T1 {kind.name}"].probs for kind in KINDS[:-1]]
    for i, law in enumerate(laws):
        assert all(np.abs(law - other).sum() > 0.05 for other in laws[:i])


@pytest.mark.parametrize(("mutant", "code"), AT_CI, ids=str)
def test_planted_law_is_caught(mutant: Mutant, code: str) -> None:
    with pytest.raises(CheckFailure, match="TV"):
        BY_CODE[code].run(mutant.make(), profile=CI, seed=DEFAULT_SEED)


@pytest.mark.parametrize("check", [check for check in CHECKS if check.code not in LARGE], ids=str)
@pytest.mark.parametrize("make", [right_law, adapters.race, adapters.counter], ids=["law sampler", "race", "counter"])
def test_right_sampler_passes(check: LawCheck, make: type) -> None:
    sampler = make() if make is right_law else make("cpu")
    assert check.run(sampler, profile=SMOKE, seed=DEFAULT_SEED) > 0


def test_declined_law_is_a_visible_skip() -> None:
    with pytest.raises(CapabilityClosed, match="draft-law is closed: it returns tokens alone"):
        BY_CODE["LAW731"].run(
            adapters.token_sampler(adapters.oracle_sample, name="no drafter"), profile=SMOKE, seed=DEFAULT_SEED
        )
