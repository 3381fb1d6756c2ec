"""Facts about compiled kernels on a machine without a GPU: the Triton wheel contains the whole compiler.

`counts.counted` records the launches of a call. Each is compiled for sm_90 exactly as its
launcher would compile it: same types, same divisibility, same constants. Over a sweep of sizes, the number of
*different* compilations is the number of times that a server would stop to compile.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairdraw.perf_regression._counts import Launch
from fairdraw.perf_regression._named import call_fresh

Json = dict[str, Any]  # Any: JSON

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


def compile_launches(launches: Iterable[Launch], *, timeout: float = 300) -> list[CompiledKernel]:
    """Compile every different specialisation among `launches` once.

    Raises:
        NoVerdictError: If a kernel does not compile, or not in time, or the wheel's compiler is missing.
    """
    return compile_groups({"": launches}, timeout=timeout)[""]


def compile_groups(groups: Mapping[str, Iterable[Launch]], *, timeout: float = 300) -> dict[str, list[CompiledKernel]]:
    """Compile several groups of launches, as `compile_launches` does, in one fresh process.

    The process is a fresh one because a Triton that interprets (as on every machine without a GPU) cannot compile.
    """
    launches = {name: [_as_json(launch) for launch in group] for name, group in groups.items()}
    printed = call_fresh(
        f"{__name__}:_compile_all",
        {"groups": launches},
        purpose=f"compiling kernels for sm_{SM90}",
        timeout=timeout,
        not_inherited={"TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"},
    )
    found = json.loads(printed[-1])
    return {name: [CompiledKernel(**kernel) for kernel in kernels] for name, kernels in found.items()}


def _as_json(launch: Launch) -> Json:
    options = {name: value for name, value in launch.options.items() if name in OPTIONS}
    arguments = {name: _argument(value) for name, value in launch.arguments.items()}
    return {"module": launch.module, "kernel": launch.kernel, "arguments": arguments, "options": options}


def _argument(value: object) -> list[object]:
    if isinstance(value, torch.Tensor):
        aligned = value.data_ptr() % POINTER_ALIGNMENT == 0
        return ["tensor", str(value.dtype).removeprefix("torch."), aligned]
    if isinstance(value, tuple):
        return [f"{type(value).__module__}:{type(value).__name__}", [_argument(one) for one in value]]
    return ["value", value]


def _compile_all(groups: Mapping[str, list[Json]]) -> dict[str, list[Json]]:
    """Runs in the fresh process: facts about each group's different specialisations."""
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", SM90, 32)
    known: dict[str, Json] = {}
    found: dict[str, dict[str, Json]] = {}
    for name, launches in groups.items():
        found[name] = {}
        for launch in launches:
            key, source, options = _specialised(launch, target)
            if key not in known:
                known[key] = {"kernel": launch["kernel"], "key": key, **_facts(triton.compile(source, target, options))}
            found[name][key] = known[key]
    return {name: list(kernels.values()) for name, kernels in found.items()}


def _specialised(launch: Json, target: Any) -> tuple[str, Any, Json]:  # Any: Triton's
    """Return what Triton's own launcher would compile for these arguments, and its key in Triton's cache."""
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource
    from triton.runtime.jit import create_function_from_signature

    backend = CUDABackend(target)
    kernel = getattr(importlib.import_module(launch["module"]), launch["kernel"])
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments = {name: _value(given) for name, given in launch["arguments"].items()}
    bound, specialization, options = bind(**arguments, **launch["options"])
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialization, options)
    key = json.dumps([launch["kernel"], launch["options"], list(map(str, specialization))])
    return key, ASTSource(kernel, signature, constants, attributes), vars(parsed)


def _value(given: list[Any]) -> Any:  # Any: JSON, a kernel's argument
    """Turn `["tensor", "float32", true]`, `["value", 3]` and `["module:Named", [...]]` back to arguments."""
    if given[0] == "value":
        return given[1]
    if given[0] != "tensor":
        module, name = given[0].split(":")
        kind, values = getattr(importlib.import_module(module), name), map(_value, given[1])
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    memory = torch.empty(32, dtype=getattr(torch, given[1]))
    return memory if given[2] else memory[1:]


def _facts(compiled: Any) -> dict[str, int]:  # Any: Triton's
    """Registers per thread, bytes of stack (where registers are spilled), and barriers in the PTX."""
    import triton

    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(cuobjdump), "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found is not None, shown
    barriers = len(re.findall(r"\bbar(?:rier)?\.sync\b", compiled.asm["ptx"]))
    return {"registers": int(found[1]), "spills": int(found[2]), "barriers": barriers}
