"""The checks of the sampling contract. One is registered by its definition in a module below.

10x and 11x is what every draw is, 12x greedy requests and temperature, 14x and 15x bit for bit, 16x seeds, generators
and counters, 18x sizes and values of production, 19x time, noise of the sampler's own and tiles, 20x serving traces.
"""

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _sampling_equality as equality
from fairdraw.properties import _sampling_noise as noise
from fairdraw.properties import _sampling_relations as relations
from fairdraw.properties import _sampling_structure as structure
from fairdraw.properties import _sampling_sweeps as sweeps
from fairdraw.properties import _sampling_tiles as tiles
from fairdraw.properties import _sampling_traces as serving

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, structure, relations, equality, tiles, sweeps, noise, serving)
