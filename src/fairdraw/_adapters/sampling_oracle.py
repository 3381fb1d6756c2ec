"""The specification of plain sampling as a sampler: what every other one is compared with."""

from __future__ import annotations

from fairdraw._adapters._sampling import oracle as make

__all__ = ["make"]
