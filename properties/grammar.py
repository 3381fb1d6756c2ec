"""The checks of the grammar contract: a table of contents. Each entry is a check: code, title, meaning."""

from __future__ import annotations

from fairdraw._core.checks import Check, checks_in
from fairdraw.properties import _grammar_bitmasks, _grammar_drafts

__all__ = ["CHECKS"]

CHECKS = checks_in(Check, _grammar_bitmasks, _grammar_drafts)
