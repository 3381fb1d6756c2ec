"""Which requests are decided so clearly that rounding cannot change their tokens, and which a sampler's word covers.

If a sampler does not support `reference-rounding`, its formulas are its own, and its answer may differ from the
oracle's where two scores are nearer than the error model allows, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairdraw._core.array_types import Row32, Row64
from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw._oracles.supports import log_error
from fairdraw.contracts import Capability, ExplicitNoise, RejectionSampler, SpecDecodeBatch

# Two float32 scores that are equal after rounding are nearer than this, relative to each other.
TIE = 2.0**-22

# A shift that settles nothing.
_ANY = 2.0**1000

# A probability below this may underflow in float32, or be kept by a sampler that works with logarithms.
UNDERFLOW = 2.0**-120


def covered_requests(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[int]:
    """Requests whose tokens the sampler specifies: all except near ties and ties that it leaves open.

    Without `reference-rounding` these are the requests that no rounding of `log_error` can change; without
    `lowest-id-ties` also none whose greedy tokens or best scores are tied. What is drawn in a way that the suite does
    not know, and rounded freely, is not covered: a recovered token without `reference-race`, an acceptance without
    `token-verification`.
    """
    has_rounding, has_ties = (
        one in sampler.capabilities for one in (Capability.REFERENCE_ROUNDING, Capability.LOWEST_ID_TIES)
    )
    if has_rounding and has_ties:
        return list(range(batch.batch_size))

    def own_shifts(step: DraftStep) -> Shifts:
        known = zip((Capability.TOKEN_VERIFICATION, Capability.REFERENCE_RACE), _own_shifts(step), strict=True)
        of_acceptance, of_recovery = (shift if one in sampler.capabilities else _ANY for one, shift in known)
        return of_acceptance, of_recovery

    shifts = _tie_shifts if has_rounding else own_shifts
    return _settled(batch, noise, shifts, are_ties_open=not has_ties)


Shifts = tuple[float, float]
"""How far probabilities may move where a draft is accepted, and where a token is recovered; relative."""


def _tie_shifts(step: DraftStep) -> Shifts:
    return 0.0, _ANY if overflows(step.exponentials) else TIE


def overflows(exponentials: Row32 | Row64) -> bool:
    """Whether float32 scores may be infinite, hence equal: torch's generators draw no such exponentials."""
    return bool((exponentials < np.finfo(np.float32).tiny).any())


def _own_shifts(step: DraftStep) -> Shifts:
    logits = step.target_logits[np.isfinite(step.target_logits)]
    largest = float(np.abs(logits).max(initial=0.0))
    uniform = -float(np.log(max(step.uniform, 2.0**-1074)))
    exponential = float(np.abs(np.log(step.exponentials)).max(initial=0.0))
    return log_error(largest, uniform), _ANY if overflows(step.exponentials) else log_error(largest, exponential)


def _settled(
    batch: SpecDecodeBatch, noise: ExplicitNoise, shifts: Callable[[DraftStep], Shifts], *, are_ties_open: bool
) -> list[int]:
    oracle = RejectionOracle()
    steps = oracle.steps(batch, noise)
    return [
        request
        for request, is_greedy in enumerate(batch.is_greedy.tolist())
        for own in [steps[batch.token_slice(request)]]
        if (
            not are_ties_open or all(has_one_largest(step.target_logits) for step in own)
            if is_greedy
            else _is_settled(oracle, own, shifts)
        )
    ]


def has_one_largest(logits: Row32) -> bool:
    return int((logits == logits.max()).sum()) == 1


def _is_settled(oracle: RejectionOracle, steps: list[DraftStep], shifts: Callable[[DraftStep], Shifts]) -> bool:
    for step in steps:
        of_acceptance, of_recovery = shifts(step)
        if of_acceptance and not _acceptance_is_settled(step, of_acceptance):
            return False
        if not oracle.accepts(step):
            return of_recovery < _ANY and _recovery_is_settled(step, of_recovery)
    return True


def _acceptance_is_settled(step: DraftStep, shift: float) -> bool:
    """Rates and placeholders decide without a probability; a token that is masked is never accepted."""
    if step.synthetic_rate is not None or not step.is_token:
        return True
    low, high = (bound[step.draft_token_id] for bound in _bounds(step, shift))
    draft_prob = 1.0 if step.draft_probs is None else float(step.draft_probs[step.draft_token_id])
    if high == 0 or draft_prob == 0:
        return True
    threshold = step.uniform * draft_prob
    return bool(high < threshold or (low > 0 and low >= threshold))


def _bounds(step: DraftStep, shift: float) -> tuple[Row64, Row64]:
    """The least and the greatest probability that another rounding may give each token."""
    probs = step.target_probs.astype(np.float64)
    slack = np.where(probs < UNDERFLOW, UNDERFLOW, 0.0)
    low, high = np.maximum(probs * (1 - shift) - slack, 0), probs * (1 + shift) + slack
    return low, np.where(step.target_logits == -np.inf, 0.0, high)


def _recovery_is_settled(step: DraftStep, shift: float) -> bool:
    """The winner's worst score beats every other token's best."""
    bounds = _bounds(step, shift)
    if step.draft_probs is None:
        ids = np.arange(step.target_probs.size)
        draft_probs = np.where(step.is_token & (ids == step.draft_token_id), np.inf, 0.0)
    else:
        draft_probs = step.draft_probs.astype(np.float64)
    low, high = (np.maximum(bound - draft_probs, 0) / step.exponentials.astype(np.float64) for bound in bounds)
    winner = int(np.argmax(low))
    return bool(low[winner] > np.delete(high, winner).max(initial=0.0))
