"""Where a sampler runs: which device, and whether Triton compiles or interprets.

Triton decides at import, from the environment, and for good. Much of torch imports triton on the way
(`torch._dynamo` does), so the choice is made before a sampler is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fairdraw._core.interpreter import prepare_triton


def triton_is_interpreted(device: str) -> bool:
    """Import triton for kernels on `device`, and return whether they are interpreted.

    Raises:
        ModuleNotFoundError: If triton is not installed.
        RuntimeError: If the kernels are to run on the CPU, but triton was imported before its interpreter was chosen.
    """
    prepare_triton(device)
    with quiet_imports():
        import triton
        import triton.language as tl

    interpreted = not isinstance(tl.cdiv, triton.JITFunction)
    if device == "cpu" and not interpreted:
        raise RuntimeError(
            f"load: device={device!r}, but triton was imported before its interpreter was chosen and now compiles for "
            "a GPU. Set TRITON_INTERPRET=1 and CUDA_VISIBLE_DEVICES= (empty) in the environment."
        )
    return interpreted


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Silence the warnings of other people's imports; pytest turns them into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def quiet_floats() -> Iterator[None]:
    """Silence NumPy on overflow, 0 * inf and the like: the interpreter computes with it; a GPU would say nothing."""
    import numpy as np

    with np.errstate(all="ignore"):
        yield
