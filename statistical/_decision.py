"""From counts to a verdict: fail early if the evidence is strong, pass only when the plan is fulfilled.

Three outcomes, and the third is the point: a check whose budget ended first, whose event seldom occurred, or whose
plan had no power is *inconclusive*. It is never green.

Error rates:
    One false-fail rate serves a whole run. It is divided over the shipped checks of a contract
    (`DistributionCheck.share`), so each worker can decide alone; by Ville's inequality and the union bound, honest code
    then fails *any* of them with probability at most the total, whatever the dependence between checks and however
    often each one looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import chisquare

from fairdraw.statistical._count_tables import merge_counts
from fairdraw.statistical._design import NoPower, SamplePlan
from fairdraw.statistical._evidence import log_e_value, mean_log_e_value
from fairdraw.statistical._validation import check_rate, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.statistical._pooling import Pooling

__all__ = [
    "Decision",
    "SequentialCheck",
    "TableEvidence",
    "Verdict",
    "adjusted_log_e_values",
    "split_false_fail_rate",
    "tv_distance_interval",
    "weigh",
]

Label = Callable[[int], str]


class Verdict(StrEnum):
    """What a check says in the end."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class TableEvidence:
    """What one table shows: what decides (`log_e_value`, `num_impossible`) and what helps a reader (all else).

    Args:
        num_impossible: Observations in cells of probability 0; one is a failure.
        p_value: Of the chi-square test. It is shown, and is only uniform if there was one look.
        tv_distance: Estimated total-variation distance over the pooled cells; biased upwards by noise.
        tv_interval: 95 % interval for the true distance over the pooled cells. It holds without asymptotics and is
            wide; it may hold 0 where the e-value, which looks at every cell, is beyond doubt.
        worst_cell: Cell with the largest standardised deviation, with observed and expected counts.
        impossible: The impossible observations by name, the most frequent first; empty if there are none.
    """

    name: str
    num_samples: int
    num_cells: int
    num_impossible: int
    log_e_value: float
    chi_square: float
    p_value: float
    tv_distance: float
    tv_interval: tuple[float, float]
    worst_cell: str
    impossible: str = ""

    @property
    def distance(self) -> str:
        """The distance and its interval, whose lower end is only told if it says something."""
        low, high = self.tv_interval
        between = f"{low:.4f} to {high:.4f}" if low > 0 else f"at most {high:.4f}"
        return f"TV {self.tv_distance:.4f} (95 %: {between}) over {self.num_cells} cells, {self.num_samples} samples"

    def __str__(self) -> str:
        impossible = f"; {self.impossible}" if self.impossible else ""
        return (
            f"{self.name}: {self.distance}, E = 10^{self.log_e_value / np.log(10):.1f}, "
            f"chi-square {self.chi_square:.1f} (p = {self.p_value:.2g}); worst {self.worst_cell}{impossible}"
        )


@dataclass(frozen=True)
class Decision:
    """A verdict with its evidence; `log_e_value` is that of all tables together, at its largest look."""

    verdict: Verdict
    reason: str
    log_e_value: float
    log_threshold: float
    evidence: tuple[TableEvidence, ...]


class SequentialCheck:
    """Tables of the same samples, watched together: look after every batch, stop when the verdict is known.

    The tables' e-values are averaged into one, so that the check has one false-fail rate however many tables it has.

    Args:
        plans: Per table; a `NoPower` makes the check inconclusive at best.
        labels: Per table, the name of a cell; cell numbers if absent.

    Error rates:
        Honest code (within each plan's tolerance) fails with probability at most `false_fail_rate`. For a table's plan
        to keep its false-pass rate, plan with `false_fail_rate / len(plans)`.
    """

    def __init__(
        self,
        plans: Mapping[str, SamplePlan | NoPower],
        false_fail_rate: float,
        labels: Mapping[str, Label] | None = None,
    ) -> None:
        check_rate("SequentialCheck", "false_fail_rate", false_fail_rate)
        if not plans:
            raise refuse("SequentialCheck", "plans={}", "it must have a table", "Nothing measured is not a pass.")
        self._plans = {name: plan for name, plan in plans.items() if isinstance(plan, SamplePlan)}
        self._powerless = {name: plan for name, plan in plans.items() if isinstance(plan, NoPower)}
        self._labels = labels or {}
        self._counts = {name: np.zeros_like(plan.pooling.pool_of) for name, plan in self._plans.items()}
        self._log_threshold = -float(np.log(false_fail_rate))
        self._max_log_e_value = 0.0

    @property
    def planned(self) -> tuple[str, ...]:
        """The tables that are watched: all but those without power."""
        return tuple(self._plans)

    def look(self, counts: Mapping[str, NDArray[np.int64]]) -> Verdict | None:
        """Add the count tables of new samples, one for each of `planned`; the verdict if it is known, else `None`.

        Raises:
            ValueError: If a table is missing, unknown, or has other cells than its plan.
        """
        if counts.keys() != self._counts.keys():
            raise refuse("look", f"tables={sorted(counts)}", f"they must be {sorted(self._counts)}", "Count all.")
        if not counts:
            return Verdict.INCONCLUSIVE
        for name, table in counts.items():
            self._counts[name] = merge_counts([self._counts[name], table])
        evidence = self.evidence()
        mean = float(mean_log_e_value(np.array([table.log_e_value for table in evidence])))
        self._max_log_e_value = max(self._max_log_e_value, mean)
        if self._max_log_e_value >= self._log_threshold or any(table.num_impossible for table in evidence):
            return Verdict.FAIL
        if self._unfinished():
            return None
        return Verdict.INCONCLUSIVE if self._powerless else Verdict.PASS

    def evidence(self) -> tuple[TableEvidence, ...]:
        """What each table shows so far."""
        return tuple(
            weigh(name, self._counts[name], plan, self._labels.get(name, str)) for name, plan in self._plans.items()
        )

    def decide(self) -> Decision:
        """The verdict as things stand: the plan fulfilled, the budget spent, or a clear failure."""
        evidence = self.evidence()
        impossible = [table.name for table in evidence if table.num_impossible]
        if impossible:
            verdict, reason = Verdict.FAIL, f"impossible observations in {', '.join(impossible)}"
        elif self._max_log_e_value >= self._log_threshold:
            verdict, reason = Verdict.FAIL, "the evidence reached its threshold"
        elif self._powerless:
            name, plan = next(iter(self._powerless.items()))
            verdict, reason = Verdict.INCONCLUSIVE, f"{name} has no power: {plan.reason}"
        elif self._unfinished():
            verdict, reason = Verdict.INCONCLUSIVE, f"too few samples: {', '.join(self._unfinished())}"
        else:
            verdict, reason = Verdict.PASS, "all planned samples were seen"
        return Decision(verdict, reason, self._max_log_e_value, self._log_threshold, evidence)

    def _unfinished(self) -> list[str]:
        """Tables with fewer observations than planned, as `name seen/planned`."""
        seen = {name: int(counts.sum()) for name, counts in self._counts.items()}
        return [
            f"{name} {seen[name]}/{plan.num_samples}"
            for name, plan in self._plans.items()
            if seen[name] < plan.num_samples
        ]


def weigh(name: str, counts: NDArray[np.int64], plan: SamplePlan, label: Label = str) -> TableEvidence:
    """Evidence and effect size of one count table.

    Args:
        counts: All cells, and the last entry for observations that are no cell.
        label: Name of a cell of the unpooled table.

    Raises:
        ValueError: If the table has other cells than the plan.
    """
    pooled, num_impossible = plan.pooling.pool(counts)
    expected = plan.pooling.probs * pooled.sum()
    probs, num_samples = plan.pooling.probs, int(pooled.sum())
    impossible = _impossible(counts, plan.pooling, label)
    if num_samples == 0:
        chance = (0.0, 0.0, 1.0, 0.0, (0.0, 1.0))
        return TableEvidence(name, num_impossible, probs.size, num_impossible, *chance, "none", impossible)
    # SciPy refuses sums that differ by more than rounding; both are made from the same total.
    chi_square, p_value = chisquare(pooled, expected * (num_samples / expected.sum()))
    worst = int(np.argmax(np.abs(pooled - expected) / np.sqrt(expected)))
    tv_distance, low, high = tv_distance_interval(pooled, probs)
    return TableEvidence(
        name=name,
        num_samples=num_samples + num_impossible,
        num_cells=probs.size,
        num_impossible=num_impossible,
        log_e_value=float(log_e_value(pooled, probs, plan.num_samples, plan.tolerance)),
        chi_square=float(chi_square),
        p_value=float(p_value),
        tv_distance=tv_distance,
        tv_interval=(low, high),
        worst_cell=f"{_pool_label(plan.pooling, worst, label)}: {pooled[worst]} seen, {expected[worst]:.1f} expected",
        impossible=impossible,
    )


_MOST_NAMED = 3
"""Impossible cells that are named one by one."""


def _impossible(counts: NDArray[np.int64], pooling: Pooling, label: Label) -> str:  # [num_cells + 1] int64
    """What was observed that cannot be, and how often; empty if nothing was."""
    cells = np.flatnonzero((pooling.pool_of[:-1] == pooling.num_pools) & (counts[:-1] > 0))
    most = cells[np.argsort(-counts[cells], kind="stable")]
    told = [f"{label(int(c))} was seen {_times(int(counts[c]))}, its probability is 0" for c in most[:_MOST_NAMED]]
    if most.size > _MOST_NAMED:
        rest = most[_MOST_NAMED:]
        told.append(f"{rest.size} more cells of probability 0 were seen {_times(counts[rest].sum())}")
    if counts[-1] > 0:
        # A table that knows more about it says so (`PitCells`); its label is one of its methods.
        what = getattr(getattr(label, "__self__", None), "OUTSIDE", "what is no cell of this table")
        told.append(f"{what} was seen {_times(counts[-1])}")
    return "; ".join(told)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def tv_distance_interval(
    counts: NDArray[np.int64],  # [num_pools] int64
    probs: NDArray[np.float64],  # [num_pools] float64
    coverage: float = 0.95,
) -> tuple[float, float, float]:
    """Total-variation distance between the sampled distribution and `probs`: estimate, lower and upper bound.

    The estimate moves by at most `1 / n` per sample, so it is near its mean (McDiarmid); its mean exceeds the true
    distance by at most `sqrt((num_pools - 1) / n) / 2` and never falls short of it (Jensen). The interval holds for
    every sample size, without asymptotics, and is wide for many cells.

    Error rates:
        Covers the true distance with probability at least `coverage` if the number of samples was fixed beforehand;
        after an early stop it errs towards too large a distance. It is shown; it does not decide.

    Raises:
        ValueError: If there are no samples or `coverage` lies outside (0, 1).
    """
    check_rate("tv_distance_interval", "coverage", coverage)
    num_samples = int(counts.sum())
    if num_samples == 0:
        raise refuse("tv_distance_interval", "counts.sum()=0", "there must be samples", "Draw some.")
    estimate = 0.5 * float(np.abs(counts / num_samples - probs).sum())
    radius = float(np.sqrt(np.log(2 / (1 - coverage)) / (2 * num_samples)))
    bias = 0.5 * float(np.sqrt((probs.size - 1) / num_samples))
    return estimate, max(0.0, estimate - bias - radius), min(1.0, estimate + radius)


def split_false_fail_rate(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Each check's share of the run's false-fail rate, in proportion to its weight.

    Raises:
        ValueError: If there are no checks, a weight is not positive, or `total` lies outside (0, 1).
    """
    check_rate("split_false_fail_rate", "total", total)
    if not weights or min(weights.values()) <= 0:
        raise refuse("split_false_fail_rate", f"weights={dict(weights)}", "they must be positive", "Use 1 for each.")
    whole = sum(weights.values())
    return {name: total * weight / whole for name, weight in weights.items()}


def adjusted_log_e_values(log_e_values: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """E-values adjusted for listing several failures of one run, a Holm procedure for e-values; no report uses it.

    A check's adjusted e-value is the least weighted mean over all sets of checks that contain it (closed testing). That
    set takes the smallest e-values first.

    Error rates:
        With probability at least `1 - false_fail_rate` no honest check has an adjusted e-value of
        `1 / false_fail_rate` or more. Never weaker than splitting the rate in proportion to the weights.

    Raises:
        ValueError: If checks and weights have different names, or a weight is not positive.

    Reference:
        Vovk, Wang (2021), arXiv:1912.06116, algorithm 1.
    """
    if log_e_values.keys() != weights.keys() or (weights and min(weights.values()) <= 0):
        raise refuse("adjusted_log_e_values", f"weights={dict(weights)}", "one positive weight per check", "Use 1.")
    ascending = sorted(log_e_values, key=log_e_values.__getitem__)
    logs = np.array([log_e_values[name] for name in ascending])
    shares = np.array([weights[name] for name in ascending])
    adjusted = {}
    for rank, name in enumerate(ascending):
        sets = [[*range(size), rank] for size in range(rank + 1)]
        adjusted[name] = min(float(mean_log_e_value(logs[ids], shares[ids])) for ids in sets)
    return adjusted


def _pool_label(pooling: Pooling, pool: int, label: Label) -> str:
    cells, size = pooling.members(pool)
    names = ", ".join(label(cell) for cell in cells)
    return f"cell {names}" if size == 1 else f"{size} pooled cells ({names}{', ...' if size > len(cells) else ''})"
