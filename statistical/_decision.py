"""From counts to a verdict: fail early if the evidence is strong, pass only when the plan is fulfilled.

There are three verdicts. A check whose budget ended first, whose event seldom occurred, or whose plan had no power is
*inconclusive*, and that is never green.

Error rates:
    One false-fail rate serves a whole run. It is divided over the shipped checks of a contract
    (`DistributionCheck.share`), so that each check decides alone. By Ville's inequality and the union bound, a correct
    sampler then fails *any* of them with probability at most the total, whatever the dependence between checks and
    however many checkpoints each has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from fairdraw._core.array_types import Pool64s, PoolInts
from fairdraw.statistical._binomial import binomial_tail
from fairdraw.statistical._count_tables import Counts, Label, Table, sum_counts
from fairdraw.statistical._design import NoPower, Plans, SamplePlan
from fairdraw.statistical._evidence import log_e_value, mean_log_e_value
from fairdraw.statistical._pooling import Pooling, pool_cells
from fairdraw.statistical._validation import check_rate, refuse


class Verdict(StrEnum):
    """The outcome of a check."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class TableEvidence:
    """What one table shows: what decides (`log_e_value`, `num_impossible`) and what helps a reader (all else).

    Args:
        num_impossible: Observations in cells of probability 0; one is a failure.
        p_value: Of the chi-square test, shown only. It is uniform only if there was one checkpoint.
        tv_distance: Estimated total-variation distance over the pooled cells; biased upwards by noise.
        tv_interval: 95 % interval for the true distance over the pooled cells. It holds without asymptotics and is
            wide. It may contain 0 although the e-value, which looks at every cell, is beyond doubt.
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
        """The distance and its interval; the lower end is shown only if it is above 0."""
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
    """A verdict with its evidence.

    Args:
        log_e_value: Of all tables together, at the checkpoint where it was largest.
        counts: Of the tables with power, over all checkpoints that were reached.
        num_checkpoints: How many were reached.
        shortfall: The event that occurred too seldom, in words, if that decided.
    """

    verdict: Verdict
    reason: str
    log_e_value: float
    log_threshold: float
    evidence: tuple[TableEvidence, ...]
    counts: Counts
    num_checkpoints: int
    shortfall: str = ""


def decide(
    tables: Mapping[str, Table], plans: Plans, checkpoints: Iterable[Counts], false_fail_rate: float
) -> Decision:
    """Add up counts until the verdict is known or the samples end.

    The tables' e-values are averaged into one by their weights, so that a check has one false-fail rate however many
    tables it has. Each checkpoint computes that e-value and nothing else; distances, intervals and p-values are
    computed once, at the end.

    Args:
        tables: At least those of `plans`.
        plans: Per table; a `NoPower` makes the check inconclusive at best.
        checkpoints: The counts of fresh samples, checkpoint after checkpoint, drawn as they are needed. Whether there
            are more must not depend on what was counted (a time budget may end them).

    Error rates:
        A correct sampler fails with probability at most `false_fail_rate`. For a table's plan to keep its false-pass
        rate, plan with its share of `false_fail_rate` (`plan_tables`). If a table's number of observations is binomial,
        a hundredth of the rate is for the one-sided binomial test of that number, made once, after the last checkpoint,
        and divided over such tables (union bound); the e-process has the rest.

    Raises:
        ValueError: If there is no plan, a planned table was not counted, or it has other cells than its plan.
    """
    check_rate("decide", "false_fail_rate", false_fail_rate)
    if not plans:
        raise refuse("decide", "plans={}", "there must be a table", "Nothing measured is not a pass.")
    planned = {name: plan for name, plan in plans.items() if isinstance(plan, SamplePlan)}
    powerless = {name: tables[name] for name in plans if name not in planned and name in tables}
    counts: Counts = {name: np.zeros_like(plan.pooling.pool_of) for name, plan in planned.items()}
    counts = {**counts, **{name: np.zeros(table.probs.size + 1, np.int64) for name, table in powerless.items()}}
    binomial = {name: one for name in planned if (one := tables[name]).is_binomial and one.observed_per_draw < 1}
    short_rate = _SHORTFALL_SHARE * false_fail_rate if binomial else 0.0
    log_threshold, largest, num_checkpoints = -float(np.log(false_fail_rate - short_rate)), 0.0, 0
    for new in checkpoints if planned else ():
        if missing := sorted(planned.keys() - new.keys()):
            raise refuse("decide", f"no counts of {missing}", "every planned table must be counted", "Count all.")
        counts = sum_counts([counts, {name: new.get(name, counts[name]) for name in counts}])
        num_checkpoints += 1
        largest = max(largest, _mean_log_e_value(planned, counts, tables))
        has_failed = largest >= log_threshold or _impossible_tables(planned, powerless, counts)
        if has_failed or not _unfinished(planned, counts):
            break
    impossible = _impossible_tables(planned, powerless, counts)
    shortfall = _shortfall(binomial, counts, num_checkpoints, short_rate)
    verdict, reason = _verdict(plans, counts, impossible, shortfall, largest >= log_threshold)
    # A table without power is evidence only if it saw what cannot be.
    shown = planned | {name: _bare_plan(table) for name, table in powerless.items() if name in impossible}
    evidence = tuple(weigh(name, counts[name], plan, tables[name]) for name, plan in shown.items())
    return Decision(verdict, reason, largest, log_threshold, evidence, counts, num_checkpoints, shortfall)


_SHORTFALL_SHARE = 0.01
"""Of a check's false-fail rate, for tables that are reached too seldom: it costs the e-process next to nothing."""


def _shortfall(tables: Mapping[str, Table], counts: Counts, num_checkpoints: int, false_fail_rate: float) -> str:
    """The table whose event occurred so seldom that a correct sampler hardly ever does so, in words; or nothing.

    Error rates:
        Whether there was another checkpoint did not depend on counts, unless the check had decided before.
    """
    for name, table in tables.items():
        num_draws, seen = num_checkpoints * table.num_draws, int(counts[name].sum())
        if binomial_tail(seen, num_draws, table.observed_per_draw) <= false_fail_rate / len(tables):
            expected = f"{table.observed_per_draw * num_draws:.0f} of {num_draws} draws are expected there"
            return f"{name}: its event occurred {_times(seen)}, but {expected}"
    return ""


def _bare_plan(table: Table) -> SamplePlan:
    """A plan that only tells possible cells from impossible ones."""
    return SamplePlan(pool_cells(table.probs, 1, table.possible), 1, 1.0, 1.0)


def _verdict(
    plans: Plans, counts: Counts, impossible: list[str], shortfall: str, is_beyond_doubt: bool
) -> tuple[Verdict, str]:
    """The verdict on all counts, and its reason."""
    planned = {name: plan for name, plan in plans.items() if isinstance(plan, SamplePlan)}
    if impossible:
        return Verdict.FAIL, f"impossible observations in {', '.join(impossible)}"
    if is_beyond_doubt:
        return Verdict.FAIL, "the evidence reached its threshold"
    if shortfall:
        return Verdict.FAIL, f"an event is missing: {shortfall}"
    for name, plan in plans.items():
        if isinstance(plan, NoPower):
            return Verdict.INCONCLUSIVE, f"{name} has no power: {plan.reason}"
    if unfinished := _unfinished(planned, counts):
        return Verdict.INCONCLUSIVE, f"too few samples: {', '.join(unfinished)}"
    return Verdict.PASS, "all planned samples were seen"


def _mean_log_e_value(planned: Mapping[str, SamplePlan], counts: Counts, tables: Mapping[str, Table]) -> float:
    """Return the logarithm of the e-value of all tables together."""
    values = [
        log_e_value(plan.pooling.pool(counts[name])[0], plan.pooling.probs, plan.num_samples)
        for name, plan in planned.items()
    ]
    return float(mean_log_e_value(np.array(values), np.array([tables[name].weight for name in planned])))


def _impossible_tables(planned: Mapping[str, SamplePlan], powerless: Mapping[str, Table], counts: Counts) -> list[str]:
    """Names of tables with an observation of probability 0; a table needs no power to have one."""
    seen = [name for name, plan in planned.items() if plan.pooling.pool(counts[name])[1]]
    return seen + [name for name, table in powerless.items() if _bare_plan(table).pooling.pool(counts[name])[1]]


def _unfinished(planned: Mapping[str, SamplePlan], counts: Counts) -> list[str]:
    """Tables with fewer observations than planned, as `name seen/planned`."""
    seen = {name: int(counts[name].sum()) for name in planned}
    return [
        f"{name} {seen[name]}/{plan.num_samples}" for name, plan in planned.items() if seen[name] < plan.num_samples
    ]


def weigh(name: str, counts: NDArray[np.int64], plan: SamplePlan, table: Table) -> TableEvidence:
    """Evidence and effect size of one count table.

    Args:
        counts: All cells, and the last entry for observations that are no cell.

    Raises:
        ValueError: If the table has other cells than the plan.
    """
    probs = plan.pooling.probs
    pooled, num_impossible = plan.pooling.pool(counts)
    num_samples = int(pooled.sum())
    impossible = _impossible(counts, plan.pooling, table)
    if num_samples == 0:
        unknown = (0.0, 0.0, 1.0, 0.0, (0.0, 1.0))
        return TableEvidence(name, num_impossible, probs.size, num_impossible, *unknown, "none", impossible)
    expected = probs * num_samples
    chi_square = float(((pooled - expected) ** 2 / expected).sum()) if probs.size > 1 else 0.0
    p_value = chdtrc(probs.size - 1, chi_square) if probs.size > 1 else 1.0
    worst = int(np.argmax(np.abs(pooled - expected) / np.sqrt(expected)))
    worst_name = _pool_label(plan.pooling, worst, table.label)
    times = f" ({pooled[worst] / expected[worst]:.2g} times as often)" if table.seen_by else ""
    tv_distance, low, high = tv_distance_interval(pooled, probs)
    return TableEvidence(
        name=name,
        num_samples=num_samples + num_impossible,
        num_cells=probs.size,
        num_impossible=num_impossible,
        log_e_value=float(log_e_value(pooled, probs, plan.num_samples)),
        chi_square=float(chi_square),
        p_value=float(p_value),
        tv_distance=tv_distance,
        tv_interval=(low, high),
        worst_cell=f"{worst_name}: {pooled[worst]} seen, {expected[worst]:.1f} expected{times}",
        impossible=impossible,
    )


_MOST_NAMED = 3
"""Impossible cells that are named one by one."""


def _impossible(counts: NDArray[np.int64], pooling: Pooling, table: Table) -> str:  # [num_cells + 1] int64
    """The impossible observations and how often each was made; empty if there were none."""
    cells = np.flatnonzero((pooling.pool_of[:-1] == pooling.num_pools) & (counts[:-1] > 0))
    most = cells[np.argsort(-counts[cells], kind="stable")]
    named = most[:_MOST_NAMED].tolist()
    parts = [f"{table.label(cell)} was seen {_times(int(counts[cell]))}, its probability is 0" for cell in named]
    if most.size > _MOST_NAMED:
        rest = most[_MOST_NAMED:]
        parts.append(f"{rest.size} more cells of probability 0 were seen {_times(int(counts[rest].sum()))}")
    if counts[-1] > 0:
        parts.append(f"{table.outside} was seen {_times(int(counts[-1]))}")
    return "; ".join(parts)


def _times(count: int) -> str:
    """`once`, `2 times`, ... for reports."""
    return "once" if count == 1 else f"{count} times"


def _pool_label(pooling: Pooling, pool: int, label: Label) -> str:
    """The name of a pooled cell: its first cells, and how many it has."""
    cells = pooling.members(pool)
    names = ", ".join(label(int(cell)) for cell in cells[:4])
    return f"cell {names}" if cells.size == 1 else f"{cells.size} pooled cells ({names}{', ...' * (cells.size > 4)})"


def tv_distance_interval(counts: PoolInts, probs: Pool64s) -> tuple[float, float, float]:
    """Total-variation distance between the sampled distribution and `probs`: estimate, lower and upper bound.

    The estimate moves by at most `1 / n` per sample, so it is near its mean (McDiarmid). Its mean exceeds the true
    distance by at most `sqrt((num_pools - 1) / n) / 2` and never falls short of it (Jensen). The interval holds for
    every sample size, without asymptotics, and is wide for many cells.

    Error rates:
        Covers the true distance with probability at least 0.95 if the number of samples was fixed beforehand; after an
        early stop it errs towards too large a distance. It is shown; it does not decide.

    Raises:
        ValueError: If there are no samples.
    """
    num_samples = int(counts.sum())
    if num_samples == 0:
        raise refuse("tv_distance_interval", "counts.sum()=0", "there must be samples", "Draw some.")
    estimate = 0.5 * float(np.abs(counts / num_samples - probs).sum())
    radius = float(np.sqrt(np.log(2 / 0.05) / (2 * num_samples)))
    bias = 0.5 * float(np.sqrt((probs.size - 1) / num_samples))
    return estimate, max(0.0, estimate - bias - radius), min(1.0, estimate + radius)
