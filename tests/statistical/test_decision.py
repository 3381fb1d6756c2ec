"""The decision rule: honest code is left in peace, wrong code is caught, and a short budget is not a pass."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from scipy.stats import dirichlet_multinomial

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._decision import (
    SequentialCheck,
    Verdict,
    adjusted_log_e_values,
    split_false_fail_rate,
    tv_distance_interval,
    weigh,
)
from fairdraw.statistical._design import NoPower, SamplePlan, plan_samples
from fairdraw.statistical._evidence import log_e_value, log_max_likelihood, mean_log_e_value

Distribution = NDArray[np.float64]


def shifted(distribution: Distribution, tv_distance: float) -> Distribution:
    """A distribution at exactly this distance, spread over all cells so that its chi-square distance is the least
    possible.
    """
    signs = np.where(np.cumsum(distribution) <= 0.5, 1.0, -1.0)
    signs[signs > 0] *= 0.5 / distribution[signs > 0].sum()
    signs[signs < 0] *= 0.5 / distribution[signs < 0].sum()
    return distribution * (1 + 2 * tv_distance * signs)


def cumulative_counts(
    distribution: Distribution, num_samples: int, num_looks: int, num_runs: int, *parts: object
) -> NDArray[np.int64]:
    """Counts at each look of each run: `[num_runs, num_looks, num_cells]`."""
    rng = np.random.default_rng(derive_seed(*parts))
    batch = -(-num_samples // num_looks)
    return np.cumsum(rng.multinomial(batch, distribution, size=(num_runs, num_looks)), axis=1)


def plan(distribution: Distribution, **changes: float) -> SamplePlan:
    arguments = {"discrepancy": 0.02, "false_fail_rate": 1e-6, "max_num_draws": 10**7, **changes}
    found = plan_samples(distribution, **arguments)  # type: ignore[arg-type]  # numbers
    assert isinstance(found, SamplePlan)
    return found


def test_e_value_is_a_ratio_of_sequence_probabilities() -> None:
    counts, distribution = np.array([7, 2, 1]), np.array([0.5, 0.3, 0.2])
    orders = math.lgamma(11) - sum(math.lgamma(count + 1) for count in counts)

    alternatives = [
        dirichlet_multinomial.logpmf(counts, distribution * 640 * size, 10) - orders
        for size in (1 / 64, 1 / 16, 1 / 4, 1, 4)
    ]

    expected = np.log(np.mean(np.exp(alternatives))) - (counts * np.log(distribution)).sum()
    assert log_e_value(counts, distribution, num_planned=640) == pytest.approx(expected)


def test_e_value_is_one_before_the_first_sample() -> None:
    assert log_e_value(np.zeros(3, np.int64), np.full(3, 1 / 3), 100) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("tolerance", [0.0, 0.1], ids=["exact null", "tolerance null"])
def test_e_value_has_mean_at_most_one_under_the_null(tolerance: float) -> None:
    """Summed over every possible sequence, not simulated. With a tolerance, under the worst distribution inside it
    too.
    """
    distribution = np.array([0.6, 0.4])
    heads = np.arange(21)
    counts = np.stack([heads, 20 - heads], axis=1)
    orders = np.array([math.comb(20, int(h)) for h in heads])
    for inside in (distribution, np.array([0.6 * (1 - tolerance), 0.4 + 0.6 * tolerance]), np.array([0.64, 0.36])):
        if (np.abs(inside / distribution - 1) > tolerance + 1e-12).any():
            continue
        probs = orders * np.exp((counts * np.log(inside)).sum(axis=1))
        mean = (probs * np.exp(log_e_value(counts, distribution, 50, tolerance))).sum()
        assert mean <= 1 + 1e-9
        assert tolerance > 0 or mean == pytest.approx(1)


@given(
    seed=st.integers(0, 9999), num_cells=st.integers(2, 12), tolerance=st.floats(0.001, 0.9), num=st.integers(0, 300)
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_largest_likelihood_is_the_largest(seed: int, num_cells: int, tolerance: float, num: int) -> None:
    """Against a general optimiser, on the polytope of distributions within the tolerance."""
    rng = np.random.default_rng(derive_seed(seed))
    distribution = rng.dirichlet(np.ones(num_cells))
    counts = rng.multinomial(num, rng.dirichlet(np.full(num_cells, 0.5)))

    largest = log_max_likelihood(counts, distribution, tolerance)

    bounds = [(p * (1 - tolerance), p * (1 + tolerance)) for p in distribution]
    constraint = {"type": "eq", "fun": lambda x: x.sum() - 1}
    start = linprog(-counts.astype(float), A_eq=np.ones((1, num_cells)), b_eq=[1], bounds=bounds).x
    found = minimize(
        lambda x: -(counts * np.log(x)).sum() / max(num, 1),
        start,
        bounds=bounds,
        constraints=constraint,
        method="SLSQP",
    )
    assert largest >= -found.fun * max(num, 1) - 1e-6 * max(num, 1)
    assert largest >= (counts * np.log(distribution)).sum() - 1e-9
    # The maximiser itself must be a distribution within the tolerance: no larger than the relaxed problem without the
    # sum.
    assert largest <= (counts * np.log(distribution * (1 + tolerance))).sum() + 1e-9


def test_largest_likelihood_is_computed_for_many_tables_at_once() -> None:
    distribution = np.array([0.5, 0.3, 0.2])
    counts = np.random.default_rng(1).multinomial(50, [0.2, 0.3, 0.5], size=(4, 3))

    together = log_max_likelihood(counts, distribution, 0.05)

    assert together.shape == (4, 3)
    assert together[2, 1] == pytest.approx(float(log_max_likelihood(counts[2, 1], distribution, 0.05)))


@pytest.mark.parametrize("num_cells", [8, 32, 128])
def test_honest_counts_raise_no_alarm(num_cells: int) -> None:
    """1000 runs with 20 looks each: 0 alarms at 1e-4, and far fewer than 5 % at 1/20 (Ville's inequality)."""
    distribution = np.random.default_rng(num_cells).dirichlet(np.full(num_cells, 3.0))
    found = plan(distribution, discrepancy=0.05)
    pooled = found.pooling.probs

    counts = cumulative_counts(pooled, found.num_samples, 20, 1000, "null", num_cells)
    largest = log_e_value(counts, pooled, found.num_samples).max(axis=1)

    assert (largest >= -np.log(1e-4)).sum() == 0
    assert (largest >= np.log(20)).mean() <= 0.05


@pytest.mark.parametrize(("num_cells", "false_fail_rate"), [(2, 1e-6), (8, 1e-6), (32, 1e-6), (128, 1e-6), (32, 1e-9)])
def test_distribution_at_the_designed_distance_is_caught(num_cells: int, false_fail_rate: float) -> None:
    """The hardest distribution at the discrepancy (least chi-square distance) is found in at least 99.9 % of 1000
    runs.
    """
    distribution = np.full(num_cells, 1 / num_cells)
    found = plan(distribution, discrepancy=0.02, false_fail_rate=false_fail_rate)

    counts = cumulative_counts(
        shifted(distribution, 0.02), found.num_samples, 20, 1000, "power", num_cells, false_fail_rate
    )
    largest = log_e_value(counts, distribution, found.num_samples).max(axis=1)

    assert (largest < -np.log(false_fail_rate)).mean() <= found.false_pass_rate


def test_distribution_spread_thinly_over_many_cells_is_caught() -> None:
    distribution = np.full(4096, 1 / 4096)
    found = plan(distribution)

    counts = np.random.default_rng(derive_seed("many")).multinomial(
        found.num_samples, shifted(distribution, 0.02), size=40
    )

    assert (log_e_value(counts, distribution, found.num_samples) >= -np.log(1e-6)).mean() >= 0.95


def test_larger_distance_is_caught_sooner() -> None:
    distribution = np.full(32, 1 / 32)
    found = plan(distribution)
    means = []
    for factor in (1, 2, 5):
        counts = cumulative_counts(shifted(distribution, 0.02 * factor), found.num_samples, 100, 200, "stop", factor)
        crossed = log_e_value(counts, distribution, found.num_samples) >= -np.log(1e-6)
        means.append(1.3 * (crossed.argmax(axis=1) + 1).mean() / 100)

    # In units of the fixed-size design: 0.58 at the discrepancy, 0.15 at twice, 0.03 at five times.
    assert means == pytest.approx([0.58, 0.15, 0.03], abs=0.05)


def test_numerical_bias_within_the_tolerance_is_no_failure() -> None:
    """TV 0.18 % inside a tolerance of 0.4 %: the exact null cries wolf at 1e7 samples, the tolerance null does not."""
    distribution = np.full(32, 1 / 32)
    rng = np.random.default_rng(derive_seed("bias"))
    counts = rng.multinomial(10**7, shifted(distribution, 0.0018), size=200)

    exact = log_e_value(counts, distribution, 10**7)
    tolerant = log_e_value(counts, distribution, 10**7, tolerance=0.004)

    assert (exact >= -np.log(1e-6)).mean() > 0.9
    assert (tolerant >= -np.log(1e-6)).sum() == 0


def test_distribution_outside_the_tolerance_is_caught() -> None:
    distribution = np.full(32, 1 / 32)
    found = plan(distribution, discrepancy=0.01, tolerance=0.004)

    counts = cumulative_counts(shifted(distribution, 0.01), found.num_samples, 10, 300, "outside")
    largest = log_e_value(counts, distribution, found.num_samples, found.tolerance).max(axis=1)

    assert (largest < -np.log(1e-6)).mean() <= 0.01


def check(distribution: Distribution, **changes: float) -> tuple[SequentialCheck, SamplePlan]:
    found = plan(distribution, **changes)
    return SequentialCheck({"table": found}, found.false_fail_rate), found


def table(distribution: Distribution, num_samples: int, *parts: object) -> NDArray[np.int64]:
    counts = np.random.default_rng(derive_seed(*parts)).multinomial(num_samples, distribution)
    return np.append(counts, 0)


DISTRIBUTION = np.array([0.4, 0.3, 0.2, 0.1])


def test_honest_check_passes_when_all_planned_samples_were_seen() -> None:
    watched, found = check(DISTRIBUTION)

    assert watched.look({"table": table(DISTRIBUTION, found.num_samples // 2, "a")}) is None
    assert watched.look({"table": table(DISTRIBUTION, found.num_samples // 2 + 1, "b")}) is Verdict.PASS
    assert watched.decide().verdict is Verdict.PASS


def test_check_whose_budget_ends_first_is_inconclusive() -> None:
    watched, found = check(DISTRIBUTION)
    watched.look({"table": table(DISTRIBUTION, found.num_samples - 1, "a")})

    decision = watched.decide()

    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.reason == f"too few samples: table {found.num_samples - 1}/{found.num_samples}"


def test_check_without_samples_is_inconclusive() -> None:
    assert check(DISTRIBUTION)[0].decide().verdict is Verdict.INCONCLUSIVE


def test_check_without_power_is_inconclusive_however_many_samples_it_sees() -> None:
    found = plan(DISTRIBUTION)
    watched = SequentialCheck({"table": found, "rare": NoPower("its event never occurs", 1.0)}, 1e-6)

    assert watched.planned == ("table",)
    assert watched.look({"table": table(DISTRIBUTION, found.num_samples, "a")}) is Verdict.INCONCLUSIVE
    assert watched.decide().reason == "rare has no power: its event never occurs"


def test_wrong_distribution_is_caught_early() -> None:
    watched, found = check(DISTRIBUTION)

    verdict = watched.look({"table": table(np.array([0.2, 0.3, 0.2, 0.3]), found.num_samples // 20, "wrong")})

    decision = watched.decide()
    assert verdict is Verdict.FAIL
    assert decision.verdict is Verdict.FAIL
    assert decision.log_e_value >= decision.log_threshold
    low, high = decision.evidence[0].tv_interval
    assert low < 0.2 < high
    assert decision.evidence[0].worst_cell.startswith("cell 3: ")


def test_failure_is_not_forgotten_when_later_samples_look_better() -> None:
    watched, found = check(DISTRIBUTION)
    watched.look({"table": table(np.array([0.4, 0.3, 0.15, 0.15]), 2000, "wrong")})
    watched.look({"table": table(np.array([0.4, 0.3, 0.205, 0.095]), found.num_samples, "repaired")})

    assert watched.decide().verdict is Verdict.FAIL


def test_single_impossible_observation_is_caught() -> None:
    distribution = np.array([0.5, 0.0, 0.5])
    watched, found = check(distribution)
    counts = table(distribution, found.num_samples, "a") + np.array([0, 1, 0, 0])

    assert watched.look({"table": counts}) is Verdict.FAIL
    assert watched.decide().reason == "impossible observations in table"


@pytest.mark.parametrize("output", ["all zeros", "uniform", "argmax"])
def test_vacuous_sampler_is_caught(output: str) -> None:
    distributions = {"all zeros": [1, 0, 0, 0], "uniform": [0.25] * 4, "argmax": [0, 0, 1, 0]}
    distribution = np.array([0.3, 0.25, 0.35, 0.1])
    watched, found = check(distribution)

    assert watched.look({"table": table(np.array(distributions[output]), found.num_samples, output)}) is Verdict.FAIL


def test_evidence_says_what_was_seen() -> None:
    found = plan(DISTRIBUTION)

    text = str(weigh("first token", table(DISTRIBUTION, 40_000, "text"), found, label=lambda cell: f"token {cell}"))

    pattern = r"first token: TV 0\.00\d\d \(95 %: at most 0\.0\d+\) over 4 cells, 40000 samples, E = 10\^-\d"
    assert re.match(pattern, text)
    assert "worst cell token " in text


def test_mean_of_e_values_loses_only_the_logarithm_of_their_number() -> None:
    logs = np.array([40.0, -3.0, -5.0, -1.0])

    assert mean_log_e_value(logs) == pytest.approx(40 - np.log(4))


@pytest.mark.parametrize("num_cells", [2, 32])
@pytest.mark.parametrize("tv_distance", [0.0, 0.03])
def test_interval_covers_the_true_distance(num_cells: int, tv_distance: float) -> None:
    distribution = np.full(num_cells, 1 / num_cells)
    rng = np.random.default_rng(derive_seed("interval", num_cells, tv_distance))

    intervals = [
        tv_distance_interval(c, distribution)
        for c in rng.multinomial(5000, shifted(distribution, tv_distance), size=500)
    ]

    covered = [low <= tv_distance + 1e-12 and tv_distance <= high for _, low, high in intervals]
    assert np.mean(covered) >= 0.95


def test_rate_is_split_by_weight() -> None:
    assert split_false_fail_rate(1e-4, {"a": 1, "b": 3}) == pytest.approx({"a": 0.25e-4, "b": 0.75e-4})


def test_adjusted_e_values_equal_closed_testing() -> None:
    """Against every subset, one by one."""
    names = "abcde"
    logs = dict(zip(names, np.random.default_rng(5).normal(0, 3, 5).tolist(), strict=True))
    weights = dict(zip(names, [1.0, 2.0, 1.0, 0.5, 3.0], strict=True))

    adjusted = adjusted_log_e_values(logs, weights)

    for name in names:
        least = math.inf
        for mask in range(1, 32):
            members = [n for i, n in enumerate(names) if mask >> i & 1]
            if name in members:
                total = sum(weights[n] for n in members)
                least = min(least, sum(weights[n] * math.exp(logs[n]) for n in members) / total)
        assert adjusted[name] == pytest.approx(math.log(least))


def test_adjusted_e_values_list_more_failures_than_splitting_the_rate() -> None:
    logs = {f"check {i}": 12.0 for i in range(9)} | {"honest": 0.0}

    adjusted = adjusted_log_e_values(logs, dict.fromkeys(logs, 1.0))

    # Split over ten checks, E = e^12 would have to reach 10 / 2e-5, and does not.
    assert sum(value >= -np.log(2e-5) for value in adjusted.values()) == 9
    assert adjusted["honest"] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SequentialCheck({}, 1e-6), "plans={}, but it must have a table"),
        (lambda: SequentialCheck({"a": NoPower("", 1.0)}, 0.0), "false_fail_rate=0, but"),
        (lambda: check(DISTRIBUTION)[0].look({}), r"tables=\[\], but they must be \['table'\]"),
        (lambda: check(DISTRIBUTION)[0].look({"table": np.zeros(3, np.int64)}), "all tables must have the same cells"),
        (lambda: log_e_value(np.zeros(2, np.int64), DISTRIBUTION, 10), "counts has 2 cells, but it must have 4"),
        (lambda: log_e_value(np.zeros(2, np.int64), np.array([1.0, 0.0]), 10), "every cell must be possible"),
        (lambda: log_e_value(np.zeros(4, np.int64), DISTRIBUTION, 0), "num_planned=0, but it must be at least 1"),
        (lambda: log_e_value(np.zeros(4, np.int64), DISTRIBUTION, 9, 1.0), r"tolerance=1, but it must lie in \[0, 1\)"),
        (lambda: tv_distance_interval(np.zeros(4, np.int64), DISTRIBUTION), "there must be samples"),
        (lambda: split_false_fail_rate(1e-4, {}), "they must be positive"),
        (lambda: split_false_fail_rate(1e-4, {"a": 0.0}), "they must be positive"),
        (lambda: split_false_fail_rate(2.0, {"a": 1.0}), "total=2, but"),
        (lambda: adjusted_log_e_values({"a": 0.0}, {}), "one positive weight per check"),
    ],
    ids=[
        "no tables", "no rate", "missing table", "other cells", "other distribution", "impossible cell", "no plan", "tolerance",
        "no samples", "no checks", "no weight", "rate", "other checks",
    ],
)  # fmt: skip
def test_decision_about_nothing_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]  # a lambda
    with pytest.raises(ValueError, match=message):
        call()
