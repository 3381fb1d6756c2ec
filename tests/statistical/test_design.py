"""Sample sizes: the designed power is the power that simulation finds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fairdraw.statistical._design import (
    NoPower,
    SamplePlan,
    finest_plan,
    min_discrepancy_of_chi_square,
    min_num_samples_for_chi_square,
    noncentrality,
    plan_samples,
)

# Non-centrality for false-fail rates 1e-3, 1e-6, 1e-9; samples for discrepancies .02, .01, .005 (at 1e-6).
TABLE = {
    2: ((40.7, 63.7, 84.6), (39_819, 159_276, 637_103)),
    8: ((56.7, 82.1, 104.5), (51_320, 205_280, 821_118)),
    32: ((83.4, 114.9, 141.5), (71_823, 287_291, 1_149_164)),
    128: ((134.2, 179.0, 215.2), (111_889, 447_555, 1_790_220)),
    512: ((234.2, 305.8, 361.8), (191_107, 764_425, 3_057_697)),
    4096: ((596.9, 766.0, 895.0), (478_766, 1_915_061, 7_660_243)),
}


@pytest.mark.parametrize("num_cells", TABLE)
def test_design_reproduces_the_table_of_the_documentation(num_cells: int) -> None:
    noncentralities, sample_sizes = TABLE[num_cells]

    computed = [noncentrality(num_cells, rate, 1e-3) for rate in (1e-3, 1e-6, 1e-9)]
    samples = [
        min_num_samples_for_chi_square(distance, num_cells=num_cells, false_fail_rate=1e-6, false_pass_rate=1e-3)
        for distance in (0.02, 0.01, 0.005)
    ]

    # The table is printed with one decimal; its 134.2 is 134.249.
    assert computed == pytest.approx(noncentralities, abs=0.051)
    assert samples == pytest.approx(sample_sizes, abs=1)


@given(
    discrepancy=st.floats(1e-4, 0.5),
    num_cells=st.integers(2, 5000),
    false_fail_rate=st.floats(1e-12, 0.05),
    false_pass_rate=st.floats(1e-6, 0.2),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_smallest_visible_distance_inverts_sample_size(
    discrepancy: float, num_cells: int, false_fail_rate: float, false_pass_rate: float
) -> None:
    rates = {"false_fail_rate": false_fail_rate, "false_pass_rate": false_pass_rate}
    num_samples = min_num_samples_for_chi_square(discrepancy, num_cells=num_cells, **rates)

    assert min_discrepancy_of_chi_square(num_samples, num_cells=num_cells, **rates) <= discrepancy
    if num_samples > 1:
        assert min_discrepancy_of_chi_square(num_samples - 1, num_cells=num_cells, **rates) > discrepancy


@pytest.mark.parametrize("num_cells", [2, 8, 32])
def test_chi_square_test_has_the_designed_error_rates(num_cells: int) -> None:
    """At the worst alternative, whose chi-square distance is exactly 4 * discrepancy**2."""
    discrepancy, false_fail_rate, false_pass_rate, num_runs = 0.05, 0.01, 0.05, 20_000
    null = np.full(num_cells, 1 / num_cells)
    wrong = null * (1 + 2 * discrepancy * np.where(np.arange(num_cells) % 2, 1, -1))
    num_samples = min_num_samples_for_chi_square(
        discrepancy, num_cells=num_cells, false_fail_rate=false_fail_rate, false_pass_rate=false_pass_rate
    )
    rng = np.random.default_rng(num_cells)

    rates = []
    for distribution in (null, wrong):
        counts = rng.multinomial(num_samples, distribution, size=num_runs)
        statistic = ((counts - num_samples * null) ** 2 / (num_samples * null)).sum(axis=1)
        rates.append((statistic > chi2.isf(false_fail_rate, num_cells - 1)).mean())

    # Four standard deviations of 20 000 runs.
    assert rates[0] == pytest.approx(false_fail_rate, abs=0.003)
    assert 1 - rates[1] == pytest.approx(false_pass_rate, abs=0.006)


def plan(probs: list[float], **changes: float) -> SamplePlan | NoPower:
    arguments = {"discrepancy": 0.02, "false_fail_rate": 1e-6, "max_num_draws": 10**6, **changes}
    return plan_samples(probs, **arguments)  # type: ignore[arg-type]  # numbers


def test_plan_is_a_fixed_point_of_pooling_and_samples() -> None:
    found = plan(np.random.default_rng(3).dirichlet(np.full(200, 0.2)).tolist())

    assert isinstance(found, SamplePlan)
    needed = 1.3 * noncentrality(found.pooling.num_pools, 1e-6, 1e-3) / (4 * 0.02**2)
    assert found.num_samples >= needed
    assert found.num_samples == pytest.approx(needed, rel=0.02)
    assert found.pooling.probs.min() * found.num_samples >= 5
    assert found.num_draws == found.num_samples


def test_plan_draws_enough_for_a_rare_event() -> None:
    found = plan([0.25] * 4, event_prob=0.1)

    assert isinstance(found, SamplePlan)
    events = np.random.default_rng(0).binomial(found.num_draws, 0.1, size=100_000)
    assert (events >= found.num_samples).all()
    assert found.num_draws < 10.5 * found.num_samples


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_num_draws": 10_000}, r"10000 observations, \d+ needed"),
        ({"event_prob": 1e-9}, "may bring no observation"),
        ({"event_prob": 0.0}, "may bring no observation"),
        ({"max_num_draws": 9}, "leave one pooled cell"),
        ({"tolerance": 0.04}, "within the tolerance"),
    ],
    ids=["budget", "rare event", "impossible event", "hardly any samples", "tolerance"],
)
def test_request_that_the_budget_cannot_meet_has_no_power(changes: dict[str, float], reason: str) -> None:
    found = plan([0.25] * 4, **changes)

    assert isinstance(found, NoPower)
    assert re.search(reason, found.reason)


def test_no_power_says_what_the_budget_can_see() -> None:
    first = plan([0.25] * 4, max_num_draws=10_000)
    assert isinstance(first, NoPower)

    assert isinstance(plan([0.25] * 4, max_num_draws=10_000, discrepancy=first.min_discrepancy * 1.0001), SamplePlan)
    assert isinstance(plan([0.25] * 4, max_num_draws=10_000, discrepancy=first.min_discrepancy * 0.999), NoPower)


def test_finest_plan_spends_the_budget() -> None:
    found = finest_plan([0.25] * 4, false_fail_rate=1e-6, max_num_draws=10_000, event_prob=0.5, tolerance=0.01)

    assert isinstance(found, SamplePlan)
    assert 9900 < found.num_draws <= 10_000
    assert isinstance(
        plan([0.25] * 4, discrepancy=found.discrepancy / 1.05, max_num_draws=10_000, event_prob=0.5, tolerance=0.01),
        NoPower,
    )


def test_deterministic_distribution_has_no_power() -> None:
    assert isinstance(plan([0.0, 1.0, 0.0]), NoPower)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discrepancy": 0.0}, "discrepancy=0, but it must lie strictly between 0 and 1"),
        ({"discrepancy": 1.5}, "discrepancy=1.5, but"),
        ({"false_fail_rate": 0.0}, "false_fail_rate=0, but"),
        ({"false_pass_rate": 1.0}, "false_pass_rate=1, but"),
        ({"tolerance": -0.1}, "tolerance=-0.1, but it must be at least 0"),
    ],
    ids=["no distance", "impossible distance", "no false fails", "all false passes", "negative tolerance"],
)
def test_design_out_of_range_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan([0.5, 0.5], **changes)
