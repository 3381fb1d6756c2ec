"""The specification of filters, behind the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._oracles.filters import FiltersOracle
from fairdraw.protocols import FunctionLogitsFilterer

if TYPE_CHECKING:
    from fairdraw._adapters._table import BuiltIn


def oracle(row: BuiltIn, device: str) -> FunctionLogitsFilterer:
    """In NumPy, on the host; all filters, in the order of `FilterChain`."""
    made = FiltersOracle()
    return FunctionLogitsFilterer(row.name, made.filter_logits, made.chain, device, row.capabilities())
