"""Distributions that need a billion draws: counts are sums, so several processes, and several GPUs, count together.

    torchrun --nproc-per-node 8 -m fairdraw.statistical._sharding --sampler rejection/torch --draws 1e9 --out
    distribution.json

The draws are cut into shards, numbered and seeded without regard to who draws them; process `r` of `n` takes the shards
`r, r + n, ...`. One all-reduce adds the count tables (NCCL between GPUs, gloo between CPUs), and process 0 decides.
**The counts, and so the verdict, are the same for every number of processes.** A single process needs no torchrun.

There is one look, after all draws: the sample size is fixed, so the chi-square p-values beside the e-values are uniform
under the null distribution, too.

Limits:
    Rows are counted on the CPU of each process: 0.4 microseconds per row beside an H200, sampler included, with
    `--batch-size 524288`. A faster sampler waits for it.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw.protocols import Capability, SeededNoise
from fairdraw.statistical._configurations import CONFIGURATIONS
from fairdraw.statistical._count_tables import merge_counts
from fairdraw.statistical._decision import SequentialCheck, Verdict
from fairdraw.statistical._design import SamplePlan, finest_plan
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from fairdraw.protocols import RejectionSampler, SpecDecodeBatch
    from fairdraw.statistical._decision import Decision
    from fairdraw.statistical._watching import Draw

__all__ = ["Shards", "World", "count_shards", "decide", "drawing_from", "main"]

CALLS_PER_SHARD = 8
"""Even, because calls are compared in pairs."""

EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}
"""As `fairdraw check`: what shows nothing is not green. 2 is a caller's mistake."""


@dataclass(frozen=True)
class World:
    """This process among its siblings, as torchrun's environment says."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def of_environment(cls) -> World:
        """What torchrun set; one process alone if it did not start this one."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        return cls(*(int(os.environ.get(name, default)) for name, default in zip(names, (0, 1, 0), strict=True)))


@dataclass(frozen=True)
class Shards:
    """An experiment, cut into parts that anybody can draw.

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
        num_shards = int(num_draws) // (CALLS_PER_SHARD * experiment.batch_size)
        if num_shards < 1:
            least = CALLS_PER_SHARD * experiment.batch_size
            raise refuse("Shards.of", f"num_draws={num_draws:g}", f"it must be at least {least}", "Draw more.")
        return cls(experiment, num_shards, seed)

    @property
    def num_draws(self) -> int:
        """Rows of all shards."""
        return self.num_shards * CALLS_PER_SHARD * self.experiment.batch_size

    def own(self, world: World) -> range:
        """The shards of one process."""
        return range(world.rank, self.num_shards, world.size)


def count_shards(shards: Shards, draw: Draw, world: World) -> dict[str, NDArray[np.int64]]:
    """The count tables of this process's shards; zeros if it has none.

    Randomness:
        Shard `s` follows from `derive_seed("shard", seed, s)` alone.
    """
    experiment = shards.experiment
    totals = {table.name: np.zeros(table.distribution.probs.size + 1, dtype=np.int64) for table in experiment.tables}
    for shard in shards.own(world):
        sample = experiment.draw(draw, CALLS_PER_SHARD, derive_seed("shard", shards.seed, shard))
        for name, counts in experiment.count(sample).items():
            totals[name] = merge_counts([totals[name], counts])
    return totals


def decide(
    shards: Shards, counts: Mapping[str, NDArray[np.int64]], false_fail_rate: float
) -> tuple[Decision, dict[str, float]]:
    """The verdict from the counts of all shards, and per table the total-variation distance that they can show.

    Error rates:
        See `SequentialCheck`; the distances belong to a false-pass rate of 1e-3.
    """
    experiment = shards.experiment
    plans = {
        table.name: finest_plan(
            table.distribution.probs,
            false_fail_rate=false_fail_rate / len(experiment.tables),
            max_num_draws=shards.num_draws // len(experiment.configuration.requests),
            event_prob=table.distribution.event_prob / table.distribution.rows_per_observation,
            possible=table.distribution.possible,
        )
        for table in experiment.tables
    }
    check = SequentialCheck(
        plans, false_fail_rate, {table.name: table.distribution.label for table in experiment.tables}
    )
    check.look({name: counts[name] for name in check.planned})
    seen = {name: plan.discrepancy for name, plan in plans.items() if isinstance(plan, SamplePlan)}
    return check.decide(), seen


def all_reduce(counts: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """The sum of the tables over all processes of the initialised group, in one message."""
    import torch
    import torch.distributed as dist

    names = sorted(counts)
    flat = torch.from_numpy(np.concatenate([counts[name] for name in names]))
    flat = flat.to("cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(flat)
    ends = np.cumsum([counts[name].size for name in names])[:-1]
    return dict(zip(names, np.split(flat.cpu().numpy(), ends), strict=True))


def drawing_from(sampler: RejectionSampler) -> Draw:
    """The sampler on noise of its own, seeded call by call.

    Raises:
        ValueError: If it does not take seeded noise.
    """
    from fairdraw._core.harness import emit

    reason = sampler.capabilities.why_unsupported((Capability.SEEDED_NOISE,))
    if reason is not None:
        raise refuse("drawing_from", f"sampler={sampler.name}", "it must take seeds", f"But {reason}.")

    def draw(batch: SpecDecodeBatch, seed: int) -> NDArray[np.int32]:  # [batch_size, max_spec_len + 1] int32
        return emit(sampler, batch, SeededNoise(seed)).tokens

    return draw


def main(arguments: list[str] | None = None) -> int:
    """Count this process's shards; as process 0, decide, print and write the record."""
    options = _parser().parse_args(arguments)
    world = World.of_environment()
    with _group(world):
        # By name, not by an import statement: no layer of the suite depends on the adapters.
        sampler = importlib.import_module("fairdraw._adapters").load(options.sampler)
        configuration = {found.name: found for found in CONFIGURATIONS}[options.configuration]
        experiment = Experiment(configuration, batch_size=options.batch_size, device=sampler.device)
        shards = Shards.of(experiment, options.draws, options.seed)
        started = time.perf_counter()
        counts = count_shards(shards, drawing_from(sampler), world)
        if world.size > 1:
            counts = all_reduce(counts)
        seconds = time.perf_counter() - started
    if world.rank != 0:
        return 0
    decision, seen = decide(shards, counts, options.false_fail_rate)
    record = _record(options, sampler, world, shards, decision) | {"sees": seen, "seconds": round(seconds, 3)}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(_told(record, decision))
    return EXIT_CODES[decision.verdict]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fairdraw.statistical._sharding", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sampler", required=True, help="as for: fairdraw check SPEC")
    parser.add_argument("--draws", type=float, required=True, help="rows, of all processes together: 1e9")
    parser.add_argument("--configuration", choices=[found.name for found in CONFIGURATIONS], default="disagreeing")
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--false-fail-rate", type=float, default=1e-6)
    parser.add_argument("--out", type=Path, help="the record, as JSON")
    return parser


@contextlib.contextmanager
def _group(world: World) -> Iterator[None]:
    """The process group while it is needed: NCCL if there are GPUs, gloo otherwise; none for one process."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank)
    if world.size == 1:
        yield
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _record(
    options: argparse.Namespace, sampler: RejectionSampler, world: World, shards: Shards, decision: Decision
) -> dict[str, Any]:  # Any: JSON
    """Everything that a reader needs to believe the verdict, and to repeat it."""
    import torch

    return {
        "sampler": sampler.name,
        "device": torch.cuda.get_device_name() if sampler.device.startswith("cuda") else sampler.device,
        "processes": world.size,
        "configuration": options.configuration,
        "batch_size": options.batch_size,
        "draws": shards.num_draws,
        "seed": options.seed,
        "false_fail_rate": options.false_fail_rate,
        "verdict": str(decision.verdict),
        "reason": decision.reason,
        "log10_e_value": decision.log_e_value / math.log(10),
        "log10_threshold": decision.log_threshold / math.log(10),
        "tables": [asdict(table) for table in decision.evidence],
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "torch": torch.__version__},
    }


def _told(record: Mapping[str, Any], decision: Decision) -> str:  # Any: JSON
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
