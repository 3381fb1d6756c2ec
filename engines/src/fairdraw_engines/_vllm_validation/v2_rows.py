"""What a processed row of ours may be to vLLM's: equal, or one of the declared cases, which are counted.

Everywhere:

    ties        top-p keeps all tokens that tie with its last one; vLLM keeps those that its sort put first
    edges       a share or threshold that is reached within 2**-20
    zeros       where another request has filters, vLLM takes out tokens whose probability is 0 in float32

With compiled kernels only, as `Leeway` says of each row:

    rounding    Triton compiles vLLM's `/` to a division with an error of up to 2 ulp (`div.full`), and a product that
                is subtracted to one operation that rounds once (FMA). Ours divides exactly and rounds each operation,
                as the interpreter does. A row with neither division nor such a product must be equal bit for bit.
    searched    with vLLM's Triton filters: they search a pivot by at most 18 halvings of probabilities, and keep or
                drop tokens whose probability is that near to that of the last that both keep

A row can have rounding and another case: "edges and rounding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw_engines._vllm_validation.v2_server import Part

EDGE = 2.0**-20
"""Relative rounding of the step's sums, as its documentation declares."""
DIVISION_ULPS = 2
"""Error of `div.full`, by PTX's manual, against a quotient that is rounded to the nearest: 2.5 at most, and whole."""
PENALTY_ROUNDINGS = 18
"""Roundings of a number with penalties, in units of 2**-24 of the largest number on the way. vLLM's: 4 for 1 /
repetition, 1 for its product, 2 for two subtractions, 4 for the temperature. Ours: 7 operations."""
SEARCH = 2.0**-17
"""Error of a probability: the last of 18 halvings, and as much again for float32 sums."""

KEPT_ALIKE = "equal rows"
CASES = ("ties", "edges", "zeros", "searched")
KNOWN = (KEPT_ALIKE, "rounding", *CASES, *(f"{case} and rounding" for case in CASES))
"""Words for what rows may be to each other. Those with rounding, and `searched`, need a leeway."""


@dataclass(frozen=True)
class Leeway:
    """Leeway of vLLM's compiled kernels in one row: by how much they may differ from ours. Nothing, as in the
    interpreter.

    Args:
        ulps: Of each number.
        reach: The largest number on the way to each, of which it may miss `PENALTY_ROUNDINGS` units; `None`: none.
        searched: vLLM's filters search.
    """

    ulps: int = 0
    reach: Tensor | None = None  # [vocab_size] float64
    searched: bool = False

    def used(
        self,
        theirs: Tensor,  # [vocab_size] float32
        ours: Tensor,  # [vocab_size] float32
    ) -> float:
        """Return the largest difference of two finite numbers, as a share of what is allowed: 0 if all are equal,
        infinite if nothing is allowed."""
        both = theirs.isfinite() & ours.isfinite() & (theirs != ours)
        if not both.any():
            return 0.0
        largest = torch.maximum(theirs[both].abs(), ours[both].abs())  # [num_different] float32
        allowed = self.ulps * np.spacing(largest.numpy()).astype(np.float64)  # [num_different] float64
        if self.reach is not None:
            allowed = allowed + PENALTY_ROUNDINGS * 2.0**-24 * self.reach[both].numpy()
        differences = (theirs[both].double() - ours[both].double()).abs().numpy()  # [num_different] float64
        with np.errstate(divide="ignore"):
            return float((differences / allowed).max())


NO_LEEWAY = Leeway()


def leeway_of(part: Part, place: int, *, searched: bool = False) -> Leeway:
    """Return the leeway of the row behind `place` drafts, where kernels are compiled."""
    params = part.request.params
    ulps = 0 if np.float32(params.temperature) in (0.0, 1.0) else DIVISION_ULPS
    if params.repetition_penalty == 1.0 and params.frequency_penalty == 0.0:
        return Leeway(ulps, None, searched)
    return Leeway(0, _reach(part, place), searched)


def _reach(part: Part, place: int) -> Tensor:  # [vocab_size] float64
    """Return the largest number on the way from a logit to the processed one: every step adds what it can."""
    request, params = part.request, part.request.params
    reach = part.logits[place].double().abs().nan_to_num(posinf=0.0)  # [vocab_size] float64
    for token_id, bias in (params.logit_bias or {}).items():
        reach[token_id] += abs(bias)
    output = torch.tensor([*request.tokens[request.prompt_len :], *part.drafts[:place]], dtype=torch.int64)
    times = output.bincount(minlength=len(reach)).double()  # [vocab_size] float64
    reach *= max(params.repetition_penalty, 1 / params.repetition_penalty)
    reach += abs(params.frequency_penalty) * times + abs(params.presence_penalty) * (times > 0)
    return reach / (params.temperature or 1.0)


def compare_rows(
    theirs: Tensor,  # [vocab_size] float32
    ours: Tensor,  # [vocab_size] float32
    params: Any,  # Any: vLLM's SamplingParams
    leeway: Leeway = NO_LEEWAY,
) -> str:
    """Return one of `KNOWN`, or what differs."""
    if torch.equal(theirs, ours):
        return KEPT_ALIKE
    used = leeway.used(theirs, ours)
    if used > 1:
        return "processed logits differ"
    if torch.equal(theirs.isfinite(), ours.isfinite()):
        return "rounding" if used else "numbers that are not finite differ"
    kind = _kind_of_kept_sets(theirs, ours, params, leeway)
    return f"{kind} and rounding" if used and kind in CASES else kind


def _kind_of_kept_sets(
    theirs: Tensor,  # [vocab_size] float32
    ours: Tensor,  # [vocab_size] float32
    params: Any,  # Any: as above
    leeway: Leeway,
) -> str:
    both = theirs.isfinite() & ours.isfinite()  # [vocab_size] bool, as the next two
    more, fewer = ours.isfinite() & ~both, theirs.isfinite() & ~both
    can_tie = params.top_p < 1 or (leeway.searched and params.top_k > 0)
    if both.any() and can_tie and not fewer.any() and bool((ours[more] == ours[both].min()).all()):
        return "ties"
    if params.top_p == 1 and not fewer.any() and bool((ours.softmax(-1)[more] == 0).all()):
        return "zeros"
    kept = ours if more.any() else theirs
    if _is_at_an_edge(kept, params, bool(more.any()) and bool(fewer.any())):
        return "edges"
    return "searched" if leeway.searched and _is_near_the_last(theirs, ours, params) else "kept sets differ"


def _is_at_an_edge(
    kept: Tensor,  # [vocab_size] float32, of the side that keeps more
    params: Any,  # Any: as above
    both: bool,
) -> bool:
    """Whether the last of them is kept by rounding alone."""
    weights = (kept.double() - kept.max()).exp()
    least = kept[kept.isfinite()].min()
    without = float(weights[kept > least].sum() / weights.sum())
    by_share = params.top_p < 1 and abs(without - params.top_p) < EDGE
    threshold = float(kept.max()) + float(np.log(params.min_p)) if params.min_p > 0 else -np.inf
    return not both and (by_share or abs(float(least) - threshold) < EDGE * max(1.0, abs(threshold)))


def _is_near_the_last(
    theirs: Tensor,  # [vocab_size] float32
    ours: Tensor,  # [vocab_size] float32
    params: Any,  # Any: as above
) -> bool:
    """Whether all tokens that one side keeps alone are as probable as the last that both keep, within `SEARCH`."""
    both = ours.isfinite() & theirs.isfinite()
    if params.top_p == 1 or not both.any():
        return False
    probs = torch.where(ours.isfinite(), ours, theirs).double().softmax(-1)  # [vocab_size] float64
    last = probs[both].min()
    alone = ours.isfinite() != theirs.isfinite()
    return bool(((probs[alone] - last).abs() <= SEARCH).all())
