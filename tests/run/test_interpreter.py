"""What makes Triton's interpreter faster changes nothing else: each piece beside the one that it replaces."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from fairdraw._core.interpreter import prepare_triton, speed_up_interpreter

prepare_triton("cpu")

import triton  # noqa: E402  # the choice above comes first
import triton.language as tl  # noqa: E402

SCALARS = tuple(kind for kind in vars(tl).values() if isinstance(kind, tl.dtype) and kind.name not in ("void", "fp8e8"))
POINTERS = (tl.pointer_type(tl.float32), tl.pointer_type(tl.int1))


@triton.jit  # type: ignore[untyped-decorator]
def _sums(values: Any, out: Any, SIZE: tl.constexpr) -> None:
    lanes = tl.arange(0, SIZE)
    row = tl.load(values + lanes)
    both = row[:, None] + row[None, :]
    tl.store(out + lanes, tl.sum(both, axis=0).to(tl.int32) + 2**30)


interpreter: Any = sys.modules.get("triton.runtime.interpreter")
pytestmark = pytest.mark.skipif(interpreter is None, reason="kernels are compiled here")


@pytest.mark.parametrize("kind", [*SCALARS, *POINTERS], ids=str)
def test_types_are_those_of_triton(kind: Any) -> None:
    """Twice: what is computed, and what is remembered."""
    speed_up_interpreter()
    for shape in ([2, 4], [4, 2], [8]) * 2:
        block, theirs = tl.block_type(kind, shape), object.__new__(tl.block_type)
        tl.block_type.__init__.__wrapped__(theirs, kind, shape)
        assert block == theirs
        assert (str(block), block.numel, block.scalar) == (str(theirs), theirs.numel, theirs.scalar)
        for one in (kind, block):
            assert interpreter._get_np_dtype(one) is interpreter._get_np_dtype.__wrapped__(one)
            ours, other = tl.tensor(None, one), object.__new__(tl.tensor)
            tl.tensor.__init__.__wrapped__(other, None, one)
            assert str(sorted(vars(ours).items(), key=str)) == str(sorted(vars(other).items(), key=str))


@pytest.mark.parametrize(("shape", "error"), [([3], ValueError), ([], TypeError), ((8,), AssertionError)])
def test_shape_is_refused_every_time(shape: Any, error: type[Exception]) -> None:
    speed_up_interpreter()
    tl.block_type(tl.int32, [8])
    for _ in range(2):
        with pytest.raises(error):
            tl.block_type(tl.int32, shape)


def test_broadcasts_and_integers_that_wrap_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of equal and of other shapes; sums beyond 2**31, on which nothing looks without `debug`."""
    speed_up_interpreter()
    values = torch.tensor([2**28, 2**29, 5, 7], dtype=torch.int32)
    outputs = []
    for sanitize in (False, True):
        options = interpreter.InterpreterOptions(sanitize_overflow=sanitize)
        monkeypatch.setattr(interpreter.interpreter_builder, "options", options)
        out = torch.zeros(4, dtype=torch.int32)
        _sums[1,](values, out, SIZE=4)
        outputs.append(out)
    long = values.long()
    expected = ((long[:, None] + long).sum(0) + 2**30).to(torch.int32)
    assert [torch.equal(out, expected) for out in outputs] == [True, True]
