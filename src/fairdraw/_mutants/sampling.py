"""Wrong samplers of the sampling contract, one fault each, many met in the field; and odd ones that are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._mutants import _sampling_draws, _sampling_filters
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants._sampling_mutant import GENERATORS, as_sampler
from fairdraw._mutants._sampling_odd import ODD_BUT_RIGHT
from fairdraw._oracles.sampling import SamplingOracle

if TYPE_CHECKING:
    from fairdraw.protocols import FunctionTokenSampler

__all__ = ["MUTANTS", "ODD_BUT_RIGHT", "right"]

MUTANTS: tuple[Mutant, ...] = tuple(
    value
    for module in (_sampling_filters, _sampling_draws)
    for value in vars(module).values()
    if isinstance(value, Mutant)
)


def right() -> FunctionTokenSampler:
    """The specification as a sampler: what every mutant would be without its fault."""
    return as_sampler(SamplingOracle(), "oracle", GENERATORS)
