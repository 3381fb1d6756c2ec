"""Evidence against a null distribution: an e-process from counts.

An e-value is a bet against the null at fair odds. If the null is true, its expectation is at most 1, so it reaches
`1 / false_fail_rate` with probability at most `false_fail_rate`, *at any time and however often it is computed*. A
p-value has no such freedom: looking ten times and stopping at the best one is cheating. E-values also average (several
statistics of the same samples, no independence needed) and multiply (fresh samples in every nightly run).

The bet is a mixture of Dirichlet alternatives centred at the null, with concentrations near the planned number of
samples: alternatives that are barely visible with that many samples lie there. (Jeffreys' concentration, 1/2 per cell,
bets on alternatives far away and loses against the near ones.) For counts `c` of `n` samples over cells `b`:

    E_n = sum_j w_j Gamma(A_j) / Gamma(A_j + n) prod_b Gamma(A_j p_b + c_b) / Gamma(A_j p_b)  /  prod_b p_b^{c_b}

Limits:
    The null is exact, and a float32 sampler follows it to rounding. That becomes evidence only with more draws than a
    run has: see "Decision" in docs/design-statistics.md.

Reference:
    Ville (1939); Ramdas, Gruenwald, Vovk, Shafer (2023), arXiv:2210.01948 (e-processes).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from fairdraw.statistical._validation import refuse

CONCENTRATIONS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
"""In units of the planned samples. Small ones find large distances early; 1 finds the designed one, and 4 finds it in
tables of many cells, where it is spread thinner. Measured at the designed distance, 4096 cells: with 4, 149 of 150 runs
are caught; without it none."""


def log_e_value(
    counts: NDArray[np.int64],  # [..., num_pools] int64
    probs: NDArray[np.float64],  # [num_pools] float64
    num_planned: int,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> NDArray[np.float64]:  # [...] float64
    """Logarithm of the e-value after these counts; 0 before the first observation.

    Args:
        probs: The null; every cell positive.
        num_planned: Samples that the plan provides for. Any value is valid; a wrong one costs power.
        concentrations: Of the mixed Dirichlet alternatives, in units of `num_planned`; fixed before the first sample.

    Error rates:
        `P(log E >= log(1 / false_fail_rate) at any checkpoint) <= false_fail_rate` under the null.

    Raises:
        ValueError: If a cell has no probability, counts and null have different cells, or nothing is planned.
    """
    if counts.shape[-1] != probs.size:
        raise refuse("log_e_value", f"counts has {counts.shape[-1]} cells", f"it must have {probs.size}", "Pool it.")
    if not (probs > 0).all():
        raise refuse("log_e_value", f"probs.min()={probs.min():g}", "every cell must be possible", "Use Pooling.pool.")
    if num_planned < 1:
        raise refuse("log_e_value", f"num_planned={num_planned}", "it must be at least 1", "Plan some samples.")
    sequences = [_log_dirichlet_multinomial(counts, probs * num_planned * size) for size in concentrations]
    mixed = mean_log_e_value(np.stack(sequences, axis=-1), np.ones(len(sequences)))
    return np.asarray(mixed - (counts * np.log(probs)).sum(axis=-1))


def mean_log_e_value(
    log_e_values: NDArray[np.float64],  # [..., num_tables] float64
    weights: NDArray[np.float64],  # [num_tables] float64
) -> NDArray[np.float64]:  # [...] float64
    """Return the logarithm of the weighted mean e-value: one decision from several statistics of the same samples.

    Error rates:
        The mean of e-values is an e-value whatever their dependence. A statistic with a share `w` of all weights loses
        `-log(w)`.
    """
    return np.asarray(logsumexp(log_e_values, axis=-1, b=weights / weights.sum()))


def _log_dirichlet_multinomial(
    counts: NDArray[np.int64],  # [..., num_pools] int64
    concentrations: NDArray[np.float64],  # [num_pools] float64
) -> NDArray[np.float64]:  # [...] float64
    """Log-probability of a sequence with these counts if its distribution is drawn from a Dirichlet distribution."""
    total = concentrations.sum()
    cells = gammaln(concentrations + counts) - gammaln(concentrations)
    return np.asarray(cells.sum(axis=-1) + gammaln(total) - gammaln(total + counts.sum(axis=-1)))
