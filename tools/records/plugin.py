"""Validate vLLM releases for the plugin: one command, a few minutes each, and an entry per release in `validated.json`.

    python tools/record.py plugin 0.24.0 0.25.1
    python tools/record.py plugin 0.33.0 --runner V2

It installs a release into a folder (`install.py`) and validates it (`fairdraw_engines._vllm_validation`). Review
the entry and commit it: from then on the plugin serves this release, and `docs/vllm-plugin.md` shows it. A piece that
differed is left out, and its differences are printed. `fairdraw validate-vllm` does the same with a vLLM that is
installed already.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from install import InstallError, install

from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES
from fairdraw.sampler_impl.vllm_plugin._validated import TABLE
from fairdraw_engines._vllm_validation.validate import STEPS, NotValidatedError, validate, write_entry
from records import ROOT, table

RANDOM_STEPS = ROOT / "docs" / "records" / "v2_steps.json"
"""Made by `python -m fairdraw_engines._vllm_validation.v2_steps --steps 2000 --record ...`, with V2."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Validate vLLM releases for fairdraw's vLLM plugin.")
    parser.add_argument("releases", nargs="+", metavar="RELEASE", help="0.24.0, say; installed in .cache/vllm/RELEASE")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each kind of event trace (default: {STEPS})")
    parser.add_argument("--profile", default="ci", help="of the properties: smoke, ci or nightly (default: ci)")
    parser.add_argument("--runner", choices=["V1", "V2"], help="the pieces for this model runner alone")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the entries are written")
    options = parser.parse_args(arguments)
    return max([validate_and_write(release, options) for release in options.releases])


def validate_and_write(release: str, options: argparse.Namespace) -> int:
    """One release, from its installation to its entry; 1 if a piece is missing."""
    folder = ROOT / ".cache" / "vllm" / release
    try:
        install(release, folder)
        runners = (options.runner,) if options.runner else ("V1", "V2")
        entry, problems = validate(release, folder, options.steps, options.profile, runners)
    except (InstallError, NotValidatedError, subprocess.TimeoutExpired) as error:
        print(f"vLLM {release}: {error}", file=sys.stderr)
        return 1
    write_entry(options.table, release, entry)
    pieces = ", ".join(entry["pieces"]) or "nothing"
    print(f"vLLM {release}: validated {pieces}; written to {options.table.name}", flush=True)
    for problem in problems:
        print(f"  {problem}", flush=True)
    return int(bool(problems))


def validated_for_v2() -> str:
    """Releases with the piece for model runner V2, as Markdown, from `validated.json`."""
    names = "vLLM", "steps", "rows", "random tokens", "properties", "commit", "date"
    rows = []
    for release, entry in json.loads(TABLE.read_text(encoding="utf-8")).items():
        if "step" not in entry["pieces"]:
            continue
        evidence = entry["evidence"]
        random, suite = evidence["random steps"], evidence["properties of the step"]
        counts = (random["counts"]["steps"], random["counts"]["rows"], random["tokens"]["ours"]["tokens"])
        passed = f"{suite['passed'] + suite.get('xpassed', 0)} at `{suite['profile']}`"
        made = evidence.get("commit", "")[:12], evidence["date"]
        rows.append([release, *(f"{n:,}" for n in counts), passed, *made])
    return "\n".join(table(names, rows)) + "\n"


def random_steps() -> str:
    """What the record of random steps says, as Markdown."""
    record = json.loads(RANDOM_STEPS.read_text(encoding="utf-8"))
    counts, tokens = record["counts"], record["tokens"]
    kinds = ", ".join(f"{name} {counts.get(name, 0):,}" for name in ("equal rows", "ties", "edges", "zeros"))
    used = ", ".join(f"{name} {number:,}" for name, number in record["parameters"].items())
    verdicts = ", ".join(f"{name} {found['tokens']:,} ({found['verdict']})" for name, found in tokens.items())
    return (
        f"* vLLM {record['vllm']}, commit {record['commit'][:12]}, {record['date']}, {record['machine']['processor']}\n"
        f"* {counts['steps']:,} steps, of which {counts.get('left to vLLM', 0):,} left to vLLM for thinking budgets; "
        f"differences: {len(record['differences'])}\n"
        f"* {counts['rows']:,} rows: {kinds}\n"
        f"* rows by what their requests use: {used}\n"
        f"* tokens of random requests: {verdicts}\n"
    )


def validated_releases() -> str:
    """Releases and pieces for model runner V1, as Markdown, from `validated.json`."""
    names = [piece.name for piece in PIECES if piece.runner == "V1"]
    rows = []
    for release, entry in json.loads(TABLE.read_text(encoding="utf-8")).items():
        evidence = entry["evidence"]
        if "steps" not in evidence:
            continue  # validated for V2 alone
        suite = evidence["properties of the rejection piece"]
        kept = ["yes" if name in entry["pieces"] else "no" for name in names]
        passed = f"{suite['passed'] + suite.get('xpassed', 0)} at `{suite['profile']}`"
        rows.append([release, *kept, evidence["steps"], passed, evidence["date"]])
    return "\n".join(table(("vLLM", *names, "steps", "properties", "date"), rows)) + "\n"
