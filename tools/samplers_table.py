"""Samplers that nobody here wrote, under the suite: what was asked of each, and what it answered.

    python tools/samplers_table.py                       # all: docs/samplers.md and docs/records/samplers.json
    python tools/samplers_table.py transformers mlx      # these rows anew, the others as recorded

Each is judged by `fairdraw check NAME` in a process of its own, so that a sampler that is not installed, or that ends
the process, keeps its row, which says why. Samplers in Triton's interpreter are asked a few distributions only: a draw
costs them a hundred times as much.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1200

_FEW_DISTRIBUTIONS = ("DIST102", "DIST103", "DIST112")
_ALL_DISTRIBUTIONS = ("DIST",)


@dataclass(frozen=True)
class Entry:
    """One row.

    Args:
        install: How a user gets it.
        page: Where its source is public.
        asked: Texts that select the checks to be run.
    """

    install: str
    page: str
    asked: Sequence[str] = ("REJ", *_ALL_DISTRIBUTIONS)


_VLLM, _VLLM_PAGE = "python tools/install_vllm.py", "https://github.com/vllm-project/vllm"

SAMPLERS = {
    "rejection/vllm": Entry(_VLLM, _VLLM_PAGE, ("REJ", *_FEW_DISTRIBUTIONS)),
    "rejection/vllm-v2": Entry(_VLLM, _VLLM_PAGE, ("REJ", *_FEW_DISTRIBUTIONS)),
    "rejection/transformers": Entry("pip install transformers", "https://github.com/huggingface/transformers"),
    "rejection/mlx": Entry("pip install 'mlx-lm[cpu]'", "https://github.com/ml-explore/mlx-lm"),
    "rejection/sglang": Entry(
        "pip install --no-deps sglang", "https://github.com/sgl-project/sglang", ("REJ", *_FEW_DISTRIBUTIONS)
    ),
    "rejection/sglang-block": Entry(
        "pip install --no-deps sglang", "https://github.com/sgl-project/sglang", ("REJ", *_FEW_DISTRIBUTIONS)
    ),
    "sampling/vllm": Entry(_VLLM, _VLLM_PAGE, ("SAM", "DIST")),
    "sampling/torch-multinomial": Entry("pip install torch", "https://github.com/pytorch/pytorch", ("SAM", "DIST")),
    "sampling/torch-exponential": Entry("pip install torch", "https://github.com/pytorch/pytorch", ("SAM", "DIST")),
    "sampling/transformers": Entry(
        "pip install transformers", "https://github.com/huggingface/transformers", ("SAM", "DIST")
    ),
    "sampling/mlx": Entry("pip install 'mlx-lm[cpu]'", "https://github.com/ml-explore/mlx-lm", ("SAM", "DIST")),
}

NOT_ASKED = """## Not in the table

* FlashInfer: its kernels are for CUDA. Chain speculative sampling was compiled on a H200 and timed beside ours
  ([performance](performance.md)); the suite has no adapter for it, so nothing is said here about its distributions.
* vllm-ascend: `vllm_ascend.sample.rejection_sampler` imports torch_npu, and that loads `libhccl.so`, which comes with
  the NPU's toolkit and not with either package. Tried with vllm-ascend 0.22.1rc1 and torch-npu 2.13.0.
* vLLM's penalties, thinking budget and logits processing are no samplers. `fairdraw check` knows them as
  `penalties/vllm`, `thinking_budget/vllm` and `logits_plan/vllm`: references for the checks of those contracts.
"""

Row = dict[str, Any]  # Any: JSON, as fairdraw check --json writes it


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Judge samplers that nobody here wrote and write the table.")
    parser.add_argument("names", nargs="*", default=list(SAMPLERS), help="default: all")
    parser.add_argument("--profile", default="ci", help="smoke, ci or nightly (default: ci)")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "samplers.md")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "samplers.json")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(SAMPLERS))
    if unknown:
        parser.error(f"no such sampler: {', '.join(unknown)}; known: {', '.join(SAMPLERS)}")
    rows = read(options.record)
    for number, name in enumerate(options.names, start=1):
        print(f"[{number}/{len(options.names)}] {name}", flush=True)
        rows[name] = judge(name, options.profile)
        print(f"    {rows[name]['problem'] or rows[name]['counts']}, {rows[name]['seconds']} s", flush=True)
        write(rows, options.table, options.record)
    return 0 if all(not rows[name]["problem"] for name in options.names) else 1


def read(record: Path) -> dict[str, Row]:
    """Rows recorded before."""
    return {str(row["name"]): row for row in json.loads(record.read_text())} if record.exists() else {}


def judge(name: str, profile: str) -> Row:
    """One row: counts of what became of the checks, and every one that is not kept."""
    started = time.perf_counter()
    problem, report = "", {}
    try:
        report = check(name, profile)
    except (NoVerdictError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    records = report.get("records", [])
    counts: dict[str, int] = {}
    for record in records:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    told = [r for r in records if r["status"] not in ("passed", "skipped")]
    return {
        "name": name,
        "sampler": report.get("header", {}).get("sampler", "").partition(" (")[2].removesuffix(")"),
        "contract": records[0]["contract"] if records else "",
        "asked": list(SAMPLERS[name].asked),
        "counts": counts,
        "told": [{key: r[key] for key in ("code", "title", "status", "reason")} | _effect(r) for r in told],
        "unsupported": sorted({r["reason"] for r in records if r["status"] == "skipped"}),
        "problem": problem,
        "seconds": round(time.perf_counter() - started),
        "origin": matrix.describe_run(profile),  # the words of the table of vLLM releases
    }


def _effect(record: Row) -> Row:
    return {"effect": " ".join(((record.get("failure_report") or {}).get("effect") or "").split())}


class NoVerdictError(Exception):
    """A sampler could not be judged; one sentence says why."""


def check(name: str, profile: str) -> Row:
    """What `fairdraw check` writes about the sampler, with one processor thread."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as scratch:  # there, because crash files would only lie in the way
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "fairdraw", "check", name, "--profile", profile, "--json", str(report)]
        command += [word for text in SAMPLERS[name].asked for word in ("-k", text)]
        environment = {**os.environ, "PYTHONPATH": path}
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=scratch, env=environment
        )
        if finished.returncode not in (0, 1) or not report.exists():
            lines = (finished.stderr.strip() or finished.stdout.strip() or "no output").splitlines()
            raise NoVerdictError(lines[-1].strip())
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        kinds = [line.pop("kind") for line in lines]
        checks = [line for kind, line in zip(kinds, lines, strict=True) if kind == "check"]
        return {"header": lines[0], "records": checks, "summary": lines[-1]}


def write(rows: Mapping[str, Row], table: Path, record: Path) -> None:
    """The table for people, the record for machines; rows in the order of `SAMPLERS`."""
    ordered = [rows[name] for name in SAMPLERS if name in rows]
    for path, text in ((table, as_markdown(ordered)), (record, json.dumps(ordered, indent=1) + "\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def as_markdown(rows: Sequence[Row]) -> str:
    statuses = ("passed", "xfailed", "failed", "error", "xpassed", "inconclusive", "skipped")
    shown = [s for s in statuses if s in ("passed", "xfailed", "skipped") or any(s in row["counts"] for row in rows)]
    header = ["fairdraw check", "sampler", "contract", "run", *shown]
    lines = [
        "# Samplers that nobody here wrote",
        "",
        "Written by `tools/samplers_table.py` from what `fairdraw check NAME` answered. `xfailed`: a known defect, "
        "named below. `skipped`: the sampler's adapter does not support what the check needs, and says why below.",
        "",
        _summary(rows),
        "",
        "| " + " | ".join(header) + " |",
        "| --- | --- | --- |" + " ---: |" * (len(header) - 3),
        *(_line(row, shown) for row in rows),
        "",
        *(line for row in rows for line in _section(row)),
        NOT_ASKED,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _summary(rows: Sequence[Row]) -> str:
    answered = [row["name"] for row in rows if not row["problem"]]
    projects = {SAMPLERS[name].page for name in answered}
    return (
        f"{len(answered)} samplers of {len(projects)} projects answered. `tests/adapters/test_adapters_others.py` asks them "
        "again, on a CPU, in every run of the tests. Seconds are wall time on a machine that others used, too."
    )


def _line(row: Row, shown: Sequence[str]) -> str:
    name, page = row["name"], SAMPLERS[row["name"]].page
    if row["problem"]:
        return f"| `{name}` | no answer | | | " + " | ".join("" for _ in shown) + " |"
    run = sum(count for status, count in row["counts"].items() if status != "skipped")
    cells = [f"`{name}`", f"[{row['sampler']}]({page})", row["contract"], str(run)]
    return "| " + " | ".join([*cells, *(str(row["counts"].get(status, 0)) for status in shown)]) + " |"


def _section(row: Row) -> list[str]:
    origin = ", ".join(f"{key} {value}" for key, value in row["origin"].items())
    lines = [f"## `{row['name']}`", "", f"`{SAMPLERS[row['name']].install}`; {origin}; {row['seconds']} s."]
    if row["asked"][-1] != "DIST":
        distributions = [text for text in row["asked"] if text.startswith("DIST")]
        lines[-1] += f" Of the distributions only {', '.join(distributions)} were asked."
    if row["problem"]:
        return [*lines, "", f"No answer: {row['problem']}", ""]
    told = [f"* {t['status']} {t['code']} {t['title']}: {_linked(t['reason'] or t['effect'])}." for t in row["told"]]
    unsupported = [f"* skipped: {reason}." for reason in row["unsupported"]]
    return [*lines, "", *told, *unsupported, ""]


def _linked(reason: str) -> str:
    """Pages of ours as links from where the table lies."""
    return re.sub(r"\(docs/(findings/[\w-]+)\.md\)", r"([page](\1.md))", reason)


if __name__ == "__main__":
    sys.exit(main())
