"""Input validation; every message has the form `function: name=value, but rule. Remedy.`"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

# A float32 softmax over 151936 tokens misses 1 by less than 1e-6, a row rounded to bfloat16 by up to 2**-9.
# Rows are normalised afterwards; anything that misses by more is no distribution.
_ROW_SUM_TOLERANCE = 2.0**-8


def refuse(function: str, given: str, rule: str, remedy: str) -> ValueError:
    """The error for a caller's mistake, to be raised."""
    return ValueError(f"{function}: {given}, but {rule}. {remedy}")


def check_probs(function: str, name: str, probs: ArrayLike) -> NDArray[np.float64]:
    """Rows of probabilities in float64, checked and normalised along the last axis.

    Raises:
        ValueError: If there is no cell, or an entry is negative, not finite, or does not sum to 1.
    """
    rows = np.asarray(probs, dtype=np.float64)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise refuse(function, f"{name}.shape={list(rows.shape)}", "there must be a cell", "Give it a width.")
    if not np.isfinite(rows).all():
        raise refuse(function, f"{name} has NaN or inf", "probabilities must be finite", "Look at the logits.")
    if (rows < 0).any():
        raise refuse(function, f"{name}.min()={rows.min():g}", "probabilities must be at least 0", "Use softmax.")
    sums = rows.sum(axis=-1, keepdims=True)
    off = sums[np.abs(sums - 1) > _ROW_SUM_TOLERANCE]
    if off.size:
        raise refuse(function, f"{name} has a row that sums to {off[0]:.6g}", "it must sum to 1", "Normalise the row.")
    return np.asarray(rows / sums)


def check_rate(function: str, name: str, rate: float) -> None:
    """Refuse an error rate or distance outside (0, 1).

    Raises:
        ValueError: If it lies outside.
    """
    if not 0 < rate < 1:
        raise refuse(function, f"{name}={rate:g}", "it must lie strictly between 0 and 1", "Use 1e-6, for example.")
