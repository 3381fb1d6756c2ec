"""How long `fairdraw check` takes, and what it announces: a record, and a sentence of the README.

    python tools/record.py run_times                      # our samplers, on a quiet machine; half an hour on 2 cores
    python tools/record.py run_times --sampler sampling --profile smoke     # some rows; the others are kept

Wall time is what a person waits, start of Python included, with as many workers as `--workers`. CPU time is that of all
processes; it tells a slow run from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from records import ROOT, Json, commit, cpu_seconds, machine, python_path, save, table

RECORD = ROOT / "statistical" / "records" / "run_times.json"
README = ROOT / "README.md"
EXAMPLE = "examples.my_sampler:make"
"""The sampler of the README."""

SAMPLERS = (
    *(f"{contract}/torch" for contract in ("rejection", "sampling", "penalties", "thinking_budget", "logits_plan")),
    *("rejection/step", "sampling/step", "logits_plan/step", "rejection/step-draft-logits", "rejection/step-raw"),
    EXAMPLE,
)
LIMITS = {"smoke": 45, "ci": 240}
"""Seconds that a run should take at most on 2 quiet cores: an aim."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Time runs of fairdraw check.")
    parser.add_argument("--sampler", nargs="+", default=SAMPLERS)
    parser.add_argument("--profile", nargs="+", default=("smoke", "ci"))
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    rows = _recorded()
    wanted = [(s, p) for p in options.profile for s in options.sampler]
    with tempfile.TemporaryDirectory() as folder:
        for sampler, profile in wanted:
            row = timed(sampler, profile, options.workers, folder)
            print(f"{sampler} {profile}: {row['wall_s']} s of {row['announced_s']} s announced: {row['verdict'][:90]}")
            rows = [old for old in rows if (old["sampler"], old["profile"]) != (sampler, profile)] + [row]
            save(RECORD, {"machine": machine(), "rows": rows})
    README.write_text(with_sentence(README.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


_UNITS = {"s": 1, "min": 60, "h": 3600}


def announced(output: str) -> float:
    """Seconds that a run last announced; 0 if it announced nothing."""
    found = re.findall(r"expected duration: (?:at most )?([\d.]+) (s|min|h)\b", output)
    return float(found[-1][0]) * _UNITS[found[-1][1]] if found else 0.0


def timed(sampler: str, profile: str, workers: str, folder: str) -> Json:
    """One run in a process of its own, in `folder`."""
    command = [sys.executable, "-m", "fairdraw", "check", sampler, "--profile", profile, "-n", workers]
    environment = python_path(ROOT, folder)
    load = round(os.getloadavg()[0], 1)
    started, used = time.perf_counter(), cpu_seconds()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return {
        "sampler": sampler,
        "profile": profile,
        "workers": int(workers),
        "wall_s": round(time.perf_counter() - started, 1),
        "announced_s": announced(done.stdout),
        "load": load,
        "cpu_s": round(cpu_seconds() - used, 1),
        "exit_code": done.returncode,
        "verdict": (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1],
        "commit": commit()[:10],
    }


def times() -> str:
    """Return a table of our own samplers."""
    own = sorted(
        (row for row in _recorded() if row["sampler"] in SAMPLERS),
        key=lambda row: (list(LIMITS).index(row["profile"]), SAMPLERS.index(row["sampler"])),
    )
    rows = (
        [f"`{r['sampler']}`", f"`{r['profile']}`", f"{r['wall_s']:.0f}", f"{r['cpu_s']:.0f}", LIMITS[r["profile"]]]
        for r in own
    )
    return "\n".join(table(("sampler", "profile", "wall, s", "CPU, s", "aim, s"), rows))


def _recorded() -> list[Json]:
    rows: list[Json] = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    return rows


def with_sentence(page: str, rows: list[Json]) -> str:
    """The README with the seconds that its example took."""
    took = next((row["wall_s"] for row in rows if row["sampler"] == EXAMPLE), None)
    return page if took is None else re.sub(r"(# plain PyTorch; ).*", rf"\g<1>{took:.0f} s on two cores", page)
