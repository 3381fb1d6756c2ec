"""How often does the statistical lens accuse a right sampler? Run all of it with 1,000 fresh seeds and count.

    python tools/measure_false_alarms.py                     # statistical/records/false_alarms.json
    python tools/measure_false_alarms.py --runs 50 --out /tmp/small.json

Every run is the whole lens on `torch`, the vectorised sampler, at a size that fits: `--draws` rows per law, and as many
decoded tokens and production positions. Sequential decisions are made as in a real run, look after look. The p-values
that are shown beside them must be uniform; Kolmogorov-Smirnov says so, table by table.
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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from provenance import ROOT, commit, machine

from fairdraw import adapters
from fairdraw.checks import Profile
from fairdraw.seeds import derive_seed
from fairdraw.statistical.decision import SequentialCheck, Verdict
from fairdraw.statistical.law_check import LawCheck, false_fail_rate
from fairdraw.statistical.lens import LAW_CHECKS
from fairdraw.statistical.pit import uniformity_p_value
from fairdraw.statistical.subjects import shared_counts
from fairdraw.statistical.watching import watch

if TYPE_CHECKING:
    from fairdraw.protocols import RejectionSampler
    from fairdraw.statistical.decision import Decision

UNIFORMITY_RATE = 1e-3
"""Probability that all tables together look not uniform though they are."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the whole lens.

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
    parser = argparse.ArgumentParser(description="Count the false alarms of the statistical lens.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=2000, help="per law and run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--entropy", type=int, default=None, help="of the seeds; fresh if not given, and recorded")
    parser.add_argument("--out", type=Path, default=ROOT / "statistical" / "records" / "false_alarms.json")
    options = parser.parse_args(arguments)
    entropy = secrets.randbits(32) if options.entropy is None else options.entropy
    seeds = [derive_seed("false alarms", entropy, number) for number in range(options.runs)]
    started, made_by = time.perf_counter(), {"machine": machine(), "commit": commit()}
    with ProcessPoolExecutor(options.workers) as pool:
        runs = list(pool.map(run_lens, seeds, [options.draws] * options.runs, chunksize=5))
    record = summary(runs) | {
        "sampler": "torch",
        "draws_per_law": options.draws,
        "entropy": entropy,
        "seconds": round(time.perf_counter() - started, 1),
        "workers": options.workers,
        **made_by,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['alarms']} alarms in {record['runs']} runs; {record['uniformity']['verdict']}: {options.out}")
    return 0 if record["alarms"] == 0 and record["uniformity"]["verdict"] == "uniform" else 1


def run_lens(seed: int, draws: int) -> Run:
    """Every check of the lens, decided as in a real run."""
    torch.set_num_threads(1)
    sampler = right_sampler()
    decisions = {check.code: decide(check, sampler, draws, seed) for check in sized_checks()}
    tables = [table for decision in decisions.values() for table in decision.evidence]
    return Run(
        seed,
        tuple(code for code, decision in decisions.items() if decision.verdict is Verdict.FAIL),
        tuple(code for code, decision in decisions.items() if decision.verdict is Verdict.INCONCLUSIVE),
        {f"{code} {t.name}": t.p_value for code, decision in decisions.items() for t in decision.evidence},
        max(table.log_e_value for table in tables) / float(np.log(10)),
    )


@cache
def right_sampler() -> RejectionSampler:
    return adapters.load("torch")


@cache
def sized_checks() -> tuple[LawCheck, ...]:
    """The checks of the lens with production vocabularies at full size: at their usual share nothing would be seen."""
    subjects = {check.subject for check in LAW_CHECKS}
    sized = {s: dataclasses.replace(s, share=1.0) if s.name == "production" else s for s in subjects}
    return tuple(dataclasses.replace(check, subject=sized[check.subject]) for check in LAW_CHECKS)


def decide(check: LawCheck, sampler: RejectionSampler, draws: int, seed: int) -> Decision:
    """What `check.run` decides, with its evidence."""
    profile = Profile("false alarms", 0, 0, draws, draws)
    course, plans = check.course(sampler, profile), check.plans(sampler, profile, seed)
    labels = {name: course.tables[name].label for name in plans}
    subject_seed = derive_seed("statistical", seed, check.subject.name)
    return watch(
        SequentialCheck(plans, check.share * false_fail_rate(seed), labels),
        lambda look: shared_counts(sampler, course, subject_seed, look),
        num_looks=course.num_looks,
        out_of_time=lambda: False,
    )


def summary(runs: list[Run]) -> dict[str, Any]:  # Any: JSON
    """Alarms, what could not be decided, and whether p-values are uniform."""
    names = sorted(set.intersection(*(set(run.p_values) for run in runs)))
    uniformity = {name: uniformity_p_value(np.array([run.p_values[name] for run in runs])) for name in names}
    worst = min(uniformity, key=uniformity.__getitem__)
    corrected = min(1.0, uniformity[worst] * len(uniformity))
    return {
        "runs": len(runs),
        "checks": len(LAW_CHECKS),
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
