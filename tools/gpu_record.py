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
    kinds = [line.pop("kind") for line in lines]
    checks = [line for kind, line in zip(kinds, lines, strict=True) if kind == "check"]
    seconds = round(time.monotonic() - started)
    return {"header": lines[0], "checks": checks, "summary": lines[-1], "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
