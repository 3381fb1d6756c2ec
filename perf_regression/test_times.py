"""Times of steps: against the real vLLM in every world, and as sizes grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression._benching import judge_growth, judge_ratio
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._worlds import HOST_WORLDS, WORLDS, contract_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.perf_regression._findings import Finding

    Note = Callable[[list[Finding]], None]

pytestmark = pytest.mark.timing
EXPONENT = "fairdraw.perf_regression._scaling:largest_exponent"
FIXED_SHARE = "fairdraw.perf_regression._scaling:fixed_share"
HOST = {"batch_size": 64, "length": 1_000}
GROWING = [
    *((world, axis, {}) for world in ("penalties.host", "thinking_budget.host") for axis in "LBK"),
    *((f"{world}.host.drafts", "L", {"max_spec_len": 3}) for world in ("penalties", "thinking_budget")),
]


@pytest.mark.parametrize("world", [*WORLDS, *HOST_WORLDS])
def test_step_takes_its_part_of_upstream(benchmark: Any, world: str, verdicts: Note) -> None:
    names = {"ours": contract_of(world), "reference": f"{contract_of(world)}/vllm"}
    verdicts([judge_ratio(benchmark, world, Timed("fairdraw.perf_regression._timed:pair", {"world": world, **names}))])


@pytest.mark.parametrize(("world", "axis", "sizes"), GROWING)
def test_time_of_a_step_does_not_grow_with_length_and_little_with_drafts(
    world: str, axis: str, sizes: dict[str, int], verdicts: Note
) -> None:
    names = {"world": world, "ours": contract_of(world), "axis": axis}
    timed = Timed("fairdraw.perf_regression._timed:growth", {**names, **HOST, **sizes}, EXPONENT)
    verdicts([judge_growth(world, axis, timed)])


@pytest.mark.parametrize("axis", ["B", "K", "V"])
def test_time_grows_no_faster_than_in_proportion(axis: str, verdicts: Note) -> None:
    arguments = {"world": "rejection.step", "ours": "rejection/torch", "axis": axis}
    verdicts(
        [judge_growth("rejection.torch", axis, Timed("fairdraw.perf_regression._timed:growth", arguments, EXPONENT))]
    )


@pytest.mark.parametrize("axis", ["B", "K"])
def test_time_on_a_gpu_grows_no_faster_than_in_proportion(axis: str, verdicts: Note) -> None:
    timed = Timed("fairdraw.perf_regression._timed:device_growth", {"axis": axis}, EXPONENT)
    verdicts([judge_growth("rejection.counter_triton.growth", axis, timed)])


def test_launching_is_a_small_part_of_the_time_on_a_gpu(verdicts: Note) -> None:
    """Time is affine in the vocabulary, of which one size is no multiple of any tile."""
    timed = Timed("fairdraw.perf_regression._timed:device_growth", {"axis": "V"}, FIXED_SHARE)
    verdicts([judge_growth("rejection.counter_triton.growth", "", timed)])
