"""Our rejection sampler with counter noise in Triton: compiled on a GPU, interpreted without one."""

from __future__ import annotations

from fairdraw._adapters._counter import UNSUPPORTED, verify_with
from fairdraw._adapters._runtime import default_device, triton_is_interpreted
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["make"]


def make(device: str | None = None) -> FunctionSampler:
    """The kernels. In the interpreter a call costs milliseconds.

    Raises:
        ModuleNotFoundError: If triton is not installed.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    device = device or default_device()
    interpreted = triton_is_interpreted(device)
    verify = verify_with("triton")
    return rejection_sampler(verify, name="counter_triton", device=device, unsupported=UNSUPPORTED, slow=interpreted)
