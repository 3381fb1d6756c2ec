"""A picture per table, written on request: observed against expected, with the bands of chance.

    fairdraw check rejection/torch --only statistical --pictures pictures/

There are three kinds:

* *cells*: observed over expected per pooled cell, against the expected count; chance is a funnel.
* *mass* (probability integral transforms): the same over the unit interval, cell by cell; chance is a flat band. A
  slope by rank is a wrong temperature, a drop at the right end a lost tail, a drop by id a lost tile.
* *lengths*: share of rows per number of accepted drafts, beside the expected share with its band.

Only this module needs Matplotlib, which the extra `report` brings.

Limits:
    Pictures show, they do not decide. In the wide band all cells of one table stay with probability 0.999.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from fairdraw.statistical._binomial import binomial_quantile
from fairdraw.statistical._decision import weigh
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from fairdraw.statistical._count_tables import Table
    from fairdraw.statistical._design import SamplePlan

_POINTWISE, _TOGETHER = 0.05, 0.001
"""Probability that one cell leaves the narrow band, and that any cell leaves the wide one."""

_HEIGHT, _WIDTH, _MAX_TICKS = 4.0, 7.0, 12

_TITLE_WIDTH, _LABEL_WIDTH, _TICK_WIDTH = 84, 44, 22
"""In letters."""


class Kind(StrEnum):
    """What a table's picture looks like."""

    CELLS = "cells"
    MASS = "mass"
    LENGTHS = "lengths"

    @classmethod
    def of(cls, name: str) -> Kind:
        """The kind of the table called `name`.

        Example:
            >>> [str(Kind.of(n)) for n in ("T8 token by rank", "D5 accepted drafts of a call", "S1 output row")]
            ['mass', 'lengths', 'cells']
        """
        if name.endswith((" by rank", " by id")):
            return cls.MASS
        return cls.LENGTHS if "accepted drafts" in name else cls.CELLS


@dataclass(frozen=True)
class Picture:
    """One table, ready to be drawn.

    Args:
        counts: All cells, and the last entry for observations that are no cell.
        plan: The table's; it determines the pools.
    """

    name: str
    counts: NDArray[np.int64]  # [num_cells + 1] int64
    plan: SamplePlan
    table: Table

    @property
    def file_name(self) -> str:
        """The name in lower case, what is no letter or digit replaced."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") + ".png"


@dataclass(frozen=True)
class _Pools:
    """Pooled cells of a table: what was seen and what chance allows, in the order in which they are drawn."""

    labels: list[str]
    observed: NDArray[np.int64]  # [num_pools] int64
    probs: NDArray[np.float64]  # [num_pools] float64
    num_samples: int

    @classmethod
    def of(cls, picture: Picture) -> _Pools:
        """The pools of one table, ordered by their first cells."""
        pooling = picture.plan.pooling
        observed, _ = pooling.pool(picture.counts)
        if observed.sum() == 0:
            raise refuse("write_pictures", f"{picture.name} has no samples", "there must be some", "Draw more.")
        # The first cell of each pool gives it its place and name.
        firsts = np.array([pooling.members(pool)[0] for pool in range(pooling.num_pools)])
        order = np.argsort(firsts)
        labels = [picture.table.label(int(firsts[i])) for i in order]
        return cls(labels, observed[order], pooling.probs[order], int(observed.sum()))

    @property
    def expected(self) -> NDArray[np.float64]:  # [num_pools] float64
        """Expected counts."""
        return self.probs * self.num_samples

    def band(self, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # each [num_pools] float64
        """Counts between which a cell stays with probability `1 - rate`."""
        low, high = (binomial_quantile(edge, self.num_samples, self.probs) for edge in (rate / 2, 1 - rate / 2))
        return np.asarray(low), np.asarray(high)

    def bands(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], str, str]]:
        """The wide band, for all cells together, and the narrow one; with colour and legend."""
        yield *self.band(_TOGETHER / self.probs.size), "#dde6f0", f"all cells, {1 - _TOGETHER:.1%}"
        yield *self.band(_POINTWISE), "#b3c8de", f"each cell, {1 - _POINTWISE:.0%}"

    @property
    def outside(self) -> NDArray[np.bool_]:  # [num_pools] bool
        """Cells that left the wide band."""
        low, high = self.band(_TOGETHER / self.probs.size)
        return np.asarray((self.observed < low) | (self.observed > high))


def write_pictures(folder: Path, pictures: Iterable[Picture]) -> list[Path]:
    """One PNG per table, written to `folder`, which is made.

    Returns:
        The files, in the order of `pictures`.

    Raises:
        ValueError: If a table has no samples, or other cells than its plan.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in pictures:
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)  # no window system, no global state
        axes = figure.subplots()
        pools = _Pools.of(picture)
        _DRAW[Kind.of(picture.name)](axes, pools)
        name, numbers = picture.name, _title(picture, pools).removeprefix(f"{picture.name}: ")
        axes.set_title(f"{textwrap.fill(name, _TITLE_WIDTH)}\n{numbers}", fontsize=9, loc="left")
        handles, legends = axes.get_legend_handles_labels()
        figure.legend(handles, legends, loc="outside lower center", ncols=len(legends), fontsize=7, frameon=False)
        written.append(folder / picture.file_name)
        figure.savefig(written[-1], dpi=120)
    return written


def _title(picture: Picture, pools: _Pools) -> str:
    """Name, effect and evidence, as in reports; and the impossible observations, which have no place in a picture."""
    table = weigh(picture.name, picture.counts, picture.plan, picture.table)
    impossible = f"\n{table.num_impossible} IMPOSSIBLE observations are not drawn" if table.num_impossible else ""
    return (
        f"{picture.name}: {pools.num_samples} samples, TV {table.tv_distance:.4f}, "
        f"E = 10^{table.log_e_value / np.log(10):.1f}, p = {table.p_value:.2g}{impossible}"
    )


def _draw_cells(axes: Axes, pools: _Pools) -> None:
    """Observed over expected against expected: a funnel."""
    order = np.argsort(pools.expected)
    expected = pools.expected[order]
    for low, high, colour, legend in pools.bands():
        axes.fill_between(expected, low[order] / expected, high[order] / expected, color=colour, label=legend, lw=0)
    _mark(axes, pools.expected, pools)
    _count_ticks(axes, expected)
    axes.set_xlabel("expected observations per pooled cell")


def _draw_mass(axes: Axes, pools: _Pools) -> None:
    """Observed over expected, cell after cell of the unit interval."""
    places = np.arange(pools.probs.size)
    edges = np.append(places, places.size) - 0.5
    for low, high, colour, legend in pools.bands():
        below, above = (np.append(edge / pools.expected, (edge / pools.expected)[-1]) for edge in (low, high))
        axes.fill_between(edges, below, above, step="post", color=colour, label=legend, lw=0)
    _mark(axes, places, pools)
    _name_places(axes, pools.labels)


def _draw_lengths(axes: Axes, pools: _Pools) -> None:
    """Shares of rows, bars beside bands."""
    places, num_samples = np.arange(pools.probs.size), pools.num_samples
    colours = np.where(pools.outside, "#c0392b", "#34608f").tolist()
    axes.bar(places - 0.2, pools.observed / num_samples, 0.36, color=colours, label="observed")
    axes.bar(places + 0.2, pools.probs, 0.36, color="#c8c8c8", label="expected")
    low, high = pools.band(_TOGETHER / places.size)
    middle = (low + high) / 2
    axes.errorbar(
        places + 0.2,
        middle / num_samples,
        (high - low) / 2 / num_samples,
        fmt="none",
        ecolor="black",
        capsize=4,
        label=f"all cells, {1 - _TOGETHER:.1%}",
    )
    axes.set_ylabel("share of rows")
    axes.set_xlabel("accepted drafts")
    _name_places(axes, pools.labels)


_DRAW: dict[Kind, Callable[[Axes, _Pools], None]] = {
    Kind.CELLS: _draw_cells,
    Kind.MASS: _draw_mass,
    Kind.LENGTHS: _draw_lengths,
}


def _mark(axes: Axes, places: NDArray[np.floating] | NDArray[np.integer], pools: _Pools) -> None:
    """A point per cell; those outside the wide band are red, and the worst is named."""
    ratios, outside = pools.observed / pools.expected, pools.outside
    axes.axhline(1.0, color="black", lw=0.6)
    axes.plot(places[~outside], ratios[~outside], "o", ms=3, color="#34608f", label="observed / expected")
    if outside.any():
        axes.plot(places[outside], ratios[outside], "o", ms=4, color="#c0392b", label="outside")
        worst = int(np.argmax(np.abs(pools.observed - pools.expected) / np.sqrt(pools.expected)))
        # Towards the middle, so that the text stays inside.
        is_right = worst in np.argsort(places)[places.size // 2 :]
        axes.annotate(
            _short(pools.labels[worst], _LABEL_WIDTH),
            (float(places[worst]), float(ratios[worst])),
            xytext=(-7 if is_right else 7, 0),
            textcoords="offset points",
            fontsize=7,
            ha="right" if is_right else "left",
            va="center",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        )
    axes.set_ylabel("observed / expected")


def _count_ticks(axes: Axes, expected: NDArray[np.float64]) -> None:  # [num_pools] float64
    """A logarithmic axis if counts span a decade, with plain numbers for ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    decades = float(np.log10(expected[-1] / expected[0]))
    axes.set_xscale("log" if decades >= 1 else "linear")
    ticks = LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)) if decades >= 1 else MaxNLocator(6)
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))


def _short(text: str, width: int) -> str:
    """`text`, its middle left out if it is too long."""
    return text if len(text) <= width else f"{text[: width // 2 - 1]}...{text[-(width // 2 - 2) :]}"


def _name_places(axes: Axes, labels: list[str]) -> None:
    """Labels of some cells, so that they can be read."""
    places = list(range(0, len(labels), -(-len(labels) // _MAX_TICKS)))
    axes.set_xticks(places, [_short(labels[i], _TICK_WIDTH) for i in places], fontsize=7)
    if len(labels) > _MAX_TICKS or max(map(len, labels)) > _TICK_WIDTH // 2:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
