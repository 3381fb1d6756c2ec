"""Which tokens a correct sampler must keep, and which it may: supports, with tokens that depend on rounding left open.

A token whose cumulative mass lies within rounding of `top_p` is kept by one correct sampler and removed by another; of
tokens tied at an edge some samplers keep all and some a few. `Support.required` is what every correct sampler keeps,
`Support.allowed` what one of them does. If both agree, the row is *settled*: its distribution is known.

A sampler that does not support `reference-rounding` computes by formulas of its own; `slack` says how far they may move
each probability. Tokens that are nearer to each other than that are in no order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw._oracles.sampling import Request
    from fairdraw.protocols import FilterPolicy

_DENORMAL = 2.0**-149
"""Float32's least number: by so much a probability and a threshold may be rounded, however small they are."""
_ROUNDING = 1e-5
"""Relative, for ratios of probabilities; absolute, for sums of them. A float32 softmax and sum over 151936 tokens stay
within 2e-6 of the exact values, a sum in float32 from the smallest up within 1e-5."""


@dataclass(frozen=True)
class Support:
    """Lower and upper bound of a row's support, and the distribution that is filtered."""

    required: NDArray[np.bool_]  # [vocab_size] bool
    allowed: NDArray[np.bool_]  # [vocab_size] bool
    probs: NDArray[np.float64]  # [vocab_size] float64
    slack: float = 0.0

    @property
    def is_settled(self) -> bool:
        return bool((self.required == self.allowed).all())

    def distribution(self) -> NDArray[np.float64]:  # [vocab_size] float64
        """The filtered distribution of a settled row.

        Raises:
            ValueError: If the row is not settled: it has several right distributions.
        """
        if not self.is_settled:
            raise ValueError(
                "distribution: required != allowed, but the support must be settled. Ask is_settled first."
            )
        kept = np.where(self.allowed, self.probs, 0.0)
        return np.asarray(kept / kept.sum())

    def narrowed(self, required: NDArray[np.bool_], allowed: NDArray[np.bool_]) -> Support:
        return replace(self, required=self.required & required, allowed=self.allowed & allowed)

    def under(self, probs: NDArray[np.float64]) -> Support:  # [vocab_size] float64
        """The same tokens under another distribution, as far as it gives them probability."""
        return replace(_whole(probs), slack=self.slack).narrowed(self.required, self.allowed)


def support_of(request: Request, policy: FilterPolicy, slack: float = 0.0) -> Support | None:
    """The support of one random request under `policy`; `None` if its logits have no distribution.

    Args:
        slack: Relative; how far a probability may be from its value, beyond what float32 sums do.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # The float32 quotient: two logits may be tied after the division that were not before.
        scaled = (request.logits / request.temperature).astype(np.float64)
    if not np.isfinite(scaled.max()):
        return None
    at_temperature = _softmax(scaled)
    if policy.temperature == "first":
        return _filtered(replace(_whole(at_temperature), slack=slack), request, policy)
    as_given = _softmax(request.logits.astype(np.float64))
    # A token that is too rare to be seen by a filter may be frequent enough at the temperature.
    whole = replace(_whole(as_given), allowed=np.ones(as_given.size, dtype=bool), slack=slack)
    return _filtered(whole, request, policy).under(at_temperature)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:  # [vocab_size] float64
    with np.errstate(under="ignore"):
        weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _whole(probs: NDArray[np.float64]) -> Support:  # [vocab_size] float64
    """A probability that underflows in float32 may be 0 in one sampler and denormal in another."""
    return Support(probs >= 2.0**-120, probs >= 2.0**-151, probs)


def _filtered(whole: Support, request: Request, policy: FilterPolicy) -> Support:
    found = whole
    for name in policy.order:
        seen = whole if policy.joint else found
        found = _FILTERS[name](found, seen, request, policy)
    return found


def _near(values: NDArray[np.float64], to: float, slack: float) -> NDArray[np.bool_]:
    """Which of these may be as large as `to`, or larger, once both have moved by `slack`."""
    return np.asarray(values >= to * (1 - 2 * slack))


def _min_p(found: Support, seen: Support, request: Request, policy: FilterPolicy) -> Support:
    if request.min_p is None:
        return found
    largest, rounding = found.probs.max(), _ROUNDING + 2 * found.slack
    # One of those that may be the largest stays; the others only if all of them are equal.
    is_mode = (found.probs == largest) & _are_equal(found.probs, largest, found.slack)
    least = request.min_p * largest
    required = (found.probs >= least * (1 + rounding) + _DENORMAL) | is_mode
    return found.narrowed(required, found.probs >= least * (1 - rounding) - _DENORMAL)


def _are_equal(probs: NDArray[np.float64], to: float, slack: float) -> bool:
    """Whether what may be as large as `to` is as large as `to`, or clearly larger."""
    return not bool((_near(probs, to, slack) & (probs != to) & (probs <= to * (1 + 2 * slack))).any())


def _top_k(found: Support, seen: Support, request: Request, policy: FilterPolicy) -> Support:
    """The k-th largest of more tokens is larger: bounds of the support give bounds of the threshold."""
    if request.top_k is None:
        return found
    least = _kth_largest(seen.probs[seen.required], request.top_k)
    most = _kth_largest(seen.probs[seen.allowed], request.top_k)
    candidates, slack = seen.probs[seen.allowed], found.slack
    keeps_all = int(_near(candidates, most, slack).sum()) <= request.top_k
    if keeps_all or (policy.top_k_ties == "all" and _are_equal(candidates, most, slack)):
        required = _near(found.probs, most, slack)
    else:
        required = found.probs > most * (1 + 2 * slack)
    return found.narrowed(required, _near(found.probs, least, slack))


def _kth_largest(probs: NDArray[np.float64], top_k: int) -> float:
    return float(np.sort(probs)[-top_k]) if top_k <= probs.size else 0.0


def _top_p(found: Support, seen: Support, request: Request, policy: FilterPolicy) -> Support:
    """A token stays if what is more probable has less than `top_p` of the mass."""
    if request.top_p is None:
        return found
    slack, rounding = found.slack, _ROUNDING + found.slack
    # Ties may leave nothing that is required.
    least_mass, most_mass = (max(seen.probs[kept].sum(), 2.0**-1000) for kept in (seen.required, seen.allowed))
    descending = np.sort(seen.probs)[::-1]
    mass = np.append(0.0, np.cumsum(descending))
    above = mass[np.searchsorted(-descending, -seen.probs * (1 + 2 * slack), side="left")]
    tied = mass[np.searchsorted(-descending, -seen.probs * (1 - 2 * slack), side="right")] - above
    stay_together = policy.top_p_ties == "all"
    others = 0.0 if stay_together and not slack else tied - seen.probs
    is_mode = seen.probs == descending[0]
    if not (_near(seen.probs, descending[0], slack).sum() == 1 or stay_together):
        is_mode = np.zeros_like(is_mode)
    is_mode &= _are_equal(seen.probs, descending[0], slack)
    required = ((above + others) / least_mass < request.top_p - rounding) | is_mode
    return found.narrowed(required, above / most_mass < request.top_p + rounding)


_FILTERS = {"min_p": _min_p, "top_k": _top_k, "top_p": _top_p}
