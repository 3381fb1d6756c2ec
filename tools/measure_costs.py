"""What each check costs: calls of the sampler, rows and elements of logits, and the suite's own seconds.

    python tools/measure_costs.py                                # writes src/fairdraw/_run/costs.json, in some minutes
    python tools/measure_costs.py --contract sampling            # these rows anew, the others as they are
    python tools/measure_costs.py --part properties --match 'REJ34[89]|PLAN118'     # new checks alone
    python tools/measure_costs.py --part controls                # the mutation controls of every contract
    python tools/measure_costs.py --compare torch triton         # expected and real seconds of these samplers

Calls are counted by a wrapper around the fast sampler of each contract. Seconds are CPU time, so that another process
on the machine does not count; `fairdraw._run.speed` scales them by a small piece of work timed on both machines.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import PROFILES, Check, Profile
from fairdraw._core.contracts import CONTRACTS, contract_name
from fairdraw._report.summary import installed_versions
from fairdraw._run.controls import controls_for, run_control
from fairdraw._run.loading import all_checks, load_reference, load_sampler
from fairdraw._run.runner import Session, one_torch_thread, quiet_interpreter, run_check
from fairdraw._run.speed import (
    Cost,
    Costs,
    Meter,
    calibrate,
    expected_seconds,
    in_order,
    measure,
    size_of,
    workload_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairdraw._core.checks import AnyCheck

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src" / "fairdraw" / "_run" / "costs.json"

EXAMPLES = (5, 40)
DRAWS = (300, 1500, 8000, 40_000)
MOST = 200_000
"""Draws of a profile up to which is measured; beyond that everything grows with the draws."""
STRATA = (8, 64)
CONTROL_DRAWS = (2000, 50_000)
PARTS = ("properties", "statistics", "controls")

Row = tuple[str, float, float, float, float, float]
"""Key, size, calls, rows, elements, seconds."""


def cost_of(check: AnyCheck, sampler: Any, profile: Profile, reference: Any) -> Cost:
    """What one run of `check` costs; a failure costs what it costs until then."""
    meter, started = Meter(time.process_time), time.process_time()
    try:
        check.run(meter.wrap(sampler), profile=profile, reference=reference)
    except Exception as error:
        print(f"  {check.code}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
    seconds = time.process_time() - started - meter.seconds
    calls = meter.calls
    return Cost(len(calls), sum(c.rows for c in calls), sum(c.elements for c in calls), max(0.0, seconds))


def row(key: str, size: float, cost: Cost) -> Row:
    return key, size, *cost.numbers[:3], round(cost.seconds, 4)


def property_rows(check: AnyCheck, sampler: Any, reference: Any) -> Iterator[Row]:
    sizes = {size_of(check, sampler, profile): profile for n in EXAMPLES for profile in [Profile("table", n, n)]}
    for size, profile in sizes.items():
        yield row(check.code, size, cost_of(check, sampler, profile, reference))


def stratified_rows(check: AnyCheck, sampler: Any) -> Iterator[Row]:
    for strata in STRATA:
        profile = Profile("table", 2, 2, 60 * strata, 60 * strata)
        yield row(check.code, size_of(check, sampler, profile), cost_of(check, sampler, profile, None))


def workload_rows(checks: Sequence[Any], sampler: Any) -> Iterator[Row]:
    """The first check pays for what all of them share; run again, it pays for itself."""
    share = checks[0].workload.share
    for draws in [*(size for size in DRAWS if size < MOST * share / 2), MOST * share]:
        clear_caches()
        profile = Profile("table", 2, 2, round(draws / share), round(draws / share))
        size = size_of(checks[0], sampler, profile)
        shared = cost_of(checks[0], sampler, profile, None)
        for check in checks:
            own = cost_of(check, sampler, profile, None)
            yield row(check.code, size, own)
            if check is checks[0]:
                yield row(workload_key(check), size, shared + own * -1.0)


def clear_caches() -> None:
    """Forget what statistics prepared, so that every size pays for it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fairdraw.statistical"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def control_rows(contract: str, checks: Sequence[AnyCheck], sampler: Any) -> Iterator[Row]:
    for draws in CONTROL_DRAWS if any(check.suite == "statistical" for check in checks) else CONTROL_DRAWS[:1]:
        profile = Profile("table", PROFILES["smoke"].examples, 5, draws, draws)
        session = Session(sampler.name, profile, crash_folder=None)
        started = time.process_time()
        for planned in controls_for(checks, sampler, session):
            run_control(planned, sampler, session)
        yield row(f"controls {contract}", draws, Cost(seconds=time.process_time() - started))


def rows_of(contract: str, part: str, match: str) -> Iterator[Row]:
    """Every row of a contract's properties, of what it draws, or of its mutation controls."""
    sampler = load_sampler(CONTRACTS[contract].default)
    checks = [check for check in all_checks(contract=contract) if re.search(match, check.code)]
    if part == "controls":
        yield from control_rows(contract, checks, sampler)
        return
    reference, _ = load_reference(None, checks)
    groups: dict[str, list[AnyCheck]] = defaultdict(list)
    for check in checks:
        if check.why_not(sampler, reference) is None and isinstance(check, Check) == (part == "properties"):
            groups[workload_key(check) or check.code].append(check)
    for key, group in groups.items():
        print(key, file=sys.stderr, flush=True)
        if isinstance(group[0], Check):
            yield from property_rows(group[0], sampler, reference)
        elif workload_key(group[0]):
            yield from workload_rows(group, sampler)
        else:
            yield from stratified_rows(group[0], sampler)


def write_table(contract: str, part: str, match: str) -> None:
    """Measure a part of a contract; all other rows stay, scaled to this machine's calibration."""
    calibration = calibrate(time.process_time)
    with one_torch_thread(), quiet_interpreter():
        new = list(rows_of(contract, part, match))
    old = Costs.from_json(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else Costs(calibration)
    keys = {one[0] for one in new}
    kept = [
        row(key, size, Cost(*cost.numbers[:3], cost.seconds * calibration / old.calibration))
        for key, known in old.rows.items()
        for size, cost in known
        if key not in keys
    ]
    head = {"versions": installed_versions(), "columns": ["key", "size", "calls", "rows", "elements", "seconds"]}
    lines = ",\n".join(json.dumps(one) for one in sorted([*kept, *new]))
    plain = json.dumps(head)[1:-1]
    TABLE.write_text(f'{{{plain},\n"calibration": {calibration:.5f},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def compare(specs: Iterable[str], profile: Profile) -> None:
    """Print expected and real seconds of each sampler's checks, without controls."""
    print(f"{'sampler':16} {'suite':12} {'checks':>6} {'expected':>9} {'real':>8} {'ratio':>6}")
    for spec in specs:
        sampler = load_sampler(spec)
        checks = all_checks(contract=contract_name(sampler))
        reference, _ = load_reference(None, checks)
        begun = time.perf_counter()
        speed = measure(sampler, checks)
        measuring = time.perf_counter() - begun
        ordered = in_order(checks, sampler, profile, speed, reference=reference)
        expected = expected_seconds(ordered, sampler, profile, speed, reference=reference)
        session = Session(spec, profile, reference=reference, crash_folder=None)
        real = {check.code: run_check(check, sampler, session).seconds for check in ordered}
        suites = sorted({check.suite for check in checks})
        for suite in [*suites, "all"]:
            codes = [check.code for check in checks if suite in (check.suite, "all")]
            sums = sum(expected[code] for code in codes), sum(real[code] for code in codes)
            print(f"{spec:16} {suite:12} {len(codes):6} {sums[0]:9.1f} {sums[1]:8.1f} {sums[0] / sums[1]:6.2f}")
        worst = sorted(codes, key=lambda code: -abs(expected[code] - real[code]))[:3]
        off = ", ".join(f"{code} {expected[code]:.1f}/{real[code]:.1f}" for code in worst)
        print(f"  measured in {measuring:.1f} s: {speed}; furthest off: {off}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contract", choices=list(CONTRACTS), action="append")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--match", default="", help="only checks whose code has this; not for controls")
    parser.add_argument("--compare", nargs="+", metavar="SPEC")
    parser.add_argument("--profile", choices=list(PROFILES), default="smoke")
    options = parser.parse_args()
    if options.compare:
        compare(options.compare, PROFILES[options.profile])
    else:
        for contract in options.contract or CONTRACTS:
            for part in options.part or PARTS:
                write_table(contract, part, options.match)


if __name__ == "__main__":
    main()
