"""The checks of the logits-plan contract. One is registered by its definition in a module below.

10x is copies and writes, 11x equality with the specification, 12x drafts, 13x and 14x relations between steps, 16x
equality with the real vLLM.
"""

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _logits_equality as equality
from fairdraw.properties import _logits_relations as relations
from fairdraw.properties import _logits_structure as structure

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, structure, equality, relations)
