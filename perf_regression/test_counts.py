"""Exact counts of our kernels, in every test run, without a GPU and without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fairdraw.perf_regression._cases import Sizes, count_step, rejection_batch
from fairdraw.perf_regression._compiled import compile_launches
from fairdraw.perf_regression._counts import counted
from fairdraw.perf_regression._findings import compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._named import load

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


def sampler(name: str) -> RejectionSampler:
    """On the CPU whatever the machine, as the meter is the interpreter's."""
    made: RejectionSampler = load("fairdraw._adapters:load")(f"rejection/{name.replace('_', '-')}", "cpu")
    return made


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_step_moves_no_more_than_its_limits(name: str, sizes: Sizes, verdicts: Callable[..., None]) -> None:
    row = count_step(sampler(name), sizes).as_row()
    verdicts(compare_counts(row, read_limits().cases[f"rejection.{name}"], **sizes.as_formula()))


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_kernels_keep_their_registers(name: str, verdicts: Callable[..., None]) -> None:
    """Compiled for sm_90 by the wheel: nothing spills, over all sizes of a sweep."""
    launches = [one for sizes in SWEEP for one in count_step(sampler(name), sizes, run_kernels=False).launches]
    kernels = compile_launches(launches)
    row = {
        "registers": max(kernel.registers for kernel in kernels),
        "spills": max(kernel.spills for kernel in kernels),
        "recompiles": len(kernels),
    }
    verdicts(compare_counts(row, read_limits().cases[f"rejection.{name}"]))


def test_compiled_kernels_that_overlap_keep_their_registers(verdicts: Callable[..., None]) -> None:
    """With a workspace, bfloat16 logits and several tiles per program, as on a GPU that is busy."""
    launches = [one for sizes in LARGE for one in launches_with_workspace(sizes)]
    assert {one.arguments["EAGER"] for one in launches if "EAGER" in one.arguments} == {True}
    kernels = compile_launches(launches)
    row = {
        "registers": max(kernel.registers for kernel in kernels),
        "spills": max(kernel.spills for kernel in kernels),
    }
    verdicts(compare_counts(row, read_limits().cases["rejection.counter_triton"]))


@pytest.mark.parametrize(("kernel", "barriers"), [("measure_kernel", 25), ("judge_kernel", 8), ("draw_kernel", 28)])
def test_a_tile_stays_in_its_warp(kernel: str, barriers: int) -> None:
    """Whatever Triton's version: spread over all warps, tiles and rows would take some ten barriers more."""
    launches = [one for one in launches_with_workspace(Sizes(64, 3, 128256)) if one.kernel == kernel]
    (compiled,) = compile_launches(launches)
    assert compiled.barriers <= barriers


def launches_with_workspace(sizes: Sizes) -> list[Launch]:
    """Of one step; noted, not run."""
    sampler("counter_triton")  # has Triton interpret, as in the tests above
    batch = rejection_batch(sizes, dtype=torch.bfloat16)
    step = load("fairdraw._adapters._rejection:captured_step")(batch, "triton", workspace=True)
    with counted(run_kernels=False) as counts:
        step()
    return counts.launches
