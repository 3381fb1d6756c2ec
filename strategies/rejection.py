"""Strategies of the rejection contract: from one uniform to a whole verification step.

Hypothesis house style: a strategy is the plural noun of what it makes; bounds come first; everything has a default
and is keyword-only; arguments are checked when the first value is drawn, not at import.

Small parts (counts, kinds, ids) are drawn by Hypothesis, so they shrink; bulk numbers follow from one drawn seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from fairdraw.protocols import MAX_SPEC_LEN, Capabilities, Capability, SpecDecodeBatch
from fairdraw.strategies._cases import (
    DTYPES,
    EXPONENTIAL_KINDS,
    LAYOUTS,
    TOKEN_KINDS,
    UNIFORM_KINDS,
    DraftRecipe,
    RejectionCase,
    RequestRecipe,
)
from fairdraw.strategies.rows import DRAFT_KINDS, TARGET_KINDS

__all__ = [
    "AWKWARD_VOCAB_SIZES",
    "LARGE_VOCAB_SIZES",
    "draft_recipes",
    "rejection_cases",
    "request_recipes",
    "spec_decode_batches",
    "vocab_sizes",
]

AWKWARD_VOCAB_SIZES = (31, 100, 1023, 1024, 1025)
"""Off and on the edges of small kernel tiles."""

LARGE_VOCAB_SIZES = (8191, 8192, 8193, 32000, 128256, 151936)
"""Edges of an 8192 tile, and the vocabularies of Llama 2, Llama 3 and Qwen 2."""


def _check_interval(function: str, low_name: str, low: int, high_name: str, high: int) -> None:
    if not 0 <= low <= high:
        raise ValueError(
            f"{function}: {low_name}={low}, {high_name}={high}, but they must satisfy 0 <= {low_name} <= {high_name}. "
            "Swap or widen them."
        )


@st.composite
def vocab_sizes(draw: st.DrawFn, min_size: int = 1, max_size: int = 1025) -> int:
    """Vocabulary sizes: mostly tiny (they shrink and print), now and then on the edge of a kernel tile."""
    _check_interval("vocab_sizes", "min_size", min_size, "max_size", max_size)
    if min_size < 1:
        raise ValueError(f"vocab_sizes: min_size={min_size}, but it must be at least 1. Use 1.")
    tiny = st.integers(min_size, min(max(8, min_size), max_size))
    edges = [size for size in AWKWARD_VOCAB_SIZES + LARGE_VOCAB_SIZES if min_size <= size <= max_size]
    return draw(st.one_of(tiny, tiny, tiny, st.sampled_from(edges)) if edges else tiny)


@st.composite
def draft_recipes(
    draw: st.DrawFn,
    *,
    targets: Sequence[str] | None = None,
    drafts: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    uniforms: Sequence[str] | None = None,
) -> DraftRecipe:
    """One drafted position.

    Args:
        targets: Kinds of target rows (`TARGET_KINDS`, all of them if `None`; `LAWLESS_KINDS` only if named).
        drafts: Kinds of draft laws (`DRAFT_KINDS`).
        tokens: Which token is drafted (`TOKEN_KINDS`).
        uniforms: Acceptance uniforms, adversarial ones among them (`UNIFORM_KINDS`).
    """
    return DraftRecipe(
        target=draw(st.sampled_from(list(targets or TARGET_KINDS))),
        draft=draw(st.sampled_from(list(drafts or DRAFT_KINDS))),
        token=draw(st.sampled_from(list(tokens or TOKEN_KINDS))),
        uniform=draw(st.sampled_from(list(uniforms or UNIFORM_KINDS))),
    )


@st.composite
def request_recipes(
    draw: st.DrawFn,
    drafts: st.SearchStrategy[DraftRecipe],
    *,
    min_drafts: int = 0,
    max_drafts: int = 4,
    greedy: bool | None = None,
    exponentials: Sequence[str] | None = None,
    own_seed: bool | None = None,
) -> RequestRecipe:
    """One request with its own parameters; `None` leaves a flag to the draw."""
    _check_interval("request_recipes", "min_drafts", min_drafts, "max_drafts", max_drafts)
    if max_drafts > MAX_SPEC_LEN:
        raise ValueError(f"request_recipes: max_drafts={max_drafts}, but it must be at most {MAX_SPEC_LEN}. Lower it.")
    return RequestRecipe(
        drafts=tuple(draw(st.lists(drafts, min_size=min_drafts, max_size=max_drafts))),
        greedy=draw(st.booleans()) if greedy is None else greedy,
        exponentials=draw(st.sampled_from(list(exponentials or EXPONENTIAL_KINDS))),
        own_seed=draw(st.booleans()) if own_seed is None else own_seed,
    )


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
    own_seed: bool | None = None,
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

    Draws only what `capabilities` leave open. `None` leaves a choice to the draw; a value fixes it.

    Args:
        dense: Draft probabilities given, or one-hot drafts.
        explicit: Explicit (also adversarial) noise, or seeded noise.
        own_seed: Requests have a generator of their own (seeded noise only).
        layouts: Strides of the target logits (`LAYOUTS`).

    Example:
        >>> from hypothesis import given
        >>> @given(rejection_cases(max_requests=2))
        ... def test_mine(case):
        ...     batch, noise = case.batch(), case.noise()
    """
    _check_interval("rejection_cases", "min_requests", min_requests, "max_requests", max_requests)
    can = capabilities
    if Capability.PADDED_DRAFTS not in can:
        tokens = [kind for kind in tokens or TOKEN_KINDS if kind != "placeholder"]
    if dtypes is None:
        dtypes = DTYPES if Capability.HALF_LOGITS in can else DTYPES[:1]
    if Capability.GREEDY not in can:
        greedy = False
    if Capability.RAGGED not in can:
        min_drafts = max_drafts = draw(st.integers(max(1, min_drafts), max_drafts))
    if Capability.REQUEST_SEEDS not in can:
        own_seed = False
    request = request_recipes(
        draft_recipes(targets=targets, drafts=drafts, tokens=tokens, uniforms=uniforms),
        min_drafts=min_drafts,
        max_drafts=max_drafts,
        greedy=greedy,
        exponentials=exponentials,
        own_seed=own_seed,
    )
    return RejectionCase(
        vocab_size=draw(vocab_sizes(min_vocab_size, max_vocab_size)),
        requests=tuple(draw(st.lists(request, min_size=min_requests, max_size=max_requests))),
        dense=_choose(draw, dense, Capability.DENSE_DRAFTS in can, Capability.ONE_HOT_DRAFTS in can),
        explicit=_choose(draw, explicit, Capability.EXPLICIT_NOISE in can, Capability.SEEDED_NOISE in can),
        dtype=draw(st.sampled_from(list(dtypes))),
        layout=draw(st.sampled_from(list(layouts))),
        slack=draw(st.integers(0, 1)) if Capability.RAGGED in can else 0,
        synthetic=synthetic,
        seed=draw(st.integers(0, 2**16 - 1)),
    )


def _choose(draw: st.DrawFn, fixed: bool | None, can_true: bool, can_false: bool) -> bool:
    """The caller's choice if there is one, else a draw among what the sampler can do."""
    if fixed is not None:
        return fixed
    if can_true and can_false:
        return draw(st.booleans())
    return can_true


def spec_decode_batches(
    *,
    max_vocab_size: int = 1025,
    max_requests: int = 4,
    max_drafts: int = 4,
    dense: bool | None = None,
    greedy: bool | None = None,
    device: str = "cpu",
) -> st.SearchStrategy[SpecDecodeBatch]:
    """Batches ready for a sampler; each prints as the code that builds it.

    Example:
        >>> from hypothesis import given
        >>> @given(spec_decode_batches(dense=True))
        ... def test_mine(batch):
        ...     assert batch.draft_probs is not None
    """
    cases = rejection_cases(
        max_vocab_size=max_vocab_size,
        max_requests=max_requests,
        max_drafts=max_drafts,
        dense=dense,
        greedy=greedy,
    )
    return cases.map(lambda case: case.batch(device))
