"""Run the suite on this machine and keep the result as one JSON record: machine, versions, commit, every check.

    python tools/gpu_record.py --out h200.json rejection/triton sampling/step
    python tools/gpu_record.py --out nightly.json rejection/triton --profile ci --seed fresh --time-budget 2700

CI has no GPU. Evidence from one is produced by this program on a GPU machine and committed as it is written. Options
that it does not have go to `fairdraw check`; the second line is the nightly job of docs/ci.md. The samplers are run
beside each other. Exits with the worst exit code of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from provenance import commit, gpu, machine

from fairdraw.perf_regression._records import write_record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samplers", nargs="+", help="as for: fairdraw check SPEC")
    parser.add_argument("--commit", default=None, help="of the tree that runs, where git cannot be run")
    parser.add_argument("--out", type=Path, required=True)
    options, given = parser.parse_known_args()
    with ThreadPoolExecutor(len(options.samplers)) as pool:
        runs = dict(pool.map(lambda sampler: (sampler, check(sampler, given)), options.samplers))
    head = {"machine": {**machine(), **gpu()}, "commit": options.commit or commit(), "options": " ".join(given)}
    write_record(options.out, {**head, "runs": runs})
    print(f"written: {options.out}")
    return max(run["summary"]["exit_code"] for run in runs.values())


def check(sampler: str, given: list[str]) -> dict[str, Any]:  # Any: JSON of `fairdraw check --json`
    """One `fairdraw check` in a process of its own; its output goes to the terminal."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "run.json"
        command = [sys.executable, "-m", "fairdraw", "check", sampler, "--json", str(result), *given]
        subprocess.run(command, check=False)
        if not result.exists():
            raise SystemExit(f"gpu_record: {sampler} wrote no result. Read the lines above.")
        lines = [json.loads(line) for line in result.read_text(encoding="utf-8").splitlines()]
    checks = [slim(line) for line in lines if line["kind"] == "check"]
    summary = {key: value for key, value in lines[-1].items() if key != "coverage"}  # it is as long as all the rest
    return {"header": lines[0], "checks": checks, "summary": summary, "seconds": round(time.monotonic() - started)}


def slim(line: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    """What a record keeps of a check."""
    report = line["failure_report"] or {}
    kept = {key: line[key] for key in ("code", "title", "status", "reason", "cases", "seconds")}
    return kept | {key: report[key] for key in ("effect", "evidence") if key in report}


if __name__ == "__main__":
    sys.exit(main())
