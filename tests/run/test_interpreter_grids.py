"""Programs that run side by side do what they do one after the other."""
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (A kernel is Triton's language in Python's syntax.)

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fairdraw._core.interpreter import prepare_triton, speed_up_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable

prepare_triton("cpu")

import triton  # noqa: E402  # the choice above comes first
import triton.language as tl  # noqa: E402

SIDE_BY_SIDE = True
interpreter: Any = sys.modules.get("triton.runtime.interpreter")
pytestmark = pytest.mark.skipif(interpreter is None, reason="kernels are compiled here")
WIDTH = 8


@triton.jit  # type: ignore[untyped-decorator]
def _folded(block: Any, row: Any) -> Any:
    """Ends by a branch: what it returns is put together again."""
    if row % 3 == 0:
        return tl.sum(block, axis=0), row.to(tl.float32)
    if tl.max(block) > 20:
        return tl.min(block, axis=0) * 2, tl.sum(block)
    return tl.cumsum(block, axis=0), tl.max(block, axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _rounds(row: Any, start: Any) -> Any:
    found, number = start, row
    while number > 1:
        if number % 2 == 0:  # noqa: SIM108  # programs part ways here
            number = number // 2
        else:
            number = 3 * number + 1
        found += 1
    for begin in range(0, row, 2):
        found += begin
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _by_parity(block: Any, row: Any) -> Any:
    """Groups of many programs, whose results are of one kind: they are put together program by program."""
    if row % 2 == 0:
        found, scaled = tl.sum(block, axis=0) + row, block * row
    else:
        found, scaled = tl.max(block, axis=0) - tl.program_id(1), block + row
    return found, scaled


@triton.jit  # type: ignore[untyped-decorator]
def _constant_or_number(row: Any) -> Any:
    if row < 3:
        return 7
    return row


@triton.jit  # type: ignore[untyped-decorator]
def _branches(values: Any, out: Any, counter: Any, SIZE: tl.constexpr) -> None:
    row = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    lanes = tl.arange(0, SIZE)
    block = tl.load(values + row * SIZE + lanes, mask=lanes <= row, other=-1.5)
    of_all = tl.load(values + lanes)
    one, two = _folded(tl.where(of_all > 0, block, of_all), row)
    tl.store(out + row * 4, tl.sum(one * 1.0))
    tl.store(out + row * 4 + 1, tl.max(two * 1.0))
    if _constant_or_number(row) == 7:
        two = two + 1.0
    for _ in range(0, row % 3):
        two = two * 2.0
    tl.store(out + row * 4 + 2, tl.sum(two * 1.0) + _rounds(row, row))
    number, scaled = _by_parity(block, row)
    tl.store(out + row * 4 + 3, number + tl.sum(scaled * lanes))
    place = tl.atomic_add(counter, row)
    tl.atomic_max(counter + 1, row)
    if row > 100:
        tl.store(out + 10**6, place)


@triton.jit  # type: ignore[untyped-decorator]
def _shapes(values: Any, out: Any, SIZE: tl.constexpr) -> None:
    row = tl.program_id(0)
    lanes = tl.arange(0, SIZE)
    block = tl.load(values + row * SIZE + lanes[None, :] * lanes[:, None] % SIZE)
    columns = tl.reshape(tl.trans(block), (SIZE // 2, 2, SIZE))
    found = tl.sum(tl.sum(columns, axis=0), axis=0) + tl.max(block, axis=1) + tl.cumsum(block, axis=1)[None].shape[0]
    best, at = tl.max(block, axis=1, return_indices=True)
    tiles = tl.broadcast_to(tl.expand_dims(best, 0), (2, SIZE))
    words = tl.philox(row.to(tl.int64), row.to(tl.uint32), lanes.to(tl.uint32), 7, 0)
    one = tl.philox(row.to(tl.int64) << 33, row.to(tl.uint32), row.to(tl.uint32) + 1, 7, 0)
    bits = tl.sum((words[0] ^ words[3] ^ one[1]).to(tl.int64) & 0xFFFF)
    found += tl.sum(tiles, axis=0) * at.to(tl.float32) + tl.exp2(-block[:, None, :].to(tl.float32)).sum(2).sum(1)
    tl.store(out + row * SIZE + lanes, found + bits.to(tl.float32) + tl.sum(block) + tl.abs(tl.min(block)))


def _run(launch: Callable[[Any, Any], None], size: int) -> tuple[list[float], list[int]]:
    out, counter = torch.zeros(size), torch.zeros(2, dtype=torch.int32)
    launch(out, counter)
    return out.tolist(), counter.tolist()


def _launches() -> dict[str, tuple[Callable[[Any, Any], None], int]]:
    values = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1)) * 10
    return {
        "branches": (lambda out, counter: _branches[7, 5](values, out, counter, SIZE=WIDTH), 140),
        "shapes": (lambda out, counter: _shapes[23,](values, out, SIZE=WIDTH), 23 * WIDTH),
    }


@pytest.mark.parametrize("name", ["branches", "shapes"])
def test_programs_side_by_side_do_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again: without tapes, while they are recorded, and with them; in chunks of several sizes."""
    speed_up_interpreter()
    launch, size = _launches()[name]
    grid: Any = interpreter._fairdraw_tapes.grid
    monkeypatch.delitem(globals(), "SIDE_BY_SIDE")
    expected = _run(launch, size)
    assert len(set(expected[0])) > 40
    monkeypatch.setitem(globals(), "SIDE_BY_SIDE", True)
    for entries in (1 << 17, 1 << 17, 64, 100, 8, 1):
        monkeypatch.setattr(grid, "most_entries", entries)
        for _ in range(3):
            assert _run(launch, size) == expected
        assert not grid.is_active


def test_programs_are_side_by_side_unless_somebody_counts_what_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    speed_up_interpreter()
    launch, size = _launches()["shapes"]
    builder: Any = type(interpreter.interpreter_builder)
    load, sizes = builder.create_masked_load, list[int]()

    def counted(self: Any, pointers: Any, *rest: Any) -> Any:
        sizes.append(pointers.data.size)
        return load(self, pointers, *rest)

    expected = _run(launch, size)
    monkeypatch.setattr(builder, "create_masked_load", counted)
    assert _run(launch, size) == expected
    assert sizes == [WIDTH * WIDTH] * 23


@triton.jit  # type: ignore[untyped-decorator]
def _wrong(out: Any, SIZE: tl.constexpr) -> None:
    if tl.program_id(0) == 5:
        tl.store(out + tl.arange(0, SIZE), tl.arange(0, 2 * SIZE))


def test_error_of_one_program_is_raised_and_nothing_is_left_over() -> None:
    speed_up_interpreter()
    grid: Any = interpreter._fairdraw_tapes.grid
    for _ in range(2):
        with pytest.raises(interpreter.InterpreterError):
            _wrong[8,](torch.zeros(8), SIZE=4)
        assert not grid.is_active
        assert grid.group is grid.frame is None
        assert interpreter.interpreter_semantic.builder is interpreter.interpreter_builder
    launch, size = _launches()["branches"]
    assert np.isfinite(_run(launch, size)[0]).all()
