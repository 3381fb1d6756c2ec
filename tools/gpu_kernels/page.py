"""The tables of docs/foreign-kernels.md, which the docs build makes from the record."""

from __future__ import annotations

import json
from typing import Any

from records import ROOT, table

Json = dict[str, Any]  # Any: JSON
RECORD = ROOT / "statistical" / "records" / "foreign_kernels_h200.json"


def page() -> str:
    """Return the tables of the committed record."""
    return "\n\n".join(tables(json.loads(RECORD.read_text(encoding="utf-8"))))


def tables(record: Json) -> list[str]:
    rows = {part: [row for row in record["rows"] if row["part"] == part] for part in ("edges", "kept", "distributions")}
    return [
        origin(record),
        "## Under the contracts\n\n" + contracts(record),
        "## Questions that reading the kernels raised\n\n" + answers(rows["edges"]),
        "## Kept tokens\n\n" + answers(rows["kept"]),
        "## Distributions\n\n" + answers(rows["distributions"]),
    ]


def origin(record: Json) -> str:
    machine, built = record["machine"], record["versions"]
    return (
        f"{machine['gpu']}, CUDA {machine['cuda']}, torch {machine['torch']}; commit {record['commit'][:7]}. "
        f"FlashInfer {built['flashinfer-python']}, SGLang {built['sglang']}, compiled by nvcc {built['nvcc']} "
        f"for {built['arch']}."
    )


def contracts(record: Json) -> str:
    """A line per run of checks, then the checks that did not pass."""
    lines = []
    for name, run in record.get("contracts", {}).items():
        failed = run["failed"] + run["error"]
        undecided = run["inconclusive"] + run["incomplete"]
        lines.append([f"`{name.replace(', ', '`, ')}", run["passed"], run["xfailed"], failed, undecided])
    broken = [row for row in record["rows"] if row["part"] == "contracts" and row["result"] in ("failed", "known")]
    parts = [_table("adapter | passed | known defects | failed | undecided", lines)]
    if broken:
        rows = [[f"`{row['kernel']}`", row["check"], row["result"], shown(row["effect"])] for row in broken]
        parts.append(_table("adapter | check | result | effect", rows))
    return "\n\n".join(parts)


def answers(rows: list[Json]) -> str:
    cells = [
        [f"`{row['kernel']}`", row["check"], f"{row.get('draws', 0):.3g}", row["result"], shown(row["effect"])]
        for row in rows
    ]
    return _table("kernel | what must hold | draws or rows | result | counted", cells)


def shown(effect: object) -> str:
    """An effect on one line of a table."""
    if isinstance(effect, dict):
        return ", ".join(f"{name} {_number(value)}" for name, value in effect.items())
    return " ".join(str(effect).split()).replace("|", "\\|")


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(head: str, rows: list[list[Any]]) -> str:  # Any: printed
    return "\n".join(table(head.split(" | "), rows, " --- "))
