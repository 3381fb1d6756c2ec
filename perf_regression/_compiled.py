"""Facts about compiled kernels on a machine without a GPU: the Triton wheel contains the whole compiler.

`counts.counted` records the launches of a call. Each is compiled for a card of `TARGETS` exactly as its launcher would
compile it: same types, same divisibility, same constants. Over a sweep of sizes, the number of *different*
compilations is the number of times that a server would stop to compile.
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

TARGETS = {"sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
"""Cards by name: NVIDIA's Hopper and AMD's MI300. Triton's back end, the architecture, and the threads of a warp."""
OPTIONS = ("num_warps", "num_stages", "maxnreg")
REGISTERS, STACK = r"(?:REG:|\.vgpr_count: +)(\d+)", r"(?:STACK:|private_segment_fixed_size: +)(\d+)"
BARRIER = r"\b(?:bar(?:rier)?\.sync|s_barrier)\b"


@dataclass(frozen=True)
class CompiledKernel:
    """One specialisation of one kernel.

    Args:
        key: What it was specialised on.
        registers: Per thread.
        spills: Bytes of stack per thread.
        barriers: Places in its code where warps wait for each other.
        shared: Bytes of memory that its warps share.
    """

    kernel: str
    key: str
    registers: int
    spills: int
    barriers: int
    shared: int


def compile_groups(
    groups: Mapping[str, Iterable[Launch]], *, target: str = "sm_90", timeout: float = 300
) -> dict[str, list[CompiledKernel]]:
    """Compile every different specialisation among the launches of each group once, for one of `TARGETS`.

    It takes a fresh process, because a Triton that interprets (as on every machine without a GPU) cannot compile.

    Raises:
        NoVerdictError: If a kernel does not compile, or not in time, or the wheel's compiler is missing.
    """
    launches = {name: [_as_json(launch) for launch in group] for name, group in groups.items()}
    printed = call_fresh(
        f"{__name__}:_compile_all",
        {"groups": launches, "target": target},
        purpose=f"compiling kernels for {target}",
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
        aligned = value.data_ptr() % 16 == 0  # what Triton specialises on
        return ["tensor", str(value.dtype).removeprefix("torch."), aligned]
    if isinstance(value, tuple):
        return [f"{type(value).__module__}:{type(value).__name__}", [_argument(one) for one in value]]
    return ["value", value]


def _compile_all(groups: Mapping[str, list[Json]], target: str) -> dict[str, list[Json]]:
    """Runs in the fresh process: facts about each group's different specialisations."""
    import triton
    from triton.backends.compiler import GPUTarget

    card = GPUTarget(*TARGETS[target])
    known: dict[str, Json] = {}
    found: dict[str, dict[str, Json]] = {name: {} for name in groups}
    for name, launches in groups.items():
        for launch in launches:
            key, source, options = _specialised(launch, card)
            if key not in known:
                known[key] = {"kernel": launch["kernel"], "key": key, **_facts(triton.compile(source, card, options))}
            found[name][key] = known[key]
    return {name: list(kernels.values()) for name, kernels in found.items()}


def _specialised(launch: Json, target: Any) -> tuple[str, Any, Json]:  # Any: Triton's
    """Return what Triton's own launcher would compile for these arguments, and its key in Triton's cache."""
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(target)
    kernel = getattr(importlib.import_module(launch["module"]), launch["kernel"])
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    given = {name: _value(value) for name, value in launch["arguments"].items()}
    given |= {name: value for name, value in launch["options"].items() if hasattr(backend.parse_options({}), name)}
    bound, specialization, options = bind(**given)
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
    """Registers per thread, bytes of stack (where registers are spilled), barriers, and bytes that warps share."""
    code = compiled.asm.get("amdgcn") or compiled.asm["ptx"] + _resources(compiled.asm["cubin"])
    registers, spills = (int(re.findall(pattern, code)[0]) for pattern in (REGISTERS, STACK))
    shared, barriers = compiled.metadata.shared, len(re.findall(BARRIER, code))
    return {"registers": registers, "spills": spills, "barriers": barriers, "shared": shared}


def _resources(cubin: bytes) -> str:
    """Return what the wheel's `cuobjdump` says of a compiled kernel."""
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.check_output([folder / "cuobjdump", "--dump-resource-usage", file.name], text=True)
