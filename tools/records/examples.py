"""Record one failing example per check, for `fairdraw explain` and the check pages: a mutant and the smallest case.

    python tools/record.py examples                  # every check
    python tools/record.py examples DIST203 REJ4      # these checks (by the start of the code) again; others are kept

Each check runs on the mutants that name it, with the `ci` profile and the release's seed, until one fails it. The
failure is shrunk and recorded as one row of failing_examples.json. Exits 1 if a check that has a mutant
fails none.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._report.explanation import RECORD
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from records import save

if TYPE_CHECKING:
    from fairdraw._core.checks import AnyCheck
    from fairdraw._mutants._mutant import Mutant

Row = dict[str, str]


def main(arguments: list[str] | None = None) -> int:
    starts = sys.argv[1:] if arguments is None else arguments
    rows: dict[str, Row] = {}
    if starts and RECORD.exists():
        rows = {row["code"]: row for row in json.loads(RECORD.read_text(encoding="utf-8"))}
    wanted = [check for check in all_checks() if not starts or check.code.startswith(tuple(starts))]
    silent = []
    for number, check in enumerate(wanted, start=1):
        rows.pop(check.code, None)
        found = failing_example(check)
        if found is None and mutants_of(check):
            silent.append(check.code)
        rows |= {} if found is None else {check.code: found}
        print(f"[{number}/{len(wanted)}] {check.code}: {found and found['mutant']}", flush=True)
    save(RECORD, [rows[code] for code in sorted(rows)])
    print(f"{len(rows)} examples; without one although a mutant names them: {', '.join(silent) or 'none'}")
    return int(bool(silent))


def mutants_of(check: AnyCheck) -> list[Mutant]:
    """Mutants that name `check`; those that name it first come first."""
    mutants = [mutant for path in CONTRACTS[check.contract].mutants for mutant in load_part(path)]
    return sorted((m for m in mutants if check.code in m.caught_by), key=lambda m: m.caught_by.index(check.code))


def failing_example(check: AnyCheck) -> Row | None:
    """How the first mutant that `check` catches fails it; `None` if it catches none."""
    reference = load_part(CONTRACTS[check.contract].right)() if check.differential else None
    session = Session(crash_folder=None, reference=reference)
    for mutant in mutants_of(check):
        record = run_check(check, mutant.make(), session)
        if record.status == "failed" and record.failure_report is not None:
            failure_report = record.failure_report
            return {
                "code": check.code,
                "mutant": mutant.name,
                "effect": failure_report.effect,
                "evidence": failure_report.evidence,
                "example": failure_report.example,
            }
    return None
