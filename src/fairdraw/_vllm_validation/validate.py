"""The entry of one vLLM for a table like `validated.json`: a few minutes on a CPU, with Triton's interpreter.

It plays event traces of a server with vLLM's own objects and again with the plugin, runs every property of the suite on
the patched rejection sampler, and enters hashes and evidence of the pieces that never differed.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fairdraw.perf_regression._records import processor, version
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES, Piece
from fairdraw.sampler_impl.vllm_plugin._source import UnknownSourceError, source_hash

HERE = Path(__file__).parents[2]
"""Where `fairdraw` is imported from."""
STEPS, SECONDS = 100, 3600
SUITE = """
import json, sys
from pathlib import Path
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl.vllm_plugin import _validated
_validated.TABLE = Path(sys.argv[1])
vllm_plugin.register()
from fairdraw._cli.main import main
try:
    options = ["--only", "properties", "--reference", "none", "--json", sys.argv[2], "--profile", sys.argv[3]]
    main(["check", "rejection/vllm", *options, "-n", "0"])
finally:
    print()
    print(json.dumps(vllm_plugin.calls().get("rejection", {})))
"""
"""In one process: a worker process would import a vLLM of its own, without the plugin."""

Json = dict[str, Any]  # Any: JSON


class NotValidatedError(Exception):
    """The release could not be validated; the message says why."""


def machine() -> dict[str, str | None]:
    """Processor, system, versions and date."""
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        **{name: version(name) for name in ("torch", "numpy", "scipy")},
    }


def validate(release: str, folder: Path, steps: int, profile: str) -> tuple[Json, list[str]]:
    """The entry of `release`, and the reasons why pieces are missing.

    Args:
        release: Without local parts.
        folder: What contains the folder `vllm`.

    Raises:
        NotValidatedError: If it cannot be imported, is another release, or has none of the functions.
        subprocess.TimeoutExpired: If a part takes more than an hour.
    """
    started = time.monotonic()
    found, problems = hashed(folder / "vllm")
    if not found:
        raise NotValidatedError(f"no piece fits it: {'; '.join(problems)}")
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "table.json"
        pieces: Json = {piece.name: {} for piece in found}
        functions = {target: source_hash(folder / "vllm", target) for piece in found for target in piece.functions}
        table.write_text(json.dumps({release: {"pieces": pieces, "functions": functions}}))
        soaked = json.loads(run(folder, scratch, "-m", f"{__package__}.soak", f"--table={table}", f"--steps={steps}"))
        if soaked["vllm"].partition("+")[0] != release:
            raise NotValidatedError(f"vLLM {soaked['vllm']} was imported from {folder}")
        suite = run_suite(folder, scratch, table, profile)
    entry, differences = judged(found, soaked, suite)
    kept = {target for piece in found if piece.name in entry["pieces"] for target in piece.functions}
    entry["functions"] = {target: functions[target] for target in sorted(kept)}
    entry["evidence"]["minutes"] = round((time.monotonic() - started) / 60, 1)
    return entry, problems + differences


def hashed(package: Path) -> tuple[list[Piece], list[str]]:
    """Pieces whose functions exist in this release, and what is missing for the others."""
    found, problems = [], []
    for piece in PIECES:
        try:
            for target in piece.functions:
                source_hash(package, target)
            found.append(piece)
        except UnknownSourceError as error:
            problems.append(f"{piece.name}: {error}")
    return found, problems


def run(folder: Path, scratch: str, *arguments: str) -> str:
    """The last line that Python prints, with the release in `folder` importable."""
    path = os.pathsep.join(filter(None, (str(folder), str(HERE), os.environ.get("PYTHONPATH"))))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "FAIRDRAW_VLLM_PLUGIN": "1",
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=scratch, env=env
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode not in (0, 1) or not lines:
        raise NotValidatedError(f"no verdict: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return lines[-1]


def run_suite(folder: Path, scratch: str, table: Path, profile: str) -> Json:
    """Properties of the patched rejection sampler: who served its calls, counts by status, codes that failed."""
    report = Path(scratch) / "report.json"
    calls = json.loads(run(folder, scratch, "-c", SUITE, str(table), str(report), profile))
    records = [record for line in report.read_text().splitlines() if (record := json.loads(line))["kind"] == "check"]
    return {
        "profile": profile,
        "calls": calls,
        **Counter(record["status"] for record in records),
        "broken": [record["code"] for record in records if record["status"] in ("failed", "error")],
    }


def judged(found: list[Piece], soaked: Json, suite: Json) -> tuple[Json, list[str]]:
    """The entry without its hashes; a piece that never served a call is not validated."""
    pieces: Json = {}
    problems = [f"together: {text}" for text in soaked["pieces"]["all"]["differences"]]
    for piece in found:
        differences = list(soaked["pieces"][piece.name]["differences"])
        calls = {who.removeprefix(f"{piece.name}, "): n for who, n in soaked["pieces"][piece.name]["calls"].items()}
        if piece.name == "rejection" and suite["broken"]:
            differences.append(f"broken properties: {' '.join(suite['broken'])}")
        if piece.name == "rejection" and not suite["calls"].get("ours"):
            differences.append("the properties never called it")
        if not calls.get("ours"):
            differences.append("it never served a call")
        if not differences:
            pieces[piece.name] = {"calls": calls}
        problems += [f"{piece.name}: {text}" for text in differences]
    if soaked["pieces"]["all"]["differences"]:
        pieces = {}
    evidence = {**machine(), **{name: soaked[name] for name in ("traces", "steps", "comparisons", "forced")}}
    return {"pieces": pieces, "evidence": {**evidence, "properties of the rejection piece": suite}}, problems


def write_entry(table: Path, release: str, entry: Json) -> None:
    """Replace the entry of `release`; releases stay in order."""
    known = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    entries = {**known, release: entry}
    in_order = sorted(entries, key=numbers)
    table.write_text(json.dumps({name: entries[name] for name in in_order}, indent=1) + "\n", encoding="utf-8")


def numbers(release: str) -> list[int]:
    """For comparing: 0.8.5.post1 is [0, 8, 5]."""
    return [int(part) for part in release.split(".") if part.isdigit()]
