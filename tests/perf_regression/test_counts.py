"""Exact counts, and the performance mutants that they catch."""

from __future__ import annotations

import pytest
import torch

from fairdraw._adapters._runtime import prepare_triton, quiet_imports
from fairdraw.perf_regression._cases import Sizes, count_step
from fairdraw.perf_regression._counts import OTHER, counted
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._faults import FAULTS, Fault
from fairdraw.perf_regression._findings import compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._named import load

prepare_triton("cpu")
with quiet_imports():
    import triton
    import triton.language as tl

SIZES = Sizes(4, 3, 1000)
LIMITS = read_limits().cases["rejection.triton"]


def broken_limits(fault: Fault | None) -> set[str]:
    right = load("fairdraw._adapters:load")("rejection/triton", "cpu")
    row = count_step(fault.make(right) if fault else right, SIZES).as_row()
    found = compare_counts(row, LIMITS, **SIZES.as_formula())
    return {finding.what for finding in found if finding.verdict is Verdict.FAIL}


def test_right_sampler_breaks_no_limit() -> None:
    assert broken_limits(None) == set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_performance_fault_is_caught(fault: Fault) -> None:
    assert set(fault.caught_by) <= broken_limits(fault)


def test_counts_are_the_same_every_time() -> None:
    sampler = load("fairdraw._adapters:load")("rejection/triton", "cpu")
    assert count_step(sampler, SIZES).as_row() == count_step(sampler, SIZES).as_row()


@triton.jit
def add_kernel(
    x_ptr,  # [size] float32
    y_ptr,  # [size] float32, written
    size,
    BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + 1.0, mask=mask)
    tl.atomic_add(y_ptr + offsets, 1.0, mask=mask)


def test_kernel_is_charged_for_unmasked_elements_by_name() -> None:
    x, y = torch.zeros(100), torch.zeros(100)
    with counted({"x": x, "y": y}) as counts:
        add_kernel[(2,)](x, y, 100, BLOCK=64, num_warps=2)
    assert dict(counts.bytes_read) == {"x": 400, "y": 400}  # the atomic reads what it adds to
    assert dict(counts.bytes_written) == {"y": 800}
    assert [(one.kernel, one.options) for one in counts.launches] == [("add_kernel", {"num_warps": 2})]
    assert counts.allocations == 0
    assert torch.equal(y, torch.full((100,), 2.0))


def test_kernel_that_is_only_noted_does_not_run() -> None:
    y = torch.zeros(8)
    with counted(run_kernels=False) as counts:
        add_kernel[(1,)](torch.zeros(8), y, 8, BLOCK=8)
    assert counts.num_launches == 1
    assert not y.any()


def test_views_are_free_and_copies_are_not() -> None:
    x = torch.zeros(10, 10)
    with counted({"x": x}) as counts:
        x[2:4].t().expand(10, 2).unsqueeze(0)
    assert counts.bytes_moved == 0
    with counted({"x": x}) as counts:
        x.clone()
    assert (counts.copies, counts.allocations, counts.bytes_allocated) == (1, 1, 400)
    assert counts.as_row()["operators"] == 1
    assert dict(counts.bytes_read) == {"x": 400}
    assert dict(counts.bytes_written) == {OTHER: 400}


def test_result_in_place_is_no_allocation() -> None:
    x = torch.zeros(10)
    with counted({"x": x}) as counts:
        x.add_(1)
        x.fill_(0)
    assert counts.allocations == 0
    assert dict(counts.bytes_read) == {"x": 40}  # a fill reads nothing
    assert dict(counts.bytes_written) == {"x": 80}


def test_allocation_without_a_value_moves_nothing() -> None:
    with counted() as counts:
        torch.empty(1000)
    assert (counts.bytes_moved, counts.allocations, counts.bytes_allocated) == (0, 1, 4000)


@pytest.mark.parametrize("wait", ["item", "tolist", "cpu", "numpy", "__bool__"])
def test_wait_for_the_device_is_counted(wait: str) -> None:
    x = torch.ones(1)
    with counted() as counts:
        getattr(x, wait)()
    assert counts.syncs >= 1
    assert wait in counts.waits


def test_nothing_is_counted_after_the_end() -> None:
    with counted() as counts:
        pass
    torch.zeros(1).clone().item()
    add_kernel[(1,)](torch.zeros(8), torch.zeros(8), 8, BLOCK=8)
    assert counts.as_row() == dict.fromkeys(("bytes", "launches", "operators", "copies", "allocations", "syncs"), 0)
