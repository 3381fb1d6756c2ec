"""Which tokens a correct sampler must keep, and which it may: supports of many rows at once, as arrays.

A token whose cumulative mass lies within rounding of `top_p` is kept by one correct sampler and removed by another; of
tokens tied at an edge some samplers keep all and some a few. `required` is what every correct sampler keeps, `allowed`
what one of them does. If both agree, the row is *settled*: its distribution is known.

A sampler that does not support `reference-rounding` computes by formulas of its own; `slack` says how far they may move
each probability. Tokens that are nearer to each other than that are in no order.

Every function here takes whole batches; `support_of` is a batch of one row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fairdraw._core.array_types import Flags, Float32s, Float64s, Ints, Rows32, Rows64
from fairdraw._oracles.sampling import Request
from fairdraw.contracts import FilterPolicy

_DENORMAL = 2.0**-149
"""Float32's least number: by so much a probability and a threshold may be rounded, however small they are."""
_ROUNDING = 1e-5
"""Relative, for ratios of probabilities; absolute, for sums of them. A float32 softmax and sum over 151936 tokens stay
within 2e-6 of the exact values, a sum in float32 from the smallest up within 1e-5."""

# Summing 151936 float32 numbers in another order moves the sum by less than 1e-6 relative; ten times that is clear.
_SHIFT = 1e-5


def log_error(*magnitudes: Any) -> Any:  # a float, or an array of the magnitudes' shape
    """Return how far formulas of a sampler's own may move a score, relative: `1e-5 + 2**-21 * (sum of magnitudes)`.

    A logit, a log-probability or the logarithm of a random number of magnitude m is rounded by up to `2**-24 * m` in
    float32. A division by the temperature, a product with its reciprocal and a difference of logarithms are a few such
    roundings; eight are granted. Both of two compared scores may move.
    """
    return _SHIFT + 2.0**-21 * sum(magnitudes)


@dataclass(frozen=True)
class Parameters:
    """What the requests of a batch ask of their rows; a filter that is off has the value that keeps every token."""

    temperature: Float32s  # [num_rows] float32, above 0
    top_k: Ints  # [num_rows] int64, `vocab_size` if off
    top_p: Float64s  # [num_rows] float64, 1 if off
    min_p: Float64s  # [num_rows] float64, 0 if off


@dataclass(frozen=True)
class Support:
    """Lower and upper bounds of rows' supports, and the distributions that are filtered.

    Arrays have a row per request, or none of that dimension if they are of one row (`row`).

    Args:
        is_distribution: Whether the row's logits have a distribution at all; NaN and +inf have none.
        is_short: Whether what is required lacks top-p's mass: every correct sampler keeps some of the others, too.
        slack: Relative; how far a probability may be from its value, beyond what float32 sums do.
    """

    required: Flags  # [num_rows, vocab_size] bool
    allowed: Flags  # [num_rows, vocab_size] bool
    probs: Float64s  # [num_rows, vocab_size] float64
    is_distribution: Flags  # [num_rows] bool
    is_short: Flags  # [num_rows] bool
    slack: Any = 0.0  # a float, or [num_rows, 1] float64

    @property
    def is_settled(self) -> Any:  # bool of one row, else [num_rows] bool
        """Whether each row has one right distribution."""
        return (self.required == self.allowed).all(axis=-1)

    def at(self, rows: Any) -> Support:  # Any: an index of NumPy
        """Return one row of many, or some of them."""
        slack = self.slack if np.ndim(self.slack) == 0 else self.slack[rows]
        return replace(self, **{name: part[rows] for name, part in vars(self).items() if name != "slack"}, slack=slack)

    def distribution(self) -> Float64s:
        """Return the filtered distributions of settled rows.

        Raises:
            ValueError: If a row is not settled: it has several right distributions.
        """
        if not np.all(self.is_settled):
            raise ValueError("distribution: required != allowed, but the support must be settled. Ask is_settled.")
        kept = np.where(self.allowed, self.probs, 0.0)
        return np.asarray(kept / kept.sum(axis=-1, keepdims=True))

    def narrowed(self, required: Flags, allowed: Flags) -> Support:
        """Return what both this and another filter keep."""
        kept = self.allowed & allowed
        is_short = self.is_short & (kept == self.allowed).all(axis=-1)  # else those that must stay may be cut, too
        return replace(self, required=self.required & required, allowed=kept, is_short=is_short)

    def under(self, probs: Float64s) -> Support:
        """Return the same tokens under another distribution, as far as it gives them probability."""
        return replace(self, probs=probs).narrowed(*_bounds(probs))


def support_of(request: Request, policy: FilterPolicy, slack: float = 0.0) -> Support | None:
    """Return the support of one random request under `policy`; `None` if its logits have no distribution."""
    size = request.logits.size
    parameters = Parameters(
        np.array([request.temperature], dtype=np.float32),
        np.array([size if request.top_k is None else request.top_k]),
        np.array([1.0 if request.top_p is None else request.top_p]),
        np.array([0.0 if request.min_p is None else request.min_p]),
    )
    found = supports_of_rows(request.logits[None], parameters, policy, slack).at(0)
    return found if found.is_distribution else None


def supports_of_rows(logits: Rows32, parameters: Parameters, policy: FilterPolicy, slack: Any = 0.0) -> Support:
    """Return the supports of random requests under `policy`; `slack` is a float, or `[num_rows, 1]` float64."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # The float32 quotient: two logits may be tied after the division that were not before.
        scaled = (logits / parameters.temperature[:, None]).astype(np.float64)
    is_distribution = np.isfinite(scaled.max(axis=1))
    is_short = np.zeros_like(is_distribution)
    safe = np.where(is_distribution[:, None], scaled, 0.0)
    at_temperature = softmax_of_rows(safe)
    if policy.temperature == "first":
        whole = Support(*_bounds(at_temperature), at_temperature, is_distribution, is_short, slack)
        return _filtered(whole, parameters, policy)
    as_given = softmax_of_rows(np.where(is_distribution[:, None], logits.astype(np.float64), 0.0))
    # A token that is too rare to be seen by a filter may be frequent enough at the temperature.
    required, _ = _bounds(as_given)
    whole = Support(required, np.ones_like(required), as_given, is_distribution, is_short, slack)
    return _filtered(whole, parameters, policy).under(at_temperature)


def softmax_of_rows(logits: Float64s) -> Rows64:
    """Return the softmax of each row."""
    with np.errstate(under="ignore"):
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _bounds(probs: Float64s) -> tuple[Flags, Flags]:
    """Return what surely and what perhaps has probability: what underflows may be 0 in one sampler only."""
    return probs >= 2.0**-120, probs >= 2.0**-151


def _filtered(whole: Support, parameters: Parameters, policy: FilterPolicy) -> Support:
    found = whole
    for name in policy.order:
        is_on, apply = _FILTERS[name]
        rows = np.flatnonzero(is_on(parameters, whole.probs.shape[1]))
        if rows.size:
            part = found.at(rows)
            seen = whole.at(rows) if policy.joint else part
            found = _put(found, rows, apply(part, seen, getattr(parameters, name)[rows, None], policy))
    return found


def _put(support: Support, rows: Ints, part: Support) -> Support:
    """Return `support` with `part` in these rows."""
    if rows.size == len(support.probs):
        return replace(part, slack=support.slack)
    parts = {name: getattr(support, name).copy() for name in ("required", "allowed", "is_short")}
    for name, whole in parts.items():
        whole[rows] = getattr(part, name)
    return replace(support, **parts)


def _near(values: Float64s, to: Float64s, slack: Any) -> Flags:
    """Whether each value may be as large as `to`, or larger, once both have moved by `slack`."""
    return np.asarray(values >= to * (1 - 2 * slack))


def _are_equal(probs: Float64s, to: Float64s, slack: Any) -> Flags:  # [num_rows, 1] bool
    """Whether what may be as large as `to` is as large as `to`, or clearly larger."""
    doubtful = _near(probs, to, slack) & (probs != to) & (probs <= to * (1 + 2 * slack))
    return np.asarray(~doubtful.any(axis=1, keepdims=True))


def _min_p(found: Support, seen: Support, min_p: Float64s, policy: FilterPolicy) -> Support:
    largest, rounding = found.probs.max(axis=1, keepdims=True), _ROUNDING + 2 * found.slack
    # One of those that may be the largest stays; the others only if all of them are equal.
    is_mode = (found.probs == largest) & _are_equal(found.probs, largest, found.slack)
    least = min_p * largest
    required = (found.probs >= least * (1 + rounding) + _DENORMAL) | is_mode
    return found.narrowed(required, found.probs >= least * (1 - rounding) - _DENORMAL)


def _top_k(found: Support, seen: Support, top_k: Ints, policy: FilterPolicy) -> Support:
    """Return what top-k leaves. The k-th largest of more tokens is larger: bounds of one bound the other."""
    slack = found.slack
    least = _kth_largest(np.where(seen.required, seen.probs, 0.0), top_k)
    most = _kth_largest(np.where(seen.allowed, seen.probs, 0.0), top_k)
    candidates = np.where(seen.allowed, seen.probs, -1.0)
    keeps_all = _near(candidates, most, slack).sum(axis=1, keepdims=True) <= top_k
    if policy.top_k_ties == "all":
        keeps_all |= _are_equal(candidates, most, slack)
    required = np.where(keeps_all, _near(found.probs, most, slack), found.probs > most * (1 + 2 * slack))
    return found.narrowed(required, _near(found.probs, least, slack))


def _kth_largest(probs: Float64s, top_k: Ints) -> Float64s:  # [num_rows, 1] float64
    """Return the k-th largest probability of each row; 0 if it has fewer."""
    place = np.clip(probs.shape[1] - top_k, 0, probs.shape[1] - 1)
    return np.take_along_axis(np.sort(probs, axis=1), place, axis=1)


def _top_p(found: Support, seen: Support, top_p: Float64s, policy: FilterPolicy) -> Support:
    """Return what top-p leaves: a token stays if what is more probable has less than `top_p` of the mass."""
    slack, rounding = found.slack, _ROUNDING + found.slack
    # Ties may leave nothing that is required.
    least_mass, most_mass = (
        np.maximum(np.where(kept, seen.probs, 0.0).sum(axis=1, keepdims=True), 2.0**-1000)
        for kept in (seen.required, seen.allowed)
    )
    ascending = np.sort(seen.probs, axis=1)
    descending = ascending[:, ::-1]
    mass = np.concatenate([np.zeros((len(descending), 1)), np.cumsum(descending, axis=1)], axis=1)

    def mass_of_larger(than: Float64s, *, or_equal: bool = False) -> Float64s:
        return np.take_along_axis(mass, ascending.shape[1] - _search(ascending, than, right=not or_equal), axis=1)

    above = mass_of_larger(seen.probs * (1 + 2 * slack))
    tied = mass_of_larger(seen.probs * (1 - 2 * slack), or_equal=True) - above
    stay_together = policy.top_p_ties == "all"
    others = np.where(np.asarray(stay_together and slack == 0), 0.0, tied - seen.probs)
    largest = descending[:, :1]
    is_mode = (seen.probs == largest) & _are_equal(seen.probs, largest, slack)
    if not stay_together:
        is_mode &= _near(seen.probs, largest, slack).sum(axis=1, keepdims=True) == 1
    required = ((above + others) / least_mass < top_p - rounding) | is_mode
    left = found.narrowed(required, above / most_mass < top_p + rounding)
    mass_required = np.where(left.required, seen.probs, 0.0).sum(axis=1, keepdims=True)
    return replace(left, is_short=(mass_required / least_mass < top_p - rounding)[:, 0] & (not policy.joint))


def _search(ascending: Float64s, values: Float64s, *, right: bool) -> Ints:
    """Return where each value would be inserted into its row: `np.searchsorted` for many rows."""
    found = torch.searchsorted(torch.from_numpy(ascending), torch.from_numpy(values), right=right)
    return np.asarray(found.numpy())


_FILTERS: dict[str, tuple[Any, Any]] = {  # Any: two functions, whether a filter is on and what it leaves
    "min_p": (lambda given, size: given.min_p > 0, _min_p),
    "top_k": (lambda given, size: given.top_k < size, _top_k),
    "top_p": (lambda given, size: given.top_p < 1, _top_p),
}
