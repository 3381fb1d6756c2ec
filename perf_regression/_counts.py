"""What one call reads, writes, launches, allocates and waits for: counted, not timed.

This works without a GPU. Triton kernels run in Triton's interpreter, whose loads and stores are metered element by
element. A dispatch mode intercepts ATen operators and charges each with its arguments and results. The numbers depend
on the sizes alone, so an extra pass over the logits is detected on any machine, in every test run.

Bytes are *logical*: what a kernel requests, whether or not a cache has it. Views are free.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from fairdraw._core.dispatch import DispatchMode

OTHER = "other"
"""Name of all memory that the caller did not name: results and scratch."""

COPIES = {"aten::copy_", "aten::clone", "aten::_to_copy"}
WAITS = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero", "is_nonzero"}
"""Tensor methods for which the host waits for a device. On a CPU tensor they cost nothing and are counted as well."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch, with its arguments."""

    module: str
    kernel: str
    arguments: dict[str, Any]  # Any: tensors, numbers, dtypes
    options: dict[str, Any]  # Any: num_warps and the like
    key: tuple[object, ...] = ()
    """The kernel, and all that Triton compiles it for: launches with another key compile another variant."""


@dataclass
class Counts:
    """What happened within `counted`."""

    bytes_read: Counter[str] = field(default_factory=Counter)
    bytes_written: Counter[str] = field(default_factory=Counter)
    launches: list[Launch] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    allocations: int = 0
    tokens_read: int = 0
    """From outputs whose lists count them."""

    @property
    def copies(self) -> int:
        return sum(count for name, count in self.operators.items() if name in COPIES)

    def as_row(self) -> dict[str, int]:
        """Return the totals, under the names of the limits."""
        return {
            "bytes": self.bytes_read.total() + self.bytes_written.total(),
            "launches": len(self.launches),
            "operators": self.operators.total(),
            "copies": self.copies,
            "allocations": self.allocations,
            "syncs": self.waits.total(),
            "tokens_read": self.tokens_read,
        }


@contextmanager
def counted(named: Mapping[str, Tensor] | None = None, *, run_kernels: bool = True) -> Iterator[Counts]:
    """Count what happens inside.

    Args:
        named: Tensors whose traffic is counted separately; all other memory is `OTHER`.
        run_kernels: `False` only records the launches, for sizes at which an interpreter would take minutes.
    """
    counts = Counts()
    names = _Names(named or {})
    with ExitStack() as stack:
        stack.enter_context(_launches(counts, run_kernels))
        stack.enter_context(_interpreter_meter(counts, names))
        stack.enter_context(_Waits(counts))
        stack.enter_context(_Operators(counts, names))
        yield counts


class _Names:
    """From addresses to names."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self.ranges = [
            (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes(), name)
            for name, tensor in named.items()
        ]

    def of(self, address: int) -> str:
        return next((name for begin, size, name in self.ranges if begin <= address < begin + size), OTHER)


class _Waits(TorchFunctionMode):
    """Counts calls that make the host wait for a device."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        name = getattr(func, "__name__", "")
        if name in WAITS:
            self.counts.waits[name] += 1
        return func(*args, **(kwargs or {}))


class _Operators(DispatchMode):
    """Charges each ATen operator with the tensors it takes and gives; views and bare allocations are free."""

    def __init__(self, counts: Counts, names: _Names) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.counts, self.names = counts, names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        result = func(*args, **(kwargs or {}))
        if func.is_view or func._schema.name == "aten::detach":
            return result
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        given = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.counts.operators[func._schema.name] += 1
        self._allocate(taken, given)
        if "empty" not in func._schema.name:
            self._charge(func, taken, given)
        return result

    def _allocate(self, taken: list[Tensor], given: list[Tensor]) -> None:
        known = {tensor.untyped_storage().data_ptr() for tensor in taken}
        self.counts.allocations += sum(tensor.untyped_storage().data_ptr() not in known for tensor in given)

    def _charge(self, func: Any, taken: list[Tensor], given: list[Tensor]) -> None:  # Any: torch's
        """Charge reads and writes: a result that is also an argument was written in place; a fill does not read it."""
        only_writes = func._schema.name in ("aten::fill_", "aten::zero_", "aten::copy_")
        for tensor in taken[1:] if only_writes else taken:
            self.counts.bytes_read[self.names.of(tensor.data_ptr())] += _nbytes(tensor)
        for tensor in given:
            self.counts.bytes_written[self.names.of(tensor.data_ptr())] += _nbytes(tensor)


def _nbytes(tensor: Tensor) -> int:
    """Count the bytes of the elements in memory: an expanded dimension repeats the same ones."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


@contextmanager
def _launches(counts: Counts, run_kernels: bool) -> Iterator[None]:
    """Record every launch of every Triton kernel, compiled or interpreted."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:  # Any: Triton's
        def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:  # Any: Triton's
            arguments = dict(zip(self.arg_names, args, strict=False))
            arguments |= {name: options[name] for name in self.arg_names if name in options}
            rest = {name: value for name, value in options.items() if name not in arguments}
            key = _compile_key(self, arguments, rest)
            counts.launches.append(Launch(self.fn.__module__, self.fn.__name__, arguments, rest, key))
            # The interpreter moves arguments with ATen operators of its own, which must not be counted.
            with _disable_current_modes():
                return original(self, *args, grid=grid, warmup=warmup, **options) if run_kernels else None

        return run

    with ExitStack() as stack:
        for kind in (InterpretedFunction, JITFunction):
            stack.enter_context(mock.patch.object(kind, "run", recording(kind.run)))
        yield


def _compile_key(
    kernel: Any, arguments: dict[str, Any], options: dict[str, Any]
) -> tuple[object, ...]:  # Any: Triton's
    """Return what Triton specialises for: constants, types, and whether an integer is 1 or a multiple of 16."""
    hints = {name: str(found.annotation) for name, found in inspect.signature(kernel.fn).parameters.items()}
    free = getattr(kernel, "do_not_specialize", None) or getattr(kernel, "kwargs", {}).get("do_not_specialize") or ()

    def seen(name: str, value: Any) -> object:  # Any: an argument
        if "constexpr" in hints.get(name, ""):
            return repr(value)
        if isinstance(value, torch.Tensor):
            return value.dtype, value.data_ptr() % 16 == 0
        if type(value) is not int or name in free or kernel.arg_names.index(name) in free:
            return type(value)
        return value == 1, value % 16 == 0

    kinds = tuple((name, seen(name, value)) for name, value in arguments.items())
    return (f"{kernel.fn.__module__}.{kernel.fn.__name__}", kinds, repr(sorted(options.items(), key=str)))


@contextmanager
def _interpreter_meter(counts: Counts, names: _Names) -> Iterator[None]:
    """Charge loads and stores of interpreted kernels; elements that are masked out are free."""
    from triton.runtime.interpreter import InterpreterBuilder

    def metered(
        original: Any, pointers_at: int, mask_at: int | None, charges: list[Counter[str]]
    ) -> Any:  # Any: Triton's
        def access(self: Any, *args: Any) -> Any:  # Any: Triton's
            pointers = args[pointers_at]
            # A mask that was made of two may hold integers, by which NumPy would choose places instead.
            addresses = pointers.data.ravel() if mask_at is None else pointers.data[args[mask_at].data.astype(bool)]
            if addresses.size:
                name = names.of(int(addresses.flat[0]))
                for charge in charges:
                    charge[name] += addresses.size * _element_size(pointers)
            return original(self, *args)

        return access

    reads, writes = counts.bytes_read, counts.bytes_written
    # A plain load is a masked one in the interpreter, so these four are all. Places of pointers and mask, and charges:
    plan: dict[str, tuple[int, int | None, list[Counter[str]]]] = {
        "create_masked_load": (0, 1, [reads]),
        "create_masked_store": (0, 2, [writes]),
        "create_atomic_cas": (0, None, [reads, writes]),
        "create_atomic_rmw": (1, 3, [reads, writes]),
    }
    with ExitStack() as stack:
        for name, places in plan.items():
            original = getattr(InterpreterBuilder, name)
            stack.enter_context(mock.patch.object(InterpreterBuilder, name, metered(original, *places)))
        yield


def _element_size(pointers: Any) -> int:  # Any: Triton's tensor of pointers
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)
