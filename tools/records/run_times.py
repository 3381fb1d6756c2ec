"""How long `fairdraw check` takes, and what it announces: a record, and a sentence of the README.

    python tools/record.py run_times                      # our samplers, on a quiet machine; half an hour on 2 cores
    python tools/record.py run_times --sampler sampling --profile smoke     # some rows; the others are kept
    python tools/record.py run_times --first-minute       # the manual's samplers of every kind at smoke; minutes

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
from pathlib import Path
from typing import Any

from records import ROOT, commit, cpu_seconds, machine, python_path, rows_as_json, table

RECORD = ROOT / "statistical" / "records" / "run_times.json"
README = ROOT / "README.md"
RECIPES = [ROOT / "docs" / f"{name}.md" for name in ("rejection", "languages")]
SAMPLERS = (
    *(f"{contract}/torch" for contract in ("rejection", "sampling", "penalties", "thinking_budget", "logits_plan")),
    *("rejection/step", "sampling/step", "logits_plan/step", "rejection/step-draft-logits", "rejection/step-raw"),
)
KINDS = {
    "examples.my_sampler:make": "plain PyTorch, a loop over requests (the README's)",
    "padded:make": "padded PyTorch",
    "judge_numpy:make": "NumPy",
    "judge_jax:make": "JAX",
    "examples.triton_sampler:make": "Triton, interpreted",
    "judge_c:make": "C, by ctypes",
}
"""Samplers of a first minute, of examples/ and of the manual's recipes, by what a newcomer would call them."""
LIMITS = {"smoke": 45, "ci": 240}
"""Seconds that a run should take at most on 2 quiet cores: an aim."""

Row = dict[str, Any]  # Any: JSON


def main() -> int:
    parser = argparse.ArgumentParser(description="Time runs of fairdraw check.")
    parser.add_argument("--sampler", nargs="+", default=SAMPLERS)
    parser.add_argument("--profile", nargs="+", default=("smoke", "ci"))
    parser.add_argument("--workers", default="2")
    parser.add_argument("--first-minute", action="store_true", help="only samplers of every kind, at smoke")
    options = parser.parse_args()
    rows = _recorded()
    wanted = [(s, p) for p in options.profile for s in options.sampler]
    if options.first_minute:
        wanted = [(sampler, "smoke") for sampler in KINDS]
    with tempfile.TemporaryDirectory() as folder:
        write_recipes(Path(folder))
        for sampler, profile in wanted:
            row = timed(sampler, profile, options.workers, folder)
            print(f"{sampler} {profile}: {row['wall_s']} s of {row['announced_s']} s announced: {row['verdict'][:90]}")
            rows = [old for old in rows if (old["sampler"], old["profile"]) != (sampler, profile)] + [row]
            RECORD.write_text(rows_as_json({"machine": machine(), "rows": rows}))
    README.write_text(with_sentence(README.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


def write_recipes(folder: Path) -> None:
    """Write the samplers of the manual to `folder`, and compile the one in C."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in RECIPES)
    blocks = dict(re.findall(r"```\w+ title=\"([\w.]+)\"\n(.*?)```", text, flags=re.DOTALL))
    python = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    padded = [next(block for block in python if begin in block) for begin in ("def padded(", "def chain_verify(")]
    lacking = next(block for block in python if block.startswith("unsupported = {")).split("\n\n")[0]
    make = "def make():\n    verify = lambda batch, noise: chain_verify(*padded(batch)).int()\n"
    make += '    return fairdraw.rejection_sampler(verify, name="padded", unsupported=unsupported)\n'
    blocks["padded.py"] = "\n\n".join(["import torch\nimport fairdraw", *padded, lacking, make])
    for name in ("padded.py", "judge_numpy.py", "judge_jax.py", "judge_c.py", "sampler.c"):
        (folder / name).write_text(blocks[name], encoding="utf-8")
    compile_it = ["cc", "-O2", "-shared", "-fPIC", "-o", "libsampler.so", "sampler.c", "-lm"]
    subprocess.run(compile_it, cwd=folder, check=True)


_UNITS = {"s": 1, "min": 60, "h": 3600}


def announced(output: str) -> float:
    """Seconds that a run last announced; 0 if it announced nothing."""
    found = re.findall(r"expected duration: (?:at most )?([\d.]+) (s|min|h)\b", output)
    return float(found[-1][0]) * _UNITS[found[-1][1]] if found else 0.0


def timed(sampler: str, profile: str, workers: str, folder: str) -> Row:
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


def first_minutes() -> str:
    """Return a table of samplers of every kind at `smoke`."""
    by_kind = {row["sampler"]: row for row in _recorded() if row["sampler"] in KINDS}
    rows = [
        [kind, f"{row['announced_s']:.0f}", f"{row['wall_s']:.0f}", f"{row['cpu_s']:.0f}", row["load"], _word(row)]
        for sampler, kind in KINDS.items()
        if (row := by_kind.get(sampler))
    ]
    titles = ("sampler", "announced, s", "taken, s", "CPU, s", "load before", "verdict")
    return "\n".join(table(titles, rows))


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


def _recorded() -> list[Row]:
    rows: list[Row] = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    return rows


def _word(row: Row) -> str:
    """Return a verdict without its numbers of checks, which are those of the row's commit."""
    return str(row["verdict"]).partition(":")[0]


def with_sentence(page: str, rows: list[Row]) -> str:
    """The README with the seconds that its example took."""
    took = next((row["wall_s"] for row in rows if row["sampler"] == "examples.my_sampler:make"), None)
    return page if took is None else re.sub(r"(# plain PyTorch; ).*", rf"\g<1>{took:.0f} s on two cores", page)
