"""Counting in several processes: the same counts as one process, whatever their number."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SOURCE, printed_by

from fairdraw._mutants._distribution_sampler import DistributionSampler, right_distribution
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS
from fairdraw.statistical._configurations import DISAGREEING, RAGGED
from fairdraw.statistical._count_tables import sum_counts
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._sharding import Shards, main

RIGHT = right_distribution(DistributionSampler)
SHARDS = Shards.of(Experiment(RAGGED, 256), 5 * 8 * 256, seed=3)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_counts_do_not_depend_on_the_number_of_processes(size: int) -> None:
    """Five shards; with eight processes some have none."""
    parts = sum_counts(SHARDS.count(RIGHT, rank, size) for rank in range(size))
    for name, counts in SHARDS.count(RIGHT).items():
        np.testing.assert_array_equal(parts[name], counts)


@pytest.mark.parametrize(("name", "verdict"), [("", "pass"), ("recovers from the target", "fail")])
def test_verdict_at_a_fixed_number_of_draws(name: str, verdict: str) -> None:
    sampler = next((mutant.make() for mutant in DISTRIBUTION_MUTANTS if mutant.name == name), RIGHT)
    shards = Shards.of(Experiment(DISAGREEING, 2048), 100_000, seed=1)
    decision, seen = shards.decide(sum_counts(shards.count(sampler, rank, 2) for rank in range(2)), 1e-6)
    assert decision.verdict == verdict
    assert max(seen.values()) < 0.1


def run_sharded(out: Path, *launcher: str, workers: int = 1) -> dict[str, Any]:  # Any: JSON
    """The record that the command leaves."""
    command = ["-m", "fairdraw.statistical._sharding", "--sampler", "rejection/torch", "--workers", str(workers)]
    command += ["--draws", "2e4", "--batch-size", "512"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    printed_by(*launcher, *command, "--out", str(out), env=environment, timeout=100)
    return json.loads(out.read_text(encoding="utf-8"))


def test_two_processes_of_two_workers_under_torchrun_leave_the_record_of_one(tmp_path: Path) -> None:
    one = run_sharded(tmp_path / "one.json")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    two = run_sharded(tmp_path / "two.json", *torchrun, workers=2)

    assert (one["processes"], two["processes"], two["workers"]) == (1, 2, 2)
    assert one["verdict"] == two["verdict"] == "pass"
    assert one["tables"] == two["tables"]


def test_command_fails_a_wrong_sampler(capsys: pytest.CaptureFixture[str], third_party: Path) -> None:
    (third_party / "unfair.py").write_text(
        "from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS\n"
        "def make(): return next(m for m in DISTRIBUTION_MUTANTS if m.name == 'recovers from the target').make()\n"
    )

    code = main(["--sampler", "unfair:make", "--draws", "1e5", "--batch-size", "2048"])

    assert code == 1
    assert capsys.readouterr().out.startswith("recovers from the target on disagreeing: FAIL")


def test_too_few_draws_for_a_shard_are_refused() -> None:
    with pytest.raises(ValueError, match="num_draws=1000, but it must be at least 8192"):
        Shards.of(Experiment(DISAGREEING, 1024), 1000, seed=0)
