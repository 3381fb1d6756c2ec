"""How time grows: not at all with the length of outputs, and with every other size no faster than in proportion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression._benching import judge_fixed_share, judge_growth
from fairdraw.perf_regression._confirmation import Timed

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.perf_regression._findings import Finding

    Note = Callable[[list[Finding]], None]

pytestmark = pytest.mark.timing
EXPONENT = "fairdraw.perf_regression._scaling:largest_exponent"
FIXED_SHARE = "fairdraw.perf_regression._scaling:fixed_share"


def growth(factory: str, statistic: str = EXPONENT, **arguments: str) -> Timed:
    return Timed(f"fairdraw.perf_regression._timed:{factory}", arguments, statistic)


@pytest.mark.parametrize("axis", ["L", "B", "K"])
@pytest.mark.parametrize("scanner", ["penalties", "thinking"])
def test_time_of_a_step_does_not_grow_with_length_and_little_with_drafts(
    scanner: str, axis: str, verdicts: Note
) -> None:
    verdicts([judge_growth(f"{scanner}.step", axis, growth("scanner_growth", scanner=scanner, axis=axis))])


@pytest.mark.parametrize("axis", ["B", "K", "V"])
def test_time_grows_no_faster_than_in_proportion(axis: str, verdicts: Note) -> None:
    verdicts([judge_growth("rejection.torch", axis, growth("rejection_growth", axis=axis))])


@pytest.mark.parametrize("axis", ["B", "K"])
def test_time_on_a_gpu_grows_no_faster_than_in_proportion(axis: str, verdicts: Note) -> None:
    verdicts([judge_growth("rejection.counter_triton.growth", axis, growth("device_growth", axis=axis))])


def test_launching_is_a_small_part_of_the_time_on_a_gpu(verdicts: Note) -> None:
    """Time is affine in the vocabulary, of which one size is no multiple of any tile."""
    timed = growth("device_growth", FIXED_SHARE, axis="V")
    verdicts([judge_fixed_share("rejection.counter_triton.growth", timed)])
