"""Exact counts of our kernels, in every test run, without a GPU and without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._compiled import CompiledKernel, compile_groups
from fairdraw.perf_regression._counts import counted
from fairdraw.perf_regression._findings import compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._rejection import RejectionWorld, unwritten_batch
from fairdraw.perf_regression._world import BenchmarkWorld, Sizes
from fairdraw.perf_regression._worlds import (
    WORLDS,
    PenaltiesWorld,
    SamplingWorld,
    ThinkingWorld,
    contract_of,
    count_world,
    make_world,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.perf_regression._counts import Launch
    from fairdraw.perf_regression._findings import Finding

    Note = Callable[..., None]

pytestmark = pytest.mark.counts
KERNELS = ("triton", "counter_triton")
SIZES = (Sizes(1, 1, 1000), Sizes(2, 3, 5001), Sizes(3, 7, 4096))
SWEEP = (Sizes(1, 1, 32000), Sizes(2, 3, 50257), Sizes(5, 3, 128256), Sizes(17, 3, 32000))
LARGE = (Sizes(128, 3, 32000), Sizes(128, 3, 32001))
"""Just large enough for kernels that overlap; rows begin at multiples of 16 entries, or not."""
OF_A_GPU = Sizes(64, 3, 128256)


def sampler(name: str) -> Any:  # Any: of some contract
    """Load a sampler on the CPU, where the interpreter meters it. With a GPU, too."""
    return _internals.load_sampler(name, "cpu")


def compared(case: str, name: str, world: BenchmarkWorld) -> list[Finding]:
    """Compare the counts of a sampler's step with the limits of a case."""
    row = count_world(world, world.step(sampler(name))).as_row()
    return compare_counts(row, read_limits().cases[case], **world.sizes.as_formula())


def launches_of(name: str, sizes: Sizes) -> list[Launch]:
    """Return the launches of a step that does not run."""
    world = RejectionWorld(sizes, run_kernels=False)
    step = world.unchecked_step(sampler(f"rejection/{name.replace('_', '-')}"))
    return count_world(world, step, run_kernels=False).launches


def launches_with_workspace(sizes: Sizes) -> list[Launch]:
    """Return launches of bfloat16 logits and several tiles per program, as on a GPU that is busy."""
    return recorded(_internals.fast_path(unwritten_batch(sizes, dtype=torch.bfloat16), workspace=True))


def recorded(step: Callable[[], object]) -> list[Launch]:
    """Return the launches of a step, of which no kernel runs."""
    with counted(run_kernels=False) as counts:
        step()
    return counts.launches


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[CompiledKernel]]:
    """Return all kernels of this module, compiled for sm_90 in one process."""
    groups = {name: [one for sizes in SWEEP for one in launches_of(name, sizes)] for name in KERNELS}
    groups["overlap"] = [one for sizes in LARGE for one in launches_with_workspace(sizes)]
    groups |= {launch.kernel: [launch] for launch in launches_with_workspace(OF_A_GPU)}
    groups["step"] = recorded(_internals.whole_step(Sizes(2, 3, 5001), "penalties"))
    assert {_internals.is_overlapping(one.arguments) for one in groups["overlap"]} <= {True, None}
    return compile_groups(groups)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_step_moves_no_more_than_its_limits(name: str, sizes: Sizes, verdicts: Note) -> None:
    verdicts(compared(f"rejection.{name}", f"rejection/{name.replace('_', '-')}", RejectionWorld(sizes)))


@pytest.mark.parametrize("world", WORLDS)
def test_step_costs_no_more_than_its_counts(world: str, verdicts: Note) -> None:
    verdicts(compared(world, contract_of(world), make_world(world)))


@pytest.mark.parametrize("sizes", [Sizes(2, 0, 5_001), Sizes(3, 0, 4_096), Sizes(4, 0, 32_000)], ids=str)
def test_sampling_kernels_cost_no_more_than_their_counts(sizes: Sizes, verdicts: Note) -> None:
    verdicts(compared("sampling.triton", "sampling/triton", SamplingWorld(sizes)))


@pytest.mark.parametrize("length", [1_000, 32_000])
@pytest.mark.parametrize("make", [PenaltiesWorld, ThinkingWorld])
def test_scanner_reads_new_tokens_alone(make: Callable[..., BenchmarkWorld], length: int, verdicts: Note) -> None:
    name = "penalties" if make is PenaltiesWorld else "thinking_budget"
    found = compared(f"{name}.host.drafts", name, make(Sizes(16, 3, 1_000, length), counted=True))
    assert [finding.what for finding in found] == ["tokens_read"]
    verdicts(found)


STEP_SIZES = [
    *((name, Sizes(2, 3, 5001)) for name in ("plain", "filters", "penalties", "penalties.apart")),
    ("filters.flat", Sizes(2, 1, 60000)),
    ("plain", Sizes(4, 1, 12000)),
]


@pytest.mark.parametrize(("name", "sizes"), STEP_SIZES, ids=str)
def test_whole_step_moves_no_more_than_its_limits(name: str, sizes: Sizes, verdicts: Note) -> None:
    step = _internals.whole_step(sizes, name)
    with counted() as counts:
        step()
    verdicts(compare_counts(counts.as_row(), read_limits().cases[f"step.{name}"], **sizes.as_formula()))


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_kernels_keep_their_registers(
    name: str, compiled: dict[str, list[CompiledKernel]], verdicts: Note
) -> None:
    """Check that nothing spills, and that the number of specialisations over a sweep of sizes is limited."""
    row = {**registers(compiled[name]), "recompiles": len(compiled[name])}
    verdicts(compare_counts(row, read_limits().cases[f"rejection.{name}"]))


def test_compiled_kernels_that_overlap_keep_their_registers(
    compiled: dict[str, list[CompiledKernel]], verdicts: Note
) -> None:
    verdicts(compare_counts(registers(compiled["overlap"]), read_limits().cases["rejection.counter_triton"]))


def test_whole_step_compiles(compiled: dict[str, list[CompiledKernel]]) -> None:
    """Check that Triton's compiler takes what its interpreter does: that knows more of Python."""
    assert [one.kernel for one in compiled["step"]] == ["scan_kernel", "settle_kernel", "settle_kernel"]


def test_whole_step_compiles_for_amd() -> None:
    """Check that it keeps to the 64 KiB which warps of an MI300 share. No such card has run it."""
    launches = recorded(_internals.whole_step(Sizes(2, 3, 5001), "penalties"))
    found = compile_groups({"step": launches}, target="gfx942")["step"]
    assert [one.kernel for one in found if one.shared <= 65536] == ["scan_kernel", "settle_kernel", "settle_kernel"]


def registers(kernels: list[CompiledKernel]) -> dict[str, int]:
    return {
        "registers": max(kernel.registers for kernel in kernels),
        "spills": max(kernel.spills for kernel in kernels),
    }


@pytest.mark.parametrize(("kernel", "barriers"), _internals.FAST_PATH.items())
def test_a_tile_stays_in_its_warp(kernel: str, barriers: int, compiled: dict[str, list[CompiledKernel]]) -> None:
    """Holds for every Triton version: with tiles and rows spread over all warps there would be ten barriers more."""
    assert [one.barriers <= barriers for one in compiled[kernel]] == [True]
