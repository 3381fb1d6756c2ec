"""The drafter: tokens, and the distributions that come with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._oracles.supports import support_of
from fairdraw.properties._sampling_asserts import (
    broken,
    call_draft,
    check,
    ordinary,
    requests_of,
    slack_of,
)
from fairdraw.protocols import Capability, TokenDrafter, filter_policy

if TYPE_CHECKING:
    from fairdraw.strategies.sampling import SamplingCase

_DISTRIBUTION = (Capability.DRAFT_DISTRIBUTION,)

# A float32 softmax over 151936 tokens is within 2e-6 of the exact one, relative; its sum within 2e-5 of 1.
_CLOSE = 1e-5


@check("SAM172", lambda can: ordinary(can, greedy=False), needs=_DISTRIBUTION)
def draft_distributions_equal_the_filtered_softmax(sampler: TokenDrafter, case: SamplingCase) -> None:
    """`draft_probs` are the softmax of logits over temperature, given the support of the filters.

    Typical: the distribution of raw logits for a draft at another temperature. Texts then follow neither model. Rows
    whose support hangs on rounding are left out.
    """
    batch, _, distributions = call_draft(sampler, case)
    for row, request in enumerate(requests_of(batch)):
        slack = slack_of(sampler, request)
        support = support_of(request, filter_policy(sampler), slack)
        if support is None or not support.is_settled:
            continue
        expected, close = support.distribution(), _CLOSE + slack
        token = int(np.argmax(np.abs(distributions[row] - expected) - close * expected))
        if not abs(distributions[row][token] - expected[token]) <= close * expected[token] + 2.0**-120:
            broken(f"draft_probs[{row}, {token}] is {distributions[row][token]:.6g} instead of {expected[token]:.6g}")


@check("SAM175", lambda can: ordinary(can, greedy=True), needs=(*_DISTRIBUTION, Capability.GREEDY))
def greedy_drafts_are_certain_of_their_token(sampler: TokenDrafter, case: SamplingCase) -> None:
    """The distribution of a greedy request's draft is 1 at its token.

    Anything else makes a verifier accept greedy drafts at the wrong rate.
    """
    _, seen, distributions = call_draft(sampler, case)
    for request, token in enumerate(seen.tokens):
        if distributions[request, token] != 1:
            broken(
                f"greedy request {request} drafted token {token}, "
                f"whose probability is {distributions[request, token]:.6g}"
            )
