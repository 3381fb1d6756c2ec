"""The executable specification of any contract, as a sampler."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw.adapters._catalogue import SamplerRow
from fairdraw.contracts import AnySampler


def make(row: SamplerRow, device: str, **declared: Any) -> AnySampler:  # Any: fields of its class
    """Return what every mutant would be without its fault, under the row's name; it computes in NumPy on the host."""
    own = {"name": row.name, "device": device, "capabilities": row.capabilities(), **declared}
    made: AnySampler = dataclasses.replace(load_part(CONTRACTS[row.contract].right)(), **own)
    return made
