"""Our plain sampler with vLLM's noise, in PyTorch."""

from __future__ import annotations

from fairdraw._adapters._sampling import race as make

__all__ = ["make"]
