"""The entry of one vLLM for a table like `validated.json`: a few minutes on a CPU, with Triton's interpreter.

Of the pieces for model runner V1 it plays event traces of a server with vLLM's own objects and again with the plugin;
of the piece for V2 random steps, with and without it. It runs every property of the suite on the patched rejection
sampler, and enters hashes and evidence of the pieces that never differed.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fairdraw
from fairdraw.perf_regression._records import commit, processor, version
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES, Piece
from fairdraw.sampler_impl.vllm_plugin._source import UnknownSourceError, source_hash

SOURCES = (Path(fairdraw.__file__).parents[1], Path(__file__).parents[2])
"""Folders that `fairdraw` and this package are imported from."""
STEPS, SECONDS = 100, 3600
V2_STEPS = 20
"""Random steps of V2 for each step of an event trace."""
SUITE = """
import json, sys
from pathlib import Path
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl.vllm_plugin import _plugin, _validated
table, report, profile, sampler, piece = sys.argv[1:]
_validated.TABLE = Path(table)
vllm_plugin.register()
if piece == "step":
    from fairdraw_engines._vllm_v2_runtime import import_v2
    import_v2("cpu", "states", "input_batch", "sample.sampler", "spec_decode.rejection_sampler")
    _plugin._current[0].runner_v2_made()
from fairdraw._cli.main import main
try:
    options = ["--only", "properties", "--reference", "none", "--json", report, "--profile", profile]
    main(["check", sampler, *options, "-n", "0"])
finally:
    print()
    print(json.dumps(vllm_plugin.calls().get(piece, {})))
"""
"""In one process: a worker process would import a vLLM of its own, without the plugin."""

Json = dict[str, Any]  # Any: JSON


class NotValidatedError(Exception):
    """The release could not be validated; the message says why."""


def machine() -> dict[str, str | None]:
    """Return processor, system, versions and date."""
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        **{name: version(name) for name in ("torch", "numpy", "scipy")},
    }


def validate(
    release: str, folder: Path, steps: int, profile: str, runners: Sequence[str] = ("V1", "V2")
) -> tuple[Json, list[str]]:
    """Return the entry of `release`, and the reasons why pieces are missing.

    Args:
        release: Without local parts.
        folder: What contains the folder `vllm`.
        steps: Of each kind of event trace, and 20 times as many of V2.
        runners: Whose pieces.

    Raises:
        NotValidatedError: If it cannot be imported, is another release, or has none of the functions.
        subprocess.TimeoutExpired: If a part takes more than an hour.
    """
    started = time.monotonic()
    found, problems = hashed(folder / "vllm", runners)
    if not found:
        raise NotValidatedError(f"no piece fits it: {'; '.join(problems)}")
    entry: Json = {"pieces": {}, "evidence": {**machine(), "commit": commit()}}
    functions = {target: source_hash(folder / "vllm", target) for piece in found for target in piece.functions}
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "table.json"
        pieces: Json = {piece.name: {} for piece in found}
        table.write_text(json.dumps({release: {"pieces": pieces, "functions": functions}}))
        for runner, ask in (("V1", _ask_v1), ("V2", _ask_v2)):
            mine = [piece for piece in found if piece.runner == runner]
            if mine:
                part, differences = ask(mine, folder, scratch, table, steps, profile, release)
                entry["pieces"] |= part["pieces"]
                entry["evidence"] |= part["evidence"]
                problems += differences
    kept = {target for piece in found if piece.name in entry["pieces"] for target in piece.functions}
    entry["functions"] = {target: functions[target] for target in sorted(kept)}
    entry["evidence"]["minutes"] = round((time.monotonic() - started) / 60, 1)
    return entry, problems


def _ask_v1(
    found: list[Piece], folder: Path, scratch: str, table: Path, steps: int, profile: str, release: str
) -> tuple[Json, list[str]]:
    soaked = json.loads(run(folder, scratch, "-m", f"{__package__}.soak", f"--table={table}", f"--steps={steps}"))
    _require_release(soaked["vllm"], release, folder)
    return judged(found, soaked, run_suite(folder, scratch, table, profile))


def _ask_v2(
    found: list[Piece], folder: Path, scratch: str, table: Path, steps: int, profile: str, release: str
) -> tuple[Json, list[str]]:
    options = f"--table={table}", f"--steps={V2_STEPS * steps}", f"--workers={min(2, os.cpu_count() or 1)}"
    stepped = json.loads(run(folder, scratch, "-m", f"{__package__}.v2_steps", *options))
    _require_release(stepped["vllm"], release, folder)
    return judged_v2(found[0], stepped, run_suite(folder, scratch, table, profile, found[0].name))


def _require_release(imported: str, release: str, folder: Path) -> None:
    if imported.partition("+")[0] != release:
        raise NotValidatedError(f"vLLM {imported} was imported from {folder}")


def hashed(package: Path, runners: Sequence[str] = ("V1", "V2")) -> tuple[list[Piece], list[str]]:
    """Return pieces whose functions exist in this release, and what is missing for the others.

    A release from before a runner got a piece's functions is none that the piece was written for: nothing is missing.
    """
    found, problems = [], []
    for piece in (piece for piece in PIECES if piece.runner in runners):
        try:
            for target in piece.functions:
                source_hash(package, target)
            found.append(piece)
        except UnknownSourceError as error:
            if piece.runner == "V1" or found == []:
                problems.append(f"{piece.name}: {error}")
    return found, problems


def run(folder: Path, scratch: str, *arguments: str) -> str:
    """Return the last line that Python prints, with the release in `folder` importable."""
    path = os.pathsep.join(filter(None, (str(folder), *map(str, SOURCES), os.environ.get("PYTHONPATH"))))
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


def run_suite(folder: Path, scratch: str, table: Path, profile: str, piece: str = "rejection") -> Json:
    """Return properties of the patched rejection sampler: who served its calls, counts by status, codes that failed."""
    report = Path(scratch) / f"{piece}.json"
    sampler = "rejection/vllm-v2-step" if piece == "step" else "rejection/vllm"
    calls = json.loads(run(folder, scratch, "-c", SUITE, str(table), str(report), profile, sampler, piece))
    records = [record for line in report.read_text().splitlines() if (record := json.loads(line))["kind"] == "check"]
    return {
        "profile": profile,
        "calls": calls,
        **Counter(record["status"] for record in records),
        "broken": [record["code"] for record in records if record["status"] in ("failed", "error")],
    }


def judged(found: list[Piece], soaked: Json, suite: Json) -> tuple[Json, list[str]]:
    """Return the part of V1 in the entry; a piece that never served a call is not validated."""
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
    evidence = {name: soaked[name] for name in ("traces", "steps", "comparisons", "forced")}
    return {"pieces": pieces, "evidence": {**evidence, "properties of the rejection piece": suite}}, problems


def judged_v2(piece: Piece, stepped: Json, suite: Json) -> tuple[Json, list[str]]:
    """Return the part of V2 in the entry."""
    differences = list(stepped["differences"])
    if stepped["tokens"]["ours"]["verdict"] != "pass":
        differences.append(f"tokens: {stepped['tokens']['ours']['reason']}")
    if suite["broken"]:
        differences.append(f"broken properties: {' '.join(suite['broken'])}")
    for who, calls in (("a step", stepped["calls"]), ("a property", suite["calls"])):
        if not calls.get("ours"):
            differences.append(f"it never served {who}")
    random_steps = {name: stepped[name] for name in ("differences", "counts", "parameters", "tokens")}
    evidence = {"random steps": random_steps, "properties of the step": suite}
    pieces = {} if differences else {piece.name: {"calls": stepped["calls"]}}
    return {"pieces": pieces, "evidence": evidence}, [f"{piece.name}: {text}" for text in differences]


def write_entry(table: Path, release: str, entry: Json) -> None:
    """Replace the entry of `release`; releases stay in order."""
    known = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    entries = {**known, release: entry}
    in_order = sorted(entries, key=numbers)
    table.write_text(json.dumps({name: entries[name] for name in in_order}, indent=1) + "\n", encoding="utf-8")


def numbers(release: str) -> list[int]:
    """Return the numbers of a release, for comparing: 0.8.5.post1 is [0, 8, 5]."""
    return [int(part) for part in release.split(".") if part.isdigit()]
