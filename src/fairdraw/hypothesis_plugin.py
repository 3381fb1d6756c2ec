"""`st.from_type(SpecDecodeBatch)` works wherever fairdraw is installed. Hypothesis loads this by its entry point.

Nothing heavy is imported until a batch is drawn.
"""

import importlib

__all__ = ["register"]


def register() -> None:
    """Tell Hypothesis how our types are drawn."""
    from hypothesis import strategies as st

    from fairdraw.contracts import SpecDecodeBatch

    st.register_type_strategy(
        SpecDecodeBatch, lambda _: importlib.import_module("fairdraw.strategies").spec_decode_batches()
    )
