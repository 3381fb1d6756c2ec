"""What every draw is: a token of the vocabulary and of the support; without a distribution, the documented token."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fairdraw._core.checks import Stage
from fairdraw._oracles.sampling import requests_of
from fairdraw.contracts import Capabilities, Capability, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties import _sampling_asserts as asserts
from fairdraw.properties._sampling_asserts import broken, check
from fairdraw.strategies.sampling import SamplingCase, sampling_cases


@check("SAM101", sampling_cases, stage=Stage.SHAPE)
def token_ids_lie_in_the_vocabulary(sampler: TokenSampler, case: SamplingCase) -> None:
    """Every token id is at least 0 and below `vocab_size`.

    An id outside reads another request's embedding, or crashes the server: look at padded lanes of the last tile, and
    at an inverse CDF that falls off its end.
    """
    batch, _, seen = asserts.call(sampler, case)
    for request, token in enumerate(seen.tokens):
        if not 0 <= token < batch.vocab_size:
            broken(f"request {request} got token {token}, which leaves [0, {batch.vocab_size})")


def _filtered(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Draw requests with any filters, or with a single one."""
    found = asserts.ordinary(can, greedy=False)
    for name in (name for name, need in asserts.FILTERS.items() if need in can):
        found |= asserts.ordinary(can, greedy=False, filters=(name,))
    return found


# Filters work on what the temperature gives: if that is wrong, their supports are others, too.
@check("SAM102", _filtered, depends_on=("SAM126",))
def tokens_lie_in_the_support_of_the_filters(sampler: TokenSampler, case: SamplingCase) -> None:
    """Every token is one that min-p, top-k and top-p, in the declared order, may keep.

    Typical: one token too many stays (`<=` at the threshold's index), the mass is added up from the wrong end, or the
    parameter is another row's. If it takes several filters, look at the order, and at what the later one is given.
    """
    batch, _, seen = asserts.call(sampler, case)
    supports = asserts.supports_of(sampler, batch)
    asserts.are_allowed(supports, seen.tokens)
    # Also if noise is aimed at the most probable token outside of each support.
    if sampler.capabilities.why_unsupported(asserts.RACE) is None:
        outside = [0 if s is None else int(np.argmax(np.where(s.allowed, -1.0, s.probs))) for s in supports]
        asserts.are_allowed(supports, sample_tokens(sampler, batch, asserts.aimed_at(batch, outside)).tokens)


@check(
    "SAM111",
    lambda can: asserts.ordinary(can, explicit=True, greedy=False, logits=("normal", "zipf", "half")),
    needs=asserts.RACE,
)
def every_token_of_the_support_can_be_drawn(sampler: TokenSampler, case: SamplingCase) -> None:
    """With noise aimed at it, the least probable token that the filters must keep is drawn.

    Otherwise a filter removes too much: top-p that stops one token early, min-p that compares with the wrong maximum,
    top-k that drops ties.
    """
    batch, _, _ = asserts.call(sampler, case)
    supports = asserts.supports_of(sampler, batch)
    targets = [0 if s is None else int(np.argmin(np.where(s.required, s.probs, np.inf))) for s in supports]
    seen = sample_tokens(sampler, batch, asserts.aimed_at(batch, targets))
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


def _documented(sampler: TokenSampler, case: SamplingCase) -> None:
    """Invalid rows: token 0 if random, what argmax gives if greedy."""
    batch, _, seen = asserts.call(sampler, case)
    for request, given in enumerate(requests_of(batch)):
        if np.isfinite(given.logits.max()):
            continue
        expected = int(np.argmax(given.logits)) if given.is_greedy else 0
        if seen.tokens[request] != expected:
            kind = "greedy" if given.is_greedy else "random"
            broken(f"{kind} row {request}, without a distribution, got {seen.tokens[request]} instead of {expected}")


@check(
    "SAM108",
    lambda can: sampling_cases(can, logits=("nan",)),
    needs=(Capability.NAN_LOGITS,),
    depends_on=("SAM121", "SAM141", "SAM201"),
    body=_documented,
)
def rows_with_nan_give_the_documented_token() -> None:
    """A random request whose logits hold a NaN gets token 0; a greedy one the first NaN, as `torch.argmax` has it.

    Maxima of NaN differ between devices; a documented answer does not. Greedy and random rows stand in one batch, up to
    1100 of them: if SAM121, SAM141 or SAM201 fails, too, look for rows that are taken for each other, not for NaN.
    """


@check("SAM109", lambda can: sampling_cases(can, logits=("empty",)), needs=(Capability.EMPTY_ROWS,), body=_documented)
def rows_without_any_token_give_the_documented_token() -> None:
    """A request whose logits are all -inf gets token 0.

    This happens when a grammar has ended, or two bans exclude every token.
    """
