"""Strategies of the rejection contract: whole verification steps.

Hypothesis house style: a strategy is the plural noun of what it makes; bounds come first; everything has a default
and is keyword-only; arguments are checked when the first value is drawn, not at import.

Small parts (counts, kinds, ids) are drawn by Hypothesis, so they shrink; bulk numbers follow from one drawn seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from fairdraw.contracts import MAX_SPEC_LEN, Capabilities, Capability, SpecDecodeBatch
from fairdraw.strategies._arguments import check_kinds
from fairdraw.strategies._cases import DraftRecipe, RejectionCase, RequestRecipe
from fairdraw.strategies._narrowing import CaseSpace, Kinds, Narrowing, kinds_of_drafts
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies.noise import EXPONENTIAL_KINDS
from fairdraw.strategies.rows import bulk_seeds

__all__ = ["rejection_cases", "spec_decode_batches"]


def _draft_recipes(kinds: Kinds) -> st.SearchStrategy[DraftRecipe]:
    parts = [st.sampled_from(words) for words in (kinds.targets, kinds.drafts, kinds.tokens, kinds.uniforms)]
    return st.tuples(*parts).map(lambda words: DraftRecipe(*words))


def _request_recipes(
    drafts: st.SearchStrategy[DraftRecipe],
    bounds: tuple[int, int],
    greedy: tuple[bool, ...],
    exponentials: tuple[str, ...],
    request_seed: tuple[bool, ...],
) -> st.SearchStrategy[RequestRecipe]:
    return st.tuples(
        st.lists(drafts, min_size=bounds[0], max_size=bounds[1]).map(tuple),
        st.sampled_from(greedy),
        st.sampled_from(exponentials),
        st.sampled_from(request_seed),
    ).map(lambda parts: RequestRecipe(*parts))


# Making a strategy costs Hypothesis more than drawing from it, and all examples of a check use the same few.
@lru_cache(maxsize=1024)
def _requests_of(space: CaseSpace) -> st.SearchStrategy[tuple[RequestRecipe, ...]]:
    request = _request_recipes(
        _draft_recipes(space.kinds), space.num_drafts, space.greedy, space.exponentials, space.request_seed
    )
    return st.lists(request, min_size=space.num_requests[0], max_size=space.num_requests[1]).map(tuple)


def _draw_case(draw: st.DrawFn, space: CaseSpace) -> RejectionCase:
    """Sizes first and bulk numbers last: what is drawn first shrinks first."""
    vocab_size = draw(vocab_sizes(*space.vocab_sizes))
    dense, explicit = draw(st.sampled_from(space.dense)), draw(st.sampled_from(space.explicit))
    space = space.with_noise(explicit)
    requests = _few_requests(draw, space)
    has_room = max(len(request.drafts) for request in requests) < MAX_SPEC_LEN
    return RejectionCase(
        vocab_size=vocab_size,
        requests=requests,
        dense=dense,
        explicit=explicit,
        dtype=draw(st.sampled_from(space.dtypes)),
        layout=draw(st.sampled_from(space.layouts)),
        slack=draw(st.integers(0, 1)) if space.is_ragged and has_room else 0,
        synthetic=space.synthetic,
        seed=draw(bulk_seeds()),
    )


def _few_requests(draw: st.DrawFn, space: CaseSpace) -> tuple[RequestRecipe, ...]:
    if not space.is_ragged:
        count = draw(st.integers(*space.num_drafts))
        space = replace(space, num_drafts=(count, count))
    return draw(_requests_of(space))


@st.composite
def rejection_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    min_vocab_size: int = 1,
    max_vocab_size: int = 1025,
    min_requests: int = 1,
    max_requests: int = 4,
    min_drafts: int = 0,
    max_drafts: int = 4,
    dense: bool | None = None,
    greedy: bool | None = None,
    explicit: bool | None = None,
    request_seed: bool | None = None,
    synthetic: bool = False,
    targets: Sequence[str] | None = None,
    drafts: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    uniforms: Sequence[str] | None = None,
    exponentials: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    layouts: Sequence[str] = ("contiguous",),
) -> RejectionCase:
    """Whole verification steps, as recipes: ragged batches of greedy and random requests, and their noise.

    Draws only what `capabilities` support. Upper bounds, sequences of kinds and choices left to the draw (`None`) are
    narrowed silently. What cannot be narrowed (`dense=True` where dense drafts are unsupported) is an error.

    Args:
        dense: Draft probabilities given, or one-hot drafts.
        explicit: Explicit (also adversarial) noise, or seeded noise. A sampler that supports neither gets seeds.
        request_seed: Requests have per-request seeds; `True` implies seeded noise.
        synthetic: Acceptance by given rates.
        targets: Kinds of target rows (`TARGET_KINDS`, all of them if `None`; `INVALID_KINDS` only if named).
        drafts: Kinds of draft distributions (`DRAFT_KINDS`); one-hot drafts use them to choose the drafted token.
        tokens: Which token is drafted (`TOKEN_KINDS`).
        uniforms: Kinds of acceptance uniforms (`UNIFORM_KINDS`; explicit noise only).
        exponentials: Kinds of the race's exponentials (`EXPONENTIAL_KINDS`; explicit noise only).
        dtypes: Of the target logits (`DTYPES`).
        layouts: Strides of the target logits (`LAYOUTS`).

    Raises:
        TypeError, ValueError: If a bound or kind is invalid, options contradict each other, or a requirement is
            unsupported; when the first case is drawn.

    Example:
        >>> from hypothesis import given
        >>> @given(rejection_cases(max_requests=2))
        ... def test_mine(case):
        ...     batch, noise = case.batch(), case.noise()
    """
    kinds = kinds_of_drafts("rejection_cases", targets, drafts, tokens, uniforms)
    open_to = Narrowing("rejection_cases", capabilities)
    space = CaseSpace(
        vocab_sizes=open_to.vocab_sizes(min_vocab_size, max_vocab_size),
        num_requests=open_to.num_requests(min_requests, max_requests),
        num_drafts=open_to.num_drafts(min_drafts, max_drafts),
        is_ragged=Capability.RAGGED in capabilities,
        dense=open_to.flags("dense", dense, true=Capability.DENSE_DRAFTS, false=Capability.ONE_HOT_DRAFTS),
        greedy=open_to.flags("greedy", greedy, true=Capability.GREEDY),
        explicit=open_to.explicit(explicit, request_seed),
        request_seed=open_to.flags("request_seed", request_seed, true=Capability.REQUEST_SEEDS),
        kinds=open_to.kinds(kinds),
        exponentials=check_kinds("rejection_cases", "exponentials", exponentials, EXPONENTIAL_KINDS),
        dtypes=open_to.dtypes(dtypes),
        layouts=open_to.layouts(layouts),
        synthetic=open_to.flags("synthetic", synthetic, true=Capability.SYNTHETIC_RATES)[0],
    )
    return _draw_case(draw, space)


_PLAIN_NOISE: dict[str, Any] = {  # Any: one type each
    "explicit": True,
    "uniforms": (DraftRecipe.uniform,),
    "exponentials": (RequestRecipe.exponentials,),
}


@st.composite
def spec_decode_batches(
    draw: st.DrawFn, /, *, device: str = "cpu", **choices: Any
) -> SpecDecodeBatch:  # Any: of `rejection_cases`
    """Batches ready for a sampler; each prints as the code that builds it. Arguments as for `rejection_cases`, but for
    those of noise.

    Raises:
        TypeError, ValueError: If an argument is unknown or invalid; when the first batch is drawn.

    Example:
        >>> from hypothesis import given
        >>> @given(spec_decode_batches(dense=True))
        ... def test_mine(batch):
        ...     assert batch.draft_probs is not None
    """
    return draw(rejection_cases(**_PLAIN_NOISE, **choices)).batch(device)
