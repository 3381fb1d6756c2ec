"""Strategies of the logits-plan contract: live batches with mixed sampling parameters, as recipes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._logits_cases import EVENT_KINDS, RARE_EVENT_KINDS, EventRecipe, LogitsCase
from fairdraw.strategies._logits_requests import (
    CUSTOM_PROCESSORS,
    IDLE_KINDS,
    PARAMETER_KINDS,
    PARAMETER_VALUES,
    LogitsRequestRecipe,
    decisive_kind,
)
from fairdraw.strategies._logits_values import INVALID_ROW_KINDS, MIN_VOCAB_SIZE, ROW_KINDS
from fairdraw.strategies._logits_wide import (
    INSIDE_SIZES,
    eventful_cases,
    inside_cases,
    large_cases,
    logits_dtypes,
    long_cases,
    open_kinds,
    small_cases,
    twin_cases,
    value_cases,
)
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies.rows import TARGET_KINDS, bulk_seeds

__all__ = [
    "CUSTOM_PROCESSORS", "EVENT_KINDS", "IDLE_KINDS", "INSIDE_SIZES", "MIN_VOCAB_SIZE", "PARAMETER_KINDS",
    "PARAMETER_VALUES", "RARE_EVENT_KINDS", "EventRecipe", "LogitsCase", "LogitsRequestRecipe", "eventful_cases",
    "inside_cases", "invalid_cases", "large_cases", "logits_cases", "long_cases", "sets_of_kinds", "small_cases",
    "twin_cases", "value_cases",
]  # fmt: skip


@st.composite
def logits_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    min_requests: int = 1,
    max_requests: int = 3,
    min_drafts: int = 0,
    max_drafts: int = 3,
    min_kinds: int = 0,
    max_kinds: int = 4,
    max_events: int = 0,
    kinds: Sequence[str] | None = None,
    idle: bool | None = None,
    events: Sequence[str] | None = None,
    logits: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
) -> LogitsCase:
    """Live batches, as recipes: any mix of parameters, also none.

    Draws only what `capabilities` support.

    Args:
        min_kinds: Fewest parameters of a request.
        max_kinds: Most parameters of a request.
        max_events: One step more than events; without events there is one step.
        kinds: Parameters with work (`PARAMETER_KINDS`).
        idle: `True`: only parameters without work (`IDLE_KINDS`); `False`: none of those.
        events: Kinds of events (`EVENT_KINDS`).
        logits: Kinds of rows (`TARGET_KINDS`; others of `ROW_KINDS` and `INVALID_ROW_KINDS` only if named).
        dtypes: Of the logits (`DTYPES`).

    Raises:
        TypeError, ValueError: If a bound or kind is invalid; when the first case is drawn.

    Example:
        >>> from hypothesis import given
        >>> @given(logits_cases(max_events=3))
        ... def test_mine(case):
        ...     for batch in case.batches():
        ...         ...
    """
    function, open_to = "logits_cases", Narrowing("logits_cases", capabilities)
    check_interval(function, "min_requests", min_requests, "max_requests", max_requests, at_least=1)
    check_interval(function, "min_drafts", min_drafts, "max_drafts", max_drafts)
    check_interval(function, "min_kinds", min_kinds, "max_kinds", max_kinds)
    working = check_kinds(function, "kinds", kinds, PARAMETER_KINDS)
    rows = check_kinds(function, "logits", logits, tuple(TARGET_KINDS), also=(*ROW_KINDS, *INVALID_ROW_KINDS))
    happening = check_kinds(function, "events", events, EVENT_KINDS, also=RARE_EVENT_KINDS)
    has_drafts = min_drafts > 0 or (max_drafts > 0 and draw(st.booleans()))
    known = {True: IDLE_KINDS, False: working, None: (*working, *IDLE_KINDS)}[idle]
    chosen = open_kinds(known, capabilities, has_drafts)
    request = st.builds(
        LogitsRequestRecipe,
        kinds=st.lists(st.sampled_from(chosen), min_size=min_kinds, max_size=max_kinds, unique=True).map(
            lambda drawn: tuple(kind for kind in known if kind in drawn)
        ),
        greedy=st.booleans(),
        num_output=st.integers(0, 4),
        num_drafts=st.integers(min_drafts, max_drafts) if has_drafts else st.just(0),
        logits=st.sampled_from(rows),
        has_placeholders=st.booleans() if Capability.PLACEHOLDER_DRAFTS in capabilities else st.just(False),
    )
    event = st.builds(EventRecipe, kind=st.sampled_from(happening), row=st.integers(0, 3), request=request)
    return LogitsCase(
        vocab_size=draw(st.sampled_from((MIN_VOCAB_SIZE, 33, 100))),
        requests=tuple(draw(st.lists(request, min_size=min_requests, max_size=max_requests))),
        events=tuple(draw(st.lists(event, min_size=min(1, max_events), max_size=max_events))),
        dtype=draw(st.sampled_from(open_to.dtypes(dtypes))),
        layout=draw(st.sampled_from(open_to.layouts(("contiguous", "sliced")))),
        seed=draw(bulk_seeds()),
    )


@st.composite
def sets_of_kinds(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    size: int = 2,
    max_drafts: int = 2,
    copies: int = 1,
) -> LogitsCase:
    """One batch with two requests for every set of `size` parameters, so that each set is tested.

    With several `copies` it is a crowd, whose texts differ.

    One has drawn values. The other has values and rows on which processors in another order give another result.

    Raises:
        TypeError, ValueError: If a bound is invalid; when the first case is drawn.
    """
    check_interval("sets_of_kinds", "size", size, "number of kinds", len(PARAMETER_KINDS), at_least=1)
    num_drafts = draw(st.integers(0, max_drafts))
    kinds = open_kinds(PARAMETER_KINDS, capabilities, num_drafts > 0)
    rows = draw(st.sampled_from(("normal", "zipf", "tied")))
    sets = list(combinations(kinds, size))
    drawn = [LogitsRequestRecipe(kinds=chosen, num_drafts=num_drafts, logits=rows) for chosen in sets]
    decisive = [
        LogitsRequestRecipe(kinds=tuple(map(decisive_kind, chosen)), num_drafts=num_drafts, logits="ladder")
        for chosen in sets
    ]
    return LogitsCase(
        33, (*drawn, *decisive) * copies, dtype=draw(logits_dtypes(capabilities)), seed=draw(bulk_seeds())
    )


@st.composite
def invalid_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    logits: Sequence[str],
) -> LogitsCase:
    """Each parameter alone on each kind of row without a distribution, beside ordinary rows.

    Raises:
        TypeError, ValueError: If a kind of row is unknown; when the first case is drawn.
    """
    rows = check_kinds("invalid_cases", "logits", logits, INVALID_ROW_KINDS)
    kinds = open_kinds(PARAMETER_KINDS, capabilities, has_drafts=False)
    requests = [LogitsRequestRecipe((kind,), logits=row) for kind in kinds for row in (*rows, "normal")]
    return LogitsCase(33, tuple(requests), seed=draw(bulk_seeds()))
