"""Whether Triton compiles or interprets. It decides at import, from the environment, and for good.

Much of torch imports triton on the way: `torch._dynamo` does, and any `TorchDispatchMode` imports that. So whoever is
about to import either, an adapter or a check that counts operations, makes the choice first.
"""

from __future__ import annotations

import os
import sys


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
