"""Our plain sampler with counter noise, in PyTorch."""

from __future__ import annotations

from fairdraw._adapters._sampling import counter as make

__all__ = ["make"]
