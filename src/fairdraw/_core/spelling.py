"""Words that were probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], most: int = 2) -> str:
    """Return the question that ends an error; empty if no known word is near.

    Example:
        >>> did_you_mean("profil", ["sampler", "profile"])
        'Did you mean profile?'
    """
    near = difflib.get_close_matches(word, map(str, known), most)
    return f"Did you mean {' or '.join(near)}?" if near else ""
