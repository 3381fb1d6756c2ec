"""Make the first screen of README.md and docs/index.md: defects found, a red report, a line of speed.

    python tools/pages.py first_minute            # rewrite what stands between the markers
    python tools/pages.py first_minute --check    # exit 1 if a page is out of date

Defects come from the heads of docs/findings, in the order of mkdocs.yml; the report from a run on a broken copy of
examples/my_sampler.py; the speed from the committed records.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from records import ROOT

FINDINGS = ROOT / "docs" / "findings"
PAGES = {ROOT / "README.md": "docs/", ROOT / "docs" / "index.md": ""}
"""Page to what stands before a link into docs/."""

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
SHOWN = ("usually:", "effect:", "evidence: E", "smallest example:")
"""Facts of a failure that the first screen shows, beside its title."""

Json = dict[str, Any]  # Any: JSON


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the first screen of README.md and docs/index.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; complain about what is out of date")
    options = parser.parse_args()
    stale = [page for page in PAGES if fresh(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        if options.check:
            print(f"{page.name} is out of date. Run: python tools/pages.py first_minute")
        else:
            page.write_text(fresh(page), encoding="utf-8")
    return int(options.check and bool(stale))


def fresh(page: Path) -> str:
    """The text of `page` with fresh blocks."""
    text, folder = page.read_text(encoding="utf-8"), PAGES[page]
    for name, block in (("defects", defects(folder)), ("report", report()), ("speed", speed(folder))):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, after = text[: text.index(begin)], text[text.index(end) :]
        text = f"{before}{begin}\n\n{block}\n\n{after}"
    return text


# -- defects --------------------------------------------------------------------------------------------------------


def findings() -> dict[str, dict[str, str]]:
    """Name of a page to its head, in the order of the manual."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return {name: head(FINDINGS / f"{name}.md") for name in re.findall(r"findings/([\w-]+)\.md", nav)}


def head(page: Path) -> dict[str, str]:
    """What stands between the two lines of dashes at the top of `page`, by its word."""
    lines = page.read_text(encoding="utf-8").split("---\n")[1].splitlines()
    return dict(line.split(": ", 1) for line in lines)


def defects(folder: str) -> str:
    """All of them on the home page of the manual; in the README five of different projects, and the way to the rest."""
    lines = ["| engine | release | what happens | found by |", "|---|---|---|---|"]
    for name in IN_README if folder else findings():
        about = findings()[name]
        what = f"{about['effect']} ([details]({folder}findings/{name}.md))"
        codes = about["checks"]
        if not folder:  # pages of checks exist on the site only
            codes = re.sub(r"\w+\d", r"[\g<0>](checks/\g<0>.md)", codes)
        lines.append(f"| {about['engine']} | {about['releases']} | {what} | {codes} |")
    if folder:
        lines += ["", f"[All {len(findings())}]({folder}index.md#defects-found-in-released-engines)."]
    return "\n".join(lines)


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
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return done.stdout


# -- speed ----------------------------------------------------------------------------------------------------------


def speed(folder: str) -> str:
    host, card = host_record(), card_record()
    vllm, steps = host["versions"]["vllm"], {row["scanner"]: row for row in host["steps"] if is_typical(row)}
    parts = [
        f"its {name} code takes {row['cold_us']['vllm'] / 1000:.0f} ms and ours {row['cold_us']['ours'] / 1000:.1f} ms"
        for name, row in steps.items()
    ]
    length = next(iter(steps.values()))["length"]
    row = next(row for row in card["compatible"] if (row["B"], row["K"]) == (64, 3))
    gpu = card["before"]["gpu"].removeprefix("NVIDIA ")
    eager = _record("rejection_eager_h100")
    caller, calls = eager["before"]["gpu"].removeprefix("NVIDIA ").split()[0], eager["eager"]
    few, many = (next(r for r in calls if (r["kind"], r["B"]) == ("probs", size)) for size in (1, 64))
    return (
        f"**Speed.** Beside vLLM {vllm} in one process, host time per decode step of {host['batch_size']} requests "
        f"with {length:,} output tokens each, caches cold: {'; '.join(parts)} ([scanners]({folder}scanners.md)). "
        f"Verifying 3 drafts of 64 requests on one {gpu}, with the same noise and tokens, replayed as CUDA graphs: "
        f"{row['us']['vllm022']:.0f} µs and {row['us']['ours']:.0f} µs. Our counter-noise kernel, called from Python "
        f"on one {caller}: "
        f"{_pair(many, 'queued')} on a busy GPU, {_pair(many, 'idle')} on an idle one, and {_pair(few, 'idle')} there "
        f"for a single request ([kernels]({folder}performance.md))."
    )


def _pair(row: Json, mode: str) -> str:
    vllm, ours = (row[mode][name]["median"] for name in ("vllm022", "ours"))
    return f"vLLM {vllm:.0f} µs and ours {ours:.0f} µs"


def is_typical(row: Json) -> bool:
    """The step that stands for all: no drafts, long outputs."""
    return row["num_drafts"] == 0 and row["length"] == 12000


def host_record() -> Json:
    return _record("scanners_cpu")


def card_record() -> Json:
    return _record("rejection_h200")


def _record(name: str) -> Json:
    plain: Json = json.loads((ROOT / "perf_regression" / "records" / f"{name}.json").read_text(encoding="utf-8"))
    return plain
