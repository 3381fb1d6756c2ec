"""The plot of `fairdraw bench --plots`, and how pictures of the manual are drawn. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairdraw._core.release import install
from fairdraw.perf_regression._named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fairdraw.perf_regression._world import Sizes


PAPER, INK = "#fdfdfc", "#24292f"
DARK = f"""<style>svg {{ --paper: {PAPER}; --ink: {INK} }}
@media (prefers-color-scheme: dark) {{ svg {{ --paper: #1f2430; --ink: #e2e4e9 }} }}</style>"""
"""An SVG has its own background and follows the reader's preference for light or dark."""


def plot_latency(times: Sequence[tuple[Sizes, float, float]], names: tuple[str, str], folder: Path) -> Path:
    """Plot microseconds of a call over the vocabulary, for ours and the reference.

    Raises:
        NoVerdictError: If there is nothing to draw, or no matplotlib to draw with.
    """
    if not times:
        raise NoVerdictError("nothing was timed over the vocabulary")
    figure, (axes,) = figure_with_axes((6, 4), 1)
    arms = [ours for _, ours, _ in times], [other for _, _, other in times]
    for name, seconds in zip(names, arms, strict=True):
        axes.plot([sizes.vocab_size for sizes, *_ in times], [1e6 * one for one in seconds], "o-", label=name)
    axes.set(xlabel="vocabulary", ylabel="microseconds per call")
    axes.set_ylim(bottom=0)
    axes.legend(facecolor=PAPER)
    return save(figure, folder / "latency.svg")


def figure_with_axes(size: tuple[float, float], num_panels: int) -> tuple[Any, list[Any]]:  # Any: matplotlib's
    """Return an empty figure of so many inches, and its panels from top to bottom.

    Raises:
        NoVerdictError: If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise NoVerdictError(f"matplotlib is not installed. {install('fairdraw[report]')}") from error
    matplotlib.use("Agg")
    parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = {"svg.hashsalt": "fairdraw", "svg.fonttype": "none", **dict.fromkeys(parts, INK)}
    matplotlib.rcParams.update(style)
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    return figure, [figure.add_subplot(num_panels, 1, place + 1, facecolor=PAPER) for place in range(num_panels)]


def save(figure: Any, path: Path) -> Path:  # Any: matplotlib's
    """Write an SVG whose background and text follow the reader's preference for light or dark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    drawn = path.read_text(encoding="utf-8").replace(PAPER, "var(--paper)").replace(INK, "var(--ink)")
    path.write_text(drawn.replace("</metadata>", f"</metadata>\n {DARK}", 1), encoding="utf-8")
    return path
