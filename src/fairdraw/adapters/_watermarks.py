"""Watermarks: the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._oracles import watermarks
from fairdraw.contracts import FunctionWatermarker

if TYPE_CHECKING:
    from fairdraw.adapters._catalogue import SamplerRow


def oracle(row: SamplerRow, device: str, *, kind: str = "WatermarksOracle") -> FunctionWatermarker:
    """Return the specification of one policy; its arithmetic is NumPy's on every device."""
    made = getattr(watermarks, kind)()
    return FunctionWatermarker(
        row.name,
        made.sample_watermarked,
        device,
        row.capabilities(),
        policy=made.policy,
        watermark_numbers=made.watermark_numbers,
        detect=made.detect if made.policy.scheme == "gumbel" else None,
    )
