"""Evidence over nightly runs."""

import functools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._design import SamplePlan, finest_plan
from fairdraw.statistical._ledger import Ledger, LedgerEntry

FAIR = [0.25] * 4
NUM_SAMPLES = 10_000


@functools.cache
def plan() -> SamplePlan:
    return finest_plan(Table(np.array(FAIR)), NUM_SAMPLES, 1e-6)


def nightly_runs(distribution: list[float], num_nightly_runs: int, *parts: object) -> NDArray[np.int64]:
    return np.random.default_rng(derive_seed(*parts)).multinomial(NUM_SAMPLES, distribution, size=num_nightly_runs)


def first_alarm(counts: NDArray[np.int64], false_fail_rate: float) -> int | None:
    entry = LedgerEntry("0")
    for number, nightly_counts in enumerate(counts):
        entry = entry.advance(nightly_counts, plan(), 0.5, number)
        if entry.alarms(false_fail_rate):
            return number
    return None


def test_bias_too_small_for_one_nightly_run_is_caught_by_many() -> None:
    """TV 0.4 %, where a nightly run is designed for 5 %."""
    counts = nightly_runs([0.254, 0.246, 0.25, 0.25], 200, "bias")

    alone = [LedgerEntry("0").advance(run, plan(), 0.5, 1).log_detector for run in counts]

    assert max(alone) < np.log(1e3)
    assert first_alarm(counts, 1e-6) is not None


def test_fault_of_today_is_caught_after_a_good_year() -> None:
    good, bad = nightly_runs(FAIR, 365, "good"), nightly_runs([0.29, 0.21, 0.25, 0.25], 3, "bad")

    assert first_alarm(good, 1e-6) is None
    assert first_alarm(np.concatenate([good, bad]), 1e-6) in (365, 366)


def test_nightly_runs_of_a_correct_sampler_raise_few_alarms() -> None:
    """At a rate of 1/50 the mean time to an alarm is at least 50 nightly runs; 40 lines of 50 nightly runs each."""
    lines = nightly_runs(FAIR, 40 * 50, "correct").reshape(40, 50, 4)

    assert sum(first_alarm(line, 1 / 50) is not None for line in lines) <= 20


def test_ledger_survives_a_round_trip_and_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    counts = nightly_runs(FAIR, 3, "file")
    for number in range(3):
        ledger = Ledger.load(path)
        for sampler in ("rejection/triton", "rejection/torch"):
            ledger.record(f"{sampler} S1 cpu", "1", counts[number], plan(), 0.1 * number, seed=number)
        ledger.save(path)

    entry = Ledger.load(path).entries["rejection/triton S1 cpu"]
    assert entry.num_nightly_runs == 3
    assert entry.counts == tuple(counts.sum(axis=0))
    assert entry.p_values == (0.0, 0.1, 0.2)
    assert entry == Ledger.load(path).entries["rejection/torch S1 cpu"]
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.json"]


def test_changed_sampler_starts_a_new_line() -> None:
    ledger = Ledger()
    bad, good = nightly_runs([0.3, 0.2, 0.25, 0.25], 1, "bad")[0], nightly_runs(FAIR, 1, "good")[0]
    ledger.record("mine S1 cpu", "old", bad, plan(), 0.5, seed=1)

    entry = ledger.record("mine S1 cpu", "new", good, plan(), 0.5, seed=2)

    assert entry.num_nightly_runs == 1
    assert not entry.alarms(0.5)


def test_changed_cells_keep_the_detector_and_start_new_counts() -> None:
    entry = LedgerEntry("0").advance(nightly_runs([0.27, 0.23, 0.25, 0.25], 1, "first")[0], plan(), 0.5, 1)
    other = finest_plan(Table(np.array([0.5, 0.5])), NUM_SAMPLES, 1e-6)

    later = entry.advance(np.array([5000, 5000]), other, 0.5, 2)

    assert later.counts == (5000, 5000)
    assert later.num_nightly_runs == 2
    assert entry.log_detector - 5 < later.log_detector < entry.log_detector


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"a": {"num_nightly_runs": 3}}', '{"a": {"p_values": 1, "counts": []}}']
)
def test_file_that_is_no_ledger_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(content)

    with pytest.raises(ValueError, match="but it must be a ledger"):
        Ledger.load(path)


def test_nightly_run_with_other_cells_than_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="counts has 3 cells, but it must have 4"):
        LedgerEntry("0").advance(np.array([1, 2, 3]), plan(), 0.5, 1)
