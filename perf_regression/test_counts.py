"""Exact counts of our kernels, in every test run, without a GPU and without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._cases import Sizes, count_step, unwritten_batch
from fairdraw.perf_regression._compiled import CompiledKernel, compile_groups
from fairdraw.perf_regression._counts import counted
from fairdraw.perf_regression._findings import compare_counts
from fairdraw.perf_regression._limits import read_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.perf_regression._counts import Launch
    from fairdraw.protocols import RejectionSampler

pytestmark = pytest.mark.counts
KERNELS = ("triton", "counter_triton")
SIZES = (Sizes(1, 1, 1000), Sizes(2, 3, 5001), Sizes(3, 7, 4096))
SWEEP = (Sizes(1, 1, 32000), Sizes(2, 3, 50257), Sizes(5, 3, 128256), Sizes(17, 3, 32000))
LARGE = (Sizes(128, 3, 32000), Sizes(128, 3, 32001))
"""Just large enough for kernels that overlap; rows begin at multiples of 16 entries, or not."""
OF_A_GPU = Sizes(64, 3, 128256)


def sampler(name: str) -> RejectionSampler:
    """On the CPU, because the interpreter meters it. With a GPU, too."""
    made: RejectionSampler = _internals.load_sampler(f"rejection/{name.replace('_', '-')}", "cpu")
    return made


def launches_with_workspace(sizes: Sizes) -> list[Launch]:
    """Recorded, not run: bfloat16 logits and several tiles per program, as on a GPU that is busy."""
    step = _internals.fast_path(unwritten_batch(sizes, dtype=torch.bfloat16), workspace=True)
    with counted(run_kernels=False) as counts:
        step()
    return counts.launches


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[CompiledKernel]]:
    """All kernels of this module, compiled for sm_90 in one process."""
    groups = {
        name: [one for sizes in SWEEP for one in count_step(sampler(name), sizes, run_kernels=False).launches]
        for name in KERNELS
    }
    groups["overlap"] = [one for sizes in LARGE for one in launches_with_workspace(sizes)]
    groups |= {launch.kernel: [launch] for launch in launches_with_workspace(OF_A_GPU)}
    assert {_internals.is_overlapping(one.arguments) for one in groups["overlap"]} <= {True, None}
    return compile_groups(groups)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_step_moves_no_more_than_its_limits(name: str, sizes: Sizes, verdicts: Callable[..., None]) -> None:
    row = count_step(sampler(name), sizes).as_row()
    verdicts(compare_counts(row, read_limits().cases[f"rejection.{name}"], **sizes.as_formula()))


STEPS = {
    "plain": {"filters": False, "penalties": False, "apart": True},
    "filters": {"filters": True, "penalties": False, "apart": True},
    "penalties": {"filters": True, "penalties": True, "apart": False},
    "penalties.apart": {"filters": True, "penalties": True, "apart": True},
}


@pytest.mark.parametrize(
    ("name", "sizes"), [*((name, Sizes(2, 3, 5001)) for name in STEPS), ("plain", Sizes(4, 1, 12000))], ids=str
)
def test_whole_step_moves_no_more_than_its_limits(name: str, sizes: Sizes, verdicts: Callable[..., None]) -> None:
    step = _internals.whole_step(sizes.batch_size, sizes.max_spec_len, sizes.vocab_size, **STEPS[name])
    with counted() as counts:
        step()
    verdicts(compare_counts(counts.as_row(), read_limits().cases[f"step.{name}"], **sizes.as_formula()))


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_kernels_keep_their_registers(
    name: str, compiled: dict[str, list[CompiledKernel]], verdicts: Callable[..., None]
) -> None:
    """Nothing spills, and the number of specialisations over a sweep of sizes is limited."""
    row = {**registers(compiled[name]), "recompiles": len(compiled[name])}
    verdicts(compare_counts(row, read_limits().cases[f"rejection.{name}"]))


def test_compiled_kernels_that_overlap_keep_their_registers(
    compiled: dict[str, list[CompiledKernel]], verdicts: Callable[..., None]
) -> None:
    verdicts(compare_counts(registers(compiled["overlap"]), read_limits().cases["rejection.counter_triton"]))


def registers(kernels: list[CompiledKernel]) -> dict[str, int]:
    return {
        "registers": max(kernel.registers for kernel in kernels),
        "spills": max(kernel.spills for kernel in kernels),
    }


@pytest.mark.parametrize(("kernel", "barriers"), _internals.FAST_PATH.items())
def test_a_tile_stays_in_its_warp(kernel: str, barriers: int, compiled: dict[str, list[CompiledKernel]]) -> None:
    """Holds for every Triton version: with tiles and rows spread over all warps there would be ten barriers more."""
    assert [one.barriers <= barriers for one in compiled[kernel]] == [True]
