"""Pictures of tables: each kind is written, and only what leaves the band is red."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

pytest.importorskip("matplotlib", reason="the extra [report] is not installed")

from matplotlib.text import Text

from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._design import finest_plan
from fairdraw.statistical._pictures import Kind, Picture, _Pools, _title, write_pictures

TABLE = Table(np.array([0.4, 0.3, 0.2, 0.1]))
KINDS = {Kind.CELLS: "S1 output row", Kind.MASS: "T8 token by rank", Kind.LENGTHS: "D5 accepted drafts"}


def picture(name: str, counts: list[int]) -> Picture:
    plan = finest_plan(TABLE, 1000, 1e-6)
    return Picture(name, np.array(counts), plan, TABLE)


def num_red(path: Path) -> int:
    """Pixels in the colour of what is outside the band."""
    image_module = pytest.importorskip("PIL.Image")  # Matplotlib brings it
    pixels = np.asarray(image_module.open(path).convert("RGB")).astype(int)
    return int((np.abs(pixels - [0xC0, 0x39, 0x2B]).sum(axis=-1) < 12).sum())


@pytest.mark.parametrize("kind", Kind)
def test_only_what_leaves_the_band_is_red(kind: Kind, tmp_path: Path) -> None:
    fair, unfair = picture(KINDS[kind], [410, 290, 195, 105, 0]), picture(KINDS[kind], [300, 400, 195, 105, 0])

    red = [num_red(write_pictures(tmp_path, [drawn])[0]) for drawn in (fair, unfair)]

    assert red[0] == 0 < red[1]


def pools(num_pools: int, spread: float) -> _Pools:
    """Counts of cells with long names; the last one is far outside."""
    probs = np.logspace(0, spread, num_pools)
    probs /= probs.sum()
    observed = np.round(probs * 1e5).astype(np.int64)
    observed[-1] *= 2
    labels = [f"drafts (2, 5, 1), output [{i}, 7, 3, 1], one of many more cells" for i in range(num_pools)]
    return _Pools(labels, observed, probs, int(observed.sum()))


@pytest.mark.parametrize("spread", [0.1, 4.0])
@pytest.mark.parametrize("num_pools", [3, 64])
@pytest.mark.parametrize("kind", Kind)
def test_texts_stay_inside_and_ticks_apart(
    kind: Kind, num_pools: int, spread: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    seen: list[Axes] = []
    drawn = pools(num_pools, spread)
    monkeypatch.setattr(_Pools, "of", lambda _: drawn)
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: seen.extend(figure.axes))
    write_pictures(tmp_path, [picture(KINDS[kind] + " of a workload with a long name" * 3, [410, 290, 195, 105, 0])])

    (axes,) = seen
    figure = axes.figure
    figure.canvas.draw()
    low, high = axes.get_xlim()
    ticks = [
        label.get_window_extent()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= place <= high  # Matplotlib does not draw those beyond the ends
    ]
    axis_labels = {id(label) for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels(which="both")}
    others = [t.get_window_extent() for t in figure.findobj(Text) if t.get_text() and id(t) not in axis_labels]
    for box in (*ticks, *others):
        assert figure.bbox.padded(1).contains(*box.min), box
        assert figure.bbox.padded(1).contains(*box.max), box
    assert len(ticks) >= 2
    if axes.get_xticklabels()[0].get_rotation() == 0:
        assert all(left.x1 < right.x0 for left, right in pairwise(ticks))


def test_impossible_observations_are_reported_in_the_title() -> None:
    drawn = picture("S1 output row", [410, 290, 195, 105, 3])

    assert "3 IMPOSSIBLE observations" in _title(drawn, _Pools.of(drawn))


def test_table_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="S1 output row has no samples, but there must be some"):
        write_pictures(tmp_path, [picture("S1 output row", [0] * 5)])
