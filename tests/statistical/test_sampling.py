"""The statistical checks of the sampling contract: a correct sampler passes, and every check has a mutant."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants.sampling_distributions import right_distribution
from fairdraw.adapters import load
from fairdraw.contracts import (
    Capability,
    FilterPolicy,
    FunctionTokenSampler,
    TokenSampler,
    filter_policy,
    token_sampler,
)
from fairdraw.statistical import sampling as suite
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._sampling_workloads import KINDS, _small_tables, supported_kinds
from odd.sampling_draws import ODD_DISTRIBUTIONS

SMOKE, CI = PROFILES["smoke"], PROFILES["ci"]
BY_CODE = {check.code: check for check in suite.CHECKS}
CHECKS = tuple(check for check in suite.CHECKS if check.code != "DIST791")
"""Checks of fixed workloads; serving traces have tests of their own."""
FILTERS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}
SUBSETS = [frozenset(part) for size in range(4) for part in itertools.combinations(FILTERS.values(), size)]


def _worded(subset: frozenset[Capability]) -> str:
    return ", ".join(sorted(subset)) or "no filter"


def test_every_plan_has_power_at_ci() -> None:
    for check in CHECKS:
        plans = check.plans(right_distribution(), CI, DEFAULT_SEED)
        assert all(isinstance(plan, SamplePlan) for plan in plans.values()), check.id


def test_small_distributions_differ_from_each_other() -> None:
    sampling_plan = CHECKS[0].sampling_plan(right_distribution(), SMOKE)
    distributions = [sampling_plan.tables[f"T1 {kind.name}"].probs for kind in KINDS[:-1]]
    for i, distribution in enumerate(distributions):
        assert all(np.abs(distribution - other).sum() > 0.05 for other in distributions[:i])


@pytest.mark.parametrize("supported", SUBSETS, ids=_worded)
def test_small_distributions_are_settled_whatever_the_filter_policy(supported: frozenset[Capability]) -> None:
    orders = itertools.permutations(("min_p", "top_k", "top_p"))
    words: Any = itertools.product(orders, ("first", "last"), (False, True), ("all", "some"), ("all", "some"))
    cycle = supported_kinds(KINDS, supported)
    for policy in itertools.starmap(FilterPolicy, words):
        distributions = _small_tables(cycle, 1000, np.zeros((1, len(cycle)), bool), policy)
        assert all(math.isclose(distributions[f"T1 {kind.name}"].probs.sum(), 1) for kind in cycle)


@pytest.mark.parametrize("supported", SUBSETS, ids=_worded)
def test_batches_ask_for_supported_filters_only(supported: frozenset[Capability]) -> None:
    """Names differ, and stand for a table each; pairs of rows are of the same two kinds, whatever is supported."""
    cycle = supported_kinds(KINDS, supported)
    asked = {name: {kind.name for kind in cycle if getattr(kind, name) is not None} for name in FILTERS}
    assert [bool(asked[name]) for name, word in FILTERS.items()] == [word in supported for word in FILTERS.values()]
    assert len({kind.name for kind in cycle}) == len(cycle) == len(KINDS)
    assert [kind.temperature for kind in cycle] == [kind.temperature for kind in KINDS]
    assert cycle[:2] == KINDS[:2]
    assert cycle == KINDS or len(supported) < len(FILTERS)


@pytest.mark.parametrize("supported", SUBSETS, ids=_worded)
def test_every_table_of_small_distributions_is_judged_by_one_check_that_is_asked(
    supported: frozenset[Capability],
) -> None:
    sampler = without(*(set(FILTERS.values()) - supported))
    asked = [check for check in CHECKS if check.workload == CHECKS[0].workload and check.why_not(sampler) is None]
    for name in asked[0].sampling_plan(sampler, SMOKE).tables:
        assert sum(name.startswith(check.tables) for check in asked) == 1, name


@pytest.mark.parametrize("supported", [SUBSETS[0], SUBSETS[3], SUBSETS[4], SUBSETS[-1]], ids=_worded)
def test_right_sampler_without_filters_passes_what_is_left(supported: frozenset[Capability]) -> None:
    """Each filter is supported twice, and unsupported twice; the tables of every subset are compared above."""
    sampler = without(*(set(FILTERS.values()) - supported))
    passed = [check.code for check in CHECKS if check.why_not(sampler) is None]
    assert "DIST701" in passed
    for code in passed:
        assert BY_CODE[code].run(sampler, profile=SMOKE.scaled(0.2), seed=DEFAULT_SEED) > 0


def without(*capabilities: Capability, of: Any = None) -> FunctionTokenSampler:
    """A correct sampler, or another, that does not support these."""
    sampler = of or right_distribution()
    unsupported = {**sampler.capabilities.unsupported, **dict.fromkeys(capabilities, "for the test")}
    return dataclasses.replace(sampler, capabilities=dataclasses.replace(sampler.capabilities, unsupported=unsupported))


def test_distributions_are_those_of_the_declared_filters() -> None:
    default, top_p_first, tempers_last = (
        CHECKS[0].sampling_plan(sampler, SMOKE).tables for sampler in (right_distribution(), *ODD_DISTRIBUTIONS)
    )

    def num_tokens(tables: Mapping[str, Table], kind: str) -> int:
        return int((tables[f"T1 {kind}"].probs > 0).sum())

    kinds = ("with min-p", "with all filters")
    assert [num_tokens(default, kind) for kind in kinds] == [5, 5]
    assert [num_tokens(top_p_first, kind) for kind in kinds] == [5, 6]
    assert [num_tokens(tempers_last, kind) for kind in kinds] == [3, 5]


@pytest.mark.parametrize("sampler", ODD_DISTRIBUTIONS, ids=lambda sampler: str(sampler.name))
def test_declared_filters_are_left_in_peace(sampler: TokenSampler) -> None:
    assert BY_CODE["DIST701"].run(sampler, profile=SMOKE, seed=DEFAULT_SEED) > 0


@pytest.mark.parametrize("sampler", ODD_DISTRIBUTIONS, ids=["order", "temperature"])
def test_filters_that_are_declared_and_not_used_are_caught(sampler: TokenSampler) -> None:
    with pytest.raises(CheckFailure, match="TV"):
        BY_CODE["DIST701"].run(right_distribution(filters=filter_policy(sampler)), profile=CI, seed=DEFAULT_SEED)


@pytest.fixture(scope="module")
def counter() -> TokenSampler:
    """One: checks of a workload share its draws."""
    return load("sampling/counter", "cpu")  # type: ignore[return-value]  # of its contract


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_counter_sampler_passes(check: DistributionCheck, counter: TokenSampler) -> None:
    """`make check` runs the race at `ci`; the distribution sampler passes with all filters above."""
    assert check.run(counter, profile=SMOKE.scaled(0.2), seed=DEFAULT_SEED) > 0


def test_sampler_that_overwrites_its_logits_is_judged_by_what_it_was_given(counter: TokenSampler) -> None:
    def sample(batch: Any, noise: Any) -> Any:
        return counter.sample(batch, noise), batch.logits.mul_(0.5)

    wrong = token_sampler(lambda batch, noise: sample(batch, noise)[0])
    assert BY_CODE["DIST701"].run(wrong, profile=SMOKE, seed=DEFAULT_SEED) > 0
