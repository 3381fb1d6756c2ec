"""`st.from_type(SpecDecodeBatch)` works wherever fairdraw is installed. Hypothesis loads this by its entry point.

Nothing heavy is imported until a batch is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fairdraw.protocols import SpecDecodeBatch

__all__ = ["register"]


def register() -> None:
    """Tell Hypothesis how our types are drawn."""
    from hypothesis import strategies as st

    from fairdraw.protocols import SpecDecodeBatch

    st.register_type_strategy(SpecDecodeBatch, lambda _: _batches())


def _batches() -> SearchStrategy[SpecDecodeBatch]:
    from fairdraw.strategies import spec_decode_batches

    return spec_decode_batches()
