"""The specification of filters; the contract judges other projects' filters only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._oracles.filters import FiltersOracle
from fairdraw.contracts import FunctionLogitsFilterer

if TYPE_CHECKING:
    from fairdraw.adapters._catalogue import SamplerRow


def oracle(row: SamplerRow, device: str) -> FunctionLogitsFilterer:
    """Return the specification in NumPy, on the host: all filters, in the order of `FilterChain`."""
    made = FiltersOracle()
    return FunctionLogitsFilterer(row.name, made.filter_logits, made.chain, device, row.capabilities())
