"""Exact counts, and samplers with right tokens and needless cost, which the counts must detect."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraw.adapters._runtime import quiet_imports
from fairdraw.contracts import ExplicitNoise, SpecDecodeBatch, VerifyFunction, rejection_sampler
from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._counts import OTHER, counted
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._findings import compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._rejection import RejectionWorld
from fairdraw.perf_regression._world import Sizes
from fairdraw.perf_regression._worlds import count_world

with quiet_imports():
    import triton
    import triton.language as tl

SIZES = Sizes(4, 3, 1000)
LIMITS = read_limits().cases["rejection.triton"]


def verified(verify: VerifyFunction, batch: SpecDecodeBatch, noise: ExplicitNoise) -> Tensor:
    return verify(batch, noise)  # [batch_size, max_spec_len + 1] int32


def after(cost: Callable[[SpecDecodeBatch], object]) -> Callable[..., Tensor]:
    """Does something needless before each call."""

    def slow(verify: VerifyFunction, batch: SpecDecodeBatch, noise: ExplicitNoise) -> Tensor:
        cost(batch)
        return verify(batch, noise)

    return slow


def copying(verify: VerifyFunction, batch: SpecDecodeBatch, noise: ExplicitNoise) -> Tensor:
    return verify(batch.replace(target_logits=batch.target_logits.clone()), noise)


def one_by_one(verify: VerifyFunction, batch: SpecDecodeBatch, noise: ExplicitNoise) -> Tensor:
    return torch.cat([verify(batch.select([i]), noise.select(batch, [i])) for i in range(batch.batch_size)])


FAULTS: dict[str, tuple[set[str], Callable[..., Tensor]]] = {
    "nothing": (set(), verified),
    "copies the logits": ({"bytes", "copies", "allocations"}, copying),
    "reads the logits twice": ({"bytes"}, after(lambda batch: batch.target_logits.amax())),
    "launches once per request": ({"launches", "allocations"}, one_by_one),
    "waits for the device": ({"syncs"}, after(lambda batch: batch.temperature.max().item())),
    "allocates scratch of the size of the logits": (
        {"allocations"},
        after(lambda batch: torch.empty_like(batch.target_logits)),
    ),
}
"""What is wrong, the limits that it must break, and the wrong sampler made of the right one."""


@pytest.mark.parametrize("fault", FAULTS)
def test_needless_cost_breaks_its_limits(fault: str) -> None:
    wanted, wrong = FAULTS[fault]
    sampler = rejection_sampler(
        partial(wrong, _internals.load_sampler("rejection/triton", "cpu").verify), name=fault, device="cpu"
    )
    world = RejectionWorld(SIZES)
    found = compare_counts(count_world(world, world.step(sampler)).as_row(), LIMITS, **SIZES.as_formula())
    broken = {finding.what for finding in found if finding.verdict is Verdict.FAIL}
    assert wanted <= broken
    assert bool(wanted) == bool(broken)


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


def test_kernel_that_is_only_recorded_does_not_run() -> None:
    y = torch.zeros(8)
    with counted(run_kernels=False) as counts:
        add_kernel[(1,)](torch.zeros(8), y, 8, BLOCK=8)
    assert len(counts.launches) == 1
    assert not y.any()


@pytest.mark.parametrize(
    ("operator", "read", "written", "copies", "allocations"),
    [
        (lambda x: x[2:4].t().expand(10, 2).unsqueeze(0), {}, {}, 0, 0),
        (lambda x: x.clone(), {"x": 400}, {OTHER: 400}, 1, 1),
        (lambda x: x.add_(1), {"x": 400}, {"x": 400}, 0, 0),
        (lambda x: x.fill_(0), {}, {"x": 400}, 0, 0),
        (lambda x: torch.empty(1000), {}, {}, 0, 1),
    ],
    ids=["views are free", "copy", "in place", "a fill reads nothing", "no value, no bytes"],
)
def test_operator_is_charged_by_name(
    operator: Callable[[Tensor], Any], read: dict[str, int], written: dict[str, int], copies: int, allocations: int
) -> None:
    x = torch.zeros(10, 10)
    with counted({"x": x}) as counts:
        operator(x)
    assert (dict(counts.bytes_read), dict(counts.bytes_written)) == (read, written)
    assert (counts.copies, counts.allocations) == (copies, allocations)


@pytest.mark.parametrize("wait", ["item", "tolist", "cpu", "numpy", "__bool__"])
def test_wait_for_the_device_is_counted(wait: str) -> None:
    x = torch.ones(1)
    with counted() as counts:
        getattr(x, wait)()
    assert wait in counts.waits


def test_nothing_is_counted_after_the_end() -> None:
    with counted() as counts:
        pass
    torch.zeros(1).clone().item()
    add_kernel[(1,)](torch.zeros(8), torch.zeros(8), 8, BLOCK=8)
    assert set(counts.as_row().values()) == {0}
