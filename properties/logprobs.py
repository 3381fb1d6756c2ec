"""The checks of the log-probabilities contract. One is registered by its definition in a module below.

10x is what every answer is, 11x rows without a distribution and batches without rows, 12x values, 13x ranks, 14x and
15x relations between calls, 16x a function that draws its tokens, 20x traces.
"""

from __future__ import annotations

from fairdraw._core.checks import checks_in
from fairdraw.properties import _logprobs_relations as relations
from fairdraw.properties import _logprobs_structure as structure
from fairdraw.properties import _logprobs_traces as traces
from fairdraw.properties import _logprobs_values as values

__all__ = ["CHECKS"]

CHECKS = checks_in(structure, values, relations, traces)
