"""Our plain sampler with counter noise, in Triton: compiled on a GPU, interpreted without one."""

from __future__ import annotations

from fairdraw._adapters._sampling import triton as make

__all__ = ["make"]
