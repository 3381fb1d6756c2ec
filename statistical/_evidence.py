"""Evidence against a null distribution: an e-process from counts.

An e-value is a bet against the null distribution at fair odds: if the null is true its expectation is at most 1, so it
reaches `1 / false_fail_rate` with probability at most `false_fail_rate`, *at any time and however often one looks*. A
p-value has no such freedom: looking ten times and stopping at the best one is cheating. E-values also average (several
statistics of the same samples, no independence needed) and multiply (fresh samples, night after night).

The bet is a mixture of Dirichlet alternatives centred at the null distribution, with concentrations near the planned
number of samples: that is where alternatives barely visible with that many samples live. (Jeffreys' concentration, 1/2
per cell, bets on alternatives far away and loses against the near ones.) For counts `c` of `n` samples over cells `b`:

    E_n = sum_j w_j Gamma(A_j) / Gamma(A_j + n) prod_b Gamma(A_j p_b + c_b) / Gamma(A_j p_b)  /  prod_b p_b^{c_b}

Limits:
    A float32 sampler does not follow its float64 distribution exactly, and with enough samples an exact null says so.
    With a `tolerance` the denominator is the *largest* likelihood among distributions whose cells are within that
    relative distance (universal inference): E then bounds the evidence against every one of them. Every check uses
    tolerance 0.

Reference:
    Ville (1939); Wasserman, Ramdas, Balakrishnan (2020), arXiv:1912.11436 (universal inference);
    Ramdas, Gruenwald, Vovk, Shafer (2023), arXiv:2210.01948 (e-processes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, logsumexp

from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["log_e_value", "log_max_likelihood", "mean_log_e_value"]

CONCENTRATIONS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
"""In units of the planned samples. Small ones find large distances early; 1 finds the designed one, and 4 finds it in
tables of many cells, where it is spread thinner. Measured at the designed distance, 4096 cells: with 4, 149 of 150 runs
are caught; without it none."""


def log_e_value(
    counts: NDArray[np.int64],  # [..., num_pools] int64
    probs: NDArray[np.float64],  # [num_pools] float64
    num_planned: int,
    tolerance: float = 0.0,
    *,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> NDArray[np.float64]:  # [...] float64
    """Logarithm of the e-value after these counts; 0 before the first observation.

    Args:
        probs: The null distribution; every cell positive.
        num_planned: Samples that the plan provides for. Any value is valid; a wrong one costs power.
        tolerance: Relative error of a cell that is no fault; 0 for the exact null.
        concentrations: Of the mixed Dirichlet alternatives, in units of `num_planned`; fixed before the first sample.

    Error rates:
        `P(log E >= log(1 / false_fail_rate) at any look) <= false_fail_rate` under every distribution within the
        tolerance.

    Raises:
        ValueError: If a cell has no probability, counts and distribution have different cells, nothing is planned, or
            the tolerance lies outside [0, 1).
    """
    if counts.shape[-1] != probs.size:
        raise refuse("log_e_value", f"counts has {counts.shape[-1]} cells", f"it must have {probs.size}", "Pool it.")
    if not (probs > 0).all():
        raise refuse("log_e_value", f"probs.min()={probs.min():g}", "every cell must be possible", "Use Pooling.pool.")
    if num_planned < 1:
        raise refuse("log_e_value", f"num_planned={num_planned}", "it must be at least 1", "Plan some samples.")
    if not 0 <= tolerance < 1:
        raise refuse("log_e_value", f"tolerance={tolerance:g}", "it must lie in [0, 1)", "Use 0 for an exact null.")
    sequences = [_log_dirichlet_multinomial(counts, probs * num_planned * size) for size in concentrations]
    mixture = mean_log_e_value(np.stack(sequences, axis=-1))
    return np.asarray(mixture - log_max_likelihood(counts, probs, tolerance))


def log_max_likelihood(
    counts: NDArray[np.int64],  # [..., num_pools] int64
    probs: NDArray[np.float64],  # [num_pools] float64
    tolerance: float,
) -> NDArray[np.float64]:  # [...] float64
    """Largest log-likelihood of a sequence with these counts among distributions within `tolerance` of `probs`, cell by
    cell.

    The maximiser is `clip(counts * x, probs * (1 - tolerance), probs * (1 + tolerance))` with the `x` that makes it sum
    to 1. That sum is piecewise linear in `x`, so `x` is found exactly from the sorted corners, without iteration.
    """
    if tolerance == 0:
        return np.asarray((counts * np.log(probs)).sum(axis=-1))
    low, high = probs * (1 - tolerance), np.broadcast_to(probs * (1 + tolerance), counts.shape)
    scaled = np.clip(counts * _scale_to_one(counts, low, high)[..., None], low, high)
    return np.asarray((counts * np.log(scaled)).sum(axis=-1))


def mean_log_e_value(
    log_e_values: NDArray[np.float64],  # [..., num_tables] float64
    weights: NDArray[np.float64] | None = None,  # [num_tables] float64
) -> NDArray[np.float64]:  # [...] float64
    """Logarithm of the (weighted) mean e-value: one decision from several statistics of the same samples.

    Error rates:
        The mean of e-values is an e-value whatever their dependence. One strong statistic among `m` loses `log(m)`.
    """
    shares = np.ones(log_e_values.shape[-1]) if weights is None else weights
    return np.asarray(logsumexp(log_e_values, axis=-1, b=shares / shares.sum()))


def _log_dirichlet_multinomial(
    counts: NDArray[np.int64],  # [..., num_pools] int64
    concentrations: NDArray[np.float64],  # [num_pools] float64
) -> NDArray[np.float64]:  # [...] float64
    """Log-probability of a sequence with these counts if its distribution is drawn from a Dirichlet distribution."""
    total = concentrations.sum()
    cells = gammaln(concentrations + counts) - gammaln(concentrations)
    return np.asarray(cells.sum(axis=-1) + gammaln(total) - gammaln(total + counts.sum(axis=-1)))


def _scale_to_one(
    counts: NDArray[np.int64],  # [..., num_pools] int64
    low: NDArray[np.float64],  # [num_pools] float64
    high: NDArray[np.float64],  # [..., num_pools] float64
) -> NDArray[np.float64]:  # [...] float64
    """The `x` with `clip(counts * x, low, high).sum() == 1`; very large if the seen cells cannot reach 1."""
    seen = np.maximum(counts, 1)
    # A cell that was never seen stays at `low` and has no corner.
    corners = np.concatenate([low / seen, high / seen], axis=-1) * np.concatenate([counts > 0] * 2, axis=-1)
    slopes = np.concatenate([counts, -counts], axis=-1)
    order = np.argsort(corners, axis=-1)
    corners = np.take_along_axis(corners, order, axis=-1)
    slopes = np.cumsum(np.take_along_axis(slopes, order, axis=-1), axis=-1)
    rises = slopes[..., :-1] * np.diff(corners, axis=-1)
    sums = low.sum() + np.concatenate([np.zeros_like(corners[..., :1]), np.cumsum(rises, axis=-1)], axis=-1)
    reached = sums >= 1
    last = np.maximum(reached.argmax(axis=-1) - 1, 0)[..., None]
    start, slope, value = (np.take_along_axis(array, last, axis=-1)[..., 0] for array in (corners, slopes, sums))
    exact = start + (1 - value) / np.maximum(slope, 1)
    return np.asarray(np.where(reached.any(axis=-1), exact, 2 * high.max(axis=-1)))
