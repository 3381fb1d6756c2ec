"""The checks of the filters contract. One is registered by its definition in a module below.

10x and 11x are single filters, 15x DRY, 16x mirostat, 20x traces.
"""

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _filters_chains as chains

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, chains)
