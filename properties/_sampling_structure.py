"""What every draw is: a token of the vocabulary and of the support; without a distribution, the documented token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.checks import Stage
from fairdraw._core.sampling_harness import sample_tokens
from fairdraw.properties._sampling_asserts import (
    FILTERS,
    RACE,
    aimed_at,
    are_allowed,
    broken,
    call,
    check,
    ordinary,
    supports_of,
)
from fairdraw.strategies.sampling import sampling_cases

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from fairdraw.protocols import Capabilities, TokenSampler
    from fairdraw.strategies.sampling import SamplingCase

_TEMPERATURE = ("SAM126",)
"""Filters work on what the temperature gives: if that is wrong, their supports are others, too."""


@check("SAM101", sampling_cases, stage=Stage.SHAPE)
def token_ids_lie_in_the_vocabulary(sampler: TokenSampler, case: SamplingCase) -> None:
    """Every token id is at least 0 and below `vocab_size`.

    An id outside reads another request's embedding, or crashes the server: look at padded lanes of the last tile, and
    at an inverse CDF that falls off its end.
    """
    batch, _, seen = call(sampler, case)
    for request, token in enumerate(seen.tokens):
        if not 0 <= token < batch.vocab_size:
            broken(f"request {request} got token {token}, which leaves [0, {batch.vocab_size})")


def _lie_in_their_support(sampler: TokenSampler, case: SamplingCase) -> None:
    """The drawn tokens, and those that come when noise is aimed at the most probable token outside of each support."""
    batch, _, seen = call(sampler, case)
    supports = supports_of(sampler, batch)
    are_allowed(supports, seen.tokens)
    if sampler.capabilities.why_unsupported(RACE) is None:
        outside = [0 if s is None else int(np.argmax(np.where(s.allowed, -1.0, s.probs))) for s in supports]
        are_allowed(supports, sample_tokens(sampler, batch, aimed_at(batch, outside)).tokens)


def _filtered(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Draw requests with any filters, or with a single one."""
    found = ordinary(can, greedy=False)
    for name in (name for name, need in FILTERS.items() if need in can):
        found |= ordinary(can, greedy=False, filters=(name,))
    return found


@check("SAM102", _filtered, depends_on=_TEMPERATURE)
def tokens_lie_in_the_support_of_the_filters(sampler: TokenSampler, case: SamplingCase) -> None:
    """Every token is one that min-p, top-k and top-p, in the declared order, may keep.

    Typical: one token too many stays (`<=` at the threshold's index), the mass is added up from the wrong end, or the
    parameter is another row's. If it takes several filters, look at the order, and at what the later one is given.
    """
    _lie_in_their_support(sampler, case)


@check("SAM111", lambda can: ordinary(can, explicit=True, greedy=False, logits=("normal", "zipf", "half")), needs=RACE)
def every_token_of_the_support_can_be_drawn(sampler: TokenSampler, case: SamplingCase) -> None:
    """With noise aimed at it, the least probable token that the filters must keep is drawn.

    Otherwise a filter removes too much: top-p that stops one token early, min-p that compares with the wrong maximum,
    top-k that drops ties.
    """
    batch, _, _ = call(sampler, case)
    supports = supports_of(sampler, batch)
    targets = [0 if s is None else int(np.argmin(np.where(s.required, s.probs, np.inf))) for s in supports]
    seen = sample_tokens(sampler, batch, aimed_at(batch, targets))
    for request, support in enumerate(supports):
        target = targets[request]
        # 2**-100 outweighs every other token if the target's probability is at least 2**-90.
        if support is None or not support.required[target] or support.probs[target] < 2.0**-90:
            continue
        if seen.tokens[request] != target:
            broken(
                f"request {request} got token {seen.tokens[request]} with noise aimed at token {target}, which has "
                f"probability {support.probs[target]:.3g} and must be kept"
            )
