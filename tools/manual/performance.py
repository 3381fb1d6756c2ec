"""Tables of docs/step.md and the picture of docs/performance.md, from perf_regression/records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import records
from records import Json

from fairdraw.perf_regression._pictures import figure_with_axes, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "perf_regression" / "records"
STEP, DATA = "step_h200.json", "step_data_h200.json"
PLAIN = "step_plain_h100.json"
ARMS = {"ours": "fairdraw", "vllm033": "vLLM 0.33.0 V2"}
COLOURS = {"fairdraw": "#1a9e8f", "vLLM 0.33.0 V2": "#8795a6"}


def record(name: str) -> Json:
    found: Json = json.loads((RECORDS / name).read_text(encoding="utf-8"))
    return found


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Return Markdown, from a head such as `sampler | us`."""
    return "\n".join(records.table(head.split(" | "), rows, " --- "))


def origin(found: Json) -> str:
    machine = found["before"]
    return (
        f"{machine['gpu']}, driver {machine['nvidia-smi'].get('driver_version', 'unknown')}, CUDA {machine['cuda']}, "
        f"torch {machine['torch']}, Triton {machine['triton']}; {machine['date'][:10]}, commit {found['commit'][:12]}; "
        f"medians of {found['rounds']} rounds."
    )


def flashinfer_tables() -> str:
    """Return the tables of plain sampling and verification beside FlashInfer's functions."""
    plain, verifying = record(PLAIN), record(STEP)
    sampling = ("ours", "flashinfer", "flashinfer joint", "flashinfer logits")
    return "\n\n".join(
        [
            origin(plain),
            "### Plain sampling\n\n" + _beside_flashinfer(plain, sampling),
            f"### Verification of three drafts\n\n{origin(verifying)}\n\n"
            + _beside_flashinfer(verifying, ("ours", "flashinfer", "flashinfer top-k", "flashinfer top-p")),
        ]
    )


def _beside_flashinfer(found: Json, arms: tuple[str, ...]) -> str:
    """Medians of graph replays by arm, then of calls and host time of ours and FlashInfer's first way."""
    largest = max(row["V"] for row in found["rows"])
    shown = [row for row in found["rows"] if row["V"] == largest and "flashinfer" in row.get("us", {})]
    cells = {(row["set"], row["B"], row["mode"]): row["us"] for row in shown}
    rows = []
    for name, batch_size in dict.fromkeys((name, size) for name, size, _ in cells):
        graph, *others = (cells[name, batch_size, mode] for mode in ("graph", "eager", "host"))
        medians = [f"{graph[arm]['median']:.0f}" if arm in graph else "-" for arm in (*arms, "copy")]
        pairs = [f"{us[arm]['median']:.0f}" for us in others for arm in ("ours", "flashinfer")]
        rows.append([f"{name}, {batch_size}", *medians, *pairs])
    titles = [name.replace("ours", "fairdraw").replace("flashinfer", "FlashInfer") for name in arms]
    head = " | ".join([*(f"graph, {title}" for title in titles), "copy of the logits"])
    tail = " | ".join(f"{mode}, {title}" for mode in ("call", "host") for title in titles[:2])
    return table(f"parameters, requests | {head} | {tail}", rows)


STEP_AIMS: dict[tuple[str, str], tuple[int, int, int]] = {
    ("T=1 top-p 0.95", "model"): (36, 48, 115),
    ("T=0.6 top-k 20 top-p 0.95 presence 1.5", "zipf"): (40, 60, 165),
    ("any", "the worst"): (90, 200, 650),
}
"""Parameters and rows to the microseconds of a graph replay at 16, 64 and 256 requests that we aim for."""
RATIO_AIMS = {16: 0.5, 64: 0.35, 256: 0.35}
"""Requests to the part of vLLM's time that we aim for in the worst cell."""
STEP_ARMS = ("ours", "ours launched", "vllm033")


def step_tables() -> str:
    """Return one table per vocabulary, and where vLLM is faster."""
    found = record(STEP)
    cells = {(row["V"], row["set"], row["B"], row["mode"]): row for row in found["rows"]}
    parts = [origin(found)]
    for vocab_size in sorted({row["V"] for row in found["rows"]}, reverse=True):
        parts.append(f"### {vocab_size:,} tokens\n\n{_step_table(cells, vocab_size)}")
    return "\n\n".join([*parts, slower(found["rows"])])


def slower(rows: list[Json]) -> str:
    """Return the spread of our time over vLLM's, and a table of the cells in which ours is longer."""
    ways = {"graph": "graph replay", "eager": "call"}
    timed = sorted((row for row in rows if row["mode"] in ways), key=lambda row: -row["ratio"])
    modes = " and ".join(f"{ways[mode]}s" for mode in dict.fromkeys(row["mode"] for row in timed))
    ratios = [row["ratio"] for row in timed]
    spread = f"{ratios[-1]:.2f} to {ratios[0]:.2f}, median {ratios[len(ratios) // 2]:.2f}"
    where = [
        [row["set"], row["data"], row["B"], row["V"], ways[row["mode"]], f"{row['ratio']:.2f}"]
        for row in timed
        if row["ratio"] > 1
    ]
    text = f"Our time as a part of vLLM's, over {len(timed)} cells ({modes}): {spread}. vLLM is faster in {len(where)}:"
    head = "parameters | rows | requests | tokens | timed | part of vLLM's time"
    return f"{text}\n\n{table(head, where)}"


def data_tables() -> str:
    """Return what a step takes on any rows: by parameters and requests the median and the worst kind of row."""
    found, groups = record(DATA), dict[tuple[str, int], list[Json]]()
    for row in found["rows"]:
        groups.setdefault((row["set"], row["B"]), []).append(row)
    rows = []
    for (name, size), group in groups.items():
        times = sorted((row["us"]["ours"]["median"], row["data"]) for row in group)
        ratio, where = max((row["ratio"], row["data"]) for row in group)
        middle = times[len(times) // 2][0]
        shown = f"{middle:.0f}", f"{times[-1][0]:.0f} ({times[-1][1]})", f"{times[-1][0] / middle:.1f}"
        rows.append([f"{name}, {size}", *shown, f"{ratio:.2f} ({where})"])
    head = "parameters, requests | median of all rows, us | worst rows, us | worst / median | worst part of vLLM's time"
    aims = table(
        "parameters | rows | requests | aim, us | measured, us | ", _step_aims(found["rows"], record(STEP)["rows"])
    )
    return "\n\n".join([origin(found), table(head, rows), slower(found["rows"]), "### Aims", aims])


def _step_aims(rows: list[Json], usual: list[Json]) -> Iterator[list[object]]:
    graphs = [row for row in (*rows, *usual) if row["mode"] == "graph" and row["V"] == 151936]
    for at, size in enumerate(RATIO_AIMS):
        cells = [(row["us"]["ours"]["median"], row["set"], row["data"]) for row in graphs if row["B"] == size]
        for (wanted, rows_of), aims in STEP_AIMS.items():
            found = [us for us, made, data in cells if wanted == "any" or (made, data) == (wanted, rows_of)]
            said = [f"{max(found):.0f}", _met(max(found) <= aims[at])] if found else ["not measured", ""]
            yield [wanted, rows_of, size, aims[at], *said]
        worst, most = max(row["ratio"] for row in graphs if row["B"] == size), RATIO_AIMS[size]
        yield ["any", "the worst, as a part of vLLM's time", size, most, f"{worst:.2f}", _met(worst <= most)]


def _step_table(cells: dict[tuple[int, str, int, str], Json], vocab_size: int) -> str:
    rows = []
    for at, name, batch_size, mode in cells:
        if (at, mode) != (vocab_size, "graph"):
            continue
        graph, *called = (cells[at, name, batch_size, mode] for mode in ("graph", "eager", "host", "alone"))
        shown = [(graph, STEP_ARMS[::2]), *((one, STEP_ARMS) for one in called)]
        medians = [f"{one['us'][arm]['median']:.0f}" for one, arms in shown for arm in arms]
        rows.append([f"{name}, {batch_size}", *medians, f"{graph['us']['copy']['median']:.0f}"])
    modes, arms = ("call", "host", "alone"), ("fairdraw", "launched", "vLLM")
    heads = " | ".join(f"{mode}, {arm}" for mode in modes for arm in arms)
    return table(f"parameters, requests | graph, fairdraw | graph, vLLM | {heads} | copy of the logits", rows)


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def step_chart(path: Path) -> Path:
    """Ordinary calls of the whole step at 64 requests, as an engine makes them."""
    found = record(STEP)
    rows = [row for row in found["rows"] if (row["V"], row["B"], row["mode"]) == (151936, 64, "eager")]
    bars = {title: [row["us"][arm]["median"] for row in rows] for arm, title in ARMS.items()}
    figure, (axes,) = figure_with_axes((7.2, 8.4), 1)
    for place, (label, values) in enumerate(bars.items()):
        drawn = axes.barh([group + 0.4 * place for group in range(len(rows))], values, 0.34, color=COLOURS[label])
        axes.bar_label(drawn, [f"{label} {value:.0f} us" for value in values], padding=4, fontsize=9)
    names = [row["set"].replace(" top-k", "\ntop-k").replace(" presence", "\npresence") for row in rows]
    axes.set(xlim=(0, 1.28 * max(map(max, bars.values()))), xlabel="microseconds per sampling step")
    axes.set_yticks([group + 0.2 for group in range(len(rows))], names)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    title = f"{found['before']['gpu']}, calls on an idle GPU; 64 requests, 3 drafts, 151,936 tokens"
    axes.set_title(title, fontsize=10)
    return save(figure, path)


CHARTS: dict[str, Callable[[Path], Path]] = {"step.svg": step_chart}
"""Every picture, and what draws it."""
