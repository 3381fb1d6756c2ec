"""Third-party samplers under the suite: which checks ran on each, and what came of them.

    python tools/record.py samplers                       # all: docs/records/samplers.json
    python tools/record.py samplers rejection/mlx         # this row anew, the others as recorded

Each is tested by `fairdraw check NAME` in a process of its own. A sampler that is not installed, or that ends the
process, keeps its row, which says why. Only a few distribution checks run on samplers in Triton's interpreter, where a
draw takes a hundred times as long, and one or none on those of JAX, which compiles for seconds at every new shape.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from string import digits
from typing import TYPE_CHECKING

import matrix

from fairdraw._core.contracts import CONTRACTS
from records import ROOT, Json, python_path, save, table

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 1800

CATALOGUE = tomllib.loads((ROOT / "engines/src/fairdraw_engines/samplers.toml").read_text(encoding="utf-8"))
NOT_HERE = ("rejection/sglang-tree", "sampling/sglang-flashinfer", "penalties/vllm", "penalties/vllm-v2")
"""Samplers of a GPU, and what docs/matrix.md has; FlashInfer is no project of the catalogue."""
UNLIKE = ("thinking_budget", "logits_plan")
"""Contracts of vLLM's alone, which docs/matrix.md has."""
_FEW = ("DIST102", "DIST103", "DIST112")
DISTRIBUTIONS = {
    **dict.fromkeys(("rejection/vllm", "rejection/vllm-v2", "rejection/flashspec"), _FEW),
    **dict.fromkeys(("rejection/sglang", "rejection/sglang-block"), _FEW),
    **dict.fromkeys((f"rejection/vllm-v2-{one}" for one in ("block", "step", "chunks")), ()),
    **dict.fromkeys(("sampling/tpu-inference", "sampling/tpu-inference-step"), ()),
    **dict.fromkeys(("penalties/sglang", "penalties/sglang-library"), ()),
    "rejection/tpu-inference": ("DIST341",),
}
"""The distribution checks of a sampler that does not run all of them."""


@dataclass(frozen=True)
class Entry:
    """One row.

    Args:
        install: How a user gets it.
        page: Where its source is public.
        selected: Texts that select the checks to be run.
    """

    install: str
    page: str
    selected: Sequence[str]


def project_of(origin: str) -> str:
    """Return the project that an origin begins with; empty if there is none."""
    return next((one for one in CATALOGUE["projects"] if origin.startswith(one)), "")


def install_of(project: str) -> str:
    """Return how a user gets a project's package."""
    module = CATALOGUE["projects"][project]["module"]
    return str(CATALOGUE["install"].get(module, f"pip install {module}"))


def _entry(name: str) -> Entry:
    contract, _, origin = name.partition("/")
    install, page = install_of(project_of(origin)), CATALOGUE["projects"][project_of(origin)]["page"]
    if "vllm-v2" in name and name != "rejection/vllm-v2":  # which is recorded with 0.22.0
        install = install.replace("vllm in", "vllm 0.33.0 in")
    codes = CONTRACTS[contract].raised.rstrip(digits), *DISTRIBUTIONS.get(name, ("DIST",))
    return Entry(install, f"https://github.com/{page}", codes)


SAMPLERS = {
    name: _entry(name)
    for name in CATALOGUE["samplers"]
    if not name.startswith(UNLIKE) and project_of(name.partition("/")[2]) and name not in NOT_HERE
}

_LARGE = {name for name, entry in SAMPLERS.items() if "--all" in entry.install or "0.33.0" in entry.install}
_SELDOM = {"grammar/llguidance-numpy", "grammar/xgrammar-triton", "logprobs/sglang", "matchers/outlines-core"}
IN_CI = SAMPLERS.keys() - _LARGE - _SELDOM
"""Asked by `tests/engines` in every run of CI, on a CPU; with `make others ALL=1` more are."""

NAMED = ("code", "title", "status", "reason")
"""What is kept of a check that did not pass."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(SAMPLERS), help="default: all")
    parser.add_argument("--profile", default="ci", help="smoke, ci or nightly (default: ci)")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "samplers.json")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(SAMPLERS)):
        parser.error(f"no such sampler: {', '.join(unknown)}; known: {', '.join(SAMPLERS)}")
    rows = read(options.record)
    for number, name in enumerate(options.names, start=1):
        print(f"[{number}/{len(options.names)}] {name}", flush=True)
        rows[name] = row_of(name, options.profile)
        print(f"    {rows[name]['problem'] or rows[name]['counts']}, {rows[name]['seconds']} s", flush=True)
        save(options.record, [rows[name] for name in SAMPLERS if name in rows])
    return 0 if all(not rows[name]["problem"] for name in options.names) else 1


def read(record: Path) -> dict[str, Json]:
    """Rows recorded before."""
    return {str(row["name"]): row for row in json.loads(record.read_text())} if record.exists() else {}


def row_of(name: str, profile: str) -> Json:
    """Check it: how many checks passed, were skipped and so on, and every one that did not pass."""
    started = time.perf_counter()
    problem, report = "", matrix.Report({}, [], {})
    words = ["--profile", profile, *matrix.selecting(SAMPLERS[name].selected)]
    try:
        report = matrix.run_check(name, words, SECONDS, python_path())
    except (matrix.NoVerdictError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    records = report.records
    return {
        "name": name,
        "sampler": report.header.get("sampler", "").partition(" (")[2].removesuffix(")"),
        "contract": name.partition("/")[0],
        "selected": list(SAMPLERS[name].selected),
        "counts": matrix.counts_of(records),
        "failures": [{k: r[k] for k in NAMED} | {"effect": matrix.effect_of(r)} for r in matrix.unclear(records)],
        "unsupported": sorted({r["reason"] for r in records if r["status"] == "skipped"}),
        "problem": problem,
        "seconds": round(time.perf_counter() - started),
        "origin": matrix.describe_run(profile),
    }


def as_markdown(rows: Sequence[Json]) -> str:
    statuses = ("passed", "xfailed", "failed", "error", "xpassed", "inconclusive", "skipped")
    shown = [s for s in statuses if s in ("passed", "xfailed", "skipped") or any(s in row["counts"] for row in rows)]
    header = ["fairdraw check", "sampler", "contract", "in CI", "run", *shown]
    lines = [
        _summary(rows),
        "",
        *table(header, (_cells(row, shown) for row in rows), [" --- "] * 4 + [" ---: "] * (len(header) - 4)),
        "",
        *(line for row in rows for line in _section(row)),
    ]
    return "\n".join(lines).rstrip()


def _summary(rows: Sequence[Json]) -> str:
    tested = [row["name"] for row in rows if not row["problem"]]
    projects = {SAMPLERS[name].page for name in tested}
    return (
        f"{len(tested)} samplers of {len(projects)} projects were tested. CI repeats a smaller run of "
        f"{len(IN_CI.intersection(tested))} of them, on a CPU. Seconds are wall time on a shared machine."
    )


def _cells(row: Json, shown: Sequence[str]) -> list[str]:
    name, page = row["name"], SAMPLERS[row["name"]].page
    if row["problem"]:
        return [f"`{name}`", "no result", "", "", "", *("" for _ in shown)]
    run = sum(count for status, count in row["counts"].items() if status != "skipped")
    in_ci = "yes" if name in IN_CI else ""
    counts = (str(row["counts"].get(status, 0)) for status in shown)
    return [f"`{name}`", f"[{row['sampler']}]({page})", row["contract"], in_ci, str(run), *counts]


def _section(row: Json) -> list[str]:
    origin = ", ".join(f"{key} {value}" for key, value in row["origin"].items())
    lines = [f"## `{row['name']}`", "", f"`{SAMPLERS[row['name']].install}`; {origin}; {row['seconds']} s."]
    if row["selected"][-1] != "DIST" and row["contract"] != "penalties":  # which has none
        few = [text for text in row["selected"] if text.startswith("DIST")]
        lines[-1] += f" Of the distribution checks {'only ' + ', '.join(few) if few else 'none'} ran."
    if row["problem"]:
        return [*lines, "", f"No result: {row['problem']}", ""]
    titles = matrix.titles_of(row["failures"])
    failed = [f"* {t['status']} {t['code']} {titles[t['code']]}: {_cause(t)}." for t in row["failures"]]
    # "greedy is unsupported: why" in fewer words
    skipped = [re.sub(r"^(\S+) is \w+: ", r"`\1`: ", reason) for reason in row["unsupported"]]
    return [*lines, "", *failed, *(f"* skipped: {reason}." for reason in skipped), ""]


def _cause(record: Json) -> str:
    """The known defect, with a link that is relative to the table; of an unknown one what was found."""
    return re.sub(r"\(docs/([\w/-]+)\.md\)", r"([page](\1.md))", record["reason"] or record["effect"])
