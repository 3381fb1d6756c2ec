"""Argument checks of every contract: one function per kind of mistake, one form of message.

Shapes, dtypes, devices and Python numbers are checked on every call, on the host, in microseconds. Values inside
tensors would cost a device synchronisation, so they are checked only on request (`check_all`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

MAX_SPEC_LEN = 128
"""Most draft tokens per request, as in vLLM since 0.11.0; also the width of the kernels' position vector."""

IDS = (torch.int32, torch.int64)
INT32 = (torch.int32,)
INT64 = (torch.int64,)
FLOAT32 = (torch.float32,)
FLOAT64 = (torch.float64,)
FLOATS_OF_MODELS = (torch.float32, torch.bfloat16, torch.float16)
FLOATS = (*FLOATS_OF_MODELS, torch.float64)

Generators = Mapping[int, torch.Generator]
"""Request to its own generator; requests that are missing use torch's default generator."""


def check_tensor(
    function: str,
    name: str,
    value: object,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    *,
    reference: str = "logits",
) -> None:
    """Check kind, shape, dtype, device and layout of one argument; `reference` is what fixes the sizes.

    Raises:
        TypeError: If it is not a tensor.
        ValueError: If anything else is wrong.
    """
    if isinstance(value, Tensor):
        if value.shape == shape and value.dtype in dtypes and value.device == device and is_plain(value):
            return  # a list of sizes equals no shape: what follows compares those
    else:
        raise TypeError(f"{function}: {name}={value!r}, but it must be a tensor of shape {list(shape)}. Pass one.")
    if list(value.shape) != list(shape):
        raise ValueError(
            f"{function}: {name}.shape={list(value.shape)}, but it must be {list(shape)}. Check it against {reference}."
        )
    if value.dtype not in dtypes:
        known = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{function}: {name}.dtype={value.dtype}, but it must be {known}. Use {name}.to({dtypes[0]}).")
    if value.device != device:
        raise ValueError(
            f"{function}: {name}.device={value.device}, but it must be {device}, as of the other tensors. "
            f"Use {name}.to('{device}')."
        )
    if not is_plain(value):
        kind = "a negated view" if value.is_neg() else "without memory" if value.is_meta else "sparse"
        raise ValueError(
            f"{function}: {name}=tensor({kind}), but its memory must hold its numbers. "
            f"Use {name}.to_dense().resolve_neg()."
        )


def check_dimensions(function: str, name: str, value: object, ndim: int) -> None:
    """Check that an argument is a tensor of so many dimensions.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(value, Tensor) or value.ndim != ndim:
        shown = list(value.shape) if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{function}: {name}={shown}, but it must be a tensor of {ndim} dimensions. Pass one.")


def is_plain(
    value: Tensor,  # [...] any
) -> bool:
    """Whether a tensor's memory holds its numbers: kernels read that, and do not ask about sparsity or a sign bit."""
    return value.layout is torch.strided and not value.is_neg() and not value.is_meta


def check_written(
    function: str,
    name: str,
    value: Tensor,  # [...] any
) -> None:
    """Check that a tensor can be written in place: no entry twice in memory, and no gradient is asked for.

    Raises:
        ValueError: If it cannot.
    """
    reach = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and stride < reach and value.numel() > 0:
            raise ValueError(
                f"{function}: {name}.stride()={list(value.stride())} with shape={list(value.shape)}, but entries that "
                f"are written must not share memory. Use {name}.contiguous()."
            )
        reach += (size - 1) * stride
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{function}: {name}.requires_grad=True, but it is written in place. Use {name}.detach(), or torch.no_grad."
        )


def check_flags(function: str, all_greedy: bool, all_random: bool, batch_size: int, rule: str) -> None:
    """Check that `all_greedy` and `all_random` exclude each other, unless there is no request."""
    if all_greedy and all_random and batch_size > 0:
        raise ValueError(
            f"{function}: all_greedy=True and all_random=True, but at most one can hold for {batch_size} requests. "
            f"Use {rule} to tell."
        )


def check_generators(function: str, req_indices: Iterable[int], batch_size: int) -> None:
    """Check that generators belong to requests of the batch."""
    for req_idx in req_indices:
        if not 0 <= req_idx < batch_size:
            raise ValueError(
                f"{function}: generators has key {req_idx}, but keys must be requests in [0, {batch_size}). "
                f"Drop generators of requests that left the batch."
            )


def check_all(
    function: str,
    name: str,
    values: Tensor,  # [...] any
    good: Tensor,  # [...] bool
    rule: str,
) -> None:
    """Check values, and name the first value that is not good, with its index; `rule` ends in the remedy. Waits for the
    device."""
    bad = (~good).nonzero()
    if len(bad) > 0:
        index = bad[0].tolist()
        raise ValueError(f"{function}: {name}{index}={values[tuple(index)].item():.9g}, but it must be {rule}")
