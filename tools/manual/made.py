"""Pages of the manual that show records. The build makes them; none is committed."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import matrix
from engine.page import page as page_of_engines
from exam import main as exam
from records import ROOT, mutants, power, read_rows, samplers
from servers.page import page as page_of_servers

from manual import capability_costs

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
    "servers.md": lambda: page_of_servers(_json(OF_PAGES / "servers.json")),
}
"""Page to its text, made from a record."""
