"""The three distributions of a drafted position, in float64, from the very logits that the sampler got.

* The target distribution is what the output must follow.
* The draft distribution is what the draft token was drawn from, and what the sampler gets as `draft_probs`.
* The residual is what a recovered token follows: `max(target - draft, 0)`, normalised.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from fairdraw._core.array_types import AnyRows64
from fairdraw.statistical._validation import refuse

ROUNDING = 2.0**-20
"""Relative gap of target and draft below which a float32 sampler may get either sign: 8 units in the last place."""


def softmax_probs(logits: ArrayLike, temperature: float = 1.0) -> AnyRows64:
    """The distribution that stored logits stand for, in float64 whatever their own type.

    Raises:
        ValueError: If the temperature is not positive, or a row has NaN, +inf, or nothing but -inf.
    """
    rows = np.asarray(logits, dtype=np.float64)
    if not temperature > 0:
        given = f"temperature={temperature:g}"
        raise refuse("softmax_probs", given, "it must be positive", "Greedy rows have no distribution.")
    if np.isnan(rows).any() or (rows == np.inf).any() or (rows.max(axis=-1) == -np.inf).any():
        given = "a row has NaN, +inf or only -inf"
        raise refuse("softmax_probs", given, "it must have a distribution", "Look at the logits.")
    probs: NDArray[np.float64] = softmax(rows / temperature, axis=-1)
    return probs


def acceptance_probs(target: AnyRows64, draft: AnyRows64) -> AnyRows64:
    """`min(1, target / draft)` per token; 0 for a token that the drafter cannot draw, as in vLLM."""
    return np.minimum(_quotient(target, draft), 1.0)


def residual_probs(target: AnyRows64, draft: AnyRows64) -> AnyRows64:
    """`max(target - draft, 0)`, normalised; zeros where target and draft are equal (nothing is ever rejected there)."""
    excess = np.maximum(target - draft, 0.0)
    return _quotient(excess, excess.sum(axis=-1, keepdims=True))


def recoverable(target: AnyRows64, draft: AnyRows64) -> NDArray[np.bool_]:  # [..., vocab_size] bool
    """Tokens that a correct float32 sampler may recover; an observation of any other token is a failure."""
    return np.asarray((target > 0) & (target > (1 - ROUNDING) * draft))


def _quotient(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quotient, and 0 where the denominator is 0."""
    zeros = np.zeros(np.broadcast_shapes(numerator.shape, denominator.shape))
    with np.errstate(over="ignore"):
        return np.divide(numerator, denominator, out=zeros, where=denominator > 0)
