"""Sample sizes: the designed power is the power that simulation finds."""

import re

import numpy as np
import pytest
from scipy.stats import chi2

from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._design import (
    E_PROCESS_FACTOR,
    FALSE_PASS_RATE,
    NoPower,
    finest_plan,
    noncentrality,
    plan_tables,
)

# Non-centrality for false-fail rates 1e-3, 1e-6 and 1e-9, with one decimal.
NONCENTRALITY = {
    2: (40.7, 63.7, 84.6), 8: (56.7, 82.1, 104.5), 32: (83.4, 114.9, 141.5), 512: (234.2, 305.8, 361.8),
    4096: (596.9, 766.0, 895.0),
}  # fmt: skip
FOUR = np.full(4, 0.25)


@pytest.mark.parametrize("num_cells", NONCENTRALITY)
def test_noncentrality_is_that_of_the_table(num_cells: int) -> None:
    computed = [noncentrality(num_cells, rate, 1e-3) for rate in (1e-3, 1e-6, 1e-9)]
    assert computed == pytest.approx(NONCENTRALITY[num_cells], abs=0.051)


@pytest.mark.parametrize("num_cells", [2, 8, 32])
def test_chi_square_test_has_the_designed_error_rates(num_cells: int) -> None:
    """At the worst alternative, whose chi-square distance is exactly 4 * discrepancy**2."""
    discrepancy, false_fail_rate, false_pass_rate, num_runs = 0.05, 0.01, 0.05, 20_000
    null = np.full(num_cells, 1 / num_cells)
    wrong = null * (1 + 2 * discrepancy * np.where(np.arange(num_cells) % 2, 1, -1))
    num_samples = int(np.ceil(noncentrality(num_cells, false_fail_rate, false_pass_rate) / (4 * discrepancy**2)))
    rng, rates = np.random.default_rng(num_cells), []
    for probs in (null, wrong):
        counts = rng.multinomial(num_samples, probs, size=num_runs)
        statistic = ((counts - num_samples * null) ** 2 / (num_samples * null)).sum(axis=1)
        rates.append((statistic > chi2.isf(false_fail_rate, num_cells - 1)).mean())
    # Four standard deviations of 20 000 runs.
    assert rates[0] == pytest.approx(false_fail_rate, abs=0.003)
    assert 1 - rates[1] == pytest.approx(false_pass_rate, abs=0.006)


def test_plan_spends_the_budget_on_the_smallest_distance() -> None:
    table = Table(np.random.default_rng(3).dirichlet(np.full(200, 0.2)))
    found = finest_plan(table, 50_000, 1e-6)
    needed = E_PROCESS_FACTOR * noncentrality(found.pooling.num_pools, 1e-6, FALSE_PASS_RATE)
    assert found.num_samples == 50_000
    assert found.discrepancy == pytest.approx(np.sqrt(needed / 50_000) / 2)
    assert found.pooling.probs.min() * found.num_samples >= 5


def test_rare_event_brings_the_planned_observations() -> None:
    found = finest_plan(Table(FOUR, observed_per_draw=0.1), 100_000, 1e-6)
    assert (np.random.default_rng(0).binomial(100_000, 0.1, size=100_000) >= found.num_samples).all()
    assert found.num_samples > 0.95 * 10_000


@pytest.mark.parametrize(
    ("table", "num_draws", "reason"),
    [
        (Table(FOUR, observed_per_draw=1e-9), 10**6, "may bring no observation"),
        (Table(FOUR, observed_per_draw=0.0), 10**6, "may bring no observation"),
        (Table(FOUR), 0, "may bring no observation"),
        (Table(FOUR), 9, "leave one pooled cell"),
        (Table(FOUR), 20, "show no distance below 0.99"),
    ],
    ids=["rare event", "impossible event", "no draws", "hardly any", "few"],
)
def test_budget_that_shows_nothing_has_no_power(table: Table, num_draws: int, reason: str) -> None:
    found = finest_plan(table, num_draws, 1e-6)
    assert isinstance(found, NoPower)
    assert re.search(reason, found.reason)


def test_table_with_one_possible_cell_sees_any_observation_elsewhere() -> None:
    found = finest_plan(Table(np.array([0.0, 1.0, 0.0])), 10**6, 1e-6)
    assert found.discrepancy == pytest.approx(6.9e-6, rel=0.01)


def test_tables_of_a_check_share_its_rate_and_optional_ones_may_be_left_out() -> None:
    rare = {"observed_per_draw": 1e-9}
    tables = {"common": Table(FOUR, num_draws=1000), "rare": Table(FOUR, **rare)}  # type: ignore[arg-type]
    found = plan_tables(tables | {"left out": Table(FOUR, is_optional=True, **rare)}, 10, 3e-6)  # type: ignore[arg-type]
    assert list(found) == ["common", "rare"]
    common = found["common"]
    assert (common.num_samples, common.false_fail_rate) == (10_000, pytest.approx(1e-6))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"false_fail_rate={rate:g}, but it must lie strictly between 0 and 1"):
        finest_plan(Table(FOUR), 1000, rate)
