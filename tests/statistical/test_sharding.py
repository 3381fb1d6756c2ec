"""Counting in several processes: the same counts as one process, whatever their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fairdraw._mutants._distribution_sampler import DistributionSampler
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS
from fairdraw.protocols import rejection_sampler
from fairdraw.statistical._configurations import DISAGREEING, RAGGED
from fairdraw.statistical._count_tables import merge_counts
from fairdraw.statistical._decision import Verdict
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._sharding import Shards, World, count_shards, decide, drawing_from, main

if TYPE_CHECKING:
    from fairdraw.protocols import RejectionSampler

SOURCE = Path(__file__).parents[2] / "src"
RIGHT = rejection_sampler(
    DistributionSampler().verify, name="right", unsupported={"explicit-noise": "draws its own numbers"}
)
SHARDS = Shards.of(Experiment(RAGGED, batch_size=256), 5 * 8 * 256, seed=3)


def mutant(name: str) -> RejectionSampler:
    return next(found for found in DISTRIBUTION_MUTANTS if found.name == name).make()


@pytest.mark.parametrize("size", [2, 3, 8])
def test_counts_do_not_depend_on_the_number_of_processes(size: int) -> None:
    """Five shards; with eight processes some have none."""
    draw = drawing_from(RIGHT)
    whole = count_shards(SHARDS, draw, World())

    parts = [count_shards(SHARDS, draw, World(rank, size, rank)) for rank in range(size)]

    for name, counts in whole.items():
        np.testing.assert_array_equal(merge_counts([part[name] for part in parts]), counts)


def test_right_sampler_passes_at_a_fixed_number_of_draws() -> None:
    shards = Shards.of(Experiment(DISAGREEING, batch_size=2048), 100_000, seed=1)

    decision, seen = decide(shards, count_shards(shards, drawing_from(RIGHT), World()), 1e-6)

    assert decision.verdict is Verdict.PASS
    assert max(seen.values()) < 0.1


def test_shared_exponentials_counted_in_shards_is_caught() -> None:
    shards = Shards.of(Experiment(DISAGREEING, batch_size=2048), 100_000, seed=1)
    draw = drawing_from(mutant("neighbours share their exponentials"))
    parts = [count_shards(shards, draw, World(rank, 2, rank)) for rank in range(2)]

    decision, _ = decide(shards, {name: merge_counts([part[name] for part in parts]) for name in parts[0]}, 1e-6)

    assert decision.verdict is Verdict.FAIL


def run_sharded(out: Path, *launcher: str, sampler: str = "rejection/torch") -> dict[str, Any]:  # Any: JSON
    """The record that the command leaves."""
    command = ["-m", "fairdraw.statistical._sharding", "--sampler", sampler, "--draws", "2e4", "--batch-size", "512"]
    subprocess.run(
        [sys.executable, *launcher, *command, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=100,
    )
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))  # Any: JSON
    return record


def test_two_processes_under_torchrun_leave_the_record_of_one(tmp_path: Path) -> None:
    one = run_sharded(tmp_path / "one.json")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    two = run_sharded(tmp_path / "two.json", *torchrun)

    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["verdict"] == two["verdict"] == "pass"
    assert one["tables"] == two["tables"]


def test_command_fails_a_wrong_sampler(capsys: pytest.CaptureFixture[str], stranger: Path) -> None:
    (stranger / "unfair.py").write_text(
        "from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS\n"
        "def make(): return next(m for m in DISTRIBUTION_MUTANTS if m.name == 'recovers from the target').make()\n"
    )

    code = main(["--sampler", "unfair:make", "--draws", "1e5", "--batch-size", "2048"])

    assert code == 1
    assert capsys.readouterr().out.startswith("recovers from the target on disagreeing: FAIL")


def test_too_few_draws_for_a_shard_are_refused() -> None:
    with pytest.raises(ValueError, match="num_draws=1000, but it must be at least 8192"):
        Shards.of(Experiment(DISAGREEING, batch_size=1024), 1000, seed=0)


def test_sampler_without_seeded_noise_is_refused() -> None:
    sampler = rejection_sampler(
        DistributionSampler().verify, name="mine", unsupported={"seeded-noise": "takes no seeds"}
    )

    with pytest.raises(ValueError, match=r"sampler=mine, but it must take seeds\. But seeded-noise is unsupported"):
        drawing_from(sampler)
