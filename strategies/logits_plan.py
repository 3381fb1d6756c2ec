"""Strategies of the logits-plan contract: live batches with mixed sampling parameters, as recipes.

A random draw meets a rare pair of values, or a processor with an event, in some runs and not in others. Wide cases
enumerate them: a batch is a covering array, and a schedule has every event. Hypothesis draws seeds and sizes only; a
search drops requests and events of a failing case by itself.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._logits_cases import EVENT_KINDS, RARE_EVENT_KINDS, EventRecipe, LogitsCase
from fairdraw.strategies._logits_requests import (
    CUSTOM_PROCESSORS,
    IDLE_KINDS,
    INSIDE_VALUES,
    PARAMETER_KINDS,
    PARAMETER_VALUES,
    LogitsRequestRecipe,
    base_kind,
    decisive_kind,
)
from fairdraw.strategies._logits_values import INVALID_ROW_KINDS, MIN_VOCAB_SIZE, OF_THEIR_OWN, ROW_KINDS
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._recipe import DTYPES
from fairdraw.strategies.rows import TARGET_KINDS, bulk_rng, bulk_seeds

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
    requests = (*drawn, *decisive) * copies
    return LogitsCase(33, requests, dtype=draw(logits_dtypes(capabilities)), seed=draw(bulk_seeds()))


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


# Wide cases

CUSTOM = ("custom", "custom-random")
NOT_WITH_DRAFTS = ("bias", "min-p", *CUSTOM)
"""Kinds that are left out in steps with drafts without `DRAFT_PROCESSORS`."""

LARGE = (131_141, 65_539, 151_936, 262_147)
"""Vocabularies with ids above 2**17 and 2**16; the first in every run."""
SMALL = (1, 2, 3, 1, 2, 4, 5, 7, 11)
MIDDLING = (257, 33, 100)

_SIZES: dict[str, tuple[int, ...]] = {
    "num_drafts": (0, 0, 1, 2, 10),
    "num_output": (2, 0, 40, 2, 500),
    "num_prompt": (3, 1, 900),
}
_WORDS = {"logits": ("normal", "ladder", "zeros", "half", "tied"), "text": ("few", "one", "wide")}
_ARRAYS = 2
"""Covering arrays that are made per set of capabilities; each takes half a second."""


def open_kinds(kinds: Sequence[str], can: Capabilities, has_drafts: bool) -> list[str]:
    """The parameters that `can` allows, in steps with drafts or without."""
    unsupported: tuple[str, ...] = () if Capability.CUSTOM_PROCESSORS in can else CUSTOM
    if has_drafts and Capability.DRAFT_PROCESSORS not in can:
        unsupported = (*unsupported, *NOT_WITH_DRAFTS)
    return [kind for kind in kinds if base_kind(kind) not in unsupported]


def named(kind: str) -> list[str]:
    """The kind with each of its values, but for those that need requests of their own."""
    return [f"{kind}:{value}" for value in PARAMETER_VALUES[kind] if value not in OF_THEIR_OWN]


@lru_cache(maxsize=16)
def value_requests(
    kinds: tuple[str, ...], has_drafts: bool, unknown: bool, seed: int
) -> tuple[LogitsRequestRecipe, ...]:
    """Requests among which every two values of any two parameters occur together; each parameter is off in some."""
    values = {kind: ("", kind, *named(kind)) for kind in kinds}
    values |= {kind: ("", "", "", kind) for kind in kinds if kind == "custom"}  # it makes inf of -inf, so not too often
    values["temperature"] = (*values["temperature"], "greedy")
    sizes = _SIZES if has_drafts else {name: numbers for name, numbers in _SIZES.items() if name != "num_drafts"}
    flags = {"has_placeholders": (False, True)} if has_drafts and unknown else {}
    rows = covering_settings({**values, **sizes, **_WORDS, **flags}, seed=seed)
    return tuple(_request(row, kinds) for row in rows)


_wide = partial(LogitsRequestRecipe, text="wide")
"""A request whose texts have ids of the whole vocabulary."""

_DRAFTS = {"bad-words:long": 17, "min-tokens:many-stops": 33, "thinking:last-draft": 64}


def _long_requests(can: Capabilities, has_drafts: bool) -> list[LogitsRequestRecipe]:
    """Parameters that depend on the text, with tens of drafts; and with long texts."""
    drafts = {"min-tokens:many-stops": 12} if can.slow else _DRAFTS
    drafted = [_wide((kind, "penalties:order"), num_output=40, num_drafts=count) for kind, count in drafts.items()]
    sizes = [] if can.slow else [(1100, 4), (4200, 4), (2, 5000)]
    texts = [_wide(("penalties:order",), num_output=output, num_prompt=prompt) for output, prompt in sizes]
    return [*(drafted if has_drafts else drafted[:0]), *texts]


def _request(row: dict[str, Any], kinds: tuple[str, ...]) -> LogitsRequestRecipe:
    chosen = tuple(str(row[kind]) for kind in kinds if row[kind] not in ("", "greedy"))
    rest = {name: value for name, value in row.items() if name not in kinds}
    if rest["logits"] == "zeros" and any(base_kind(kind) in ("top-k", "top-p") for kind in chosen):
        rest["logits"] = "normal"  # which of many equal logits a filter keeps is left to the order of a sort
    return LogitsRequestRecipe(chosen, greedy=row["temperature"] == "greedy", **rest)


def late_share(can: Capabilities) -> float:
    """Return the share of the requests whose last tokens are not known yet."""
    return 0.3 if Capability.SEVERAL_TOKENS in can else 0


def logits_dtypes(can: Capabilities) -> st.SearchStrategy[str]:
    """float32, and half precision where it is supported."""
    return st.sampled_from(DTYPES if Capability.HALF_LOGITS in can else DTYPES[:1])


@st.composite
def value_cases(draw: st.DrawFn, can: Capabilities = Capabilities()) -> LogitsCase:  # noqa: B008  frozen
    """A batch of some 70 requests and some 300 rows: every pair of values of parameters, sizes, texts and rows.

    Then requests with up to 64 drafts and thousands of tokens, unless that takes long.
    """
    has_drafts = Capability.DRAFT_PROCESSORS in can or draw(st.booleans())
    kinds = tuple(open_kinds(PARAMETER_KINDS, can, has_drafts))
    unknown = Capability.PLACEHOLDER_DRAFTS in can
    requests = value_requests(kinds, has_drafts, unknown, draw(st.integers(0, _ARRAYS - 1)))
    requests = (*requests, *_long_requests(can, has_drafts))
    vocab_size, seed = draw(st.sampled_from(MIDDLING)), draw(bulk_seeds())
    late = bulk_rng("late", seed).random(len(requests)) < late_share(can)
    requests = tuple(one.replace(is_late=is_late) for one, is_late in zip(requests, late.tolist(), strict=True))
    return LogitsCase(vocab_size, requests, dtype=draw(logits_dtypes(can)), seed=seed)


_LARGE_SETS = (
    ("allowed:all-but-one", "bad-words", "top-p:half"),
    ("allowed", "bias:edges"),
    ("bad-words:nested",),  # without a filter, which would hide what was not excluded
    ("top-k:2",),
    ("min-tokens:many-stops", "bias:many"),
    ("penalties:order", "min-p:tiny"),
    ("thinking:spent", "penalties:presence"),
    ("allowed:last",),
)
_LONG_TEXTS = (4200, 3), (5, 5000)
"""Tokens of outputs and prompts whose first tokens come once."""


@st.composite
def large_cases(draw: st.DrawFn, can: Capabilities = Capabilities()) -> LogitsCase:  # noqa: B008  frozen
    """A large vocabulary: ids above 2**16 and 2**17 are biased, excluded, allowed, penalised and stop a request."""
    has_drafts = Capability.DRAFT_PROCESSORS in can
    sets = [tuple(open_kinds(kinds, can, has_drafts)) for kinds in _LARGE_SETS]
    drafts = int(has_drafts)
    requests = [_wide(own, False, 30, drafts, num_prompt=2500) for own in sets]
    longest = ("bad-words:longest", "penalties:order")
    requests += [_wide(longest, num_output=output, num_prompt=prompt) for output, prompt in _LONG_TEXTS]
    vocab_size, seed = draw(st.sampled_from(LARGE)), draw(bulk_seeds())
    return LogitsCase(vocab_size, tuple(requests), seed=seed)


@st.composite
def small_cases(draw: st.DrawFn, can: Capabilities = Capabilities()) -> LogitsCase:  # noqa: B008  frozen
    """A vocabulary of 1 to 11 tokens, and every value of every parameter alone."""
    kinds = [kind for kind in open_kinds(PARAMETER_KINDS, can, has_drafts=False) if kind != "thinking"]
    values = [(value,) for kind in kinds for value in named(kind)]
    requests = [LogitsRequestRecipe(chosen) for chosen in [*((kind,) for kind in kinds), *values]]
    vocab_size, seed = draw(st.sampled_from(SMALL)), draw(bulk_seeds())
    return LogitsCase(vocab_size, tuple(requests), seed=seed)


INSIDE_SIZES = (1031, 257, 33)
"""In a large vocabulary a small top-p keeps several tokens; in a small one sums are exact enough for 0.9999."""
_INSIDE_ROWS = ("gentle", "normal", "ladder")


@st.composite
def inside_cases(draw: st.DrawFn, can: Capabilities = Capabilities()) -> LogitsCase:  # noqa: B008  frozen
    """Every value just inside its range alone: in a row that is nearly flat, in one with a long tail, and in steps."""
    requests = [
        LogitsRequestRecipe((kind,), logits=row, num_output=9)
        for kind in open_kinds(INSIDE_VALUES, can, has_drafts=False)
        for row in _INSIDE_ROWS
    ]
    return LogitsCase(INSIDE_SIZES[0], tuple(requests), seed=draw(bulk_seeds()))


_EVENTS = (
    *("grow", "cut", "regrow", "replace", "renew", "swap", "leave", "join"),
    *("leave+join+swap", "join+swap", "replace+swap+cut", "leave+swap"),
)


@st.composite
def eventful_cases(
    draw: st.DrawFn,
    can: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    every: int = 1,
    most_drafts: int = 2,
) -> LogitsCase:
    """Each parameter in a request of its own, and idle ones; then every event, to one row and to all of them.

    With `every` 3, a third of the requests. Each has every number of drafts up to `most_drafts` in turn."""
    has_drafts = Capability.DRAFT_PROCESSORS in can
    kinds = open_kinds((*PARAMETER_KINDS, *IDLE_KINDS), can, has_drafts)
    rng = bulk_rng("eventful", draw(bulk_seeds()))
    requests = [
        LogitsRequestRecipe((kind,), num_drafts=most_drafts * has_drafts, is_late=bool(rng.random() < late_share(can)))
        for kind in [kinds[i] for i in rng.permutation(len(kinds))][::every]
    ]
    places = rng.integers(len(requests), size=2 * len(_EVENTS)).tolist()
    one = [EventRecipe(kind, row, requests[row]) for kind, row in zip(_EVENTS, places, strict=False)]
    several = [EventRecipe(kind, row, rows=len(requests)) for kind, row in zip(_EVENTS, places[::-1], strict=False)]
    events = [*one, *several]
    shuffled = tuple(events[i] for i in rng.permutation(len(events)))
    return LogitsCase(33, tuple(requests), shuffled, dtype=draw(logits_dtypes(can)), seed=draw(bulk_seeds()))


_MANY = ("burst", "cut-most")
"""Events of hundreds of tokens, where little else happens."""
_TWINS = ("bad-words:same", "min-tokens:same", "penalties:order"), ("penalties:order", "thinking:same")
_TWIN_EVENTS = (
    *("leave", "swap", "leave", "join+swap", "leave+join", "cut", "replace", "leave+swap", "regrow", "leave"),
    *_MANY,
)


@st.composite
def twin_cases(draw: st.DrawFn, can: Capabilities = Capabilities()) -> LogitsCase:  # noqa: B008  frozen
    """Requests with the same parameters, but for a few, and with other texts: they leave, enter, move and swap."""
    rng = bulk_rng("twins", draw(bulk_seeds()))

    def request() -> LogitsRequestRecipe:
        return LogitsRequestRecipe(
            _TWINS[int(rng.random() < 0.3)],
            num_output=int(rng.integers(7)),
            num_drafts=int(rng.integers(3)) if Capability.DRAFT_PROCESSORS in can else 0,
            num_prompt=(1, 3, 40, 40)[int(rng.integers(4))],
            text=("few", "alike", "alike")[int(rng.integers(3))],
        )

    requests = tuple(request() for _ in range(7))
    events = [_TWIN_EVENTS[i] for i in rng.permutation(len(_TWIN_EVENTS))]
    places = rng.integers(len(requests), size=len(events)).tolist()
    recipes = tuple(EventRecipe(kind, row, request()) for kind, row in zip(events, places, strict=True))
    return LogitsCase(33, requests, recipes, dtype=draw(logits_dtypes(can)), seed=draw(bulk_seeds()))


@st.composite
def long_cases(draw: st.DrawFn, can: Capabilities = Capabilities()) -> LogitsCase:  # noqa: B008  frozen
    """Sixty steps of three requests with a few parameters each; one event in three is followed by others at once.

    Then 140 steps in which texts only grow, unless that takes long.
    """
    kinds = open_kinds(PARAMETER_KINDS, can, has_drafts=Capability.DRAFT_PROCESSORS in can)
    rng = bulk_rng("long", draw(bulk_seeds()))

    def request() -> LogitsRequestRecipe:
        chosen = rng.permutation(len(kinds))[: int(rng.integers(1, 4))].tolist()
        num_drafts = int(rng.integers(3)) if Capability.DRAFT_PROCESSORS in can else 0
        return LogitsRequestRecipe(tuple(kinds[i] for i in sorted(chosen)), num_drafts=num_drafts)

    requests = tuple(request() for _ in range(3))
    known = _EVENTS if can.slow else (*_EVENTS, *_MANY)
    words = [known[i] for i in rng.integers(len(known), size=60)]
    events = [EventRecipe(word, int(rng.integers(3)), request()) for word in words]
    quiet = [] if can.slow else [EventRecipe()] * 140
    return LogitsCase(33, requests, (*events, *quiet), seed=draw(bulk_seeds()))
