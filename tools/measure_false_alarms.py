"""How often do the statistical checks accuse a correct sampler? Run all of them with 1,000 fresh seeds and count.

    python tools/measure_false_alarms.py                     # statistical/records/false_alarms.json
    python tools/measure_false_alarms.py --runs 50 --out /tmp/small.json
    python tools/measure_false_alarms.py --contract sampling --runs 50 --out /tmp/sampling.json

Every run is the whole suite of a contract on `torch`, the vectorised sampler, at a small size: `--draws`
rows per configuration, and as many decoded tokens and production positions. Checks decide as in a real run, checkpoint
after checkpoint. The p-values that are shown beside the decisions must be uniform; a Kolmogorov-Smirnov test says
whether they are, table by table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import ROOT, commit, machine
from scipy.stats import kstest

from fairdraw import _adapters as adapters
from fairdraw._core.checks import Profile
from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._decision import Verdict
from fairdraw.statistical._distribution_check import DistributionCheck, false_fail_rate
from fairdraw.statistical.rejection import DISTRIBUTION_CHECKS
from fairdraw.statistical.sampling import CHECKS as SAMPLING_CHECKS

UNIFORMITY_RATE = 1e-3
"""Probability that the p-values of some table look not uniform although they are."""

FEWEST_SAMPLES = 500
"""The p-value of a table with fewer is one of a few numbers, and not uniform; its alarms count all the same."""

LARGER = {"production vocabulary": 1.0, "dependence": 10.0, "tiny acceptance": 10.0}
"""Shares of workloads, by group: at their usual share nothing would be seen, or p-values would be few numbers."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of all checks.

    Args:
        alarms: Codes of the checks that failed.
        inconclusive: Codes of the checks that could not be decided at this size.
        p_values: Of every table, from all of its samples.
    """

    seed: int
    alarms: tuple[str, ...]
    inconclusive: tuple[str, ...]
    p_values: dict[str, float]
    max_log10_e_value: float


def main(arguments: list[str] | None = None) -> int:
    """Run, write the record; 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description="Count the false alarms of the statistical checks.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=2000, help="per configuration and run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--entropy", type=int, default=None, help="of the seeds; fresh if not given, and recorded")
    parser.add_argument("--contract", choices=("rejection", "sampling"), default="rejection")
    parser.add_argument("--out", type=Path, default=ROOT / "statistical" / "records" / "false_alarms.json")
    options = parser.parse_args(arguments)
    entropy = secrets.randbits(32) if options.entropy is None else options.entropy
    seeds = [derive_seed("false alarms", entropy, number) for number in range(options.runs)]
    started, made_by = time.perf_counter(), {"machine": machine(), "commit": commit()}
    with ProcessPoolExecutor(options.workers) as pool:
        sizes, contracts = [options.draws] * options.runs, [options.contract] * options.runs
        runs = list(pool.map(run_suite, seeds, sizes, contracts, chunksize=5))
    record = summary(runs, options.contract) | {
        "sampler": f"{options.contract}/torch",
        "draws_per_distribution": options.draws,
        "entropy": entropy,
        "seconds": round(time.perf_counter() - started, 1),
        "workers": options.workers,
        **made_by,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['alarms']} alarms in {record['runs']} runs; {record['uniformity']['verdict']}: {options.out}")
    return 0 if record["alarms"] == 0 and record["uniformity"]["verdict"] == "uniform" else 1


def run_suite(seed: int, draws: int, contract: str = "rejection") -> Run:
    """Every check, decided as in a real run."""
    torch.set_num_threads(1)
    sampler, profile = correct_sampler(contract), Profile("false alarms", 0, 0, draws, draws)
    decisions = {check.code: check.decide(sampler, profile, seed) for check in sized_checks(contract)}
    tables = [table for decision in decisions.values() for table in decision.evidence]
    return Run(
        seed,
        tuple(code for code, decision in decisions.items() if decision.verdict is Verdict.FAIL),
        tuple(code for code, decision in decisions.items() if decision.verdict is Verdict.INCONCLUSIVE),
        {
            f"{code} {t.name}": t.p_value
            for code, decision in decisions.items()
            for t in decision.evidence
            if t.num_samples >= FEWEST_SAMPLES
        },
        max(table.log_e_value for table in tables) / float(np.log(10)),
    )


@cache
def correct_sampler(contract: str) -> Any:  # Any: of either contract
    """The sampler under test."""
    return adapters.load(f"{contract}/torch")


def shipped(contract: str) -> tuple[DistributionCheck, ...]:
    """The checks that draw."""
    return DISTRIBUTION_CHECKS if contract == "rejection" else SAMPLING_CHECKS


@cache
def sized_checks(contract: str) -> tuple[DistributionCheck, ...]:
    """The checks, some with more draws; see `LARGER`."""
    workloads = {check.workload for check in shipped(contract)}
    sized = {one: dataclasses.replace(one, share=LARGER.get(one.group, one.share)) for one in workloads}
    return tuple(dataclasses.replace(check, workload=sized[check.workload]) for check in shipped(contract))


def summary(runs: list[Run], contract: str = "rejection") -> dict[str, Any]:  # Any: JSON
    """Alarms, what could not be decided, and whether p-values are uniform."""
    names = sorted(set.intersection(*(set(run.p_values) for run in runs)))
    uniformity = {name: float(kstest([run.p_values[name] for run in runs], "uniform").pvalue) for name in names}
    worst = min(uniformity, key=uniformity.__getitem__)
    corrected = min(1.0, uniformity[worst] * len(uniformity))
    return {
        "runs": len(runs),
        "checks": len(shipped(contract)),
        "false_fail_rate_per_run": false_fail_rate(runs[0].seed),
        "alarms": sum(bool(run.alarms) for run in runs),
        "alarmed": [{"seed": run.seed, "checks": run.alarms} for run in runs if run.alarms],
        "max_log10_e_value": max(run.max_log10_e_value for run in runs),
        "inconclusive_checks": sorted({code for run in runs for code in run.inconclusive}),
        "uniformity": {
            "verdict": "uniform" if corrected >= UNIFORMITY_RATE else "not uniform",
            "rule": f"smallest of {len(uniformity)} Kolmogorov-Smirnov p-values, Bonferroni, >= {UNIFORMITY_RATE:g}",
            "worst_table": worst,
            "worst_corrected": corrected,
            "by_table": uniformity,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
