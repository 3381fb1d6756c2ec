"""The width of a tile is a matter of speed: the kernels pass the checks whatever it is.

A GPU takes tiles of 2048 entries and the interpreter 8192, which no small vocabulary fills. Here tiles are narrower
than the vocabularies of the suite, so that every case crosses their edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw._run.loading import all_checks, load_sampler
from fairdraw._run.runner import PROFILES, Session, run_check

if TYPE_CHECKING:
    from fairdraw._core.checks import AnyCheck

EDGES = ("REJ109", "REJ202", "REJ309", "REJ401", "REJ404")
CHECKS = [check for check in all_checks("properties", "rejection") if check.code in EDGES]


@pytest.mark.parametrize("tile", [2, 16])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_kernels_pass_the_checks_on_narrow_tiles(check: AnyCheck, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = load_sampler("rejection/triton")
    monkeypatch.setattr("fairdraw.sampler_impl._rejection.kernels.MAX_TILE", tile)
    record = run_check(check, sampler, Session(profile=PROFILES["smoke"], crash_folder=None))
    assert (record.status, record.failure_report) == ("passed", None)
