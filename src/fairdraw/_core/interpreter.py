"""Whether Triton compiles or interprets. It decides at import, from the environment, and for good.

Much of torch imports triton on the way, above all `torch._dynamo`. So whoever is about to import either, an adapter for
example, makes the choice first.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any


def default_device() -> str:
    """`cuda` if there is a CUDA device, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def prepare_triton(device: str | None = None) -> None:
    """Choose Triton's interpreter if kernels are to run on the CPU. Without effect once triton is imported.

    Args:
        device: Where the kernels will run; `default_device()` if `None`.
    """
    if "triton" in sys.modules:
        return
    if default_device() == "cpu":
        # vLLM switches Triton off where no driver is active, unless this variable is set and empty.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if (device or default_device()) == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def patch_language_once() -> None:
    """Let Triton's interpreter patch `triton.language` once per launch, and not again in every device function.

    Every call of a jitted helper inside of a kernel goes through all names of the language, and finds them patched by
    the launch. That is a third of the time of a kernel with helpers. Nothing else changes. Without effect before triton
    is imported, on compiled kernels, and on releases whose interpreter has no such scope.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")  # Any: Triton has no types
    patch = getattr(interpreter, "_patch_lang", None)
    if patch is None or not hasattr(interpreter, "_LangPatchScope") or hasattr(patch, "__wrapped__"):
        return
    language = interpreter.tl

    @wraps(patch)
    def patched_once(function: Any) -> Any:  # Any: Triton's, as above
        seen = [value for value in function.__globals__.values() if value is language or value is language.core]
        if seen and not any(language.core.is_builtin(module.load) for module in seen):
            return interpreter._LangPatchScope()  # nothing to restore: the launch does that
        return patch(function)

    interpreter._patch_lang = patched_once
