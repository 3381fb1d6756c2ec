"""How many draws, and seconds, until the statistical checks catch each mutant? The record behind a page of the manual.

    python tools/record.py power                            # statistical/records/power.json

Every mutant is judged by the checks that have to catch it, as `fairdraw check` would judge it: the release's seed, the
run's false-fail rate divided over all checks, the checkpoints of a run. A mutant that a check does not catch within the
budget is listed as such. Correct samplers that look odd are judged by all checks; none may accuse them.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fairdraw._core.checks import PROFILES, Profile
from fairdraw._core.failures import CheckFailure, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS, STRATIFIED_MUTANTS
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import FunctionSampler
from fairdraw.statistical._distribution_check import FALSE_PASS_RATE, DistributionCheck, false_fail_rate
from fairdraw.statistical._stratified_check import StratifiedCheck
from fairdraw.statistical.rejection import CHECKS, DISTRIBUTION_CHECKS
from odd.rejection_draws import ODD_DISTRIBUTIONS
from records import ROOT, Json, commit, machine, save, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._mutants._mutant import Mutant
    from fairdraw.contracts import RejectionSampler


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the record; 1 if a mutant is missed or a correct sampler accused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=["smoke", "ci"], choices=sorted(PROFILES))
    parser.add_argument("--faults", nargs="*", help="names; all if not given")
    parser.add_argument("--out", type=Path, default=ROOT / "statistical" / "records" / "power.json")
    options = parser.parse_args(arguments)
    faults = [m for m in DISTRIBUTION_MUTANTS if not options.faults or m.name in options.faults]
    record = measure(faults, [PROFILES[name] for name in options.profiles])
    largest_profile = max((PROFILES[name] for name in options.profiles), key=lambda profile: profile.draws)
    record["odd"] = [on_odd_sampler(sampler, largest_profile) for sampler in ODD_DISTRIBUTIONS]
    record["slow"] = [at_slow_budget(mutant, largest_profile) for mutant in STRATIFIED_MUTANTS]
    record["slow_draws"] = largest_profile.slow_draws
    save(options.out, record)
    largest = max(record["profiles"], key=record["profiles"].__getitem__)
    missed = [fault["name"] for fault in record["faults"] if not caught(fault, largest)]
    accused = [odd["name"] for odd in record["odd"] if odd["alarms"] or odd["inconclusive"]]
    print(f"{len(record['faults']) - len(missed)} of {len(record['faults'])} mutants caught: {options.out}")
    print(f"{len(record['odd']) - len(accused)} of {len(record['odd'])} odd but correct samplers pass")
    return 1 if missed or accused else 0


def measure(faults: Iterable[Mutant], profiles: list[Profile]) -> Json:
    """Every mutant under every check that has to catch it, profile by profile."""
    torch.set_num_threads(1)
    made_by = {"machine": machine(), "commit": commit()}
    checks = {check.code: check for check in CHECKS}
    measured = []
    for mutant in faults:
        trials = [attempt(checks[code], mutant, profile) for profile in profiles for code in mutant.caught_by]
        about = {name: getattr(mutant, name) for name in ("name", "description", "min_draws")}
        measured.append({**about, "trials": trials})
        print(*row(measured[-1], [profile.name for profile in profiles]), sep=" | ", flush=True)
    return {
        "faults": measured,
        "profiles": {profile.name: profile.draws for profile in profiles},
        "seed": DEFAULT_SEED,
        "false_fail_rate": false_fail_rate(DEFAULT_SEED),
        "false_pass_rate": FALSE_PASS_RATE,
        "checks": len(DISTRIBUTION_CHECKS),
        **made_by,
    }


def on_odd_sampler(sampler: RejectionSampler, profile: Profile) -> Json:
    """A correct sampler under every check that it supports."""
    started = time.process_time()
    records = [run_check(check, sampler, Session(profile=profile, crash_folder=None)) for check in CHECKS]
    ends = ("passed", "skipped", "inconclusive")
    by_status = {status: [record.code for record in records if record.status == status] for status in ends}
    alarms = [record.code for record in records if record.status not in ends]
    seconds = round(time.process_time() - started, 1)
    found = {"name": sampler.name, "profile": profile.name, "alarms": alarms, "seconds": seconds, **by_status}
    print(*odd_row(found), sep=" | ", flush=True)
    return found


def at_slow_budget(mutant: Mutant, profile: Profile) -> Json:
    """Which checks catch a small fault with the draws of an interpreter: by stratified noise, and by sampling."""
    sampler = mutant.make()
    slow = dataclasses.replace(sampler.capabilities, slow=True)
    paced = FunctionSampler(sampler.name, sampler.verify, sampler.device, slow)
    records = [run_check(check, paced, Session(profile=profile, crash_folder=None)) for check in CHECKS]
    strata = {check.code for check in CHECKS if isinstance(check, StratifiedCheck)}
    failed = [record for record in records if record.status == "failed"]
    return {
        "name": mutant.name,
        "by_strata": {record.code: record.cases for record in failed if record.code in strata},
        "by_sampling": [record.code for record in failed if record.code not in strata],
        "draws_by_strata": max(record.cases for record in records if record.code in strata),
    }


def attempt(check: DistributionCheck | StratifiedCheck, mutant: Mutant, profile: Profile) -> Json:
    """One check on a fresh mutant. What is prepared once for all samplers is not on the clock."""
    sampler = mutant.make()
    visible = check.resolution(sampler, profile, DEFAULT_SEED, 0).tv
    trial: Json = {"profile": profile.name, "check": check.code}
    started = time.process_time()
    try:
        trial |= {"caught": False, "draws": check.run(sampler, profile=profile, seed=DEFAULT_SEED)}
    except CheckFailure as failure:
        trial |= {"caught": True, "draws": getattr(failure, "tried"), "distance": failure.distance}  # noqa: B009
    except Inconclusive as unsure:
        trial |= {"caught": False, "draws": getattr(unsure, "tried"), "inconclusive": str(unsure)}  # noqa: B009
    seconds = round(time.process_time() - started, 3)
    return trial | {"seconds": seconds, "sees": visible}


def caught(fault: Json, profile: str) -> bool:
    """Whether the first check that the mutant names caught it."""
    first = fault["trials"][0]["check"]
    return any(t["caught"] for t in fault["trials"] if (t["profile"], t["check"]) == (profile, first))


def power_table(record: Json) -> str:
    """Return how the record was made, and a row for each mutant."""
    profiles, made = list(record["profiles"]), record["machine"]
    draws = " and ".join(f"{count:,} (`{name}`)" for name, count in record["profiles"].items())
    origin = (
        f"Rows per configuration: {draws}. Rate of false alarms: {record['false_fail_rate']:g} for {record['checks']} "
        f"checks; seed {record['seed']}. {made['processor']}, one thread; Python {made['python']}, torch "
        f"{made['torch']}, NumPy {made['numpy']}; {made['date']}; commit `{record['commit']}`."
    )
    columns = [title for name in profiles for title in (f"draws, `{name}`", "seconds", "distance")]
    rules = ["---", "---", *["---:"] * len(columns), "---"]
    rows = (row(fault, profiles) for fault in record["faults"])
    return "\n".join([origin, "", *table(("mutant", "check", *columns, "also caught by"), rows, rules)])


def odd_table(record: Json) -> str:
    """Correct samplers that no check may accuse."""
    titles = ("sampler", "checks passed", "skipped", "inconclusive", "alarms", "seconds")
    return "\n".join(table(titles, map(odd_row, record["odd"]), ["---", *["---:"] * 5]))


def odd_row(odd: Json) -> list[object]:
    """Return a row of the table of odd samplers."""
    counts = (len(odd[status]) for status in ("passed", "skipped", "inconclusive", "alarms"))
    return [odd["name"], *counts, f"{odd['seconds']:.1f}"]


def slow_table(record: Json) -> str:
    """What stratified noise is for."""
    rows = []
    for fault in record["slow"]:
        strata = ", ".join(f"{code} ({draws:,})" for code, draws in fault["by_strata"].items())
        least = f"not in {fault['draws_by_strata']:,}"
        rows.append([fault["name"], strata or least, ", ".join(fault["by_sampling"]) or "nothing"])
    titles = ("mutant", "caught by stratified noise (draws)", "caught by sampling")
    return "\n".join([f"{record['slow_draws']:,} draws per configuration.", "", *table(titles, rows)])


def row(fault: Json, profiles: list[str]) -> list[str]:
    """Return the cells of a mutant: the check that names it best under each profile, and which others caught it."""
    first = fault["trials"][0]["check"]
    cells = [fault["name"], first]
    for name in profiles:
        trial = next(t for t in fault["trials"] if t["profile"] == name and t["check"] == first)
        distance = f"{trial['distance']:.3f}" if trial["caught"] else ""
        cells += [f"{'' if distance else 'not in '}{trial['draws']:,}", f"{trial['seconds']:.2f}", distance]
    return [*cells, ", ".join(sorted({t["check"] for t in fault["trials"] if t["caught"]} - {first}))]
