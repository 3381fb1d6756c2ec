"""Run every odd but correct sampler through the engine that users run, and record the results of its checks.

    python tools/record.py odd --out perf_regression/records/odd_samplers.json
    python tools/record.py odd --contract sampling --profile smoke --seeds 20
    python tools/record.py odd --seed 1 --seeds 20 --jobs 14 --seconds 540 --resume --out RECORD

A correct sampler must be green: every record passed or skipped. The rows of the record, one per sampler and seed, are
written as they come; those of an earlier run in the same file stay, unless sampler, profile and seed are the same.
With `--resume` those that the file has are not run again. Exits 1 if a check failed for one.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fairdraw._core.contracts import contract_name
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants import _odd_filters, _odd_grammar, logits_plan, logprobs, penalties, thinking_budget
from fairdraw._mutants.odd_rejection import ODD_REJECTION
from fairdraw._mutants.odd_sampling import ODD_SAMPLING
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import check_sampler
from records import commit, machine, read_rows, results, write_rows

Row = dict[str, Any]  # Any: JSON

COMMIT = commit()[:10]
"""Of the code that is loaded; the tree may move on while samplers are run."""

_ABOUT = machine()
MADE_ON = f"{_ABOUT['processor']}, Python {_ABOUT['python']}, torch {_ABOUT['torch']}"
"""Rows of one record may come from several machines."""

SAMPLERS: dict[str, tuple[Any, ...]] = {
    "filters": _odd_filters.ODD_BUT_RIGHT,
    "grammar": _odd_grammar.ODD_BUT_RIGHT,
    "logits_plan": logits_plan.ODD_BUT_RIGHT,
    "logprobs": logprobs.ODD_BUT_RIGHT,
    "penalties": penalties.ODD_BUT_RIGHT,
    "rejection": ODD_REJECTION,
    "sampling": ODD_SAMPLING,
    "thinking_budget": thinking_budget.ODD_BUT_RIGHT,
}


def checked(task: tuple[str, int, str, int]) -> Row:
    """One run of all checks that a sampler allows: its contract, its number, the profile and the seed."""
    contract, number, profile, seed = task
    sampler, started = SAMPLERS[contract][number], time.process_time()
    all_checks(None, contract)
    gc.freeze()  # what they loaded stays: the collector need not go through it again and again
    records = check_sampler(sampler, profile=profile, seed=seed)
    count = Counter(record.status for record in records)
    accused = [f"{record.id}: {record.status}" for record in records if record.status not in ("passed", "skipped")]
    unsupported = sorted(map(str, sampler.capabilities.unsupported))
    return {
        "contract": contract_name(sampler),
        "sampler": sampler.name,
        "profile": profile,
        "seed": seed,
        "passed": count["passed"],
        "skipped": count["skipped"],
        "accused": accused,
        "unsupported": unsupported,
        "cpu_seconds": round(time.process_time() - started, 1),
        "commit": COMMIT,
        "machine": MADE_ON,
    }


def table_line(row: Row) -> str:
    """One line of the table on the terminal."""
    verdict = ", ".join(row["accused"]) or "green"
    return f"{row['cpu_seconds']:6.1f} s  {row['contract']:9}  {row['sampler']:40}  seed {row['seed']}  {verdict}"


def key(row: Row) -> tuple[str, ...]:
    """Rows of equal key replace each other."""
    return tuple(str(row[name]) for name in ("contract", "sampler", "profile", "seed"))


def write(path: Path, rows: list[Row]) -> None:
    """Write the record."""
    plain = [{name: value for name, value in row.items() if name != "cpu_seconds"} for row in sorted(rows, key=key)]
    write_rows(path, {}, plain, ("contract", "sampler", "profile", "commit", "machine"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contract", choices=sorted(SAMPLERS), action="append")
    parser.add_argument("--only", action="append", help="names of samplers; all if omitted")
    parser.add_argument("--profile", choices=("smoke", "ci"), default="ci")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--seeds", type=int, default=1, help="so many, from --seed on")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    arguments = parser.parse_args()
    rows = read_rows(arguments.out)["rows"] if arguments.out and arguments.out.exists() else []
    found: list[Row] = []
    for row in results(checked, tasks(arguments, rows), arguments.jobs, arguments.seconds):
        found.append(row)
        print(table_line(row), flush=True)
        rows = [one for one in rows if key(one) != key(row)] + [row]
        if arguments.out:
            write(arguments.out, rows)
    return int(any(row["accused"] for row in found))


def tasks(arguments: argparse.Namespace, rows: list[Row]) -> list[tuple[str, int, str, int]]:
    """What is to be run, seed by seed."""
    have = {key(row) for row in rows} if arguments.resume else set()
    return [
        (contract, number, arguments.profile, seed)
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for contract in arguments.contract or sorted(SAMPLERS)
        for number, sampler in enumerate(SAMPLERS[contract])
        if not arguments.only or sampler.name in arguments.only
        if (contract, sampler.name, arguments.profile, str(seed)) not in have
    ]
