"""The checks of the log-probabilities contract. One is registered by its definition in a module below.

10x is what every answer is, 13x ranks, 14x relations between calls, 16x a function that draws its tokens, 20x traces of
calls, which hold every row against the specification: values, lists, ranks and rows without a distribution.
"""

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _logprobs_relations as relations

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, relations)
