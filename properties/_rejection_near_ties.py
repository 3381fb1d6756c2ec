"""Noise that decides by a thousandth: more than any right arithmetic may lose, less than chance would ever show.

Rounding may decide a near tie, and a sampler may decide it differently from the oracle. That freedom ends at a gap of
some float32 steps. Random noise hardly ever draws a gap of a percent, so these numbers are made for the row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAP = 1e-3
"""Relative, between the best score and the second."""

_FEWEST = 1e-20


def close_race(weights: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.float32]:  # each [vocab_size]
    """Exponentials under which one token wins by a thousandth over another, both drawn, and clearly over the rest."""
    candidates = np.flatnonzero(weights > _FEWEST)
    exponentials = np.maximum(weights.astype(np.float64) * 1000, 1e-25)
    if candidates.size >= 2:
        winner, runner_up = rng.choice(candidates, 2, replace=False)
        exponentials[winner], exponentials[runner_up] = weights[winner], weights[runner_up] * (1 + GAP)
    return np.asarray(np.where(weights > 0, exponentials, 1.0), dtype=np.float32)
