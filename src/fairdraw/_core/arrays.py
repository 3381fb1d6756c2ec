"""Samplers that take and return arrays of NumPy, JAX, MLX, CuPy ...: converted at the edge, by DLPack.

Memory is shared where the library can share it, so that results can be written where a contract says so. A tensor whose
rows are apart is copied, and what was written to the copy is brought back. What DLPack cannot carry is copied, too:
bfloat16 becomes float32 for NumPy, and a result that is no DLPack array goes through NumPy.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Array = Any
"""Of whatever library."""

Copies = list[tuple["Tensor", "Tensor"]]
"""Tensors whose rows are apart, each with the dense copy that an array shares the memory of."""


class ArrayNamespace(Protocol):
    """A library of arrays: `numpy`, `jax.numpy`, `mlx.core`, `cupy` ..., or anything with its `from_dlpack`."""

    def from_dlpack(self, x: Any, /) -> Array:
        """An array of this library that shares the memory of another library's."""
        ...


def with_arrays(namespace: ArrayNamespace) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function is handed arrays of `namespace` for tensors, and may return them.

    Every tensor of a batch, of explicit noise and of what their methods return is an array then; numbers, lists and
    seeds stay as they are. The suite gets tensors again. Any: functions of all contracts.

    JAX keeps 32 bits unless `jax_enable_x64` is set: explicit uniforms are rounded, towards 0, so that none becomes 1.

    Example:
        >>> import numpy as np
        >>> import fairdraw
        >>> @fairdraw.with_arrays(np)
        ... def greedy(batch, noise):
        ...     return batch.logits.argmax(axis=1)
        >>> sampler = fairdraw.token_sampler(greedy)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def converting(*given: Any, **named: Any) -> Any:
            apart: Copies = []
            handed = {name: _handed(one, namespace, apart) for name, one in named.items()}
            result = as_tensors(function(*(_handed(one, namespace, apart) for one in given), **handed))
            for tensor, dense in apart:
                if not tensor.equal(dense):
                    tensor.copy_(dense)
            return result

        return converting

    return decorate


class _Arrays:
    """Looks like a batch, and its tensors are arrays."""

    def __init__(self, batch: object, namespace: ArrayNamespace) -> None:
        self._batch, self._namespace = batch, namespace

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._batch, name)
        if callable(value):
            return lambda *given, **named: _handed(value(*given, **named), self._namespace)
        return _handed(value, self._namespace)

    def __repr__(self) -> str:
        return repr(self._batch)


def _handed(value: Any, namespace: ArrayNamespace, apart: Copies | None = None) -> Any:
    """An array for a tensor; a batch with arrays for a batch; explicit noise of the same type, with arrays.

    Args:
        apart: Gets each tensor that was copied because its rows are apart.
    """
    from fairdraw._core.batches import Batch

    if hasattr(value, "is_contiguous"):
        return _as_array(value, namespace, apart)
    if isinstance(value, Batch):
        return _Arrays(value, namespace)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tensors = {name: found for name, found in vars(value).items() if hasattr(found, "is_contiguous")}
        changes: dict[str, Any] = {name: _as_array(tensor, namespace, apart) for name, tensor in tensors.items()}
        return dataclasses.replace(value, **changes) if changes else value
    return value


def _as_array(tensor: Tensor, namespace: ArrayNamespace, apart: Copies | None) -> Array:  # any
    import torch

    dense = tensor.detach().contiguous()
    if apart is not None and not tensor.is_contiguous():
        apart.append((tensor, dense))
    if dense.dtype is torch.float64 and not _keeps_doubles(namespace):
        single = dense.float()
        dense = torch.where(single > dense, single.nextafter(torch.zeros(())), single)
    try:
        return namespace.from_dlpack(dense)
    except (BufferError, RuntimeError, TypeError, ValueError):
        if dense.dtype is not torch.bfloat16:
            raise
        return namespace.from_dlpack(dense.float())


def _keeps_doubles(namespace: ArrayNamespace) -> bool:
    """Whether arrays of 64-bit numbers stay such; JAX's do not, unless it is configured."""
    import torch

    one = torch.ones(1, dtype=torch.float64)
    try:
        return "float64" in str(namespace.from_dlpack(one).dtype)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return False


def as_tensors(value: Any) -> Any:
    """Tensors for arrays: for one, or for the fields of a result such as `Drafted`."""
    import torch

    if isinstance(value, torch.Tensor) or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(map(as_tensors, value))
    if hasattr(value, "__dlpack__") or hasattr(value, "__array__"):
        return _as_tensor(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: as_tensors(found) for name, found in vars(value).items()})
    return value


def _as_tensor(array: Array) -> Tensor:  # any
    import torch
    from torch.utils.dlpack import from_dlpack

    try:
        tensor: Tensor = from_dlpack(array)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):  # read-only, or on a foreign device
        import numpy as np

        tensor = torch.from_numpy(np.array(array))
    return tensor
