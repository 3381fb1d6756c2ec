"""The checks of the grammar contract. One is registered by its definition in a module below.

10x and 11x are bitmasks, 12x and 13x grammars that are forked over drafts, 161 equality with xgrammar, 201 traces.
"""

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _grammar_bitmasks, _grammar_drafts

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, _grammar_bitmasks, _grammar_drafts)
