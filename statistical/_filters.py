"""Exact distributions of plain sampling: temperature, top-k, top-p and min-p, with a declared order and tie policy.

Engines differ in both, legitimately. vLLM filters min-p, then top-k, then top-p, each on the distribution that the
filter before left; others intersect supports found on the unfiltered distribution ("joint"). A tie at the edge of a
support may keep all tied tokens or some. A sampler declares which it does; its distribution follows. The defaults of
`FilterRule` are vLLM 0.22.0's: its top-k keeps all tied tokens, its top-p as many as the mass needs, the highest ids in
rows of up to 16 tokens. (In longer rows its sort is not stable and any of them may stay; then condition on the support
that was used, as below.)

Where a support depends on the last bit of a sum (top-p), two correct samplers may disagree about one token. Then judge
in two steps: the support that was used must lie within `nucleus_bounds`, and the tokens must follow
`conditional_probs` on *that* support. Widening the tolerance of the whole distribution instead hides real bugs (TRT-LLM
#17998).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._validation import check_probs, refuse

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["FilterRule", "TiePolicy", "conditional_probs", "filtered_probs", "nucleus_bounds"]

_FILTERS = ("top_k", "top_p", "min_p")


class TiePolicy(StrEnum):
    """Which tokens stay if several have exactly the probability at the edge of a support."""

    ALL = "all"
    LOWEST_ID = "lowest-id"
    HIGHEST_ID = "highest-id"


@dataclass(frozen=True)
class FilterRule:
    """One request's sampling parameters, and how the sampler understands them.

    Args:
        temperature: Divides the logits; 0 is greedy, the lowest id on ties.
        top_k: Keep this many of the most probable tokens; `None` keeps all.
        top_p: Keep the smallest set of most probable tokens with at least this mass; `None` keeps all.
        min_p: Keep tokens with at least this fraction of the largest probability; `None` keeps all.
        order: The filters in the order of their application.
        joint: Every filter looks at the unfiltered distribution, and the supports are intersected; otherwise each looks
            at what the filter before it left, renormalised.
        top_k_ties: Which of several tied tokens at the edge of top-k stay.
        top_p_ties: The same for top-p.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    order: tuple[str, ...] = ("min_p", "top_k", "top_p")
    joint: bool = False
    top_k_ties: TiePolicy = TiePolicy.ALL
    top_p_ties: TiePolicy = TiePolicy.HIGHEST_ID

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise refuse("FilterRule", f"temperature={self.temperature}", "it must be at least 0", "Use 0 for greedy.")
        if self.top_k is not None and self.top_k < 1:
            raise refuse("FilterRule", f"top_k={self.top_k}", "it must be at least 1", "Use None for no filter.")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise refuse("FilterRule", f"{name}={value}", "it must lie in (0, 1]", "Use None for no filter.")
        if sorted(self.order) != sorted(_FILTERS):
            raise refuse("FilterRule", f"order={self.order}", f"it must name {_FILTERS} once each", "Reorder them.")


def filtered_probs(
    logits: ArrayLike,  # [vocab_size] float32 | bfloat16 | float16
    rule: FilterRule,
) -> NDArray[np.float64]:  # [vocab_size] float64
    """The distribution of one token under `rule`; tokens outside the support have probability exactly 0.

    Raises:
        ValueError: If the logits have no distribution.
    """
    if rule.temperature == 0:
        row = np.asarray(logits, dtype=np.float64)
        return np.asarray(np.eye(row.size)[int(row.argmax())])
    unfiltered = probs = softmax_probs(logits, rule.temperature)
    for name in rule.order:
        support = _support(name, unfiltered if rule.joint else probs, rule)
        probs = conditional_probs(probs, support)
    return probs


def conditional_probs(
    probs: ArrayLike,  # [vocab_size] float64
    support: NDArray[np.bool_],  # [vocab_size] bool
) -> NDArray[np.float64]:  # [vocab_size] float64
    """The distribution given that the token lies in `support`.

    Raises:
        ValueError: If the support has no mass.
    """
    kept = np.where(support, check_probs("conditional_probs", "probs", probs), 0.0)
    mass = kept.sum()
    if mass == 0:
        raise refuse("conditional_probs", "support has no mass", "some token must be left", "Weaken the filters.")
    return np.asarray(kept / mass)


def nucleus_bounds(
    probs: ArrayLike,  # [vocab_size] float64
    top_p: float,
    tolerance: float,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # two of [vocab_size] bool
    """What a top-p support must contain and may contain, if sums are right to within `tolerance`.

    Returns:
        `(required, allowed)`: tokens that every order of summation keeps, whatever the tie policy, and tokens that some
        keep. A support `s` is admissible if `required <= s <= allowed`, elementwise.

    Raises:
        ValueError: If `probs` is not a distribution.
    """
    row = check_probs("nucleus_bounds", "probs", probs)
    values, group, sizes = np.unique(-row, return_inverse=True, return_counts=True)
    mass = -values * sizes
    above = (np.cumsum(mass) - mass)[group]
    others = (mass - np.abs(values))[group]
    is_mode = (group == 0) & (sizes[0] == 1)
    required = ((above + others < top_p - tolerance) | is_mode) & (row > 0)
    allowed = (above < top_p + tolerance) & (row > 0)
    return required, allowed


def _support(name: str, probs: NDArray[np.float64], rule: FilterRule) -> NDArray[np.bool_]:
    """The tokens that one filter keeps."""
    if name == "min_p" and rule.min_p is not None:
        return np.asarray(probs >= rule.min_p * probs.max())
    if name == "top_k" and rule.top_k is not None:
        return _leading(probs, min(rule.top_k, probs.size), rule.top_k_ties)
    if name == "top_p" and rule.top_p is not None and rule.top_p < 1:
        ranked = np.sort(probs)[::-1]
        before = np.concatenate(([0.0], np.cumsum(ranked)[:-1]))
        return _leading(probs, int((before < rule.top_p).sum()), rule.top_p_ties)
    return np.asarray(probs > 0)


def _leading(probs: NDArray[np.float64], count: int, ties: TiePolicy) -> NDArray[np.bool_]:
    """The `count` most probable tokens, and with `TiePolicy.ALL` those tied with the last of them."""
    ids = np.arange(probs.size)
    ranked = np.lexsort((-ids if ties is TiePolicy.HIGHEST_ID else ids, -probs))[:count]
    if ties is TiePolicy.ALL:
        return np.asarray((probs >= probs[ranked[-1]]) & (probs > 0))
    support = np.zeros(probs.size, dtype=bool)
    support[ranked] = True
    return np.asarray(support & (probs > 0))
