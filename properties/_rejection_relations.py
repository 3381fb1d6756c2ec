"""310 and 501: drafts that are certain, and two runs that must agree."""

from __future__ import annotations

from fairdraw.contracts import Capability, RejectionSampler
from fairdraw.properties._rejection_asserts import (
    broken,
    check,
    emit_case,
    emitted,
    is_left_to,
    same_rows,
)
from fairdraw.properties._rejection_cases import accepting, rejecting
from fairdraw.strategies import RejectionCase


@check(
    "REJ310",
    lambda can: accepting(
        can, targets=("one-hot", "last-only"), drafts=("independent", "uniform"), tokens=("likely",), min_drafts=1
    ),
)
def drafts_that_are_certain_to_the_target_are_accepted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A draft with target probability 1 is accepted at every uniform, whatever its draft distribution.

    A grammar often leaves one legal token: a draft that guessed it must not be lost.
    """
    for answer in emitted(sampler, case):
        is_whole = answer.tokens == [*answer.drafts, answer.bonus_token_id]
        if not (is_whole or is_left_to(sampler, answer.tokens, answer.drafts)):
            broken(f"{answer}, but every draft has target probability 1")


@check("REJ501", lambda can: rejecting(can, explicit=False, greedy=None), needs=(Capability.SEEDED_NOISE,))
def the_same_seeds_give_the_same_tokens(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Two calls with fresh generators from the same seeds emit the same tokens.

    If not, some number comes from elsewhere: the clock, memory that was not initialised, a race between threads, or a
    generator that no seed reaches. The global ones of torch, NumPy and Python are seeded. If you mean to draw from
    another, declare `seeded-noise` unsupported.
    """
    _, _, first = emit_case(sampler, case)
    _, _, second = emit_case(sampler, case)
    same_rows(first.tokens, second.tokens, "a second call with the same seeds")
