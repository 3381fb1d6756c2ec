"""Our rejection sampler with counter noise: Triton on a GPU, PyTorch elsewhere."""

from __future__ import annotations

from fairdraw._adapters._counter import UNSUPPORTED, verify_with
from fairdraw._adapters._runtime import default_device
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["make"]


def make(device: str | None = None) -> FunctionSampler:
    """The production path of this machine."""
    device = device or default_device()
    backend = verify_with("torch" if device == "cpu" else "triton")
    return rejection_sampler(backend, name="counter", device=device, unsupported=UNSUPPORTED)
