"""The checks of the rejection contract. One is registered by its definition in a module below.

1xx is what every output looks like, 2xx greedy requests, 310 certain drafts, 40x bit for bit the oracle, 42x bit for
bit the real vLLM, 501 seeds, 6xx sizes, layouts and positions, 7xx serving traces.
"""

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _rejection_equality as equality
from fairdraw.properties import _rejection_greedy as greedy
from fairdraw.properties import _rejection_positions as positions
from fairdraw.properties import _rejection_structure as structure
from fairdraw.properties import _rejection_tiles as tiles
from fairdraw.properties import _rejection_traces as serving
from fairdraw.properties import _rejection_wide as wide

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, structure, greedy, equality, tiles, positions, wide, serving)
