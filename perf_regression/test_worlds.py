"""Plain sampling, the logits plan, penalties and the thinking budget against the real vLLM: counts, and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression._benching import judge_ratio
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._findings import Finding, compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._named import load
from fairdraw.perf_regression._worlds import WORLDS, WorldSizes, count_world

if TYPE_CHECKING:
    from collections.abc import Callable

    Note = Callable[[list[Finding]], None]


KERNEL_SIZES = (WorldSizes(2, 5_001, 0), WorldSizes(3, 4_096, 0), WorldSizes(4, 32_000, 0))


def contract_of(world: str) -> str:
    return world.partition(".")[0]


@pytest.mark.counts
@pytest.mark.parametrize("world", WORLDS)
def test_step_costs_no_more_than_its_counts(world: str, verdicts: Note) -> None:
    make, sizes = WORLDS[world]
    counts = count_world(load("fairdraw.adapters:load")(contract_of(world), "cpu"), make(sizes, "cpu"))
    verdicts(compare_counts(counts.as_row(), read_limits().cases[world], **sizes.as_formula()))


@pytest.mark.counts
@pytest.mark.parametrize("sizes", KERNEL_SIZES, ids=str)
def test_sampling_kernels_cost_no_more_than_their_counts(sizes: WorldSizes, verdicts: Note) -> None:
    make, _ = WORLDS["sampling.plain"]
    counts = count_world(load("fairdraw.adapters:load")("sampling/triton", "cpu"), make(sizes, "cpu"))
    verdicts(compare_counts(counts.as_row(), read_limits().cases["sampling.triton"], **sizes.as_formula()))


@pytest.mark.timing
@pytest.mark.parametrize("world", WORLDS)
def test_step_takes_its_part_of_upstream(benchmark: Any, world: str, verdicts: Note) -> None:
    names = {"ours": contract_of(world), "reference": f"{contract_of(world)}/vllm"}
    timed = Timed("fairdraw.perf_regression._timed:world_pair", {"world": world, **names})
    verdicts([judge_ratio(benchmark, world, timed)])
