"""Wrong samplers of the rejection contract, one fault each, many met in the field; and odd ones that are right."""

from __future__ import annotations

from fairdraw._mutants import _acceptance, _layout, _noise, _recovery
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants._odd import ODD_BUT_RIGHT
from fairdraw._oracles.rejection import verify
from fairdraw.protocols import FunctionSampler, rejection_sampler

__all__ = ["MUTANTS", "ODD_BUT_RIGHT", "Mutant", "right"]

MUTANTS: tuple[Mutant, ...] = tuple(
    value
    for module in (_acceptance, _recovery, _layout, _noise)
    for value in vars(module).values()
    if isinstance(value, Mutant)
)


def right() -> FunctionSampler:
    """The specification as a sampler: what every mutant would be without its fault."""
    return rejection_sampler(verify, name="oracle")
