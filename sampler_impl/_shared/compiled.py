"""Launches without Triton's dispatch: kernels are compiled once per key and then launched as they are.

Triton binds, inspects and hashes every argument of every launch. What can differ between two calls of one shape is
little: which tensors are there, of which type, and which of them begin at a multiple of 16 bytes. That is the key.

A whole step has a plan that its user makes, and makes its keys itself (`_step/launch.py`). The other samplers are
functions: what they launch for arguments of one kind is a `LaunchPlan`, which they find again by that kind
(`kinds.py`).

Nothing of this is remembered twice. What makes a call fast is found by different keys, of which no two can be one:

    kinds.py       type, shape and strides of a function's arguments: checks passed. Addresses change at every call
    known.py       places of a plan's tensors by slot: checks passed, addresses and facts are known. A function's lie
                   elsewhere at every call; and for a new batch of a step it says nothing
    LaunchPlan     alignment, on top of a kind, which leaves it open
    `by_key`       what Triton compiled a kernel for: several kinds and batches share it
    replays.py     the last address of every tensor. Found first, and the only one that needs no launch
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime.driver import driver

from .kernels import INTERPRETED, quiet_numpy

Key = tuple["Hashable", ...]
Grid = tuple[int, int, int]

MAX_INT32 = (1 << 31) - 1
ALIGNMENT = 16
"""Bytes and units that Triton compiles for."""


class Compiled:
    """One kernel with its constants.

    Args:
        kernel: As `triton.jit` made it.
        options: Of its launches, such as `num_warps`.
        constants: Its compile-time parameters: the last ones of its signature, in that order.
    """

    def __init__(self, kernel: Any, options: dict[str, int], **constants: Any) -> None:  # Any: Triton's
        self.kernel, self.options, self.constants = kernel, options, constants
        self.last = tuple(constants.values())
        self.names: list[str] = kernel.arg_names[: len(kernel.arg_names) - len(constants)]
        # What is compiled takes its arguments by position.
        assert [*self.names, *constants] == kernel.arg_names, kernel.arg_names
        self.in_order = itemgetter(*self.names)
        self.by_key: dict[Hashable, Any] = {}  # Any: as above

    def launch(self, key: Hashable, stream: int | None, grid: Grid, named: dict[str, Any]) -> None:  # Any: as above
        """Launch with those of the arguments that the kernel takes. Once compiled for a key, it takes addresses for
        tensors as well.

        Args:
            stream: Of the current device, as `current_place` says; Triton would ask for it at every launch."""
        compiled, arguments = self.by_key.get(key), self.in_order(named)
        if compiled is None:
            by_name = dict(zip(self.names, arguments, strict=True))
            compiled = self.kernel[grid](**by_name, **self.constants, **self.options)
            if compiled is not None:  # the interpreter compiles nothing
                self.by_key[key] = compiled
        elif someone_listens():
            compiled[grid](*arguments, *self.last, stream=stream)
        else:  # as Triton does, but for a description of the launch, which nobody reads
            handles = compiled.function, compiled.packed_metadata
            compiled.run(*grid, stream, *handles, None, None, None, *arguments, *self.last)


def someone_listens() -> bool:
    """Whether a profiler, such as Proton, wants to know of launches. Triton has chains of hooks, mostly empty ones."""
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return any(getattr(hook, "calls", hook) for hook in hooks)


def current_place() -> tuple[int | None, int | None]:
    """Return the current device, for which Triton compiles and on which it launches, and its stream. In the interpreter
    there is neither."""
    if INTERPRETED:
        return None, None
    active: Any = driver.active  # Any: of a GPU
    device = active.get_current_device()
    return device, active.get_current_stream(device)


def stream_of(device: int | None) -> int | None:
    """Return the stream to launch in on a device that is the current one. `None` in the interpreter, which has none."""
    if INTERPRETED:
        return None
    active: Any = driver.active  # Any: as above
    stream: int = active.get_current_stream(device)
    return stream


def launches_overlap(device: torch.device) -> bool:
    """Whether a kernel may be launched while the one before it runs: programmatic dependent launch, from Hopper on."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def num_multiprocessors(device: torch.device) -> int:
    """Return how many programs run at once at least; in the interpreter, 1."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


_COMPILED: dict[Key, Compiled] = {}


def compiled(kernel: Any, options: dict[str, int], **constants: Any) -> Compiled:  # Any: Triton's
    """Return the one object of this kernel with these options and constants: it serves every thread and device, as its
    keys name the device."""
    made_of = kernel, tuple(options.items()), tuple(constants.items())
    found = _COMPILED.get(made_of)
    return _COMPILED.setdefault(made_of, Compiled(kernel, options, **constants)) if found is None else found


Given = Sequence[Any]  # Any: tensors, or their addresses, or what kernels are compiled for; None where there is none


class LaunchPlan(ABC):
    """Launches for arguments of one kind: grids, constants and sizes are found out once.

    It holds no tensor. `keys` has a key per kernel, by device and by what is aligned: kinds leave that open, and Triton
    compiles for it.

    Args:
        device: Of all tensors.
    """

    launches: list[tuple[Compiled, Grid]]
    """Kernels in order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index if device.type == "cuda" else None
        self.keys: dict[Key, list[int]] = {}

    @abstractmethod
    def named(self, given: Given) -> dict[str, Any]:  # Any: as given, and numbers
        """Return the arguments of all kernels by name, with whatever is given for the tensors in their places."""

    def launch(self, tensors: tuple[Tensor | None, ...]) -> None:  # [...] any, each
        """Launch on the tensors' device, in its current stream, whatever device is current."""
        device, stream = current_place()
        if device != self.index and self.index is not None:
            with torch.cuda.device(self.index):
                self.launch(tensors)
            return
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        place = (device, *[None if address is None else address % ALIGNMENT == 0 for address in addresses])
        keys = self.keys.get(place)
        if keys is None:
            keys = self._keys_for(place, tensors)
            if not all(key in kernel.by_key for key, (kernel, _) in zip(keys, self.launches, strict=True)):
                self._launch_all(keys, stream, tensors)
                return
            self.keys[place] = keys
        self._launch_all(keys, stream, addresses)

    def _keys_for(
        self,
        place: Key,
        tensors: tuple[Tensor | None, ...],  # [...] any, each
    ) -> list[int]:
        """Return a key for each kernel, by what stands in its arguments for the tensors: their types, and whether
        aligned."""
        device, *are_aligned = place
        given = zip(tensors, are_aligned, strict=True)
        named = self.named([None if tensor is None else (tensor.dtype, aligned) for tensor, aligned in given])
        facts = {name: _fact_of(value) if type(value) is int else value for name, value in named.items()}
        return [number_of((device, *kernel.in_order(facts))) for kernel, _ in self.launches]

    def _launch_all(self, keys: list[int], stream: int | None, given: Given) -> None:
        named = self.named(given)
        with quiet_numpy():
            for key, (kernel, grid) in zip(keys, self.launches, strict=True):
                kernel.launch(key, stream, grid, named)


_NUMBERS: dict[Key, int] = {}
_NEXT = count()


def number_of(key: Key) -> int:
    """Return always the same number, and that of no other key: one number is found faster than dozens of facts. A
    number that another thread was too late for is left out."""
    found = _NUMBERS.get(key)
    return _NUMBERS.setdefault(key, next(_NEXT)) if found is None else found


def part(words: Any, start: int, size: int, dtype: torch.dtype = torch.int64) -> Any:  # Any: as in `Given`
    """Return a part of the memory that a call allocates once for all that its kernels pass on, counted in int64. It
    begins at a multiple of 16 bytes, if the memory does."""
    if isinstance(words, int):
        return words + WORD * start
    return words[start : start + size].view(dtype) if isinstance(words, Tensor) else (dtype, words[1])


WORD = 8
"""Bytes of an int64."""


def described(values: tuple[Any, ...]) -> tuple[Key, Any]:  # Any: nested arguments, as above
    """Return what Triton compiles these arguments for: of a tensor its type and alignment, of a number its
    divisibility; and the arguments with addresses for tensors: Triton would ask the driver about every tensor of every
    launch."""
    facts: list[Hashable] = []
    addresses = _describe(facts, values)
    return tuple(facts), addresses


def described_batch(
    tensors: tuple[Tensor | None, ...],  # [...] any, each
    strides: tuple[int, ...],
) -> tuple[Key, list[int | None]]:
    """Return what `described` does, in a third of the time, of tensors that are new at every step. Their types were
    checked; only the last three, slots, draft tokens and draft rows, may be of several."""
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
    return type(values)(*described_values) if hasattr(values, "_fields") else tuple(described_values)


def _fact_of(number: int) -> int:
    """Return what is compiled for a number: 1 is a constant of a kernel. All facts are integers: as `True == 1`, a
    stride of 1 had the key of one of 16."""
    return 1 if number == 1 else 2 + (number % ALIGNMENT == 0) + 2 * (number > MAX_INT32)
