"""Make the first screen of README.md: defects found, a red report, speed; the build makes that of docs/index.md.

    python tools/pages.py first_minute            # rewrite what stands between the markers

Defects come from the heads of docs/findings, in the order of mkdocs.yml; the report from a run on a broken copy of
examples/my_sampler.py; the speed from the committed records.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from records import ROOT, Json, python_path, table

from manual.performance import record

if TYPE_CHECKING:
    from collections.abc import Iterable

FINDINGS = ROOT / "docs" / "findings"
README = ROOT / "README.md"

IN_README = (
    "vllm-placeholder-draft",
    "tpu-inference-negated-greedy",
    "lmdeploy-unfiltered-drafts",
    "sglang-min-p-neighbour",
    "transformers-serve-greedy",
)
"""Findings on the README's first screen: what any user of that release would notice, in five projects."""

RIGHT, WRONG = "residual = (target - drafter).clamp(min=0)", "residual = target"
"""The line of examples/my_sampler.py that is broken."""

CHECKS = ("REJ107", "DIST213")
WORDS = ("check", "my_broken_sampler:make", *(word for code in CHECKS for word in ("-k", code)), "--profile", "smoke")
SHOWN = ("effect:", "evidence: E", "smallest example:")
"""Facts of a failure that the first screen shows, beside its title."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    README.write_text(fresh(), encoding="utf-8")


def fresh() -> str:
    """Return the README with fresh blocks."""
    text = README.read_text(encoding="utf-8")
    for name, block in (("defects", some_defects()), ("report", report()), ("speed", speed("docs/"))):
        before, _, after = _around(text, name)
        text = f"{before}\n\n{block}\n\n{after}"
    return text


def shown() -> str:
    """Return the report that the README shows."""
    return _around(README.read_text(encoding="utf-8"), "report")[1].strip()


def _around(text: str, name: str) -> tuple[str, str, str]:
    """Return what stands before, between and after the marks of a block; the marks stay outside."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[:first], text[first:last], text[last:]


# -- defects --------------------------------------------------------------------------------------------------------


def findings() -> dict[str, dict[str, str]]:
    """Name of a page to its head, in the order of the manual."""
    return {name: head(FINDINGS / f"{name}.md") for names in by_engine().values() for name in names}


def by_engine() -> dict[str, list[str]]:
    """Engine to the names of its pages, as the manual lists them."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("- Findings:")[2]
    sections = re.findall(r"^ {6}- (.+):\n((?: {10}.+\n)+)", nav, flags=re.MULTILINE)
    return {engine: re.findall(r"findings/([\w-]+)\.md", pages) for engine, pages in sections}


def head(page: Path) -> dict[str, str]:
    """What stands between the two lines of dashes at the top of `page`, by its word."""
    lines = page.read_text(encoding="utf-8").split("---\n")[1].splitlines()
    return dict(line.split(": ", 1) for line in lines)


def defects() -> str:
    """Return the home page's list: what can be opened for each engine."""
    parts = ((f"<summary>{engine}: {len(names)}</summary>", rows(names, "")) for engine, names in by_engine().items())
    return "\n\n".join(f"<details markdown>\n{summary}\n\n{shown}\n\n</details>" for summary, shown in parts)


def some_defects() -> str:
    """Return the README's table: a few of different projects, and the way to the rest."""
    rest = f"[All {len(findings())}](docs/index.md#defects-found-in-released-engines)."
    return f"{rows(IN_README, 'docs/')}\n\n{rest}"


def rows(names: Iterable[str], folder: str) -> str:
    """Return a table of findings; pages of checks, which it links to, exist on the site only."""
    lines = []
    for about, name in ((findings()[name], name) for name in names):
        codes = about["checks"] if folder else re.sub(r"\w+\d", r"[\g<0>](checks/\g<0>.md)", about["checks"])
        what = f"{about['effect']} ([details]({folder}findings/{name}.md))"
        lines.append([about["engine"], about["releases"], what, codes])
    return "\n".join(table(("engine", "release", "what happens", "found by"), lines))


# -- a report -------------------------------------------------------------------------------------------------------


def report() -> str:
    output = broken_run()
    failures = [part for code in CHECKS for part in output.split("\n\n") if part.startswith(f"{code} ")]
    lines = [" ".join(["$ fairdraw", *WORDS])]
    for failure in failures:
        title, *facts = re.split(r"\n(?=\S)", failure)  # a fact with the lines that continue it
        lines += [title, *(fact for fact in facts if fact.startswith(SHOWN)), "..."]
    return "\n".join(["```text", *lines, output.splitlines()[-1], "```"])


@cache
def broken_run() -> str:
    """What `fairdraw check` prints about the broken copy."""
    source = (ROOT / "examples" / "my_sampler.py").read_text(encoding="utf-8")
    if source.count(RIGHT) != 1:
        raise SystemExit(f"first_minute: examples/my_sampler.py has not one line {RIGHT!r}. Change RIGHT.")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_broken_sampler.py").write_text(source.replace(RIGHT, WRONG), encoding="utf-8")
        command = [sys.executable, "-m", "fairdraw", *WORDS]
        done = subprocess.run(command, cwd=folder, env=python_path(), capture_output=True, text=True, check=False)
        return done.stdout


# -- speed ----------------------------------------------------------------------------------------------------------


def speed(folder: str) -> str:
    host, card = record("scanners_cpu.json"), record("rejection_h200.json")
    vllm, steps = host["versions"]["vllm"], {row["scanner"]: row for row in host["steps"] if is_typical(row)}
    length = next(iter(steps.values()))["length"]
    row = next(row for row in card["compatible"] if (row["B"], row["K"]) == (64, 3))
    gpu = card["before"]["gpu"].removeprefix("NVIDIA ")
    batch = f"{host['batch_size']} requests with {length:,} output tokens each, caches cold"
    scanners = "perf_regression/records/scanners_cpu.json" if folder else "scanners.md"  # a page of the site only
    lines = [f"| in one process | vLLM {vllm} | ours |", "|---|---|---|"]
    lines += [
        f"| {name}: host time per step ([scanners]({scanners})) | "
        f"{us['vllm'] / 1000:.0f} ms | {us['ours'] / 1000:.1f} ms |"
        for name, us in ((name, row["cold_us"]) for name, row in steps.items())
    ]
    us = row["us"]
    lines.append(
        f"| verifying 3 drafts of 64 requests as CUDA graphs on one {gpu} ([kernels]({folder}performance.md)) | "
        f"{us['vllm022']:.0f} µs | {us['ours']:.0f} µs |"
    )
    return "\n".join([*lines, "", f"Of the first two: {batch}. The third has the same noise and tokens."])


def is_typical(row: Json) -> bool:
    """The step that stands for all: no drafts, long outputs."""
    return row["num_drafts"] == 0 and row["length"] == 12000
