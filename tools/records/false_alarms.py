"""How often do the statistical checks accuse a correct sampler? Run all of them with 1,000 fresh seeds and count.

    python tools/record.py false_alarms --jobs 32           # all contracts: statistical/records/false_alarms.json
    python tools/record.py false_alarms --runs 50 --out /tmp/small.json
    python tools/record.py false_alarms --contract sampling --runs 50 --out /tmp/sampling.json
    python tools/record.py false_alarms --codes DIST34 DIST77 --out statistical/records/false_alarms_noise.json

Every run is the whole suite of each contract on `torch`, the vectorised sampler (log-probabilities: the specification),
at a small size: `--draws` rows per configuration, and as many production positions. Checks of large
vocabularies cost as much as all others together, and are in every fifth run. Checks decide as in a real run, checkpoint
after checkpoint. The p-values that are shown beside the decisions must be uniform; a Kolmogorov-Smirnov test says
whether they are, table by table.
Checks of serving traces play a fifth of those of `smoke` in every fifth run, and those of a slow sampler in the others;
each of their projections has the p-value of all its draws. Of a server (a toy) they take a fifth of `smoke`'s tokens.
The p-value of a table of two cells is one of few numbers. It is replaced by the exact binomial one, randomised: ties
count by a random share, so that it is uniform for any number of samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import secrets
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from scipy.stats import binom, kstest, norm

from fairdraw import adapters
from fairdraw._core.checks import PROFILES, Profile
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._toy_server import ToyServer
from fairdraw._mutants._trimming import Trims
from fairdraw._mutants.logprobs import right as right_logprobs
from fairdraw.statistical._decision import Decision, TableEvidence, Verdict
from fairdraw.statistical._design import Plans, SamplePlan
from fairdraw.statistical._distribution_check import DistributionCheck, false_fail_rate
from fairdraw.statistical._slice_check import SliceCheck
from fairdraw.statistical.logprobs import CHECKS as LOGPROBS_CHECKS
from fairdraw.statistical.rejection import DISTRIBUTION_CHECKS
from fairdraw.statistical.sampling import CHECKS as SAMPLING_CHECKS
from fairdraw.statistical.server import CHECKS as SERVER_CHECKS
from records import ROOT, Json, commit, machine, results, save

CHECKS = {
    "rejection": DISTRIBUTION_CHECKS,
    "sampling": SAMPLING_CHECKS,
    "logprobs": LOGPROBS_CHECKS,
    "server": SERVER_CHECKS,
}
Shipped = TypeVar("Shipped", DistributionCheck, SliceCheck)

UNIFORMITY_RATE = 1e-3
"""Probability that the p-values of some table look not uniform although they are."""

FEWEST_SAMPLES = 500
"""The p-value of a table of more than two cells and fewer samples is not uniform; its alarms count all the same."""

SELDOM, EVERY = {"production vocabulary", "largest vocabularies", "151936 tokens"}, 5
"""Groups of workloads that are in one of so many runs."""

LEAST_VARIANCE = 50.0
"""Hits of a projection with less are few numbers, and not normal."""

LARGER = {"production vocabulary": 1.0, "dependence": 10.0, "tiny acceptance": 10.0}
"""Shares of workloads, by group: at their usual share nothing would be seen, or p-values would be few numbers."""


class Task(NamedTuple):
    """What a run is about: checks of these codes, all or all but the most costly."""

    seed: int
    draws: int
    contract: str
    with_all: bool
    codes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of all checks.

    Args:
        alarms: Codes of the checks that failed.
        inconclusive: Codes of the checks that could not be decided at this size.
        p_values: Of every table, from all of its samples.
    """

    task: Task
    alarms: tuple[str, ...]
    inconclusive: tuple[str, ...]
    p_values: dict[str, float]
    max_log10_e_value: float
    cpu_seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Run, write the record; 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=2000, help="per configuration and run")
    parser.add_argument("--jobs", "--workers", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--entropy", type=int, default=None, help="of the seeds; fresh if not given, and recorded")
    parser.add_argument("--contract", choices=CHECKS, nargs="+", default=list(CHECKS), help="default: all")
    parser.add_argument("--codes", nargs="+", default=("DIST",), help="beginnings of codes: of these checks alone")
    parser.add_argument("--out", type=Path, default=ROOT / "statistical" / "records" / "false_alarms.json")
    options = parser.parse_args(arguments)
    entropy = secrets.randbits(32) if options.entropy is None else options.entropy
    started, made_by, codes = time.perf_counter(), {"machine": machine(), "commit": commit()}, tuple(options.codes)
    tasks = [
        Task(derive_seed("false alarms", entropy, number), options.draws, contract, number % EVERY == 0, codes)
        for number in range(options.runs)
        for contract in options.contract
    ]
    runs = list(results(run_suite, tasks, options.jobs, options.seconds))
    checks = [c.code for contract in options.contract for c in CHECKS[contract] if c.code.startswith(codes)]
    record = summary(runs) | {
        "checks": len(checks),
        "codes": checks,
        "sampler": ", ".join(f"{contract}/torch" for contract in options.contract),
        "draws_per_distribution": options.draws,
        "entropy": entropy,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(sum(run.cpu_seconds for run in runs), 1),
        "workers": options.jobs,
        **made_by,
    }
    save(options.out, record)
    print(f"{record['alarms']} alarms in {record['runs']} runs; {record['uniformity']['verdict']}: {options.out}")
    return 0 if record["alarms"] == 0 and record["uniformity"]["verdict"] == "uniform" else 1


def run_suite(task: Task) -> Run:
    """Decide its checks as in a real run."""
    torch.set_num_threads(1)
    seed, draws, contract, with_all, codes = task
    started, rng = time.process_time(), np.random.default_rng(derive_seed("ties", seed))
    sampler, profile = correct_sampler(contract), Profile("false alarms", 0, 0, draws, draws)
    checks = [check for check in sized_checks(contract, codes) if with_all or check.workload.group not in SELDOM]
    decisions = {check.code: check.decide(sampler, profile, seed) for check in checks}
    tables = [table for decision in decisions.values() for table in decision.evidence]
    p_values = {
        f"{check.code} {table.name}": p_value
        for check in checks
        for table in decisions[check.code].evidence
        if (p_value := _p_value(check.plans(sampler, profile, seed), decisions[check.code], table, rng)) is not None
    }
    alarms = [code for code, decision in decisions.items() if decision.verdict is Verdict.FAIL]
    log_e_values = [table.log_e_value for table in tables]
    slow = dataclasses.replace(sampler.capabilities, slow=True)
    of_traces = sampler if with_all else dataclasses.replace(sampler, capabilities=slow)
    if contract == "server":
        vars(of_traces)["calls"] = itertools.count(seed)  # other noise in every run and process
    for check in shipped(contract, codes, SliceCheck):
        evidence, _ = check.evidence(of_traces, PROFILES["smoke"].scaled(0.2), seed)
        assert evidence is not None  # a correct sampler draws
        alarms += [check.code] * check.is_failed(evidence, seed)
        log_e_values.append(evidence.log_e_value)
        p_values |= {
            f"{check.code} {name}": float(norm.cdf(off + (rng.random() - 0.5) / variance**0.5))  # ties count by chance
            for name, (off, variance) in evidence.deviations.items()
            if variance >= LEAST_VARIANCE
        }
    return Run(
        task,
        tuple(alarms),
        tuple(code for code, decision in decisions.items() if decision.verdict is Verdict.INCONCLUSIVE),
        p_values,
        max(log_e_values, default=0.0) / float(np.log(10)),
        time.process_time() - started,
    )


def _p_value(plans: Plans, decision: Decision, table: TableEvidence, rng: np.random.Generator) -> float | None:
    """That of a table, if it must be uniform."""
    plan = plans[table.name]
    if table.num_cells != 2 or not isinstance(plan, SamplePlan):
        return table.p_value if table.num_samples >= FEWEST_SAMPLES and table.num_cells > 2 else None
    counts, _ = plan.pooling.pool(decision.counts[table.name])
    return randomised_p_value(int(counts[0]), int(counts.sum()), float(plan.pooling.probs[0]), rng)


def randomised_p_value(seen: int, num_samples: int, prob: float, rng: np.random.Generator) -> float:
    """Of a two-sided binomial test: exactly uniform under the null."""
    far = np.abs(np.arange(num_samples + 1) - num_samples * prob)
    mass, own = binom.pmf(np.arange(num_samples + 1), num_samples, prob), far[seen]
    ties = np.isclose(far, own, rtol=0, atol=1e-6)
    return float(mass[(far > own) & ~ties].sum() + rng.random() * mass[ties].sum())


@cache
def correct_sampler(contract: str) -> Any:  # Any: of any contract
    """Return the sampler under test: the specification where ours draw nothing.

    In rejection it has a rule that trims drafts, so that its check runs too.
    """
    if contract == "logprobs":
        return right_logprobs()
    if contract == "server":
        return ToyServer()
    sampler = adapters.load(f"{contract}/torch")
    return dataclasses.replace(sampler, trim=Trims().trim) if contract == "rejection" else sampler


def shipped(contract: str, codes: tuple[str, ...], kind: type[Shipped]) -> tuple[Shipped, ...]:
    """Return the checks that draw, of these codes."""
    return tuple(check for check in CHECKS[contract] if check.code.startswith(codes) and isinstance(check, kind))


@cache
def sized_checks(contract: str, codes: tuple[str, ...]) -> tuple[DistributionCheck, ...]:
    """The checks, some with more draws; see `LARGER`."""
    shared = shipped(contract, codes, DistributionCheck)
    workloads = {check.workload for check in shared}
    sized = {one: dataclasses.replace(one, share=LARGER.get(one.group, one.share)) for one in workloads}
    return tuple(dataclasses.replace(check, workload=sized[check.workload]) for check in shared)


def summary(runs: list[Run]) -> Json:
    """Alarms, what could not be decided, and whether p-values are uniform."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, p_value in run.p_values.items():
            found.setdefault(name, []).append(p_value)
    uniformity = {name: float(kstest(found[name], "uniform").pvalue) for name in sorted(found)}
    worst = min(uniformity, key=uniformity.__getitem__)
    corrected = min(1.0, uniformity[worst] * len(uniformity))
    return {
        "runs": len({run.task.seed for run in runs}),
        "false_fail_rate_per_run": false_fail_rate(runs[0].task.seed),
        "alarms": sum(bool(run.alarms) for run in runs),
        "alarmed": [{"contract": r.task.contract, "seed": r.task.seed, "checks": r.alarms} for r in runs if r.alarms],
        "max_log10_e_value": max(run.max_log10_e_value for run in runs),
        "inconclusive_checks": sorted({code for run in runs for code in run.inconclusive}),
        "seldom": f"{', '.join(sorted(SELDOM))}, traces of smoke: one run in {EVERY}",
        "uniformity": {
            "verdict": "uniform" if corrected >= UNIFORMITY_RATE else "not uniform",
            "rule": f"smallest of {len(uniformity)} Kolmogorov-Smirnov p-values, Bonferroni, >= {UNIFORMITY_RATE:g}",
            "worst_table": worst,
            "worst_corrected": corrected,
            "by_table": uniformity,
        },
    }
