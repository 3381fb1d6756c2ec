"""What one call reads, writes, launches, allocates and waits for: counted, not timed.

Works without a GPU. Triton kernels run in Triton's interpreter, whose loads and stores are metered element by element;
ATen operators are seen by a dispatch mode, each charged with the tensors that it takes and gives. The numbers are
functions of the sizes alone, so that an extra pass over the logits is caught on any machine, in every test run.

Bytes are *logical*: what a kernel asks for, whether or not a cache answers. Views are free.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

__all__ = ["OTHER", "Counts", "Launch", "counted"]

OTHER = "other"
"""Name of all memory that the caller gave no name: results and scratch."""

COPIES = {"aten::copy_", "aten::clone", "aten::_to_copy"}
WAITS = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero", "is_nonzero"}
"""Tensor methods for which the host waits; on a CPU tensor they cost nothing, and are counted all the same."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: whose, and with which arguments."""

    module: str
    kernel: str
    arguments: dict[str, Any]  # Any: tensors, numbers, dtypes
    options: dict[str, Any]  # Any: num_warps and the like


@dataclass
class Counts:
    """What happened between entering and leaving `counted`."""

    bytes_read: Counter[str] = field(default_factory=Counter)
    bytes_written: Counter[str] = field(default_factory=Counter)
    launches: list[Launch] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    allocations: int = 0
    bytes_allocated: int = 0

    @property
    def num_launches(self) -> int:
        return len(self.launches)

    @property
    def copies(self) -> int:
        return sum(count for name, count in self.operators.items() if name in COPIES)

    @property
    def syncs(self) -> int:
        return sum(self.waits.values())

    @property
    def bytes_moved(self) -> int:
        """Read and written, named or not."""
        return self.bytes_read.total() + self.bytes_written.total()

    def as_row(self) -> dict[str, int]:
        """The totals, by the names that limits have."""
        return {
            "bytes": self.bytes_moved,
            "launches": self.num_launches,
            "operators": self.operators.total(),
            "copies": self.copies,
            "allocations": self.allocations,
            "syncs": self.syncs,
        }


@contextmanager
def counted(named: Mapping[str, Tensor] | None = None, *, run_kernels: bool = True) -> Iterator[Counts]:
    """Count what happens inside.

    Args:
        named: Tensors whose traffic is to be told apart; all other memory is `OTHER`.
        run_kernels: `False` only notes the launches, for sizes at which an interpreter would take minutes.
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


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Charges each ATen operator with the tensors it takes and gives; views and bare allocations are free."""

    def __init__(self, counts: Counts, names: _Names) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        new = [tensor for tensor in given if tensor.untyped_storage().data_ptr() not in known]
        self.counts.allocations += len(new)
        self.counts.bytes_allocated += sum(_nbytes(tensor) for tensor in new)

    def _charge(self, func: Any, taken: list[Tensor], given: list[Tensor]) -> None:  # Any: torch's
        """A result that is one of the arguments was written in place; a fill does not read it."""
        only_writes = func._schema.name in ("aten::fill_", "aten::zero_", "aten::copy_")
        for tensor in taken[1:] if only_writes else taken:
            self.counts.bytes_read[self.names.of(tensor.data_ptr())] += _nbytes(tensor)
        for tensor in given:
            self.counts.bytes_written[self.names.of(tensor.data_ptr())] += _nbytes(tensor)


def _nbytes(tensor: Tensor) -> int:
    """Of the elements that there are: an expanded dimension repeats the same ones."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


@contextmanager
def _launches(counts: Counts, run_kernels: bool) -> Iterator[None]:
    """Note every launch of every Triton kernel, compiled or interpreted."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:  # Any: Triton's
        def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:  # Any: Triton's
            arguments = dict(zip(self.arg_names, args, strict=False))
            arguments |= {name: options[name] for name in self.arg_names if name in options}
            rest = {name: value for name, value in options.items() if name not in arguments}
            counts.launches.append(Launch(self.fn.__module__, self.fn.__name__, arguments, rest))
            # The interpreter moves arguments about with ATen operators of its own.
            with _disable_current_modes():
                return original(self, *args, grid=grid, warmup=warmup, **options) if run_kernels else None

        return run

    with ExitStack() as stack:
        for kind in (InterpretedFunction, JITFunction):
            stack.enter_context(_replaced(kind, "run", noting(kind.run)))
        yield


@contextmanager
def _interpreter_meter(counts: Counts, names: _Names) -> Iterator[None]:
    """Charge loads and stores of interpreted kernels, masked-out elements not among them."""
    from triton.runtime.interpreter import InterpreterBuilder

    def metered(original: Any, mask_place: int | None, charges: list[Counter[str]]) -> Any:  # Any: Triton's
        def access(self: Any, pointers: Any, *args: Any) -> Any:  # Any: Triton's
            mask = None if mask_place is None else args[mask_place].data
            addresses = pointers.data.ravel() if mask is None else pointers.data[mask]
            size = _element_size(pointers)
            if addresses.size:
                name = names.of(int(addresses.flat[0]))
                for charge in charges:
                    charge[name] += addresses.size * size
            return original(self, pointers, *args)

        return access

    builder, reads, writes = InterpreterBuilder, counts.bytes_read, counts.bytes_written
    # A plain load is a masked one in the interpreter, so these four are all.
    plan = {
        "create_masked_load": (0, [reads]),
        "create_masked_store": (1, [writes]),
        "create_atomic_cas": (None, [reads, writes]),
    }
    with ExitStack() as stack:
        for name, (mask_place, charges) in plan.items():
            stack.enter_context(_replaced(builder, name, metered(getattr(builder, name), mask_place, charges)))
        stack.enter_context(_replaced(builder, "create_atomic_rmw", _metered_rmw(builder, reads, writes, names)))
        yield


def _metered_rmw(builder: Any, reads: Counter[str], writes: Counter[str], names: _Names) -> Any:  # Any: Triton's
    original = builder.create_atomic_rmw

    def access(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *args: Any) -> Any:  # Any: Triton's
        addresses = pointers.data[mask.data]
        if addresses.size:
            name, moved = names.of(int(addresses.flat[0])), addresses.size * _element_size(pointers)
            reads[name] += moved
            writes[name] += moved
        return original(self, operation, pointers, value, mask, *args)

    return access


def _element_size(pointers: Any) -> int:  # Any: Triton's tensor of pointers
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


@contextmanager
def _replaced(owner: type, name: str, value: object) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
