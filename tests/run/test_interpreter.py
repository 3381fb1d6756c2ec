"""What makes Triton's interpreter faster changes nothing else: each piece beside the one that it replaces."""

from __future__ import annotations

import operator
import sys
import warnings
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fairdraw._core.interpreter import prepare_triton, speed_up_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


# Tapes

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
UNARY: dict[str, Callable[..., Any]] = {
    "negative": lambda x: -x,
    "invert": lambda x: ~x,
    "abs": lambda x: tl.abs(x) + x,
    "exp2": lambda x: tl.exp2(x) + x,
    "column": lambda x: x[:, None] if x.shape else x,
    "broadcast": lambda x: tl.broadcast_to(x[None, :], (2, 4)) if x.shape else tl.full((4,), 1, x.dtype) + x,
    "reshape": lambda x: tl.reshape(x, (2, 2)) if x.shape else x,
    "positive zero": lambda x: tl.where(x == x, 0.0, x),
    "negative zero": lambda x: tl.where(x == x, -0.0, x),
    "nan": lambda x: tl.where(x == x, float("nan"), x),
    "largest": lambda x: tl.max(x, axis=0) if x.shape else x,
}
KINDS = (tl.int1, tl.int8, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.uint64, tl.float16, tl.bfloat16, tl.float32)
CONSTANTS: tuple[float, ...] = (True, 0, 1, 3, -1, 2**31, 2**40, 0.0, -0.0, 1.5, float("inf"))


@contextmanager
def _patched_language() -> Iterator[Any]:
    """As inside of a kernel. Gives the tapes."""
    speed_up_interpreter()
    scope = interpreter._patch_lang(_sums.fn)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield interpreter._fairdraw_tapes
    finally:
        scope.restore()


def _tensor(kind: Any, numbers: tuple[float, ...], *, is_block: bool) -> Any:
    with np.errstate(all="ignore"):
        data = np.array(numbers, dtype=np.int64).astype(interpreter._get_np_dtype(kind))
    return tl.tensor(interpreter.TensorHandle(data, kind), tl.block_type(kind, [len(data)]) if is_block else kind)


def _outcome(operation: Callable[..., Any], *arguments: Any) -> str:
    """All that can be seen of a result, or the error."""
    try:
        made = operation(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    data = made.handle.data
    known = made.type, made.dtype, made.shape, made.numel, made.handle.dtype, data.dtype, data.shape, data.tobytes()
    return " ".join(map(str, known))


def _same_with_tapes(tapes: Any, operation: Callable[..., Any], *arguments: Any) -> None:
    """Without, when a tape is made, when it is played, and played again on other numbers."""
    tapes.is_recording = True  # as inside of another operation: none is asked
    try:
        expected = _outcome(operation, *arguments)
    finally:
        tapes.is_recording = False
    assert [_outcome(operation, *arguments) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("name", BINARY)
def test_operation_with_a_tape_is_the_same_of_all_types_and_constants(name: str) -> None:
    operation = BINARY[name]
    with _patched_language() as tapes:
        for left, right, blocks in product(KINDS, KINDS, product((True, False), repeat=2)):
            for numbers in ((5, 0, 7, 120), (3, 9, 1, 2)):  # the second: on the tape of the first
                numbers = numbers if blocks[0] else numbers[:1]
                x = _tensor(left, numbers, is_block=blocks[0])
                y = _tensor(right, (2, 3, 1, 4) if blocks[1] else (2,), is_block=blocks[1])
                _same_with_tapes(tapes, operation, x, y)
        for kind, constant in product(KINDS, CONSTANTS):
            for numbers in ((5, 0, 7, 120), (3, 9, 1, 2)):
                x = _tensor(kind, numbers, is_block=True)
                _same_with_tapes(tapes, operation, x, constant)


@pytest.mark.parametrize("name", UNARY)
def test_operation_of_one_block_with_a_tape_is_the_same(name: str) -> None:
    with _patched_language() as tapes:
        for kind, other in product(KINDS, KINDS):
            for numbers, is_block in (((5, 0, 7, 120), True), ((3, 9, 1, 2), True), ((4,), False), ((1,), False)):
                x = _tensor(kind, numbers, is_block=is_block)
                _same_with_tapes(tapes, lambda x: UNARY[name](x.to(other)), x)  # noqa: B023  # called at once


def test_tape_of_one_block_twice_is_not_that_of_two_blocks() -> None:
    with _patched_language() as tapes:
        x, y = (_tensor(tl.int32, numbers, is_block=True) for numbers in ((1, 2), (30, 40)))
        assert not tapes.is_recording
        assert [(x - x).handle.data.tolist(), (x - y).handle.data.tolist()] == [[0, 0], [-29, -38]]
        assert [(y - x).handle.data.tolist(), (y - y).handle.data.tolist()] == [[29, 38], [0, 0]]


def test_operation_that_raises_raises_again_and_tapes_go_on() -> None:
    with _patched_language() as tapes:
        x = _tensor(tl.float32, (1, 2), is_block=True)
        for _ in range(2):
            with pytest.raises(Exception, match="invalid operands"):
                x & 1.5
            assert not tapes.is_recording
            assert interpreter.interpreter_semantic.builder is interpreter.interpreter_builder
        assert (x + x).handle.data.tolist() == [2, 4]


def test_whoever_counts_loads_counts_those_of_tapes_until_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the counts of bytes do: by another method of the builder's class, for some launches."""
    speed_up_interpreter()
    values, out, counted = torch.arange(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), []
    kind = interpreter.InterpreterBuilder
    load = kind.create_masked_load
    for is_counted in (False, True, True, False):
        with monkeypatch.context() as patch:
            if is_counted:
                patch.setattr(kind, "create_masked_load", lambda *given: counted.append(1) or load(*given))
            _sums[1,](values, out, SIZE=4)
    assert len(counted) == 2


def test_warnings_of_tapes_come_from_the_interpreter() -> None:
    """The suite leaves those out by their module, and a user's pytest may turn others into errors."""
    with _patched_language():
        x, y = (_tensor(tl.float32, (1,) * 4, is_block=True) for _ in range(2))
        x.handle.data[:] = y.handle.data[:] = np.inf
        for _ in range(3):
            with warnings.catch_warnings(), np.errstate(all="warn"):
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
                assert np.isnan((x - y).handle.data).all()
                x.to(tl.int32)


def _scalar(number: int) -> Any:
    return _tensor(tl.int32, (number,), is_block=False)


def test_what_depends_on_numbers_has_no_tape() -> None:
    """A load asks whether `other` is true, and a program's id which axis is meant."""
    values = np.array([7, 8], np.int32)
    pointer = tl.pointer_type(tl.int32)
    address = tl.tensor(interpreter.TensorHandle(np.array([values.ctypes.data], np.uint64), pointer), pointer)
    nothing = _tensor(tl.int1, (0,), is_block=False)
    interpreter.interpreter_builder.set_grid_dim(2, 3, 4)
    with _patched_language() as tapes:
        for other in (0, 5, 0, 6):
            _same_with_tapes(tapes, lambda x: tl.load(address, mask=nothing, other=x), _scalar(other))
        for axis in (0, 1, 2, 0):
            _same_with_tapes(tapes, lambda x: tl.num_programs(x), _scalar(axis))  # noqa: PLW0108  # patched in between


def test_constants_and_lists_of_tapes_belong_to_them() -> None:
    with _patched_language():
        numbers = [tl.full((2,), 2**31, tl.uint32) for _ in range(4)]
        tl.arange(0, 2) >> numbers[2]  # writes to the handle of the right side
        assert numbers[3].to(tl.int64).handle.data.tolist() == [2**31] * 2
        assert tl.full((2,), 2**31, tl.uint32).to(tl.int64).handle.data.tolist() == [2**31] * 2
        block = tl.reshape(tl.arange(0, 4), (2, 2))
        order = [0, 1]
        tl.permute(block, order)
        order.reverse()
        assert tl.permute(block, [0, 1]).handle.data.tolist() == [[0, 1], [2, 3]]


# -- whole functions ---------------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _helper(pair: Any, words: Any, SIZE: tl.constexpr) -> Any:
    x, (y, _) = pair
    best = tl.max(tl.where(x > y, x, y), axis=0)
    ends = tl.cumsum(x.to(tl.int32))
    a, b, c, d = tl.philox(words, words.to(tl.uint32), words.to(tl.uint32), 7, 0)
    start = 3
    return best, (ends + tl.arange(0, SIZE) + tl.sum(ends), x + start), tl.min(y, axis=0), a, b, c, d, None, 5


@triton.jit  # type: ignore[untyped-decorator]
def _branching(x: Any, y: Any) -> Any:
    if tl.sum(x) > 5:
        y = y + x
    for _ in range(0, tl.min(x)):
        y = y * 2
    return y


@triton.jit  # type: ignore[untyped-decorator]
def _counting(pointer: Any) -> Any:
    tl.atomic_add(pointer, 1)
    return tl.load(pointer)


def _flat(found: Any) -> list[Any]:
    return [one for part in found for one in _flat(part)] if isinstance(found, tuple) else [found]


def _seen(function: Any, *arguments: Any) -> list[str]:
    """All that can be seen of what a function returns."""
    made = _flat(function(*arguments))
    return [_outcome(lambda one=one: one) if isinstance(one, tl.tensor) else repr(one) for one in made]


def _same_again_and_again(function: Any, given: list[tuple[Any, ...]]) -> None:
    """Without tapes, before there is one of the function, and with it."""
    with _patched_language() as tapes:
        for arguments in given * 4:
            tapes.is_recording = True
            expected = _seen(function, *arguments)
            tapes.is_recording = False
            assert _seen(function, *arguments) == expected
            assert tapes.of_function is None
            assert interpreter.interpreter_semantic.builder is interpreter.interpreter_builder


def _block(*numbers: float) -> Any:
    return _tensor(tl.float32, numbers, is_block=True)


def test_function_with_a_tape_is_the_same() -> None:
    x, y, far = _block(1, 5, 2, 8), _block(4, 3, 9, 7), 2**63 - 5
    words = [_tensor(tl.int64, (number,), is_block=False) for number in (0, -1, far, 2**32)]
    _same_again_and_again(_helper, [((x, (y, 1)), word, 4) for word in words] + [((y, (x, 1)), words[0], 4)])
    _same_again_and_again(_helper, [((x, (y, 1)), _tensor(tl.int64, (1, 2, 3, far), is_block=True), 4)])


def test_function_that_is_given_one_tensor_twice_has_a_tape_of_its_own() -> None:
    x, y, words = _block(1, 5, 2, 8), _block(4, 3, 9, 7), _tensor(tl.int64, (9,), is_block=False)
    _same_again_and_again(_helper, [((x, (x, 1)), words, 4), ((x, (y, 1)), words, 4), ((y, (y, 1)), words, 4)])


def test_function_that_branches_or_loops_by_a_number_has_no_tape() -> None:
    blocks = [_tensor(tl.int32, numbers, is_block=True) for numbers in ((1, 2), (3, 4), (0, 0), (2, 9))]
    _same_again_and_again(_branching, [(x, blocks[0]) for x in blocks])


def test_what_no_tape_says_is_done_every_time() -> None:
    values, pointer = np.array([0], np.int32), tl.pointer_type(tl.int32)
    address = tl.tensor(interpreter.TensorHandle(np.array([values.ctypes.data], np.uint64), pointer), pointer)
    with _patched_language():
        found = [_counting(address).handle.data.item() for _ in range(9)]
    assert found == [*range(1, 10)]
