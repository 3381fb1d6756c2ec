"""Thousands of tokens from a seed, so that the recipe of a long request stays small."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fairdraw._core.seeds import derive_seed


@lru_cache(maxsize=512)
def bulk_tokens(size: int, vocab_size: int, distinct: int, seed: int) -> tuple[int, ...]:
    """`size` tokens of the upper three quarters of the vocabulary: ids of markers are below.

    Args:
        distinct: How many different ones at most; 0 for any number.

    Randomness:
        From the arguments alone.
    """
    if not size:
        return ()
    rng = np.random.default_rng(derive_seed("tokens of a request", size, vocab_size, distinct, seed))
    known = rng.integers(vocab_size // 4, vocab_size, size=distinct or size)
    return tuple((rng.choice(known, size) if distinct else known).tolist())
