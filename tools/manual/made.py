"""Tables and pictures of the manual that show records and definitions. The build makes them; none is committed.

A page of docs/ has a line `<!-- made: NAME -->` where the build puts the block of that name.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import partial
from typing import TYPE_CHECKING, Any

import matrix
from engine.page import on_a_card
from engine.page import tables as tables_of_engines
from exam import main as exam
from records import ROOT, mutants, plugin, power, read_lines, read_rows, run_times, samplers, table, upstream_tests
from servers.page import page as table_of_servers

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import all_checks
from fairdraw.contracts import LOGIT_FILTERS, FilterParams
from manual import first_minute, gallery, newcomer, performance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_PAGES, OF_STATISTICS = ROOT / "docs" / "records", ROOT / "statistical" / "records"


def _shown(path: Path) -> str:
    """Return the tables of a record that no program makes any more; they stand beside it."""
    return path.with_suffix(".md").read_text(encoding="utf-8")


def _json(path: Path) -> Any:  # Any: JSON
    return json.loads(path.read_text(encoding="utf-8"))


def attacked() -> list[tuple[str, str, list[str]]]:
    """What was attacked, what happened, and the tests that hold what holds now."""
    groups = tomllib.loads((OF_PAGES / "attacks.toml").read_text(encoding="utf-8"))["group"]
    return [(line["what"], line["happened"], line["tests"]) for group in groups for line in group["line"]]


def table_of_attacks() -> str:
    """Return the record as a table."""
    rows = ([what, said, "<br>".join(f"`{test}`" for test in tests) or "open"] for what, said, tests in attacked())
    return "\n".join(table(("attack", "what happened", "held by"), rows))


PICTURES: dict[str, Callable[[Path], Path]] = {
    **performance.CHARTS,
    **{f"{code}.png": gallery.draw for code in gallery.CODES},
}
"""Picture to what draws it in a folder."""


def _cells() -> list[matrix.Cell]:
    return list(matrix.read(OF_PAGES / "matrix.json").values())


def table_of_filters() -> str:
    """Return the logit filters as a table, by their records."""
    titles = {check.code: check.title for check in all_checks("properties", "filters")}
    rows = (
        [name, f"`{FilterParams(**one.usual[0])}`", f"[{one.code}](checks/{one.code}.md): {titles[one.code]}"]
        for name, one in LOGIT_FILTERS.items()
    )
    return "\n".join(table(("filter", "for example", "check"), rows))


_COSTLY = {check.contract for check in all_checks() if check.needed}
"""Contracts of which a check needs a capability."""


def _capabilities(contract: str | None = None) -> str:
    """Return a row for every capability, as `fairdraw explain` describes it; for those that cost `contract` checks."""
    rows = [one.row(contract) for one in glossary().values() if contract is None or contract in one.skipped]
    head = ["| word | what it means | declare it unsupported | checks it costs |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _ways(contract: str) -> str:
    """Return a row for every way of the contract's policy; the first way of each choice is vLLM's."""
    kind = CONTRACTS[contract].policy
    assert kind
    choices = kind.choices().items()
    rows = [[f"`{kind.__name__}({name}={way})`", line] for name, choice in choices for way, line in choice.ways.items()]
    return "\n".join(table(("declaration", "what it says"), rows))


def _engine(part: str) -> str:
    return tables_of_engines(_json(OF_PAGES / "engine.json"))[part]


BLOCKS: dict[str, Callable[[], str]] = {
    "defects": first_minute.defects,
    "report": first_minute.shown,
    "speed": lambda: first_minute.speed(""),
    "capabilities": _capabilities,
    **{f"capabilities of {name}": partial(_capabilities, name) for name in CONTRACTS if name in _COSTLY},
    **{f"policies of {name}": partial(_ways, name) for name, one in CONTRACTS.items() if one.policy},
    "filters": table_of_filters,
    "performance": lambda: _shown(performance.RECORDS / "rejection_h200.json"),
    "scanners": lambda: _shown(performance.RECORDS / "scanners_cpu.json"),
    "gallery": gallery.sections,
    "exam": lambda: exam.page(exam.read(OF_STATISTICS / "exam.jsonl")),
    "mutants": lambda: mutants.page(read_rows(OF_STATISTICS / "mutants_by_profile.json")),
    "power": lambda: power.power_table(_json(OF_STATISTICS / "power.json")),
    "odd samplers": lambda: power.odd_table(_json(OF_STATISTICS / "power.json")),
    "power of few draws": lambda: power.slow_table(_json(OF_STATISTICS / "power.json")),
    **{f"engine {part}": partial(_engine, part) for part in ("plugin", "tokens")},
    "engine on a card": lambda: on_a_card(read_lines(OF_PAGES / "engine_card.jsonl")),
    "step": performance.step_tables,
    "step on any rows": performance.data_tables,
    "step beside FlashInfer": performance.flashinfer_tables,
    "kernels of others": lambda: _shown(OF_STATISTICS / "foreign_kernels_h200.json"),
    "attacks": table_of_attacks,
    "matrix": lambda: matrix.as_markdown(_cells()),
    "releases of vLLM": lambda: matrix.notes(_cells()),
    "samplers of others": lambda: samplers.as_markdown(_json(OF_PAGES / "samplers.json")),
    "servers": lambda: table_of_servers(_json(OF_PAGES / "servers.json")),
    "validated releases": plugin.validated_releases,
    "validated releases of V2": plugin.validated_for_v2,
    "random steps of V2": plugin.random_steps,
    "upstream tests": lambda: upstream_tests.markdown(_json(upstream_tests.RECORD)["releases"]),
    "first verdicts": newcomer.first_verdicts,
    "run times": run_times.times,
}
"""Block to its text. Every one stands in some page."""

MARK = re.compile(r"^<!-- made: ([\w ]+) -->$", flags=re.MULTILINE)


def filled(page: str) -> str:
    """Return `page` with the blocks that its marks name."""
    return MARK.sub(lambda mark: BLOCKS[mark[1]](), page)
