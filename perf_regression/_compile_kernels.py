"""The program that `compiled` runs with a Triton that compiles: launches as JSON in, facts as JSON out.

A process of its own, because a Triton that interprets (as on every machine without a GPU) cannot be made to compile.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.runtime.jit import create_function_from_signature

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def main() -> None:
    """Compile each distinct specialisation once."""
    request = json.load(sys.stdin)
    target = GPUTarget("cuda", request["capability"], 32)
    found: dict[str, dict[str, Any]] = {}  # Any: JSON
    for launch in request["launches"]:
        key, source, options = specialised(launch, CUDABackend(target))
        if key not in found:
            found[key] = {"kernel": launch["kernel"], "key": key, **facts(triton.compile(source, target, options))}
    json.dump(list(found.values()), sys.stdout)


def specialised(launch: dict[str, Any], backend: Any) -> tuple[str, Any, dict[str, Any]]:  # Any: JSON, Triton's
    """What Triton's own launcher would compile for these arguments, and the key it would find it under again."""
    kernel = getattr(importlib.import_module(launch["module"]), launch["kernel"])
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments = {name: value_of(given) for name, given in launch["arguments"].items()}
    bound, specialization, options = bind(**arguments, **launch["options"])
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialization, options)
    key = json.dumps([launch["kernel"], launch["options"], list(map(str, specialization))])
    return key, ASTSource(kernel, signature, constants, attributes), vars(parsed)


def value_of(given: list[Any]) -> Any:  # Any: JSON, a kernel's argument
    """From `["tensor", "float32", true]` and `["value", 3]` back to arguments."""
    if given[0] == "value":
        return given[1]
    memory = torch.empty(32, dtype=getattr(torch, given[1]))
    return memory if given[2] else memory[1:]


def facts(compiled: Any) -> dict[str, int]:  # Any: Triton's
    """Registers per thread, bytes of stack, which is where registers are spilled, and barriers in the PTX."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found is not None, shown
    barriers = len(re.findall(r"\bbar(?:rier)?\.sync\b", compiled.asm["ptx"]))
    return {"registers": int(found[1]), "spills": int(found[2]), "barriers": barriers}


if __name__ == "__main__":
    main()
