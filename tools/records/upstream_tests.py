"""vLLM's own test files, with vLLM's samplers and again with ours: every test must end the same way.

    python tools/record.py upstream_tests                     # 0.22.0 and 0.33.0
    python tools/record.py upstream_tests 0.28.0 -k penalties

The tests come from the release's source archive on PyPI, into `.cache/upstream/` (never committed); the release itself
from `install.py`. Both runs are processes of their own, on a CPU, with Triton's interpreter and `upstream_arm.py`
as a pytest plugin. A test that needs a GPU, a model or a server fails or is skipped in both. The exit code is 1 if one
test ended differently and `EXPLAINED` does not say why. Outcomes go into `docs/records/upstream_tests.json`, one row
per test file; the docs build shows them in `docs/vllm-plugin.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from install import InstallError, download, install

from records import ROOT, Json, commit, machine, python_path, save, table

if TYPE_CHECKING:
    from pathlib import Path

RELEASES = ("0.22.0", "0.33.0")
RECORD = ROOT / "docs" / "records" / "upstream_tests.json"
SECONDS = 3600
FILES = (
    "v1/sample/test_rejection_sampler.py",
    "v1/sample/test_sampler.py",
    "v1/sample/test_logprobs.py",
    "v1/sample/test_batched_count_greater_than.py",
    "v1/sample/test_thinking_budget_state.py",
    "v1/logits_processors/test_correctness.py",
    "v1/worker/test_gpu_input_batch.py",
    "kernels/test_apply_repetition_penalties.py",
)
"""What tests the samplers of model runner V1 without a server; a release may lack some."""
SLOW = ("approximates_target_distribution",)
"""More than ten minutes each in Triton's interpreter; run by --slow."""
ARMS = ("plain", "ours")
EXPLAINED = {
    "test_thinking_budget_enforced_without_penalties": "it reads the holder's private `_state`, which vLLM's own code "
    "keeps up to date only in steps that it decides; ours decides them"
}
"""Tests that look behind the functions that the plugin replaces, and what they see."""
OPTIONS = [
    *("-v", "--tb=line", "--durations=5", "--noconftest", "--continue-on-collection-errors"),
    *("-p", "upstream_arm"),
]
UNWANTED = ("cacheprovider", "benchmark", "xdist", "fairdraw.pytest_plugin")
"""Plugins of pytest."""

Outcomes = dict[str, str]
"""Test to passed, failed (also: no fixture, no import) or skipped."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run vLLM's own tests with vLLM's samplers and with ours.")
    parser.add_argument("releases", nargs="*", default=RELEASES, help=f"default: {' '.join(RELEASES)}")
    parser.add_argument("-k", dest="words", default="", help="only tests that match, as pytest's -k; writes no record")
    parser.add_argument("--slow", action="store_true", help=f"also {', '.join(SLOW)}")
    options = parser.parse_args(arguments)
    words = options.words or ("" if options.slow else " and ".join(f"not {name}" for name in SLOW))
    results = []
    for release in options.releases:
        try:
            results.append(compare(release, words))
        except (InstallError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return 2
        print("\n".join(shown(results[-1])), flush=True)
        if not options.words:
            write(results[-1], "" if options.slow else ", ".join(SLOW))
    return int(any(not one["why"] for result in results for one in result["differences"]))


def compare(release: str, words: str) -> Json:
    """Both runs of one release, side by side."""
    folder, tests = ROOT / ".cache" / "vllm" / release, fetched(release)
    install(release, folder)
    with ThreadPoolExecutor() as pool:
        plain, ours = pool.map(lambda name: arm(name, folder, tests, words), ARMS)
    return counted(release, plain, ours)


def counted(release: str, plain: Json, ours: Json) -> Json:
    """What is printed and recorded of both runs."""
    rows = [row(file, plain["outcomes"], ours["outcomes"]) for file in FILES]
    return {
        "vllm": release,
        "files": [one for one in rows if sum(one[kind] for kind in KINDS)],
        "calls": ours["calls"],
        "missing": ours["missing"],
        "differences": differences(plain["outcomes"], ours["outcomes"]),
    }


def fetched(release: str) -> Path:
    """Return the folder above `tests`, which the source archive has."""
    place = (ROOT / ".cache" / "upstream" / release).resolve()  # pytest names tests by their real place
    if not (place / "tests").exists():
        place.mkdir(parents=True, exist_ok=True)
        archive = download(release, place, VLLM_VERSION_OVERRIDE=release, VLLM_TARGET_DEVICE="empty")
        with tarfile.open(archive) as packed:
            members = (one for one in packed.getmembers() if one.name.startswith(f"vllm-{release}/tests/"))
            packed.extractall(place, [one.replace(name=one.name.partition("/")[2]) for one in members], filter="data")
        archive.unlink()
    return place


def arm(name: str, folder: Path, tests: Path, words: str) -> Json:
    """Outcomes of all tests in one process; `name` says whose samplers they test."""
    result = tests / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-c", os.devnull, f"--rootdir={tests}"]
    command += [option for name in UNWANTED for option in ("-p", f"no:{name}")]
    command += ["-k", words] if words else []
    command += [f"tests/{file}" for file in FILES if (tests / "tests" / file).exists()]
    env = {
        **python_path(tests, folder, ROOT / "tools" / "records"),
        "UPSTREAM_ARM": name,
        "UPSTREAM_RESULT": str(result),
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CONFIGURE_LOGGING": "0",
    }
    with (tests / f"{name}.log").open("w") as log:
        subprocess.run(command, cwd=tests, env=env, stdout=log, stderr=log, timeout=SECONDS, check=False)
    if not result.exists():
        raise InstallError(f"arm: {name} run of {folder.name} gave no result. See {tests / f'{name}.log'}")
    read: Json = json.loads(result.read_text())
    return read


KINDS = ("passed both", "failed both", "skipped both", "explained", "differs")


def row(file: str, plain: Outcomes, ours: Outcomes) -> Json:
    """Counts of one test file."""
    names = [name for name in {**plain, **ours} if name.startswith(f"tests/{file}")]
    kinds = Counter(kind(name, plain.get(name), ours.get(name)) for name in names)
    return {"file": file, **{one: kinds[one] for one in KINDS}}


def kind(name: str, plain: str | None, ours: str | None) -> str:
    """What became of one test in both runs."""
    if plain == ours:
        return f"{plain} both"
    return "explained" if name.rpartition("::")[2] in EXPLAINED else "differs"


def differences(plain: Outcomes, ours: Outcomes) -> list[Json]:
    """Tests that ended otherwise; `why` is empty where nothing explains it."""
    names = [name for name in {**plain, **ours} if plain.get(name) != ours.get(name)]
    ends = ((name, f"{plain.get(name)} with vLLM's, {ours.get(name)} with ours") for name in names)
    return [{"test": name, "ends": end, "why": EXPLAINED.get(name.rpartition("::")[2], "")} for name, end in ends]


def shown(compared: Json) -> list[str]:
    """Return what is printed for one release."""
    lines = [markdown([compared])]
    lines += [f"not in this release: {text}" for text in compared["missing"]]
    for one in compared["differences"]:
        lines.append(f"{'explained' if one['why'] else 'DIFFERS'} {one['test']}: {one['ends']}. {one['why']}".rstrip())
    return lines


def write(result: Json, left_out: str) -> None:
    """Into the record; other releases stay as they are."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))["releases"] if RECORD.exists() else []
    about = {"left out": left_out, "taken on": {**machine(), "commit": commit()}}
    releases = {one["vllm"]: one for one in [*known, {**result, **about}]}
    save(RECORD, {"releases": [releases[name] for name in sorted(releases)]})


def markdown(releases: list[Json]) -> str:
    """A row per test file, and the calls that ours served."""
    rows = (
        [one["vllm"], f"`{file['file']}`", *(file[kind] for kind in KINDS)] for one in releases for file in one["files"]
    )
    lines = table(("vLLM", "test file", *KINDS), rows)
    why = [f"`{one['test'].rpartition('::')[2]}`: {one['why']}" for r in releases for one in r["differences"]]
    lines += ["", *(f"Explained: {text}." for text in dict.fromkeys(why))]
    served = (f"{one['vllm']}: {', '.join(_served(one['calls']))}" for one in releases)
    return "\n".join(lines).rstrip() + f"\n\nCalls that ours served: {'; '.join(served)}.\n"


def _served(calls: dict[str, dict[str, int]]) -> list[str]:
    return [f"{piece} {counts.get('ours', 0)} of {sum(counts.values())}" for piece, counts in calls.items()]
