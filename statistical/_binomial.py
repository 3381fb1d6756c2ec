"""The binomial distribution, from `scipy.special`: importing `scipy.stats` takes as long as a third of torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, betaincc, gammaln, xlog1py, xlogy


def binomial_probs(size: int, prob: float) -> NDArray[np.float64]:  # [size + 1] float64
    """Of every number of successes among `size`."""
    seen = np.arange(size + 1)
    ways = gammaln(size + 1) - gammaln(seen + 1) - gammaln(size - seen + 1)
    return np.asarray(np.exp(ways + xlogy(seen, prob) + xlog1py(size - seen, -prob)))


def binomial_tail(seen: Any, size: int, prob: Any) -> Any:  # Any: numbers, or arrays that broadcast
    """The probability of at most `seen` successes."""
    return np.where(seen >= size, 1.0, betaincc(seen + 1, np.maximum(size - seen, 1), prob))


def binomial_quantile(rate: float, size: int, prob: Any) -> Any:  # Any: as above
    """The least number of successes that at most so many has probability `rate` at least."""
    found = np.nan_to_num(np.ceil(bdtrik(rate, size, prob)))  # not a number where `prob` is 0
    found += binomial_tail(found, size, prob) < rate  # its rounding
    below = np.maximum(found - 1, 0)
    return np.where(binomial_tail(below, size, prob) >= rate, below, found)
