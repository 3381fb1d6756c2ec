"""Run the suite on this machine and keep the result as one JSON record: machine, versions, commit, every check.

    python tools/gpu_record.py --commit $(git rev-parse HEAD) --out perf_regression/records/h200.json triton torch

CI has no GPU. Evidence from one is produced by this program on a GPU machine and committed as it is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import gpu, machine

from fairdraw.perf_regression._records import write_record


def main() -> int:
    parser = argparse.ArgumentParser(description="Check samplers and keep the record.")
    parser.add_argument("samplers", nargs="+", help="as for: fairdraw check SPEC")
    parser.add_argument("--commit", required=True, help="of the tree that runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profile", default="ci")
    parser.add_argument("--only", help="one suite")
    options = parser.parse_args()
    runs = {sampler: check(sampler, options.profile, options.only) for sampler in options.samplers}
    record = {"machine": {**machine(), **gpu()}, "commit": options.commit, "profile": options.profile, "runs": runs}
    write_record(options.out, record)
    print(f"written: {options.out}")
    return max(run["summary"]["exit_code"] for run in runs.values())


def check(sampler: str, profile: str, only: str | None) -> dict[str, Any]:  # Any: JSON of `fairdraw check --json`
    """One `fairdraw check` in a process of its own; its output goes to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "run.json"
        command = [sys.executable, "-m", "fairdraw", "check", sampler, "--profile", profile, "--json", str(result)]
        subprocess.run([*command, *(["--only", only] if only else [])], check=False)
        if not result.exists():
            raise SystemExit(f"gpu_record: {sampler} wrote no result. Read the lines above.")
        lines = [json.loads(line) for line in result.read_text(encoding="utf-8").splitlines()]
        kinds = [line.pop("kind") for line in lines]
        checks = [line for kind, line in zip(kinds, lines, strict=True) if kind == "check"]
        return {"header": lines[0], "records": checks, "summary": lines[-1]}


if __name__ == "__main__":
    sys.exit(main())
