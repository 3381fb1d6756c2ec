"""Launches without Triton's dispatch: a plan's kernels are compiled once per key and then launched as they are.

Triton binds, inspects and hashes every argument of every launch. What can differ between two steps of one plan is
little: which tensors are there, of which type, and which of them begin at a multiple of 16 bytes. That is the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from triton.runtime.driver import driver

from .._shared.kernels import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Hashable

Key = tuple["Hashable", ...]

MAX_INT32 = (1 << 31) - 1
ALIGNMENT = 16
"""Bytes and units that Triton compiles for."""


class Compiled:
    """One kernel of a plan.

    Args:
        kernel: As `triton.jit` made it.
        options: Of its launches, such as `num_warps`.
        constants: Its compile-time parameters.
    """

    def __init__(self, kernel: Any, options: dict[str, int], **constants: Any) -> None:  # Any: Triton's
        self.kernel, self.options, self.constants = kernel, options, constants
        self.last = tuple(constants.values())
        self.by_key: dict[Hashable, Any] = {}  # Any: as above

    def launch(
        self,
        key: Hashable,
        stream: int | None,
        grid: tuple[int, int, int],
        *arguments: Any,  # Any: as above
    ) -> None:
        """Launch with the arguments in the kernel's order, without its constants, which are its last parameters. Once
        compiled for a key, it takes addresses for tensors as well.

        Args:
            stream: What `current_stream` says; Triton would ask for it at every launch."""
        compiled = self.by_key.get(key)
        if compiled is not None:
            compiled[grid](*arguments, *self.last, stream=stream)
            return
        compiled = self.kernel[grid](*arguments, **self.constants, **self.options)
        if not INTERPRETED:
            self.by_key[key] = compiled


def current_stream() -> int | None:
    """The stream to launch in. `None` in the interpreter, which has none."""
    if INTERPRETED:
        return None
    active: Any = driver.active  # Any: of a GPU
    return int(active.get_current_stream(active.get_current_device()))


def described(values: tuple[Any, ...]) -> tuple[Key, tuple[Any, ...]]:  # Any: nested arguments, as above
    """What Triton compiles these arguments for: of a tensor its type and alignment, of a number its divisibility. And
    the arguments with addresses for tensors: Triton would ask the driver about every tensor of every launch."""
    facts: list[Hashable] = []
    addresses = _describe(facts, values)
    return tuple(facts), addresses


def described_batch(
    tensors: tuple[Tensor | None, ...],  # [...] any, each
    strides: tuple[int, ...],
) -> tuple[Key, list[int | None]]:
    """As `described`, in a third of the time, of tensors that are new at every step. Their types were checked; only the
    last three, slots, draft tokens and draft rows, may be of several."""
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    are_aligned = [None if address is None else address % ALIGNMENT == 0 for address in addresses]
    types = [None if tensor is None else tensor.dtype for tensor in tensors[-3:]]
    return (*are_aligned, *types, *map(_fact_of, strides)), addresses


def _describe(facts: list[Hashable], values: tuple[Any, ...]) -> tuple[Any, ...]:  # Any: as above
    described_values: list[Any] = []  # Any: as above
    for value in values:
        if isinstance(value, Tensor):
            address = value.data_ptr()
            facts += value.dtype, address % ALIGNMENT == 0
            described_values.append(address)
        elif isinstance(value, tuple):
            described_values.append(_describe(facts, value))
        else:
            facts.append(None if value is None else _fact_of(value))
            described_values.append(value)
    return tuple(described_values)


def _fact_of(number: int) -> int:
    """1 is a constant of a kernel. All facts are integers: as `True == 1`, a stride of 1 had the key of one of 16."""
    return 1 if number == 1 else 2 + (number % ALIGNMENT == 0) + 2 * (number > MAX_INT32)
