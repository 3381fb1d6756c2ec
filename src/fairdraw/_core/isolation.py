"""State of the process that the suite and the sampler share: what a sampler changes of it stays the sampler's own.

A module that says `torch.set_default_dtype(torch.float64)`, or a call that says `np.seterr(all="raise")`, must not
change the suite's tensors, and no check is to be blamed for it. So each call of a sampler begins with what its import
and its last call left, and afterwards the suite has its own state again.

Environment variables, the locale and handlers of signals stay as a sampler sets them: the suite computes without them.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

from fairdraw._core.wrapping import unwrapped


class _Part(NamedTuple):
    """One thing that can be changed.

    Args:
        fresh: Its value in a process in which nobody changed it; `None` if each process has its own.
    """

    read: Callable[[], Any]  # Any: a value of any kind, which can be compared
    write: Callable[[Any], object]
    fresh: Any = None


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody removed it
        return ""


def _enter(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _write_filters(filters: list[Any]) -> None:  # Any: as Python keeps them
    """Change the list in place, unknown to Python, which would show every warning again that it has shown."""
    warnings.filters[:] = filters  # type: ignore[index]


_PROCESS = (
    _Part(_folder, _enter),
    _Part(sys.getrecursionlimit, sys.setrecursionlimit),
    _Part(lambda: list(warnings.filters), _write_filters),
    _Part(lambda: sys.stdout, lambda file: setattr(sys, "stdout", file)),
    _Part(lambda: sys.stderr, lambda file: setattr(sys, "stderr", file)),
)

_guards: list[object] = []
"""Each switches inference mode until it is deleted: never, as a sampler may have entered that mode for good."""

_TINY, _ONE = 5e-324, 1.0  # two names: Python would compute a product of constants beforehand


def _all_parts() -> tuple[_Part, ...]:
    """Return the parts, among them NumPy's and torch's once these are imported, which takes seconds; they only grow."""
    if not hasattr(sys.modules.get("numpy"), "seterr"):
        return _PROCESS
    return _with_tensors() if hasattr(sys.modules.get("torch"), "use_deterministic_algorithms") else _with_arrays()


@cache
def _with_arrays() -> tuple[_Part, ...]:
    import numpy as np

    errors = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
    return (*_PROCESS, _Part(np.geterr, lambda new: np.seterr(**new), errors))


@cache
def _with_tensors() -> tuple[_Part, ...]:
    import torch

    def is_deterministic() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def set_deterministic(both: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(both[0], warn_only=both[1])

    cpu = torch.device("cpu")

    def device() -> torch.device:
        # A default device is a mode on this stack; without one, asking torch takes half the time of all parts.
        return torch.get_default_device() if torch._C._len_torch_function_stack() else cpu

    def set_device(default: torch.device) -> None:
        torch.set_default_device(None if default == cpu else default)

    return (
        *_with_arrays(),
        _Part(torch.get_num_threads, torch.set_num_threads),
        _Part(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        _Part(device, set_device, cpu),
        _Part(is_deterministic, set_deterministic, (False, False)),
        # Before gradients, which leaving this mode switches on.
        _Part(torch.is_inference_mode_enabled, lambda on: _guards.append(torch._C._InferenceMode(on)), False),
        _Part(torch.is_grad_enabled, torch._C._set_grad_enabled, True),
        _Part(lambda: _TINY * _ONE == 0, torch.set_flush_denormal, False),
    )


_own: dict[int, tuple[object, dict[int, Any]]] = {}
"""Identity of a sampler to the sampler, and place of a part to what the sampler made of it."""


def read_state() -> list[Any]:  # Any: a value per part
    """Return the state of the process."""
    return [part.read() for part in _all_parts()]


def enter_state(subject: object) -> None:
    """Change the state to what the import and the last call of `subject` left."""
    if _own:
        parts = _all_parts()
        for place, value in _own.get(_key(subject), (None, {}))[1].items():
            parts[place].write(value)


def leave_state(subject: object, before: list[Any]) -> None:
    """Change the state back to what `read_state` returned; the differences belong to `subject` from now on."""
    now = read_state()
    if now == before:
        if _own:
            _own.pop(_key(subject), None)
        return
    _own[_key(subject)] = subject, _write_state(now, before)


def _key(subject: object) -> int:
    return id(unwrapped(subject))


@contextmanager
def suite_state(sampler: object) -> Iterator[None]:
    """Give the suite the state of a fresh process, and put all back at the end; what differs now is the sampler's.

    torch runs with one thread: batches are small, and waking threads costs more than the work itself. Measured for 900
    cases of the oracle, on 2 cores shared with others: 6.6 s of CPU time with one thread, 20.8 s with two. NumPy's
    warnings in Triton's interpreter are silenced: a GPU gives inf or NaN silently, and checks look at values.

    Randomness:
        NumPy's and Python's global generators are put back, too: calls with seeded noise seed them.
    """
    import numpy as np

    ambient, drawn = read_state(), (np.random.get_state(), random.getstate())
    if changed := _write_state(ambient, []):
        _own.setdefault(_key(sampler), (sampler, changed))
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        np.random.set_state(drawn[0])
        random.setstate(drawn[1])
        _write_state(read_state(), ambient)


def _write_state(now: list[Any], wanted: list[Any]) -> dict[int, Any]:  # Any: a value per part
    """Write what differs from `wanted`, and return it: place of a part to its value now.

    Parts that `wanted` lacks get their fresh value: torch may have been imported since it was read.
    """
    fresh = [here if part.fresh is None else part.fresh for here, part in zip(now, _all_parts(), strict=True)]
    wanted = [*wanted, *fresh[len(wanted) :]]
    changed = {place: value for place, value in enumerate(now) if value != wanted[place]}
    for place in changed:
        _all_parts()[place].write(wanted[place])
    return changed
