"""Plots: latency against vocabulary, cost against length, the roofline. Needs matplotlib.

    python -m fairdraw.perf_regression._pictures --out docs/pictures        those of the docs, from the committed
    records fairdraw bench mypkg:make --plots pictures                             latency of what was just measured

A picture carries the SHA-256 of the record that it was drawn from, and a test compares: records and pictures change
together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraw.perf_regression._named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairdraw.perf_regression._cases import Sizes

__all__ = ["RECORDS", "digest", "draw_records", "main", "plot_latency", "plot_lines"]

Json = dict[str, Any]  # Any: JSON

RECORDS = Path(__file__).parent / "records"
REJECTION, SCANNERS = "rejection_h200.json", "scanners_cpu.json"
BATCH_SIZE, MAX_SPEC_LEN, DRAFT_KIND = 64, 3, "probs"
ARMS = {"ours": "ours", "vllm022": "vLLM 0.22.0", "vllm033": "vLLM 0.33.0 V2", "copy": "copy of the bytes"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw the committed records.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args(argv)
    for path in draw_records(options.records, options.out):
        print(f"written: {path}")


def draw_records(records: Path, folder: Path) -> list[Path]:
    """Everything that the records have to show.

    Raises:
        NoVerdictError: If there is no matplotlib to draw with.
    """
    kernels, scanners = records / REJECTION, records / SCANNERS
    read: dict[Path, Json] = {path: json.loads(path.read_text(encoding="utf-8")) for path in (kernels, scanners)}
    drawn = [
        _latency_of_kernels(read[kernels], folder, digest(kernels)),
        _roofline_of_kernels(read[kernels], folder, digest(kernels)),
    ]
    names = dict.fromkeys(row["scanner"] for row in read[scanners]["steps"])
    return drawn + [_cost_over_length(read[scanners], name, folder, digest(scanners)) for name in names]


def digest(record: Path) -> str:
    """What the pictures of a record carry."""
    return f"sha256 {hashlib.sha256(record.read_bytes()).hexdigest()}"


def _latency_of_kernels(record: Json, folder: Path, note: str) -> Path:
    rows = [c for c in record["cases"] if (c["kind"], c["B"], c["K"]) == (DRAFT_KIND, BATCH_SIZE, MAX_SPEC_LEN)]
    lines = {label: [(row["V"], row["us"][arm]["median"]) for row in rows] for arm, label in ARMS.items()}
    title = f"{record['before']['gpu']}, B={BATCH_SIZE} K={MAX_SPEC_LEN}, cold L2"
    return plot_lines(lines, ("vocabulary", "microseconds per step"), folder / "latency.svg", title=title, note=note)


def _roofline_of_kernels(record: Json, folder: Path, note: str) -> Path:
    """All sizes of one kind of draft; what lies on the line moves its bytes as fast as a copy does."""
    cases = [case for case in record["cases"] if case["kind"] == DRAFT_KIND]
    lines = {
        label: sorted((1e-6 * case["bytes"], case["us"][arm]["median"]) for case in cases)
        for arm, label in (("copy", "copy of the bytes"), ("ours", "ours"))
    }
    title = f"{record['before']['gpu']}, every B, K and V of the record"
    labels = ("megabytes that must move", "microseconds per step")
    return plot_lines(lines, labels, folder / "roofline.svg", title=title, note=note, log=True, points=("ours",))


def _cost_over_length(record: Json, scanner: str, folder: Path, note: str) -> Path:
    rows = [row for row in record["steps"] if row["scanner"] == scanner]
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for arm, cost in row["us"].items():
            lines.setdefault(f"{arm}, {row['num_drafts']} drafts", []).append((row["length"], cost))
    title = f"{scanner}, {record['batch_size']} requests, {record['machine']['processor']}"
    path = folder / f"length_{scanner.replace(' ', '_')}.svg"
    labels = ("output tokens per request", "microseconds per step")
    return plot_lines(lines, labels, path, title=title, note=note, log=True)


def plot_latency(times: Sequence[tuple[Sizes, float, float]], names: tuple[str, str], folder: Path) -> Path:
    """Microseconds of a call over the vocabulary, for ours and the reference.

    Raises:
        NoVerdictError: If there is nothing to draw, or no matplotlib to draw with.
    """
    if not times:
        raise NoVerdictError("nothing was timed over the vocabulary")
    lines = {
        names[0]: [(sizes.vocab_size, 1e6 * ours) for sizes, ours, _ in times],
        names[1]: [(sizes.vocab_size, 1e6 * other) for sizes, _, other in times],
    }
    return plot_lines(lines, ("vocabulary", "microseconds per call"), folder / "latency.svg")


def plot_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    labels: tuple[str, str],
    path: Path,
    *,
    title: str = "",
    note: str = "",
    log: bool = False,
    points: Sequence[str] = (),
) -> Path:
    """Lines of `(x, y)` by their names, as an SVG.

    Args:
        labels: Of the axes.
        note: Kept in the file, unseen.
        log: Both axes.
        points: Names that are drawn as points only.

    Raises:
        NoVerdictError: If there is no matplotlib to draw with.
    """
    figure, axes = _axes()
    for name, places in lines.items():
        axes.plot(*zip(*places, strict=True), "o" if name in points else "o-", label=name, markersize=4)
    axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
    if log:
        axes.set(xscale="log", yscale="log")
    else:
        axes.set_ylim(bottom=0)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Description": note})
    return path


def _axes() -> tuple[Any, Any]:  # Any: matplotlib's
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise NoVerdictError("matplotlib is not installed. pip install 'fairdraw[report]'") from error
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "fairdraw", "svg.fonttype": "none"})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    return figure, figure.add_subplot()


if __name__ == "__main__":
    main()
