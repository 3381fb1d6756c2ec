"""The specification itself as a sampler: what every other one is compared with."""

from __future__ import annotations

from fairdraw._adapters._runtime import default_device
from fairdraw._oracles.rejection import verify
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["make"]


def make(device: str | None = None) -> FunctionSampler:
    """The oracle; its arithmetic is NumPy's wherever the batch lies."""
    return rejection_sampler(verify, name="oracle", device=device or default_device())
