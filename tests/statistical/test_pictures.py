"""Pictures of statistics: each kind is written, shows what it should, and says what it lacks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra [report] is not installed")

from fairdraw._mutants._distribution_sampler import DistributionSampler
from fairdraw.protocols import rejection_sampler
from fairdraw.statistical._design import SamplePlan, finest_plan
from fairdraw.statistical._pictures import Kind, Picture, main, pictures_of, write_pictures
from fairdraw.statistical._sharding import drawing_from

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = rejection_sampler(
    DistributionSampler().verify, name="right", unsupported={"explicit-noise": "draws its own numbers"}
)
PROBS = np.array([0.4, 0.3, 0.2, 0.1])
KINDS = {Kind.CELLS: "S1 output row", Kind.MASS: "S9 emitted token by rank", Kind.LENGTHS: "S4 accepted count"}


def picture(name: str, counts: list[int]) -> Picture:
    plan = finest_plan(PROBS, false_fail_rate=1e-6, max_num_draws=1000)
    assert isinstance(plan, SamplePlan)
    return Picture(name, np.array(counts), plan)


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


def test_every_statistic_of_a_sampler_has_a_picture(tmp_path: Path) -> None:
    pictures = list(pictures_of(drawing_from(RIGHT), 4096, seed=1))

    assert {drawn.name[:2] for drawn in pictures} == {f"S{number}" for number in range(1, 10)}
    assert {Kind.of(drawn.name) for drawn in pictures} == set(Kind)
    assert len({drawn.file_name for drawn in pictures}) == len(pictures)
    one_of_each = {drawn.name[:2]: drawn for drawn in pictures}.values()
    for path in write_pictures(tmp_path / "new", list(one_of_each)[-3:]):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


def test_tables_of_the_decoding_loop_have_their_kinds() -> None:
    names = ("next token by id", "accepted drafts", "first tokens at temperature 0.8")

    assert [Kind.of(name) for name in names] == [Kind.MASS, Kind.LENGTHS, Kind.CELLS]


def test_impossible_observations_are_told_in_the_title() -> None:
    from fairdraw.statistical._pictures import _Pools, _title

    drawn = picture("S1 output row", [410, 290, 195, 105, 3])

    assert "3 IMPOSSIBLE observations" in _title(drawn, _Pools.of(drawn))


def test_table_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="S1 output row has no samples, but there must be some"):
        write_pictures(tmp_path, [picture("S1 output row", [0] * 5)])


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="num_draws=100, but it must be at least 2048"):
        next(pictures_of(drawing_from(RIGHT), 100, seed=0))


def test_missing_matplotlib_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(ImportError, match=r"Matplotlib is missing. Use pip install fairdraw\[report\]"):
        write_pictures(tmp_path, [])


def test_command_writes_pictures_of_a_strangers_sampler(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def two_pictures(*_: object, **__: object) -> list[Picture]:
        return [picture(KINDS[Kind.CELLS], [410, 290, 195, 105, 0]), picture(KINDS[Kind.MASS], [1, 2, 3, 4, 0])]

    monkeypatch.setattr("fairdraw.statistical._pictures.pictures_of", two_pictures)

    assert main(["--sampler", "stranger:make_right", "--out", str(stranger / "pictures")]) == 0

    assert capsys.readouterr().out.startswith("2 pictures in ")
    assert len(list((stranger / "pictures").glob("*.png"))) == 2
