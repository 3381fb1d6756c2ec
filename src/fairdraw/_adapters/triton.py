"""Our rejection sampler in Triton: compiled on a GPU, interpreted without one."""

from __future__ import annotations

from fairdraw._adapters._runtime import default_device, triton_is_interpreted
from fairdraw._adapters._sampler_impl import verify_with
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["make"]


def make(device: str | None = None) -> FunctionSampler:
    """The kernels, the production path on a GPU. In the interpreter a call costs milliseconds.

    Raises:
        ModuleNotFoundError: If triton is not installed.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    device = device or default_device()
    interpreted = triton_is_interpreted(device)
    return rejection_sampler(verify_with("triton"), name="triton", device=device, slow=interpreted)
