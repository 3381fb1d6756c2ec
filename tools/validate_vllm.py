"""Validate vLLM releases for the plugin: one command, a few minutes each, and an entry per release in `validated.json`.

    python tools/validate_vllm.py 0.24.0 0.25.1
    python tools/validate_vllm.py all               # every release from 0.22.0 to 0.28.0 that the package index has

It installs the release into a folder (`install_vllm.py`), plays event traces of a server with vLLM's own objects and
again with the plugin (`vllm_soak.py`), runs every property of the suite on the patched rejection sampler, and writes
hashes and evidence of the pieces that never differed. Review the entry and commit it: from then on the plugin serves
this release. A piece that differed is left out, and its differences are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from install_vllm import InstallError, install
from provenance import ROOT, machine

from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES, Piece
from fairdraw.sampler_impl.vllm_plugin._source import UnknownSourceError, source_hash
from fairdraw.sampler_impl.vllm_plugin._validated import TABLE

STEPS, SECONDS = 100, 3600
FIRST, LAST = "0.22.0", "0.28.0"
"""Releases that people run with model runner V1; from 0.29.0 on V2 is the default for nearly every model."""
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Validate vLLM releases for fairdraw's vLLM plugin.")
    parser.add_argument("releases", nargs="+", help=f"0.24.0, say; `all`: those of the index, {FIRST} to {LAST}")
    parser.add_argument("--folder", type=Path, help="where one release is or will be installed (.cache/vllm/RELEASE)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each kind of event trace (default: {STEPS})")
    parser.add_argument("--profile", default="ci", help="of the properties: smoke, ci or nightly (default: ci)")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the entries are written")
    options = parser.parse_args(arguments)
    if options.folder and (len(options.releases) > 1 or options.releases == ["all"]):
        parser.error("--folder holds one release: name that one.")
    releases = published() if options.releases == ["all"] else options.releases
    return max([validate_and_write(release, options) for release in releases])


def published() -> list[str]:
    """Releases FIRST to LAST of the package index, without pre-releases, the oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", "vllm"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in listed.stdout.splitlines() if line.startswith("Available versions:")), "")
    found = [name for name in line.partition(":")[2].replace(",", " ").split() if numbers(FIRST) <= numbers(name)]
    if not found:
        raise SystemExit(f"published: pip returned {listed.returncode} and no release. Name the releases instead.")
    return sorted((name for name in found if numbers(name) <= numbers(LAST)), key=numbers)


def numbers(release: str) -> list[int]:
    """For comparing: 0.8.5.post1 is [0, 8, 5]."""
    return [int(part) for part in release.split(".") if part.isdigit()]


def validate_and_write(release: str, options: argparse.Namespace) -> int:
    """One release, from its installation to its entry; 1 if a piece is missing."""
    folder = (options.folder or ROOT / ".cache" / "vllm" / release).resolve()
    started = time.monotonic()
    try:
        install(release, folder)
        entry, problems = validate(release, folder, options.steps, options.profile)
    except (InstallError, NotValidatedError, subprocess.TimeoutExpired) as error:
        print(f"vLLM {release}: {error}", file=sys.stderr)
        return 1
    entry["evidence"]["minutes"] = round((time.monotonic() - started) / 60, 1)
    write_entry(options.table, release, entry)
    print(
        f"vLLM {release}: validated {', '.join(entry['pieces']) or 'nothing'}; written to {options.table.name}",
        flush=True,
    )
    for problem in problems:
        print(f"  {problem}", flush=True)
    return int(bool(problems))


def validate(release: str, folder: Path, steps: int, profile: str) -> tuple[Json, list[str]]:
    """The entry of `release`, and the reasons why pieces are missing."""
    found, problems = hashed(folder / "vllm")
    if not found:
        raise NotValidatedError(f"no piece fits it: {'; '.join(problems)}")
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "table.json"
        pieces: Json = {piece.name: {} for piece in found}
        functions = {target: source_hash(folder / "vllm", target) for piece in found for target in piece.functions}
        table.write_text(json.dumps({release: {"pieces": pieces, "functions": functions}}))
        soaked = json.loads(
            run(folder, scratch, str(ROOT / "tools" / "vllm_soak.py"), f"--table={table}", f"--steps={steps}")
        )
        if soaked["vllm"] != release:
            raise NotValidatedError(f"vLLM {soaked['vllm']} was imported from {folder}")
        suite = run_suite(folder, scratch, table, profile)
    entry, differences = judged(found, soaked, suite)
    kept = {target for piece in found if piece.name in entry["pieces"] for target in piece.functions}
    entry["functions"] = {target: functions[target] for target in sorted(kept)}
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
    path = os.pathsep.join(filter(None, (str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
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
    """Properties of the patched rejection sampler: who served its calls, counts by status, and the codes that failed."""
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
    entries = {**json.loads(table.read_text(encoding="utf-8")), release: entry}
    in_order = sorted(entries, key=numbers)
    table.write_text(json.dumps({name: entries[name] for name in in_order}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
