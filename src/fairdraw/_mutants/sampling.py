"""Wrong samplers of the sampling contract, one fault each; many were found in real engines."""

from fairdraw._mutants import _sampling_draws, _sampling_filters
from fairdraw._mutants._mutant import GENERATORS, as_token_sampler, mutants_in
from fairdraw._oracles.sampling import SamplingOracle
from fairdraw.contracts import FunctionTokenSampler

MUTANTS = mutants_in(vars(_sampling_filters), vars(_sampling_draws))


def right() -> FunctionTokenSampler:
    """The specification as a sampler: what every mutant would be without its fault."""
    return as_token_sampler(SamplingOracle(), "oracle", GENERATORS)
