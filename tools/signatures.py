"""Which checks fail on which known fault: the signatures from which a report tells the cause from its consequences.

    python tools/signatures.py --out statistical/records/signatures.json --jobs 16

Every check of its contract runs on every mutant, with the numbers that `smoke` has for a fast sampler and the release's
seed. A row per mutant: the checks that it names as right, and those that failed. `_report/specificity.json` is made of
it: for each check, on how many mutants it failed, and on how many of these it is one of those that name the fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from mutants_by_profile import mutants
from provenance import commit, machine

from fairdraw._core.checks import PROFILES
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.controls import sees
from fairdraw._run.loading import all_checks

Row = dict[str, Any]  # Any: JSON
SPECIFICITY = Path(__file__).resolve().parents[1] / "src/fairdraw/_report/specificity.json"


def signature(number: int) -> Row:
    """The row of the mutant of this number."""
    contract, mutant = list(mutants())[number]
    shared, failed = mutant.make(), []
    for check in all_checks(contract=contract):
        wrong = shared if check.suite == "statistical" else mutant.make()
        if check.differential or check.why_not(wrong) is not None:
            continue  # a run has a reference only where one is installed
        if sees(check, wrong, PROFILES["smoke"], DEFAULT_SEED)[0]:
            failed.append(check.code)
    return {"contract": contract, "mutant": mutant.name, "right": mutant.caught_by, "failed": failed}


def specificity(rows: list[Row]) -> dict[str, list[int]]:
    """Code to [mutants on which it fails, those among them that name it]."""
    failing = Counter(code for row in rows for code in row["failed"])
    naming = Counter(code for row in rows for code in row["failed"] if code in row["right"])
    return {code: [failing[code], naming[code]] for code in sorted(failing)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(signature, range(len(list(mutants()))), chunksize=1):
            rows.append(row)
            print(json.dumps(row), flush=True)
    head = json.dumps({"commit": commit(), "machine": machine(), "seed": DEFAULT_SEED})[:-1]
    lines = ",\n".join(map(json.dumps, rows))
    arguments.out.write_text(f'{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    found = ",\n".join(f'"{code}": {counts}' for code, counts in specificity(rows).items())
    SPECIFICITY.write_text(f"{{\n{found}\n}}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
