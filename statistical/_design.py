"""How many samples make a wrong distribution visible, and which distance a budget can see.

Statistical tests have an inescapable probability of error, of both kinds: honest code may fail (`false_fail_rate`) and
wrong code may pass (`false_pass_rate`). Nothing can be promised about wrong code that is arbitrarily near, so a third
number belongs to every test: the `discrepancy`, the smallest total-variation distance that is found. Here all three are
chosen and the number of samples follows.

For a table of `num_cells` cells, the chi-square statistic of a distribution at total-variation distance `d` is
approximately non-central chi-square with non-centrality `num_samples * sum((distribution - expected)**2 / expected)`,
and that sum is at least `4 * d**2` (Cauchy-Schwarz). Therefore

    num_samples = noncentrality(num_cells) / (4 * d**2)

grows like `1 / d**2`, like `sqrt(num_cells)`, and only like the logarithm of the error rates: `false_fail_rate` 1e-9
instead of 1e-3 costs 1.7 times the samples at 32 cells. So error rates should be tiny and samples be spent on the
discrepancy.

Example:
    >>> min_num_samples_for_chi_square(0.02, num_cells=32, false_fail_rate=1e-6, false_pass_rate=1e-3)
    71823
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chndtrinc
from scipy.stats import binom, chi2, nbinom

from fairdraw.statistical._pooling import MIN_EXPECTED, Pooling, pool_cells
from fairdraw.statistical._validation import check_rate, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "NoPower",
    "SamplePlan",
    "finest_plan",
    "min_discrepancy_of_chi_square",
    "min_num_samples_for_chi_square",
    "noncentrality",
    "plan_samples",
]

E_PROCESS_FACTOR = 1.3
"""Samples of an e-process per sample of the fixed-size chi-square test, for at least its power.

Measured misses of the hardest distribution at a planned false-pass rate of 1e-3 (100 000 runs): 2 cells 0.0006, 8 cells
0.00015, 32 cells 0.0002 at a false-fail rate of 1e-6, less at 1e-9; 0.0016 with 2 cells at 1e-3. With 1.25 instead:
0.0010, 0.00045, 0.0005 and 0.0026."""

_SHORTFALL_RATE = 1e-6
"""Probability that honest code brings fewer observations of a conditional table than planned."""


@dataclass(frozen=True)
class SamplePlan:
    """What a check will do, and what it promises; all of it fixed before the first sample.

    Error rates:
        Honest code fails with probability at most `false_fail_rate`; code at least `discrepancy` away, after pooling,
        passes with probability at most `false_pass_rate`.

    Args:
        num_samples: Observations that the table needs.
        num_draws: Samples to draw so that at least `num_samples` of them are observations of the table, except with
            probability 1e-6.
        tolerance: Relative error of a cell that is not a fault (floating point).
    """

    pooling: Pooling
    num_samples: int
    num_draws: int
    discrepancy: float
    false_fail_rate: float
    false_pass_rate: float
    tolerance: float = 0.0


@dataclass(frozen=True)
class NoPower:
    """A request that the budget cannot meet. Its verdict is *inconclusive*, never a pass.

    Args:
        min_discrepancy: What the budget could see instead; 1 or more if nothing.
    """

    reason: str
    min_discrepancy: float


def noncentrality(num_cells: int, false_fail_rate: float, false_pass_rate: float) -> float:
    """Non-centrality at which the chi-square test has both error rates.

    The `x` that solves `P(noncentral_chi2(num_cells - 1, x) <= critical value) = false_pass_rate`.

    Raises:
        ValueError: If there are fewer than 2 cells, or a rate lies outside (0, 1).
    """
    if num_cells < 2:
        raise refuse("noncentrality", f"num_cells={num_cells}", "it must be at least 2", "Pool less, or draw more.")
    check_rate("noncentrality", "false_fail_rate", false_fail_rate)
    check_rate("noncentrality", "false_pass_rate", false_pass_rate)
    critical_value = chi2.isf(false_fail_rate, num_cells - 1)
    return float(chndtrinc(critical_value, num_cells - 1, false_pass_rate))


def min_num_samples_for_chi_square(
    discrepancy: float, *, num_cells: int, false_fail_rate: float, false_pass_rate: float
) -> int:
    """How many samples make the chi-square test see a given total-variation distance.

    Error rates:
        With this many samples, honest code fails with probability at most `false_fail_rate`, and code at least
        `discrepancy` away from the expected distribution passes with probability at most `false_pass_rate`. Nothing is
        promised about smaller distances. Grows as `1 / discrepancy**2`.

    Raises:
        ValueError: If there are fewer than 2 cells, or a rate or the discrepancy lies outside (0, 1).
    """
    check_rate("min_num_samples_for_chi_square", "discrepancy", discrepancy)
    return int(np.ceil(noncentrality(num_cells, false_fail_rate, false_pass_rate) / (4 * discrepancy**2)))


def min_discrepancy_of_chi_square(
    num_samples: int, *, num_cells: int, false_fail_rate: float, false_pass_rate: float
) -> float:
    """Which total-variation distance a given number of samples makes visible; the inverse of the above.

    Returns:
        A distance; 1 or more means that nothing is visible.

    Raises:
        ValueError: If there are no samples, fewer than 2 cells, or a rate lies outside (0, 1).
    """
    if num_samples < 1:
        raise refuse("min_discrepancy_of_chi_square", f"num_samples={num_samples}", "it must be at least 1", "Draw.")
    return 0.5 * float(np.sqrt(noncentrality(num_cells, false_fail_rate, false_pass_rate) / num_samples))


def plan_samples(
    probs: ArrayLike,  # [num_cells] float64
    *,
    discrepancy: float,
    false_fail_rate: float,
    false_pass_rate: float = 1e-3,
    max_num_draws: int,
    event_prob: float = 1.0,
    tolerance: float = 0.0,
    possible: NDArray[np.bool_] | None = None,  # [num_cells] bool
    min_expected: float = MIN_EXPECTED,
    rehash_seed: int | None = None,
) -> SamplePlan | NoPower:
    """The cheapest pooling and sample size that see `discrepancy`, or the statement that the budget cannot.

    Fewer samples mean coarser pooling, and coarser pooling needs fewer samples; bisection finds where the two meet.

    Args:
        discrepancy: Smallest total-variation distance, over the pooled cells, to be found.
        max_num_draws: Budget of samples to draw.
        event_prob: Probability that a sample is an observation of this table (a rejection at position 1, for example).
        tolerance: Relative error per cell that is not a fault. A distribution within it is at most `tolerance / 2`
            away.
        possible: See `pool_cells`.
        rehash_seed: See `pool_cells`.

    Error rates:
        See `SamplePlan`. The e-process takes 1.3 times the samples of the chi-square test and has at least its power.

    Raises:
        ValueError: If `probs` is not a distribution, a rate lies outside (0, 1), or `tolerance` is negative.
    """
    check_rate("plan_samples", "discrepancy", discrepancy)
    if tolerance < 0:
        raise refuse("plan_samples", f"tolerance={tolerance:g}", "it must be at least 0", "Use 0 for an exact null.")
    visible = discrepancy - tolerance / 2
    if visible <= 0:
        return NoPower(
            f"discrepancy={discrepancy:g} lies within the tolerance of {tolerance:g} per cell", tolerance / 2
        )
    num_samples = int(binom.ppf(_SHORTFALL_RATE, max_num_draws, event_prob))
    if num_samples < 1:
        return NoPower(f"{max_num_draws} draws may bring no observation (probability {event_prob:.3g} each)", 1.0)

    def pool(size: int) -> Pooling:
        return pool_cells(probs, size, possible=possible, min_expected=min_expected, rehash_seed=rehash_seed)

    def needs(size: int) -> float:
        num_pools = pool(size).num_pools
        if num_pools < 2:
            return np.inf
        return E_PROCESS_FACTOR * noncentrality(num_pools, false_fail_rate, false_pass_rate) / (4 * visible**2)

    needed = needs(num_samples)
    if needed == np.inf:
        return NoPower(f"{num_samples} observations leave one pooled cell: too few, or nothing is random", 1.0)
    if needed > num_samples:
        smallest = tolerance / 2 + visible * float(np.sqrt(needed / num_samples))
        return NoPower(f"{num_samples} observations, {needed:.0f} needed", smallest)
    num_samples = _least_sufficient(needs, num_samples)
    num_draws = num_samples + int(nbinom.isf(_SHORTFALL_RATE, num_samples, event_prob))
    return SamplePlan(
        pool(num_samples), num_samples, num_draws, discrepancy, false_fail_rate, false_pass_rate, tolerance
    )


def _least_sufficient(needs: Callable[[int], float], most: int) -> int:
    """A size that needs no more than itself, least to within 0.1 %, given that `most` is one."""
    too_few = 0
    while most - too_few > max(1, most // 1000):
        size = (too_few + most) // 2
        if needs(size) <= size:
            most = size
        else:
            too_few = size
    return most


def finest_plan(
    probs: ArrayLike,  # [num_cells] float64
    *,
    false_fail_rate: float,
    false_pass_rate: float = 1e-3,
    max_num_draws: int,
    event_prob: float = 1.0,
    tolerance: float = 0.0,
    possible: NDArray[np.bool_] | None = None,  # [num_cells] bool
) -> SamplePlan | NoPower:
    """The plan that spends the whole budget and sees the smallest distance that it can see.

    Error rates:
        See `SamplePlan`; the discrepancy is the result here, and belongs into the report's header.
    """

    def plan(discrepancy: float) -> SamplePlan | NoPower:
        return plan_samples(
            probs,
            discrepancy=discrepancy,
            false_fail_rate=false_fail_rate,
            false_pass_rate=false_pass_rate,
            max_num_draws=max_num_draws,
            event_prob=event_prob,
            tolerance=tolerance,
            possible=possible,
        )

    # Nothing sees this distance; the refusal says what the budget does see.
    refusal = plan(tolerance / 2 + 1e-12)
    if not isinstance(refusal, NoPower) or refusal.min_discrepancy >= 0.99:
        return refusal
    return plan(refusal.min_discrepancy * (1 + 1e-9))
