"""The drafter: tokens, and the distributions that come with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from fairdraw._oracles.supports import support_of
from fairdraw.properties._sampling_asserts import (
    RACE,
    broken,
    call,
    call_draft,
    check,
    covered_rows,
    ordinary,
    requests_of,
    same_tokens,
    slack_of,
    supports_of,
)
from fairdraw.protocols import Capability, TokenDrafter, filter_policy

if TYPE_CHECKING:
    from fairdraw.protocols import Capabilities
    from fairdraw.strategies.sampling import SamplingCase

_DISTRIBUTION = (Capability.DRAFT_DISTRIBUTION,)

# A float32 softmax over 151936 tokens is within 2e-6 of the exact one, relative; its sum within 2e-5 of 1.
_CLOSE = 1e-5
_SUM = 1e-4


@check("SAM171", ordinary, needs=_DISTRIBUTION)
def draft_distributions_sum_to_one(sampler: TokenDrafter, case: SamplingCase) -> None:
    """Every row of `draft_probs` is a distribution: no entry is negative or NaN, and they sum to 1.

    A verifier divides by them. Distributions that were not normalised again after a filter accept too much.
    """
    batch, _, distributions = call_draft(sampler, case)
    for request, (distribution, given) in enumerate(zip(distributions, requests_of(batch), strict=True)):
        total = float(distribution.astype(np.float64).sum())
        if not ((distribution >= 0).all() and abs(total - 1) <= _SUM + slack_of(sampler, given)):
            broken(
                f"draft_probs of request {request} sum to {total:.6g}, their least entry is {distribution.min():.3g}"
            )


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


@check("SAM173", ordinary, needs=_DISTRIBUTION)
def drafted_tokens_have_positive_probability_in_their_distribution(sampler: TokenDrafter, case: SamplingCase) -> None:
    """A drafted token has positive probability in the distribution that is returned.

    A verifier rejects a draft of draft probability 0: the drafter then drew from another distribution than it returned.
    """
    batch, seen, distributions = call_draft(sampler, case)
    for request, token in enumerate(seen.tokens):
        if not (0 <= token < batch.vocab_size and distributions[request, token] > 0):
            broken(f"request {request} drafted token {token}, which its distribution does not give")


_BOTH_CUT = ((0.9, 0.1), (0.5, 0.1), (0.9, 0.5), (0.9, 0.01))
"""Values of top-p and min-p that both take tokens away, so that their order shows."""


def _filtered(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Half of the cases have top-p and min-p in every request: drawn apart, both cut in one batch of a hundred."""
    any_filters = ordinary(can, greedy=False)
    if Capability.TOP_P not in can or Capability.MIN_P not in can:
        return any_filters
    plain = ordinary(can, greedy=False, filters=(), min_vocab_size=8, logits=("normal", "zipf"))
    return st.one_of(any_filters, plain.map(_with_both))


def _with_both(case: SamplingCase) -> SamplingCase:
    requests = zip(case.requests, cycle(_BOTH_CUT), strict=False)
    return case.replace(requests=tuple(replace(request, top_p=p, min_p=m) for request, (p, m) in requests))


@check("SAM174", _filtered, needs=_DISTRIBUTION)
def draft_distributions_have_the_support_of_the_filters(sampler: TokenDrafter, case: SamplingCase) -> None:
    """`draft_probs` are positive on every token that the filters must keep, and 0 on every one that they must not.

    The distribution shows the mask that was really used: which token of top-p is one too many, or missing.
    """
    batch, _, distributions = call_draft(sampler, case)
    for request, support in enumerate(supports_of(sampler, batch)):
        if support is None:
            continue
        missing = np.flatnonzero(support.required & ~(distributions[request] > 0))
        extra = np.flatnonzero(~support.allowed & (distributions[request] > 0))
        if missing.size or extra.size:
            broken(f"draft_probs of request {request} miss tokens {missing[:5]} and have tokens {extra[:5]} too many")


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


@check("SAM176", lambda can: ordinary(can, explicit=True), needs=(*_DISTRIBUTION, *RACE))
def drafting_and_sampling_draw_the_same_token(sampler: TokenDrafter, case: SamplingCase) -> None:
    """With the same explicit noise, `draft` draws the token that `sample` draws.

    Two code paths for one thing drift apart: one forgets a filter.
    """
    batch, noise, sampled = call(sampler, case)
    _, drafted, _ = call_draft(sampler, case)
    same_tokens(sampled.tokens, drafted.tokens, "draft beside sample", covered_rows(sampler, batch, noise))
