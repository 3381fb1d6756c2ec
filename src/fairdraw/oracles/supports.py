"""Which tokens a right sampler must keep, and which it may: supports, with what hangs on rounding left open.

A token whose cumulative mass lies within rounding of `top_p` is kept by one right sampler and removed by another; of
tokens tied at an edge some samplers keep all and some a few. `Support.required` is what every right sampler keeps,
`Support.allowed` what one of them does. If both agree, the row is *settled*: its law is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.oracles.sampling import Request
    from fairdraw.protocols import FilterPolicy

__all__ = ["Support", "support_of"]

_ROUNDING = 1e-5
"""Relative, for ratios of probabilities; absolute, for sums of them. A float32 softmax and sum over 151936 tokens stay
within 2e-6 of the exact values, a sum in float32 from the smallest up within 1e-5."""


@dataclass(frozen=True)
class Support:
    """Lower and upper bound of a row's support, and the law that is filtered."""

    required: NDArray[np.bool_]  # [vocab_size] bool
    allowed: NDArray[np.bool_]  # [vocab_size] bool
    probs: NDArray[np.float64]  # [vocab_size] float64

    @property
    def is_settled(self) -> bool:
        return bool((self.required == self.allowed).all())

    def law(self) -> NDArray[np.float64]:  # [vocab_size] float64
        """The filtered law of a settled row.

        Raises:
            ValueError: If the row is not settled: it has several right laws.
        """
        if not self.is_settled:
            raise ValueError("law: required != allowed, but the support must be settled. Ask is_settled first.")
        kept = np.where(self.allowed, self.probs, 0.0)
        return np.asarray(kept / kept.sum())

    def narrowed(self, required: NDArray[np.bool_], allowed: NDArray[np.bool_]) -> Support:
        return Support(self.required & required, self.allowed & allowed, self.probs)

    def under(self, probs: NDArray[np.float64]) -> Support:  # [vocab_size] float64
        """The same tokens under another law, as far as it gives them probability."""
        return _whole(probs).narrowed(self.required, self.allowed)


def support_of(request: Request, policy: FilterPolicy) -> Support | None:
    """The support of one random request under `policy`; `None` if its logits have no law."""
    with np.errstate(over="ignore", invalid="ignore"):
        # The float32 quotient: two logits may be tied after the division that were not before.
        scaled = (request.logits / request.temperature).astype(np.float64)
    if not np.isfinite(scaled.max()):
        return None
    at_temperature = _softmax(scaled)
    if policy.temperature == "first":
        return _filtered(_whole(at_temperature), request, policy)
    as_given = _softmax(request.logits.astype(np.float64))
    # A token that is too rare to be seen by a filter may be frequent enough at the temperature.
    whole = replace(_whole(as_given), allowed=np.ones(as_given.size, dtype=bool))
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


def _min_p(found: Support, seen: Support, request: Request, policy: FilterPolicy) -> Support:
    if request.min_p is None:
        return found
    largest = found.probs.max()
    required = (found.probs >= request.min_p * largest * (1 + _ROUNDING)) | (found.probs == largest)
    return found.narrowed(required, found.probs >= request.min_p * largest * (1 - _ROUNDING))


def _top_k(found: Support, seen: Support, request: Request, policy: FilterPolicy) -> Support:
    """The k-th largest of more tokens is larger: bounds of the support give bounds of the threshold."""
    if request.top_k is None:
        return found
    least = _kth_largest(seen.probs[seen.required], request.top_k)
    most = _kth_largest(seen.probs[seen.allowed], request.top_k)
    tied = int((seen.probs[seen.allowed] >= most).sum())
    keeps_all = policy.top_k_ties == "all" or tied <= request.top_k
    return found.narrowed(found.probs >= most if keeps_all else found.probs > most, found.probs >= least)


def _kth_largest(probs: NDArray[np.float64], top_k: int) -> float:
    return float(np.sort(probs)[-top_k]) if top_k <= probs.size else 0.0


def _top_p(found: Support, seen: Support, request: Request, policy: FilterPolicy) -> Support:
    """A token stays if what is more probable has less than `top_p` of the mass."""
    if request.top_p is None:
        return found
    values, group, sizes = np.unique(-seen.probs, return_inverse=True, return_counts=True)
    # Ties may leave nothing that is required.
    least_mass, most_mass = (max(seen.probs[kept].sum(), 2.0**-1000) for kept in (seen.required, seen.allowed))
    mass = -values * sizes
    above = (np.cumsum(mass) - mass)[group]
    others = (mass + values)[group] if policy.top_p_ties == "some" else 0.0
    is_mode = (group == 0) & (sizes[0] == 1 or policy.top_p_ties == "all")
    required = ((above + others) / least_mass < request.top_p - _ROUNDING) | is_mode
    return found.narrowed(required, above / most_mass < request.top_p + _ROUNDING)


_FILTERS = {"min_p": _min_p, "top_k": _top_k, "top_p": _top_p}
