"""Strategies of the rejection contract: whole verification steps.

Hypothesis house style: a strategy is the plural noun of what it makes; bounds come first; everything has a default
and is keyword-only; arguments are checked when the first value is drawn, not at import.

Small parts (counts, kinds, ids) are drawn by Hypothesis, so they shrink; bulk numbers follow from one drawn seed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from fairdraw.contracts import MAX_SPEC_LEN, Capabilities, Capability, SpecDecodeBatch
from fairdraw.strategies._arguments import check_kinds
from fairdraw.strategies._cases import TOKEN_KINDS, DraftRecipe, RejectionCase, RequestRecipe
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies.noise import EXPONENTIAL_KINDS, UNIFORM_KINDS
from fairdraw.strategies.rows import DRAFT_KINDS, INVALID_KINDS, TARGET_KINDS, bulk_seeds

__all__ = ["rejection_cases", "spec_decode_batches"]

Choices = tuple[tuple[Any, ...], ...]  # Any: words or flags
"""Values that each field may have."""


# Making a strategy costs Hypothesis more than drawing from it, and all examples of a check use the same few.
@lru_cache(maxsize=1024)
def _requests(
    num_requests: tuple[int, int], num_drafts: tuple[int, int], of_drafts: Choices, of_requests: Choices
) -> st.SearchStrategy[tuple[RequestRecipe, ...]]:
    draft = st.tuples(*map(st.sampled_from, of_drafts)).map(lambda words: DraftRecipe(*words))
    drafts = st.lists(draft, min_size=num_drafts[0], max_size=num_drafts[1]).map(tuple)
    request = st.tuples(drafts, *map(st.sampled_from, of_requests)).map(lambda parts: RequestRecipe(*parts))
    return st.lists(request, min_size=num_requests[0], max_size=num_requests[1]).map(tuple)


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
    name, open_to = "rejection_cases", Narrowing("rejection_cases", capabilities)
    shapes = check_kinds(name, "targets", targets, tuple(TARGET_KINDS), also=tuple(INVALID_KINDS))
    drafted = check_kinds(name, "drafts", drafts, tuple(DRAFT_KINDS))
    chosen = check_kinds(name, "tokens", tokens, TOKEN_KINDS)
    numbers = check_kinds(name, "uniforms", uniforms, UNIFORM_KINDS)
    races = check_kinds(name, "exponentials", exponentials, EXPONENTIAL_KINDS)
    sizes, counts = open_to.vocab_sizes(min_vocab_size, max_vocab_size), open_to.num_drafts(min_drafts, max_drafts)
    fewest_and_most = open_to.num_requests(min_requests, max_requests)
    forms = open_to.flags("dense", dense, true=Capability.DENSE_DRAFTS, false=Capability.ONE_HOT_DRAFTS)
    seeds = open_to.flags("request_seed", request_seed, true=Capability.REQUEST_SEEDS)
    kinds_of_noise = open_to.explicit(explicit, request_seed)
    of_requests = (open_to.flags("greedy", greedy, true=Capability.GREEDY), races, seeds)
    of_drafts = (open_to.rows("targets", shapes), drafted, open_to.tokens(chosen), numbers)
    # Sizes first and bulk numbers last: what is drawn first shrinks first.
    vocab_size = draw(vocab_sizes(*sizes))
    is_dense, is_explicit = draw(st.sampled_from(forms)), draw(st.sampled_from(kinds_of_noise))
    if is_explicit:
        of_requests = (*of_requests[:2], (False,))
    else:
        of_requests = (of_requests[0], (RequestRecipe.exponentials,), seeds)
        of_drafts = (*of_drafts[:3], (DraftRecipe.uniform,))
    is_ragged = Capability.RAGGED in capabilities
    if not is_ragged:
        counts = (draw(st.integers(*counts)),) * 2
    requests = draw(_requests(fewest_and_most, counts, of_drafts, of_requests))
    has_room = is_ragged and max(len(request.drafts) for request in requests) < MAX_SPEC_LEN
    return RejectionCase(
        vocab_size=vocab_size,
        requests=requests,
        dense=is_dense,
        explicit=is_explicit,
        dtype=draw(st.sampled_from(open_to.dtypes(dtypes))),
        layout=draw(st.sampled_from(open_to.layouts(layouts))),
        slack=draw(st.integers(0, 1)) if has_room else 0,
        synthetic=open_to.flags("synthetic", synthetic, true=Capability.SYNTHETIC_RATES)[0],
        seed=draw(bulk_seeds()),
    )


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
