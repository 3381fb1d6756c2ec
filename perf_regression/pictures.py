"""Plots on request: latency against vocabulary, cost against length, the roofline. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairdraw.perf_regression.named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fairdraw.perf_regression.cases import Sizes

__all__ = ["plot_latency", "plot_length", "plot_roofline"]


def plot_latency(times: Sequence[tuple[Sizes, float, float]], names: tuple[str, str], folder: Path) -> Path:
    """Microseconds of a call over the vocabulary, for ours and the reference.

    Raises:
        NoVerdictError: If there is nothing to draw, or no matplotlib to draw with.
    """
    if not times:
        raise NoVerdictError("nothing was timed")
    figure, axes = _axes("vocabulary", "microseconds per call")
    for name, values in zip(names, zip(*((ours, other) for _, ours, other in times), strict=True), strict=True):
        axes.plot([sizes.vocab_size for sizes, _, _ in times], [1e6 * value for value in values], "o-", label=name)
    return _written(figure, axes, folder / "latency.svg")


def plot_length(record: Mapping[str, Any], folder: Path) -> list[Path]:  # Any: JSON of `scanners`
    """Microseconds of a decode step over the length of the outputs: one plot per scanner and number of drafts."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}  # Any: JSON
    for row in record["steps"]:
        groups.setdefault((row["scanner"], row["num_drafts"]), []).append(row)
    return [_plot_group(*key, rows, folder) for key, rows in groups.items()]


def _plot_group(scanner: str, num_drafts: int, rows: list[Mapping[str, Any]], folder: Path) -> Path:  # Any: JSON
    figure, axes = _axes("output tokens per request", "microseconds per step")
    axes.set(xscale="log", yscale="log", title=f"{scanner}, {num_drafts} drafts")
    for arm in rows[0]["us"]:
        axes.plot([row["length"] for row in rows], [row["us"][arm] for row in rows], "o-", label=arm)
    return _written(figure, axes, folder / f"length_{scanner.replace(' ', '_')}_{num_drafts}.svg")


def plot_roofline(points: Mapping[str, tuple[float, float]], bandwidth: float, folder: Path) -> Path:
    """Seconds over bytes that must move, below the line of the copy bandwidth (bytes per second)."""
    figure, axes = _axes("bytes that must move", "microseconds")
    most = max(size for size, _ in points.values())
    axes.plot([0, most], [0, 1e6 * most / bandwidth], "k--", label="copy bandwidth")
    for name, (size, seconds) in points.items():
        axes.plot([size], [1e6 * seconds], "o", label=name)
    return _written(figure, axes, folder / "roofline.svg")


def _axes(x_label: str, y_label: str) -> tuple[Any, Any]:  # Any: matplotlib's
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise NoVerdictError("matplotlib is not installed. pip install 'fairdraw[report]'") from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    return figure, axes


def _written(figure: Any, axes: Any, path: Path) -> Path:  # Any: matplotlib's
    axes.legend()
    axes.set_ylim(bottom=None if axes.get_yscale() == "log" else 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return path
