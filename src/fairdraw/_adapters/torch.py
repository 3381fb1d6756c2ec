"""Our rejection sampler in PyTorch."""

from __future__ import annotations

from fairdraw._adapters._runtime import default_device
from fairdraw._adapters._sampler_impl import verify_with
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["make"]


def make(device: str | None = None) -> FunctionSampler:
    """The vectorised backend, the production path on a CPU."""
    return rejection_sampler(verify_with("torch"), name="torch", device=device or default_device())
