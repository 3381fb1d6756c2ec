"""What makes Triton's interpreter faster changes nothing else: each piece beside the one that it replaces."""

import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fairdraw._core.interpreter import speed_up_interpreter

if torch.cuda.is_available():
    pytest.skip("Triton compiles", allow_module_level=True)

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


BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"),
        *("gt", "ge", "lt", "le", "eq", "ne"),
    )
} | {
    "minimum": lambda x, y: tl.minimum(y, x),
    "where": lambda x, y: tl.where(x > y, x, y),
    "where a constant": lambda x, y: tl.where(x > y, 1, y),
    "same": lambda x, y: (x * x) + (x == x),
    "radd": lambda x, y: 2 + x - (1 - y),
}
KINDS = (tl.int1, tl.int8, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.uint64, tl.float16, tl.bfloat16, tl.float32)
CONSTANTS: tuple[float, ...] = (True, 0, 1, 3, -1, 2**31, 2**40, 0.0, -0.0, 1.5, float("inf"))


@contextmanager
def _patched_language() -> Iterator[None]:
    """Patch the language as inside of a kernel."""
    speed_up_interpreter()
    scope = interpreter._patch_lang(_sums.fn)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        scope.restore()


def _tensor(kind: Any, numbers: tuple[float, ...], *, is_block: bool) -> Any:
    with np.errstate(all="ignore"):
        data = np.array(numbers, dtype=np.int64).astype(interpreter._get_np_dtype(kind))
    return tl.tensor(interpreter.TensorHandle(data, kind), tl.block_type(kind, [len(data)]) if is_block else kind)


def _outcome(operation: Callable[..., Any], *arguments: Any) -> str:
    """Return all that can be seen of a result, or the error."""
    try:
        made = operation(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    data = made.handle.data
    known = made.type, made.dtype, made.shape, made.numel, made.handle.dtype, data.dtype, data.shape, data.tobytes()
    return " ".join(map(str, known))


def _same_as_theirs(operation: Callable[..., Any], *arguments: Any) -> None:
    """Compare with Triton's own check of operands: the first time, and with what is remembered of it."""
    semantic = interpreter.TritonSemantic
    ours = semantic.binary_op_type_checking_impl
    semantic.binary_op_type_checking_impl = ours.__wrapped__
    try:
        expected = _outcome(operation, *arguments)
    finally:
        semantic.binary_op_type_checking_impl = ours
    assert [_outcome(operation, *arguments) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("name", BINARY)
def test_operations_of_all_types_and_constants_are_those_of_triton(name: str) -> None:
    operation = BINARY[name]
    with _patched_language():
        for left, right, blocks in product(KINDS, KINDS, product((True, False), repeat=2)):
            x = _tensor(left, (5, 0, 7, 120) if blocks[0] else (5,), is_block=blocks[0])
            y = _tensor(right, (2, 3, 1, 4) if blocks[1] else (2,), is_block=blocks[1])
            _same_as_theirs(operation, x, y)
        for kind, constant, is_block in product(KINDS, CONSTANTS, (True, False)):
            x = _tensor(kind, (5, 0, 7, 120) if is_block else (5,), is_block=is_block)
            _same_as_theirs(operation, x, constant)


def test_pointers_are_checked_every_time() -> None:
    x, y = (_tensor(kind, (8, 16), is_block=True) for kind in (POINTERS[0], tl.int32))
    with _patched_language():
        for operation, left, right in product((operator.add, operator.mul, operator.eq), (x, y), (x, y)):
            _same_as_theirs(operation, left, right)


def test_constants_that_are_remembered_belong_to_nobody_else() -> None:
    """Some operations write to the handles that they are given."""
    with _patched_language():
        x = tl.arange(0, 2)
        for _ in range(3):
            (x + 5).handle.data[:] = 9
            _, constant = interpreter.interpreter_semantic.binary_op_type_checking_impl(x, 5)
            assert constant.handle.data.tolist() == [5, 5]
            constant.handle.data[:] = 9


@triton.jit  # type: ignore[untyped-decorator]
def _masked(values: Any, out: Any, count: Any, SIZE: tl.constexpr) -> None:
    lanes = tl.arange(0, SIZE)
    is_wanted = tl.broadcast_to(tl.load(values) == 2.5, (SIZE,))
    for start in range(0, tl.load(count)):
        tl.store(out + lanes, tl.load(values + lanes, mask=is_wanted, other=start), mask=is_wanted)


def test_comparison_is_a_mask_and_a_number_ends_a_loop() -> None:
    """Triton 3.9 refuses the first, and Triton 3.6 the second with NumPy 2.4."""
    speed_up_interpreter()
    values, out, count = torch.tensor([2.5, 1.0, 0.0, 7.0]), torch.zeros(4), torch.tensor([2], dtype=torch.int32)
    _masked[1,](values, out, count, SIZE=4)
    assert torch.equal(out, values)


def test_language_is_patched_once_by_every_launch_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls of a helper inside of the kernel find it patched, and change nothing."""
    speed_up_interpreter()
    scopes: list[int] = []

    class Counting(interpreter._LangPatchScope):  # type: ignore[misc]  # Triton has no types
        def restore(self) -> None:
            scopes.append(len(self._changes))
            super().restore()

    monkeypatch.setattr(interpreter, "_LangPatchScope", Counting)
    values, before = torch.arange(4, dtype=torch.int32), {**vars(tl), **vars(tl.core.tensor)}
    for _ in range(3):
        out = torch.zeros(4, dtype=torch.int32)
        _sums[1,](values, out, SIZE=4)
        assert out.tolist() == [2**30 + 6 + 4 * number for number in range(4)]
        after = {**vars(tl), **vars(tl.core.tensor)}
        assert {name for name, value in before.items() if after.get(name) is not value} == set()
    assert [size > 100 for size in scopes] == [True] * 3
