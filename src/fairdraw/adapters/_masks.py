"""Masks beside tokens: the specification, and the whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._oracles.masks import MasksOracle
from fairdraw.contracts import FunctionMaskedSampler

if TYPE_CHECKING:
    from fairdraw.adapters._catalogue import SamplerRow


def oracle(row: SamplerRow, device: str) -> FunctionMaskedSampler:
    """Return the specification; its arithmetic is NumPy's on every device."""
    return FunctionMaskedSampler(row.name, MasksOracle().sample_masked, device, row.capabilities())
