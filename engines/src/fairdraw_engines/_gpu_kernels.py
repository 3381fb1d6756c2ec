"""The library of FlashInfer's and SGLang's CUDA kernels that `python tools/gpu_kernels` builds, called by ctypes.

`FAIRDRAW_GPU_KERNELS` names its folder; `.cache/gpu_kernels` below the current one if it is not set.
"""

import ctypes
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import UnusableRelease

VARIABLE = "FAIRDRAW_GPU_KERNELS"
LIBRARY = "libfairdraw_gpu_kernels.so"
BUILD = "Run python tools/gpu_kernels in a clone of fairdraw, there or with its folder as FAIRDRAW_GPU_KERNELS"


class KernelError(RuntimeError):
    """A kernel that was not launched, with CUDA's reason."""


def folder() -> Path:
    """Return the folder of the library, and of the Python files that belong to its kernels."""
    return Path(os.environ.get(VARIABLE) or Path(".cache") / "gpu_kernels")


def require(device: str) -> None:
    """Raise unless kernels can be called on `device`.

    Raises:
        UnusableRelease: If it is not a CUDA device, or there is no library.
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        raise UnusableRelease("it needs a CUDA device and the library that `python tools/gpu_kernels` builds", BUILD)
    library()


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library.

    Raises:
        UnusableRelease: If it is missing, or cannot be loaded.
    """
    path = folder() / LIBRARY
    if not path.exists():
        raise UnusableRelease(
            f"it needs the library that `python tools/gpu_kernels` builds, but {path} is missing", BUILD
        )
    try:
        loaded = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise UnusableRelease(f"the library of its kernels cannot be loaded: {error}", BUILD) from error
    loaded.fd_error.restype = ctypes.c_char_p
    return loaded


def versions() -> dict[str, str]:
    """Return what the library was built from: project or `nvcc` to version, and `arch`."""
    found: dict[str, str] = json.loads((folder() / "versions.json").read_text())
    return found


def call(name: str, *arguments: Any) -> None:  # Any: tensors, numbers and structures, as the C function takes them
    """Launch the kernel `fd_NAME` on the current stream.

    Args:
        arguments: A tensor is passed as its address, `None` as null, an integer as 32 bits. Others are ctypes' own.

    Raises:
        KernelError: If CUDA refuses the launch.
        ValueError: If a tensor is not contiguous; FlashInfer's own binding refuses it as well.
    """
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = getattr(library(), f"fd_{name}")(*map(_packed, arguments), stream)
    if status:
        raise KernelError(f"{name}: {library().fd_error(status).decode()}")


def _packed(argument: Any) -> Any:  # Any: see `call`
    if isinstance(argument, torch.Tensor):
        return address(argument)
    return ctypes.c_void_p() if argument is None else argument


def address(tensor: Tensor) -> ctypes.c_void_p:  # [...] any
    """Return the address of the first element.

    Raises:
        ValueError: If the tensor is not contiguous.
    """
    if not tensor.is_contiguous():
        shape, stride = tuple(tensor.shape), tensor.stride()
        raise ValueError(f"call: shape={shape}, stride={stride}, but a tensor must be contiguous. Copy it before.")
    return ctypes.c_void_p(tensor.data_ptr())
