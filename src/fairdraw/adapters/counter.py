"""Our rejection sampler with counter noise: Triton on a GPU, PyTorch elsewhere."""

from __future__ import annotations

from fairdraw.adapters._counter import DECLINED, verify_with
from fairdraw.adapters._runtime import default_device
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["make"]


def make(device: str | None = None) -> FunctionSampler:
    """The production path of this machine."""
    device = device or default_device()
    backend = verify_with("torch" if device == "cpu" else "triton")
    return rejection_sampler(backend, name="counter", device=device, closed=DECLINED)
