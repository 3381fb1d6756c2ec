"""Which requests are decided so clearly that the rounding of a softmax cannot change their tokens.

Padding or relabelling a vocabulary changes the order in which a softmax is summed, hence the last bits of every
probability. Relations that do so compare only requests whose decisions survive a much larger change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw.oracles.rejection import DraftStep, RejectionOracle

if TYPE_CHECKING:
    from fairdraw.protocols import ExplicitNoise, SpecDecodeBatch

__all__ = ["settled_requests"]

# Summing 151936 float32 numbers in another order moves the sum by less than 1e-6 relative; ten times that is clear.
_SHIFT = 1e-5


def settled_requests(batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[int]:
    """Requests that emit the same tokens if every target probability moves by a factor of up to `1 ± 1e-5`."""
    oracle = RejectionOracle()
    steps = oracle.steps(batch, noise)
    return [
        request
        for request, is_greedy in enumerate(batch.is_greedy.tolist())
        for own in [steps[batch.token_slice(request)]]
        if (all(map(_has_one_largest_logit, own)) if is_greedy else _is_settled(oracle, own))
    ]


def _has_one_largest_logit(step: DraftStep) -> bool:
    return int((step.target_logits == step.target_logits.max()).sum()) == 1


def _is_settled(oracle: RejectionOracle, steps: list[DraftStep]) -> bool:
    for step in steps:
        if not _acceptance_is_settled(step):
            return False
        if not oracle.accepts(step):
            return _recovery_is_settled(step)
    return True


def _acceptance_is_settled(step: DraftStep) -> bool:
    target_prob = float(step.target_probs[step.draft_token_id])
    draft_prob = 1.0 if step.draft_probs is None else float(step.draft_probs[step.draft_token_id])
    low, high = (target_prob * (1 + sign * _SHIFT) for sign in (-1, 1))
    return high < step.uniform * draft_prob or low >= step.uniform * draft_prob


def _recovery_is_settled(step: DraftStep) -> bool:
    """The winner's worst score beats every other token's best."""
    target_probs = step.target_probs.astype(np.float64)
    if step.draft_probs is None:
        draft_probs = np.where(np.arange(target_probs.size) == step.draft_token_id, np.inf, 0.0)
    else:
        draft_probs = step.draft_probs.astype(np.float64)
    low, high = (
        np.maximum(target_probs * (1 + sign * _SHIFT) - draft_probs, 0) / step.exponentials.astype(np.float64)
        for sign in (-1, 1)
    )
    winner = int(np.argmax(low))
    return bool(low[winner] > np.delete(high, winner).max(initial=0.0))
