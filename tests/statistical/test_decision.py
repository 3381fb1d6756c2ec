"""The decision rule: a correct sampler passes, a wrong one fails, and a short budget is not a pass."""

import math
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import dirichlet_multinomial

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical import _decision as decision_module
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._decision import Decision, Verdict, decide, tv_distance_interval, weigh
from fairdraw.statistical._design import FALSE_PASS_RATE, NoPower, SamplePlan, finest_plan
from fairdraw.statistical._distributions import ROUNDING
from fairdraw.statistical._evidence import log_e_value, mean_log_e_value
from fairdraw.statistical._pit import PitCells

Probs = NDArray[np.float64]


def shifted(probs: Probs, tv_distance: float) -> Probs:
    """A distribution at exactly this distance, spread over all cells so that its chi-square distance is smallest."""
    signs = np.where(np.cumsum(probs) <= 0.5, 1.0, -1.0)
    signs[signs > 0] *= 0.5 / probs[signs > 0].sum()
    signs[signs < 0] *= 0.5 / probs[signs < 0].sum()
    return probs * (1 + 2 * tv_distance * signs)


def largest_log_e_values(
    probs: Probs, drawn_from: Probs, num_samples: int, num_checkpoints: int, num_runs: int, *parts: object
) -> Probs:  # [num_runs] float64
    """The largest log e-value over all checkpoints of each run."""
    rng, batch = np.random.default_rng(derive_seed(*parts)), -(-num_samples // num_checkpoints)
    counts = np.cumsum(rng.multinomial(batch, drawn_from, size=(num_runs, num_checkpoints)), axis=1)
    return log_e_value(counts, probs, num_samples).max(axis=1)


def plan(probs: Probs, num_draws: int = 100_000, false_fail_rate: float = 1e-6) -> SamplePlan:
    return finest_plan(Table(probs), num_draws, false_fail_rate)


def test_e_value_is_a_ratio_of_sequence_probabilities() -> None:
    counts, probs = np.array([7, 2, 1]), np.array([0.5, 0.3, 0.2])
    orders = math.lgamma(11) - sum(math.lgamma(count + 1) for count in counts)
    alternatives = [
        dirichlet_multinomial.logpmf(counts, probs * 640 * size, 10) - orders for size in (1 / 64, 1 / 16, 1 / 4, 1, 4)
    ]
    expected = np.log(np.mean(np.exp(alternatives))) - (counts * np.log(probs)).sum()
    assert log_e_value(counts, probs, num_planned=640) == pytest.approx(expected)


def test_e_value_has_mean_one_under_the_null() -> None:
    """Summed over every possible sequence, not simulated."""
    heads = np.arange(21)
    counts, probs = np.stack([heads, 20 - heads], axis=1), np.array([0.6, 0.4])
    probability = np.array([math.comb(20, int(h)) for h in heads]) * np.exp((counts * np.log(probs)).sum(axis=1))
    assert (probability * np.exp(log_e_value(counts, probs, 50))).sum() == pytest.approx(1)
    assert log_e_value(np.zeros(2, np.int64), probs, 50) == pytest.approx(0, abs=1e-12)


def test_mean_of_e_values_loses_only_the_logarithm_of_its_share() -> None:
    assert mean_log_e_value(np.array([40.0, -3.0, -5.0]), np.array([1.0, 2.0, 5.0])) == pytest.approx(40 - np.log(8))


@pytest.mark.parametrize("num_cells", [8, 32, 128])
def test_counts_under_the_null_raise_no_alarm(num_cells: int) -> None:
    """1000 runs with 20 checkpoints each: 0 alarms at 1e-4, and far fewer than 5 % at 1/20 (Ville's inequality)."""
    pooling = plan(np.random.default_rng(num_cells).dirichlet(np.full(num_cells, 3.0)), 20_000).pooling
    largest = largest_log_e_values(pooling.probs, pooling.probs, 20_000, 20, 1000, "null", num_cells)
    assert (largest >= -np.log(1e-4)).sum() == 0
    assert (largest >= np.log(20)).mean() <= 0.05


@pytest.mark.parametrize(("num_cells", "false_fail_rate"), [(2, 1e-6), (8, 1e-6), (32, 1e-6), (128, 1e-6), (32, 1e-9)])
def test_distribution_at_the_designed_distance_is_caught(num_cells: int, false_fail_rate: float) -> None:
    """The hardest alternative at the discrepancy (smallest chi-square distance) is found in 99.9 % of 1000 runs."""
    probs = np.full(num_cells, 1 / num_cells)
    found = plan(probs, 100_000, false_fail_rate)
    wrong = shifted(probs, found.discrepancy)
    largest = largest_log_e_values(probs, wrong, found.num_samples, 20, 1000, "power", num_cells, false_fail_rate)
    assert (largest < -np.log(false_fail_rate)).mean() <= FALSE_PASS_RATE


def test_distance_spread_thinly_over_many_cells_is_caught() -> None:
    probs = np.full(4096, 1 / 4096)
    found = plan(probs, 600_000)
    wrong = shifted(probs, found.discrepancy)
    assert (largest_log_e_values(probs, wrong, found.num_samples, 1, 40, "many") >= -np.log(1e-6)).mean() >= 0.95


FLOAT32_CELLS = {
    "eight tokens": np.full(8, 1 / 8) * (1 + ROUNDING * np.resize([1, -1], 8)),
    "transforms": np.diff(np.concatenate([[0], np.cumsum(PitCells().table(1).probs)[:-1] + 2.0**-21, [1]])),
}


@pytest.mark.parametrize("name", FLOAT32_CELLS)
def test_rounding_is_no_evidence_at_the_largest_budget(name: str) -> None:
    """The exact null is safe at 1e9 draws, those of `nightly` on a GPU: this is why there is no tolerance.

    Expected counts of a sampler with an error of 1e-6 in every probability (a float32 softmax has 6e-8), or of 5e-7 in
    every sum of the production vocabulary (float32 running sums have 2e-7 on average over the pool).
    """
    wrong = FLOAT32_CELLS[name]
    probs = np.full(8, 1 / 8) if name == "eight tokens" else PitCells().table(1).probs
    counts = np.round(1e9 * wrong).astype(np.int64)
    assert np.abs(counts - 1e9 * probs).max() > 50
    assert log_e_value(counts, probs, 10**9) < 0


PROBS = np.array([0.4, 0.3, 0.2, 0.1])
PLAN = plan(PROBS)
HALF = PLAN.num_samples // 2


def counts_of(probs: object, num_samples: int, *parts: object) -> dict[str, NDArray[np.int64]]:
    counts = np.random.default_rng(derive_seed(*parts)).multinomial(num_samples, np.asarray(probs, dtype=float))
    return {"table": np.append(counts, 0)}


def decided(*checkpoints: dict[str, NDArray[np.int64]], **plans: NoPower) -> Decision:
    return decide({"table": Table(PROBS)}, {"table": PLAN, **plans}, checkpoints, 1e-6)


def test_check_passes_when_all_planned_samples_were_seen() -> None:
    parts = [counts_of(PROBS, HALF, part) for part in "ab"] + [counts_of(PROBS, 9, "rest")]
    found = decided(*parts, counts_of(PROBS, HALF, "not needed"))
    assert (found.verdict, found.num_checkpoints) == (Verdict.PASS, 3 - (PLAN.num_samples <= 2 * HALF))
    assert found.counts["table"].sum() == found.evidence[0].num_samples


def test_check_whose_budget_ended_is_inconclusive() -> None:
    found = decided(counts_of(PROBS, HALF, "a"))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == f"too few samples: table {HALF}/{PLAN.num_samples}"
    assert decided().verdict is Verdict.INCONCLUSIVE


def test_check_without_power_is_inconclusive_however_many_samples_it_sees() -> None:
    found = decided(counts_of(PROBS, PLAN.num_samples, "a"), rare=NoPower("its event never occurs"))
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "rare has no power: its event never occurs")


def test_nothing_is_drawn_for_tables_without_power() -> None:
    found = decide({}, {"rare": NoPower("never")}, iter(lambda: pytest.fail("drawn"), None), 1e-6)
    assert (found.verdict, found.num_checkpoints) == (Verdict.INCONCLUSIVE, 0)


def test_wrong_distribution_is_caught_early() -> None:
    wrong = [counts_of([0.2, 0.3, 0.2, 0.3], HALF // 10, part) for part in range(20)]
    found = decided(*wrong)
    assert (found.verdict, found.num_checkpoints) == (Verdict.FAIL, 1)
    assert found.log_e_value >= found.log_threshold
    low, high = found.evidence[0].tv_interval
    assert low < 0.2 < high
    assert found.evidence[0].worst_cell.startswith("cell 3: ")


def test_single_impossible_observation_is_caught() -> None:
    found = decided({"table": np.array([40, 30, 20, 10, 1])}, counts_of(PROBS, HALF, "never reached"))
    assert (found.verdict, found.num_checkpoints) == (Verdict.FAIL, 1)
    assert found.reason == "impossible observations in table"


@pytest.mark.parametrize("output", [[1, 0, 0, 0], [0.25] * 4, [0, 0, 1, 0]], ids=["all zeros", "uniform", "argmax"])
def test_trivial_sampler_is_caught(output: list[float]) -> None:
    assert decided(counts_of(output, HALF, "trivial")).verdict is Verdict.FAIL


def test_effect_sizes_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counting(name: str, *arguments: object) -> object:
        calls.append(name)
        return weigh(name, *arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(decision_module, "weigh", counting)
    decided(*(counts_of(PROBS, HALF // 10, part) for part in range(10)))
    assert calls == ["table"]


def test_evidence_says_what_was_seen() -> None:
    counts = counts_of(PROBS, 40_000, "text")["table"]
    text = str(weigh("first token", counts, PLAN, Table(PROBS, label="token {}".format)))
    pattern = r"first token: TV 0\.00\d\d \(95 %: at most 0\.0\d+\) over 4 cells, 40000 samples, E = 10\^-\d"
    assert re.match(pattern, text)
    assert "worst cell token " in text


@pytest.mark.parametrize("num_cells", [2, 32])
@pytest.mark.parametrize("tv_distance", [0.0, 0.03])
def test_interval_covers_the_true_distance(num_cells: int, tv_distance: float) -> None:
    probs = np.full(num_cells, 1 / num_cells)
    rng = np.random.default_rng(derive_seed("interval", num_cells, tv_distance))
    intervals = [tv_distance_interval(c, probs) for c in rng.multinomial(5000, shifted(probs, tv_distance), size=500)]
    covered = [low <= tv_distance + 1e-12 and tv_distance <= high for _, low, high in intervals]
    assert np.mean(covered) >= 0.95


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decide({}, {}, [], 1e-6), "plans={}, but there must be a table"),
        (lambda: decide({}, {"a": NoPower("")}, [], 0.0), "false_fail_rate=0, but"),
        (lambda: decided({}), r"no counts of \['table'\], but every planned table must be counted"),
        (lambda: decided({"table": np.zeros(3, np.int64)}), "a table must keep its cells"),
        (lambda: log_e_value(np.zeros(2, np.int64), PROBS, 10), "counts has 2 cells, but it must have 4"),
        (lambda: log_e_value(np.zeros(2, np.int64), np.array([1.0, 0.0]), 10), "every cell must be possible"),
        (lambda: log_e_value(np.zeros(4, np.int64), PROBS, 0), "num_planned=0, but it must be at least 1"),
        (lambda: tv_distance_interval(np.zeros(4, np.int64), PROBS), "there must be samples"),
    ],
    ids=["no tables", "no rate", "missing table", "other cells", "other null", "impossible cell", "no plan", "none"],
)
def test_decision_about_nothing_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]  # a lambda
    with pytest.raises(ValueError, match=message):
        call()
