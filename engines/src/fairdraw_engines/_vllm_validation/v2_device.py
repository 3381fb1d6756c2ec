"""Where the steps of V2 run. vLLM and Triton decide it when they are imported, and for good: it is chosen before.

    cpu     Triton's interpreter, plain buffers, top-k and top-p by vLLM's PyTorch code
    cuda    compiled kernels, vLLM's platform for CUDA, its states and buffers on the GPU

`tools/install.py vllm` makes a vLLM without compiled code. Its samplers need none, but two places ask for it. Its
platform for CUDA imports an extension, for which an empty module stands. Its buffers are host memory that a GPU reads
(UVA), a view that only an extension can make; vLLM has others for platforms without pinned memory, `NonUvaBuffer`,
whose every `uva()` copies to device memory, and takes them here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from fairdraw_engines._others import quiet_upstream, vllm_module
from fairdraw_engines._vllm_v2_kernels import import_kernels
from fairdraw_engines._vllm_v2_runtime import import_v2

VARIABLE = "FAIRDRAW_V2_DEVICE"
"""Environment variable; worker processes inherit it."""
DEVICES = ("cpu", "cuda")
EXTENSION = "_C_stable_libtorch"
"""Module that vLLM's platform for CUDA imports."""


def choose(arguments: Sequence[str]) -> None:
    """Take `--device` from a command line, before anything is imported that decides about it."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", default=chosen())
    os.environ[VARIABLE] = parser.parse_known_args(arguments)[0].device


def chosen() -> str:
    """Return one of `DEVICES`.

    Raises:
        ValueError: If the environment names another one.
    """
    device = os.environ.get(VARIABLE, "cpu")
    if device not in DEVICES:
        raise ValueError(f"chosen: {VARIABLE}={device!r}, but it must be one of {DEVICES}. Give --device cpu or cuda.")
    return device


def import_objects() -> str:
    """Import what a server without a model consists of, for the chosen device; vLLM's release."""
    device, is_bare = chosen(), not has_compiled_code()
    if device == "cuda":
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it draws without making rows to compare
        if is_bare:
            use_cuda_platform()
    release, _ = import_v2(device, "states", "input_batch", "sample.sampler", "spec_decode.rejection_sampler")
    import_kernels(device, "worker.gpu.spec_decode.rejection_sampler_utils")
    if device == "cuda" and is_bare:
        copy_buffers()
    return release


def has_compiled_code() -> bool:
    """Whether the vLLM that can be imported has its extension for CUDA."""
    found = find_spec("vllm")
    folders = found.submodule_search_locations if found is not None else None
    return any(True for folder in folders or () for _ in Path(folder).glob(f"{EXTENSION}*"))


def use_cuda_platform() -> None:
    """Use vLLM's own platform, whatever NVML says; the extension that it imports is an empty module."""
    name = f"vllm.{EXTENSION}"
    sys.modules.setdefault(name, ModuleType(name))
    with quiet_upstream():
        platforms = importlib.import_module("vllm.platforms")
        cuda = importlib.import_module("vllm.platforms.cuda")
    platforms._current_platform = cuda.CudaPlatform()  # type: ignore[attr-defined]


def copy_buffers() -> None:
    """Let vLLM take the buffers that it has for platforms without UVA: a kernel sees what was written before `uva()`.

    That is enough: V2 writes to a buffer's host side in `UvaBufferPool.copy_to_uva` alone, which then calls `uva()`.
    """
    vllm_module("worker.gpu.buffer_utils").is_uva_available = lambda: False
