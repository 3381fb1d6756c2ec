"""Facts about compiled kernels on a machine without a GPU: the Triton wheel brings the whole compiler.

The launches of a call are noted (`counts.counted`), and each is compiled for the given compute capability exactly as
its launcher would: same types, same divisibility, same constants. Over a sweep of sizes the number of *different*
compilations is the number of times that a server would stop to compile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.perf_regression._fresh import run_fresh

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw.perf_regression._counts import Launch

__all__ = ["CompiledKernel", "compile_launches"]

SM90 = 90
OPTIONS = ("num_warps", "num_stages", "maxnreg")
POINTER_ALIGNMENT = 16


@dataclass(frozen=True)
class CompiledKernel:
    """One specialisation of one kernel.

    Args:
        key: What it was specialised on.
        registers: Per thread.
        spills: Bytes of stack per thread.
        barriers: Places in its PTX where warps wait for each other.
    """

    kernel: str
    key: str
    registers: int
    spills: int
    barriers: int


def compile_launches(
    launches: Iterable[Launch], *, capability: int = SM90, timeout: float = 300
) -> list[CompiledKernel]:
    """Compile every different specialisation among `launches` once.

    Raises:
        NoVerdictError: If a kernel does not compile, or not in time, or the wheel's compiler is missing.
    """
    request = json.dumps({"capability": capability, "launches": [_as_json(launch) for launch in launches]})
    printed = run_fresh(
        "fairdraw.perf_regression._compile_kernels",
        purpose=f"compiling kernels for sm_{capability}",
        timeout=timeout,
        stdin=request,
        not_inherited={"TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"},
    )
    return [CompiledKernel(**found) for found in json.loads(printed)]


def _as_json(launch: Launch) -> dict[str, Any]:  # Any: JSON
    options = {name: value for name, value in launch.options.items() if name in OPTIONS}
    arguments = {name: _argument(value) for name, value in launch.arguments.items()}
    return {"module": launch.module, "kernel": launch.kernel, "arguments": arguments, "options": options}


def _argument(value: object) -> list[object]:
    if isinstance(value, torch.Tensor):
        aligned = value.data_ptr() % POINTER_ALIGNMENT == 0
        return ["tensor", str(value.dtype).removeprefix("torch."), aligned]
    return ["value", value]
