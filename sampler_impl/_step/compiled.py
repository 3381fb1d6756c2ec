"""Launches without Triton's dispatch: a plan's kernels are compiled once per key and then launched as they are.

Triton binds, inspects and hashes every argument of every launch. What can differ between two steps of one plan is
little: which tensors are there, of which type, and which of them begin at a multiple of 16 bytes. That is the key. On
an H200 the host time of a step falls from 138 to 79 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

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
        self.by_key: dict[Hashable, Any] = {}  # Any: as above

    def launch(self, key: Hashable, grid: tuple[int, int, int], *arguments: Any) -> None:  # Any: as above
        """Launch with the arguments in the kernel's order, without its constants, which are its last parameters."""
        compiled = self.by_key.get(key)
        if compiled is not None:
            compiled[grid](*arguments, *self.constants.values())
            return
        compiled = self.kernel[grid](*arguments, **self.constants, **self.options)
        if not INTERPRETED:
            self.by_key[key] = compiled


def key_of(*groups: object) -> Key:
    """What Triton compiles these arguments for: of a tensor its type and alignment, of a number its divisibility."""
    facts: list[Hashable] = []
    _add_facts(facts, groups)
    return tuple(facts)


def _add_facts(facts: list[Hashable], values: tuple[Any, ...]) -> None:  # Any: nested arguments
    for value in values:
        if value is None:
            facts.append(None)
        elif isinstance(value, Tensor):
            facts.append(value.dtype)
            facts.append(value.data_ptr() % ALIGNMENT == 0)
        elif isinstance(value, tuple):
            _add_facts(facts, value)
        else:
            facts.append(_fact_of(value))


def _fact_of(number: int) -> int:
    """1 is a constant of a kernel. All facts are integers: as `True == 1`, a stride of 1 had the key of one of 16."""
    return 1 if number == 1 else 2 + (number % ALIGNMENT == 0) + 2 * (number > MAX_INT32)
