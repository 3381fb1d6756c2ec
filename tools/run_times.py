"""How long `fairdraw check` takes at `smoke` and `ci` on our samplers: a record, and a table in docs/ci.md.

    python tools/run_times.py                      # on a quiet machine; about half an hour on 2 cores
    python tools/run_times.py --sampler sampling --profile smoke     # some rows; the others of the record are kept
    python tools/run_times.py --page               # only write the table again

Wall time is what a person waits, start of Python included, with as many workers as `--workers`. CPU time is that of all
processes; it tells a slow run from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from typing import Any

from provenance import ROOT, commit, machine, rows_as_json

RECORD, PAGE = ROOT / "statistical" / "records" / "run_times.json", ROOT / "docs" / "ci.md"
SAMPLERS = (
    "rejection/torch",
    "sampling/torch",
    "penalties/torch",
    "thinking_budget/torch",
    "logits_plan/torch",
    "rejection/step",
    "sampling/step",
    "logits_plan/step",
    "rejection/step-draft-logits",
    "rejection/step-raw",
)
LIMITS = {"smoke": 45, "ci": 240}
"""Seconds that a run should take at most on 2 quiet cores: an aim."""

Row = dict[str, Any]  # Any: JSON


def main() -> int:
    parser = argparse.ArgumentParser(description="Time runs of fairdraw check.")
    parser.add_argument("--sampler", nargs="+", default=SAMPLERS)
    parser.add_argument("--profile", nargs="+", default=("smoke", "ci"))
    parser.add_argument("--workers", default="2")
    parser.add_argument("--page", action="store_true", help="run nothing; write the table from the record")
    options = parser.parse_args()
    rows: list[Row] = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    for sampler, profile in () if options.page else [(s, p) for p in options.profile for s in options.sampler]:
        row = timed(sampler, profile, options.workers)
        print(f"{sampler} {profile}: {row['wall_s']} s, {row['cpu_s']} CPU s, exit code {row['exit_code']}", flush=True)
        rows = [old for old in rows if (old["sampler"], old["profile"]) != (sampler, profile)] + [row]
        RECORD.write_text(rows_as_json({"machine": machine(), "rows": rows}))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


def timed(sampler: str, profile: str, workers: str) -> Row:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "fairdraw", "check", sampler, "--profile", profile, "-n", workers]
    started, used = time.perf_counter(), _cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "sampler": sampler,
        "profile": profile,
        "workers": int(workers),
        "wall_s": round(time.perf_counter() - started, 1),
        "cpu_s": round(_cpu_seconds() - used, 1),
        "exit_code": done.returncode,
        "verdict": done.stdout.strip().splitlines()[-1],
        "commit": commit()[:10],
    }


def _cpu_seconds() -> float:
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_table(page: str, rows: list[Row]) -> str:
    """The page with the table between its two comments."""
    lines = ["| sampler | profile | wall, s | CPU, s | aim, s |", "|---|---|---|---|---|"]
    lines += [
        f"| `{r['sampler']}` | `{r['profile']}` | {r['wall_s']:.0f} | {r['cpu_s']:.0f} | {LIMITS[r['profile']]} |"
        for r in sorted(rows, key=lambda row: (list(LIMITS).index(row["profile"]), SAMPLERS.index(row["sampler"])))
    ]
    text = "\n".join(lines)
    between = r"(<!-- times: begin -->\n).*(<!-- times: end -->)"
    return re.sub(between, lambda marks: f"{marks[1]}{text}\n{marks[2]}", page, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
