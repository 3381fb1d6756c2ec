"""Wrong samplers of the rejection contract, one fault each; many were found in real engines."""

from fairdraw._mutants import _acceptance, _layout, _noise
from fairdraw._mutants._mutant import mutants_in
from fairdraw._oracles.rejection import verify
from fairdraw.contracts import FunctionSampler, rejection_sampler

MUTANTS = mutants_in(vars(_acceptance), vars(_layout), vars(_noise))


def right() -> FunctionSampler:
    """The specification as a sampler: what every mutant would be without its fault."""
    return rejection_sampler(verify, name="oracle")
