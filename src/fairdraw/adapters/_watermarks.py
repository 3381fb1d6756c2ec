"""Watermarks: the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fairdraw._oracles import watermarks

if TYPE_CHECKING:
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.contracts import FunctionWatermarker


def oracle(row: SamplerRow, device: str, *, kind: str = "WatermarksOracle") -> FunctionWatermarker:
    """Return the specification of one policy; its arithmetic is NumPy's on every device."""
    made = watermarks.sampler_of(getattr(watermarks, kind), name=row.name, device=device)
    return replace(made, capabilities=row.capabilities())
