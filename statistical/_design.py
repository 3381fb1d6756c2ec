"""Which distance from the null a budget of samples can show.

A statistical test errs in two ways: a correct sampler may fail (`false_fail_rate`) and a wrong one may pass
(`FALSE_PASS_RATE`). No test finds every sampler that is arbitrarily near to correct, so a third number
belongs to every test: the `discrepancy`, the smallest total-variation distance that is found. Here the number of
samples and both rates are given, and the discrepancy follows.

For a table of `num_cells` cells, the chi-square statistic of a distribution at total-variation distance `d` is
approximately non-central chi-square with non-centrality `num_samples * sum((probs - expected)**2 / expected)`, and that
sum is at least `4 * d**2` (Cauchy-Schwarz). Therefore

    num_samples = noncentrality(num_cells) / (4 * d**2)

grows like `1 / d**2`, like `sqrt(num_cells)`, and only like the logarithm of the error rates: `false_fail_rate` 1e-9
instead of 1e-3 costs 1.7 times the samples at 32 cells. So error rates should be tiny, and samples should be spent on
the discrepancy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, chndtrinc

from fairdraw.statistical._binomial import binomial_quantile
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._pooling import Pooling, pool_cells
from fairdraw.statistical._validation import check_rate, refuse

FALSE_PASS_RATE = 1e-3
"""Of a sampler that is as far off as the discrepancy of a plan."""

E_PROCESS_FACTOR = 1.3
"""Samples of an e-process per sample of the fixed-size chi-square test, for at least its power.

Measured misses of the hardest alternative at a planned false-pass rate of 1e-3 (100 000 runs): 2 cells 0.0006, 8 cells
0.00015, 32 cells 0.0002 at a false-fail rate of 1e-6, less at 1e-9; 0.0016 with 2 cells at 1e-3. With 1.25 instead:
0.0010, 0.00045, 0.0005 and 0.0026."""

_SHORTFALL_RATE = 1e-6
"""Probability that a correct sampler brings fewer observations of a conditional table than planned."""


@dataclass(frozen=True)
class SamplePlan:
    """What a check will do with a table, fixed before the first sample.

    Error rates:
        A correct sampler fails with probability at most `false_fail_rate`; one that is at least `discrepancy` away,
        after pooling, passes with probability at most `FALSE_PASS_RATE`.

    Args:
        num_samples: Observations that the table needs.
    """

    pooling: Pooling
    num_samples: int
    discrepancy: float
    false_fail_rate: float


@dataclass(frozen=True)
class NoPower:
    """The budget shows nothing. The verdict is *inconclusive*, never a pass."""

    reason: str


Plans = dict[str, SamplePlan | NoPower]


def noncentrality(num_cells: int, false_fail_rate: float, false_pass_rate: float) -> float:
    """Non-centrality at which the chi-square test has both error rates.

    The `x` that solves `P(noncentral_chi2(num_cells - 1, x) <= critical value) = false_pass_rate`.

    Example:
        >>> round(noncentrality(32, 1e-6, 1e-3), 1)
        114.9

    Raises:
        ValueError: If there are fewer than 2 cells, or a rate lies outside (0, 1).
    """
    if num_cells < 2:
        raise refuse("noncentrality", f"num_cells={num_cells}", "it must be at least 2", "Pool less, or draw more.")
    check_rate("noncentrality", "false_fail_rate", false_fail_rate)
    check_rate("noncentrality", "false_pass_rate", false_pass_rate)
    return float(chndtrinc(chdtri(num_cells - 1, false_fail_rate), num_cells - 1, false_pass_rate))


def finest_plan(table: Table, num_draws: int, false_fail_rate: float) -> SamplePlan | NoPower:
    """The plan that spends `num_draws` draws and sees the smallest distance that they can show.

    Error rates:
        See `SamplePlan`. The e-process gets 1.3 times the samples of the chi-square test and has at least its power.

    Raises:
        ValueError: If the table has no distribution, or the rate lies outside (0, 1).
    """
    check_rate("finest_plan", "false_fail_rate", false_fail_rate)
    num_samples = int(binomial_quantile(_SHORTFALL_RATE, num_draws, table.observed_per_draw))
    if num_samples < 1:
        rate = table.observed_per_draw
        return NoPower(f"{num_draws} draws may bring no observation (probability {rate:.3g} each)")
    pooling = pool_cells(table.probs, num_samples, table.possible, table.min_expected)
    if pooling.num_pools < 2 and np.count_nonzero(pooling.pool_of < 1) == 1:
        # One cell is possible and no other (a greedy request): a single observation elsewhere decides.
        return SamplePlan(pooling, num_samples, -float(np.log(FALSE_PASS_RATE)) / num_samples, false_fail_rate)
    if pooling.num_pools < 2:
        return NoPower(f"{num_samples} observations leave one pooled cell: too few, or nothing is random")
    needed = E_PROCESS_FACTOR * noncentrality(pooling.num_pools, false_fail_rate, FALSE_PASS_RATE)
    discrepancy = 0.5 * float(np.sqrt(needed / num_samples))
    if discrepancy >= _LARGEST:
        return NoPower(f"{num_samples} observations show no distance below {_LARGEST:g}")
    return SamplePlan(pooling, num_samples, discrepancy, false_fail_rate)


_LARGEST = 0.99


def plan_tables(tables: Mapping[str, Table], num_checkpoints: int, false_fail_rate: float) -> Plans:
    """The plan of each table; optional tables without power are left out.

    Args:
        num_checkpoints: How often the `num_draws` of each table are drawn.
        false_fail_rate: Of all tables together, divided by their weights.
    """
    plans, total = Plans(), sum(table.weight for table in tables.values())
    for name, table in tables.items():
        rate = false_fail_rate * table.weight / total
        plans[name] = finest_plan(table, table.num_draws * num_checkpoints, rate)
    return {name: plan for name, plan in plans.items() if isinstance(plan, SamplePlan) or not tables[name].is_optional}
