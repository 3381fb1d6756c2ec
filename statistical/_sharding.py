"""A billion draws: counts are sums, so several processes, and several GPUs, count together.

    torchrun --nproc-per-node 8 -m fairdraw.statistical._sharding --sampler rejection/torch --draws 1e9 --out
    distribution.json

The draws are cut into shards, numbered and seeded independently of the number of processes; process `r` of `n` takes
the shards `r, r + n, ...`. One all-reduce adds the counts (NCCL between GPUs, gloo between CPUs); process 0 decides.
**The counts, and so the verdict, are the same for every number of processes.** A single process needs no torchrun.

Rows are drawn, encoded and counted on the sampler's device; only rows that differ, and how often each was seen, reach
the host. A process may have several workers, which share its GPU: `--workers 4`.

There is one checkpoint, after all draws: the sample size is fixed, so the chi-square p-values beside the e-values are
uniform under the null, too.

Limits:
    Beside a GPU a worker's CPU works per call, not per row: use `--batch-size 524288`. On a CPU a row takes 0.2
    microseconds beside the sampler. A seed gives other counts on a CPU than on a GPU, where torch draws the drafts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw.contracts import RejectionSampler
from fairdraw.statistical._configurations import CONFIGURATIONS
from fairdraw.statistical._count_tables import Counts, Table, sum_counts
from fairdraw.statistical._decision import Decision, Verdict, decide
from fairdraw.statistical._design import SamplePlan, plan_tables
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._validation import refuse

CALLS_PER_SHARD = 8
"""Even, because calls are compared in pairs."""

EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}
"""As `fairdraw check`: an inconclusive run is not green. 2 is a caller's mistake."""


@dataclass(frozen=True)
class Shards:
    """An experiment, cut into parts that any process can draw.

    Args:
        num_shards: Of `CALLS_PER_SHARD` calls each.
    """

    experiment: Experiment
    num_shards: int
    seed: int

    @classmethod
    def of(cls, experiment: Experiment, num_draws: float, seed: int) -> Shards:
        """As many shards as `num_draws` rows fill.

        Raises:
            ValueError: If they do not fill one.
        """
        least = CALLS_PER_SHARD * experiment.batch_size
        if num_draws < least:
            raise refuse("Shards.of", f"num_draws={num_draws:g}", f"it must be at least {least}", "Draw more.")
        return cls(experiment, int(num_draws) // least, seed)

    @property
    def num_draws(self) -> int:
        """Rows of all shards."""
        return self.num_shards * CALLS_PER_SHARD * self.experiment.batch_size

    @property
    def tables(self) -> dict[str, Table]:
        """What is counted, with the draws of all shards."""
        return self.experiment.tables(self.num_shards * CALLS_PER_SHARD)

    def count(self, sampler: RejectionSampler, rank: int = 0, num_processes: int = 1) -> Counts:
        """The count tables of the shards of one process; zeros if it has none.

        Randomness:
            Shard `s` follows from `derive_seed("shard", seed, s)` alone.
        """
        nothing = {name: np.zeros(table.probs.size + 1, dtype=np.int64) for name, table in self.tables.items()}
        seeds = (derive_seed("shard", self.seed, shard) for shard in range(rank, self.num_shards, num_processes))
        return sum_counts([nothing, *(self.experiment.count(sampler, CALLS_PER_SHARD, seed) for seed in seeds)])

    def decide(self, counts: Counts, false_fail_rate: float) -> tuple[Decision, dict[str, float]]:
        """The verdict from the counts of all shards, and per table the total-variation distance that they can show.

        Error rates:
            See `_decision.decide`; the distances belong to a false-pass rate of 1e-3.
        """
        plans = plan_tables(self.tables, 1, false_fail_rate)
        seen = {name: plan.discrepancy for name, plan in plans.items() if isinstance(plan, SamplePlan)}
        return decide(self.tables, plans, [counts], false_fail_rate), seen


def all_reduce(counts: Counts) -> Counts:
    """The sum of the tables over all processes of the initialised group, in one message."""
    import torch
    import torch.distributed as dist

    names = sorted(counts)
    flat = torch.from_numpy(np.concatenate([counts[name] for name in names]))
    flat = flat.to("cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(flat)
    ends = np.cumsum([counts[name].size for name in names])[:-1]
    return dict(zip(names, np.split(flat.cpu().numpy(), ends), strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Count this process's shards; as process 0, decide, print and write the record."""
    options = _parser().parse_args(arguments)
    # Set by torchrun; a process that it did not start is alone.
    rank, num_processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    with _group(num_processes):
        sampler, shards = _loaded(options)
        started = time.perf_counter()
        is_alone = options.workers == 1
        counts = shards.count(sampler, rank, num_processes) if is_alone else _by_workers(options, rank, num_processes)
        if num_processes > 1:
            counts = all_reduce(counts)
        seconds = time.perf_counter() - started
    if rank != 0:
        return 0
    decision, seen = shards.decide(counts, options.false_fail_rate)
    record = _record(options, sampler, num_processes, shards.num_draws, decision)
    record |= {"sees": seen, "seconds": round(seconds, 3)}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(_summary(record, decision))
    return EXIT_CODES[decision.verdict]


def _loaded(options: argparse.Namespace) -> tuple[RejectionSampler, Shards]:
    """The sampler on this process's GPU, and the shards of all processes."""
    # By name, not by an import statement: no layer of the suite depends on the adapters.
    sampler = importlib.import_module("fairdraw.adapters").load(options.sampler)
    configuration = {found.name: found for found in CONFIGURATIONS}[options.configuration]
    experiment = Experiment(configuration, options.batch_size, sampler.device)
    return sampler, Shards.of(experiment, options.draws, options.seed)


def _by_workers(options: argparse.Namespace, rank: int, num_processes: int) -> Counts:
    """As `Shards.count`, by processes of this process: each counts as one of all workers."""
    numbers = range(rank * options.workers, (rank + 1) * options.workers)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        parts = [pool.submit(_count_as_worker, options, one, num_processes * options.workers) for one in numbers]
        return sum_counts([part.result() for part in parts])


def _count_as_worker(options: argparse.Namespace, number: int, num_workers: int) -> Counts:
    _choose_gpu()
    sampler, shards = _loaded(options)
    return shards.count(sampler, number, num_workers)


def _choose_gpu() -> None:
    """That of this process, as torchrun numbers them."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


def _parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m fairdraw.statistical._sharding", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sampler", required=True, help="as for: fairdraw check SPEC")
    parser.add_argument("--draws", type=float, required=True, help="rows, of all processes together: 1e9")
    parser.add_argument("--configuration", choices=[found.name for found in CONFIGURATIONS], default="disagreeing")
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--workers", type=int, default=1, help="of each process; the counts do not depend on them")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--false-fail-rate", type=float, default=1e-6)
    parser.add_argument("--out", type=Path, help="the record, as JSON")
    return parser


@contextlib.contextmanager
def _group(num_processes: int) -> Iterator[None]:
    """The process group while it is needed: NCCL if there are GPUs, gloo otherwise; none for one process."""
    import torch
    import torch.distributed as dist

    _choose_gpu()
    if num_processes == 1:
        yield
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _record(
    options: argparse.Namespace, sampler: RejectionSampler, num_processes: int, num_draws: int, decision: Decision
) -> dict[str, Any]:  # Any: JSON
    """Everything that a reader needs to judge the verdict, and to repeat it."""
    import torch

    return {
        "sampler": sampler.name,
        "device": torch.cuda.get_device_name() if sampler.device.startswith("cuda") else sampler.device,
        "processes": num_processes,
        "workers": options.workers,
        "configuration": options.configuration,
        "batch_size": options.batch_size,
        "draws": num_draws,
        "seed": options.seed,
        "false_fail_rate": options.false_fail_rate,
        "verdict": str(decision.verdict),
        "reason": decision.reason,
        "log10_e_value": decision.log_e_value / math.log(10),
        "log10_threshold": decision.log_threshold / math.log(10),
        "tables": [asdict(table) for table in decision.evidence],
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "torch": torch.__version__},
    }


def _summary(record: dict[str, Any], decision: Decision) -> str:  # Any: JSON
    """The verdict, and a line per table."""
    rate = record["draws"] / record["seconds"]
    head = (
        f"{record['sampler']} on {record['configuration']}: {record['verdict'].upper()} ({record['reason']}), "
        f"{record['draws']} draws by {record['processes']} processes in {record['seconds']} s ({rate:.3g} per second)"
    )
    seen = (f"  {table}\n    sees TV >= {record['sees'][table.name]:.2g}" for table in decision.evidence)
    return "\n".join([head, *seen])


if __name__ == "__main__":
    sys.exit(main())
