"""Pages and tables of the manual that show records and definitions. The build makes them; none is committed.

A page of docs/ has a line `<!-- made: NAME -->` where the build puts the block of that name.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import partial
from typing import TYPE_CHECKING, Any

import matrix
from engine.page import page as page_of_engines
from exam import main as exam
from gpu_kernels.page import page as tables_of_kernels
from records import ROOT, mutants, plugin, power, read_rows, run_times, samplers, upstream_tests
from servers.page import page as page_of_servers

from fairdraw._core.contracts import CONTRACTS
from fairdraw.protocols._policies import POLICIES
from manual import capability_costs, first_minute, performance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_PAGES, OF_STATISTICS = ROOT / "docs" / "records", ROOT / "statistical" / "records"


def _json(path: Path) -> Any:  # Any: JSON
    return json.loads(path.read_text(encoding="utf-8"))


def attacked() -> list[tuple[str, str, list[str]]]:
    """What was attacked, what happened, and the tests that hold what holds now."""
    groups = tomllib.loads((OF_PAGES / "attacks.toml").read_text(encoding="utf-8"))["group"]
    return [(line["what"], line["happened"], line["tests"]) for group in groups for line in group["line"]]


def page_of_attacks() -> str:
    """The record as a page."""
    lines = [
        "# What was attacked",
        "",
        "The product was attacked with bad samplers, servers, files, tensors, signals and options, and its gates with "
        "defects. This is what did not hold on commit 8b410ee, and the test that holds it now. `python tools/attacks` "
        "runs some thousand attacks by rules (exit code 0 means that all checks ran and passed; there is one verdict "
        "and no traceback; secrets stay secret; every process ends), and `python tools/gates.py` shows that every gate "
        "of CI fails if there is a defect; CI runs a sample of both.",
        "",
        "| attack | what happened | held by |",
        "|---|---|---|",
    ]
    for what, happened, tests in attacked():
        lines.append(f"| {what} | {happened} | {'<br>'.join(f'`{test}`' for test in tests) or 'open'} |")
    return "\n".join(lines) + "\n"


MADE: dict[str, Callable[[], str]] = {
    "attacks.md": page_of_attacks,
    "capability-costs.md": capability_costs.page,
    "engine.md": lambda: page_of_engines(_json(OF_PAGES / "engine.json")),
    "exam.md": lambda: exam.page(exam.read(OF_STATISTICS / "exam.jsonl")),
    "matrix.md": lambda: matrix.as_markdown(list(matrix.read(OF_PAGES / "matrix.json").values())),
    "mutants.md": lambda: mutants.page(read_rows(OF_STATISTICS / "mutants_by_profile.json")),
    "power.md": lambda: power.table(_json(OF_STATISTICS / "power.json")),
    "samplers.md": lambda: samplers.as_markdown(_json(OF_PAGES / "samplers.json")),
    "scanners.md": performance.scanners_page,
    "servers.md": lambda: page_of_servers(_json(OF_PAGES / "servers.json")),
}
"""Page to its text, made from a record."""


def token_kernel() -> str:
    """Return the worked example of a kernel, without its docstring."""
    name = "examples/token_kernel.py"
    code = (ROOT / name).read_text(encoding="utf-8").partition("import torch\n")
    return f'```python title="{name}"\n{code[1]}{code[2]}```'


BLOCKS: dict[str, Callable[[], str]] = {
    "defects": lambda: first_minute.defects(""),
    "report": first_minute.shown,
    "speed": lambda: first_minute.speed(""),
    "capabilities": capability_costs.words,
    **{f"capabilities of {name}": partial(capability_costs.words, name) for name in CONTRACTS},
    **{f"policies of {name}": partial(capability_costs.ways, name) for name in POLICIES},
    "token kernel": token_kernel,
    "performance": performance.performance_tables,
    "step": performance.step_tables,
    "step beside FlashInfer": performance.flashinfer_tables,
    "kernels of others": tables_of_kernels,
    "validated releases": plugin.validated_releases,
    "validated releases of V2": plugin.validated_for_v2,
    "random steps of V2": plugin.random_steps,
    "upstream tests": lambda: upstream_tests.markdown(_json(upstream_tests.RECORD)["releases"]),
    "first minutes": run_times.first_minutes,
    "run times": run_times.times,
}
"""Block to its text. Every one stands in some page."""

MARK = re.compile(r"^<!-- made: ([\w ]+) -->$", flags=re.MULTILINE)


def filled(page: str) -> str:
    """Return `page` with the blocks that its marks name."""
    return MARK.sub(lambda mark: BLOCKS[mark[1]](), page)
