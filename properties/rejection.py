"""The checks of the rejection contract. One is registered by its definition in a module below.

1xx is what every output looks like, 2xx greedy requests, 30x and 31x relations between runs, 32x which number may
influence which token, 40x and 41x bit for bit the oracle, 42x bit for bit the real vLLM, 5xx seeds and generators, 6xx
sizes and layouts, 7xx serving traces.
"""

from __future__ import annotations

from fairdraw._core.checks import checks_in
from fairdraw.properties import _rejection_equality as equality
from fairdraw.properties import _rejection_greedy as greedy
from fairdraw.properties import _rejection_low_logits as low_logits
from fairdraw.properties import _rejection_noise as noise
from fairdraw.properties import _rejection_relations as relations
from fairdraw.properties import _rejection_seeds as seeds
from fairdraw.properties import _rejection_sizes as sizes
from fairdraw.properties import _rejection_structure as structure
from fairdraw.properties import _rejection_tiles as tiles
from fairdraw.properties import _rejection_time as time
from fairdraw.properties import _rejection_traces as serving
from fairdraw.properties import _rejection_values as values
from fairdraw.properties import _rejection_wide as wide

__all__ = ["CHECKS"]

CHECKS = checks_in(
    structure, greedy, low_logits, relations, noise, equality, seeds, sizes, tiles, time, values, wide, serving
)
