"""Strategies of the grammar contract: bitmasks over rows of logits, token automata, and steps under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fairdraw.contracts import BitmaskBatch, Capabilities, num_words
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._covering import places_of_all
from fairdraw.strategies._grammar_cases import (
    DRAFT_TOKEN_KINDS,
    INDEX_KINDS,
    INDEX_NEEDS,
    LOGIT_KINDS,
    MASK_KINDS,
    MASK_LAYOUTS,
    TAIL_KINDS,
    AutomatonCase,
    BitmaskCase,
    ForkedRequest,
    GrammarCase,
    MaskedRow,
    MaskTrace,
)
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies._token_automata import DONE, TokenAutomaton, TokenMatcher
from fairdraw.strategies.rows import TARGET_KINDS, bulk_rng, bulk_seeds

__all__ = [
    "DONE", "DRAFT_TOKEN_KINDS", "INDEX_KINDS", "LOGIT_KINDS", "MASK_KINDS", "MASK_LAYOUTS", "TAIL_KINDS",
    "AutomatonCase", "BitmaskCase", "ForkedRequest", "GrammarCase", "MaskTrace", "MaskedRow", "TokenAutomaton",
    "TokenMatcher", "automaton_cases", "bitmask_batches", "bitmask_cases", "token_automata", "wide_automaton_cases",
]  # fmt: skip


@st.composite
def bitmask_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    min_vocab_size: int = 1,
    max_vocab_size: int = 1025,
    min_rows: int = 1,
    max_rows: int = 4,
    logits: Sequence[str] = tuple(TARGET_KINDS),
    masks: Sequence[str] | None = None,
    extra_words: Sequence[int] = (0,),
    tails: Sequence[str] = ("ones",),
    indices: Sequence[str] = ("none",),
    dtypes: Sequence[str] = ("float32",),
    layouts: Sequence[str] = ("contiguous",),
    mask_layouts: Sequence[str] = ("contiguous",),
) -> BitmaskCase:
    """Rows of logits with their bitmasks, as recipes.

    Draws only what `capabilities` support: vocabularies, dtypes and layouts are narrowed silently. Indices and widths
    are the caller's, who names the capabilities that they need.

    Args:
        min_rows: Fewest different rows.
        max_rows: Most different rows.
        logits: Kinds of rows (`LOGIT_KINDS`).
        masks: Which tokens are allowed (`MASK_KINDS`, all of them if `None`).
        extra_words: Words of the bitmask beyond those of the vocabulary; at least one word is left.
        tails: Bits beyond the vocabulary (`TAIL_KINDS`).
        indices: Which rows are masked (`INDEX_KINDS`).
        dtypes: Types of the logits.
        layouts: Strides of the logits.
        mask_layouts: Strides of the bitmask (`MASK_LAYOUTS`).

    Raises:
        TypeError, ValueError: If a bound or kind is invalid; when the first case is drawn.

    Example:
        >>> from hypothesis import given
        >>> @given(bitmask_cases(max_rows=2))
        ... def test_mine(case):
        ...     batch = case.batch()
    """
    name, open_to = "bitmask_cases", Narrowing("bitmask_cases", capabilities)
    check_interval(name, "min_rows", min_rows, "max_rows", max_rows, at_least=1)
    kinds = check_kinds(name, "masks", masks, tuple(MASK_KINDS))
    kinds_of_logits = check_kinds(name, "logits", logits, tuple(LOGIT_KINDS))
    low, high = open_to.vocab_sizes(min_vocab_size, max_vocab_size)
    vocab_size = draw(vocab_sizes(low, high))
    row = st.builds(MaskedRow, st.sampled_from(kinds_of_logits), st.sampled_from(kinds))
    known = [one for one in check_kinds(name, "indices", indices, INDEX_KINDS) if _is_open(one, capabilities)]
    return BitmaskCase(
        vocab_size=vocab_size,
        requests=tuple(draw(st.lists(row, min_size=min_rows, max_size=max_rows))),
        extra_words=max(draw(st.sampled_from(extra_words)), 1 - num_words(vocab_size)),
        tail=draw(st.sampled_from(check_kinds(name, "tails", tails, TAIL_KINDS))),
        indices=draw(st.sampled_from(known)),
        dtype=draw(st.sampled_from(open_to.dtypes(dtypes))),
        layout=draw(st.sampled_from(open_to.layouts(layouts))),
        mask_layout=draw(st.sampled_from(check_kinds(name, "mask_layouts", mask_layouts, MASK_LAYOUTS))),
        seed=draw(bulk_seeds()),
    )


def _is_open(kind: str, capabilities: Capabilities) -> bool:
    return kind not in INDEX_NEEDS or INDEX_NEEDS[kind] in capabilities


@st.composite
def bitmask_batches(draw: st.DrawFn, /, *, device: str = "cpu", **choices: Any) -> BitmaskBatch:  # Any: of a case
    """Batches ready for a masker; each prints as the code that builds it. Arguments as for `bitmask_cases`.

    Raises:
        TypeError, ValueError: If an argument is unknown or invalid; when the first batch is drawn.
    """
    return draw(bitmask_cases(**{"indices": INDEX_KINDS, "tails": TAIL_KINDS, **choices})).batch(device)


@st.composite
def token_automata(
    draw: st.DrawFn,
    *,
    vocab_size: int = 100,
    min_states: int = 1,
    max_states: int = 4,
    max_tokens: int = 4,
    dead_ends: bool = False,
    ends: bool = True,
) -> TokenAutomaton:
    """Small deterministic automata over tokens.

    Args:
        min_states: Fewest states beside the one that ends a text.
        max_states: Most of them.
        max_tokens: That are allowed in one state.
        dead_ends: States in which no token is allowed are possible.
        ends: Some tokens may end the text.

    Raises:
        TypeError, ValueError: If a bound is invalid; when the first automaton is drawn.
    """
    check_interval("token_automata", "min_states", min_states, "max_states", max_states, at_least=1)
    check_interval("token_automata", "max_tokens", 1, "max_tokens", max_tokens, at_least=1)
    count = draw(st.integers(min_states, max_states))
    edges = sorted({0, vocab_size - 1, *(i for i in (31, 32, 63, 64) if i < vocab_size)})
    ids = st.one_of(st.sampled_from(edges), st.integers(0, vocab_size - 1))
    behind = st.sampled_from((*range(count), *((DONE,) if ends else ())))
    found = []
    for state in range(count):
        fewest = 0 if dead_ends and state else 1
        tokens = draw(st.lists(ids, min_size=fewest, max_size=min(max_tokens, vocab_size), unique=True))
        found += [(state, token_id, draw(behind)) for token_id in tokens]
    return TokenAutomaton(tuple(found))


_AUTOMATON_SIZES = (8, 33, 64, 100, 257)


@st.composite
def automaton_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    vocab_sizes: Sequence[int] = _AUTOMATON_SIZES,
    min_requests: int = 1,
    max_requests: int = 4,
    min_drafts: int = 0,
    max_drafts: int = 4,
    drafts: Sequence[str] = ("legal",),
    num_steps: Sequence[int] = (1,),
    without_grammar: bool = True,
    dead_ends: bool = False,
    ends: bool = False,
    dtypes: Sequence[str] = ("float32",),
) -> AutomatonCase:
    """Steps of requests, each under an automaton of its own or under none, as recipes.

    Args:
        drafts: Kinds of drafts (`DRAFT_TOKEN_KINDS`).
        num_steps: How many steps follow each other on the same texts.
        without_grammar: Requests may have no grammar.
        dead_ends: As in `token_automata`.
        ends: As in `token_automata`.

    Raises:
        TypeError, ValueError: If a bound or kind is invalid; when the first case is drawn.
    """
    open_to = Narrowing("automaton_cases", capabilities)
    check_interval("automaton_cases", "min_requests", min_requests, "max_requests", max_requests, at_least=1)
    kinds = check_kinds("automaton_cases", "drafts", drafts, DRAFT_TOKEN_KINDS)
    vocab_size = draw(st.sampled_from(vocab_sizes))
    automata = st.lists(
        token_automata(vocab_size=vocab_size, min_states=2, dead_ends=dead_ends, ends=ends),
        min_size=1,
        max_size=max_requests,
    )
    one = st.builds(
        ForkedRequest,
        automaton=st.integers(-1 if without_grammar else 0, max_requests - 1),
        drafts=st.lists(st.sampled_from(kinds), min_size=min_drafts, max_size=max_drafts).map(tuple),
        logits=st.sampled_from(("flat", "normal", "half")),
        walked=st.integers(0, 3),
    )
    requests = draw(st.lists(one, min_size=min_requests, max_size=max_requests))
    return AutomatonCase(
        vocab_size=vocab_size,
        automata=tuple(draw(automata)),
        requests=tuple(requests),
        num_steps=draw(st.sampled_from(num_steps)),
        dtype=draw(st.sampled_from(open_to.dtypes(dtypes))),
        seed=draw(bulk_seeds()),
    )


_DRAFT_COUNTS = (0, 1, 3, 9, 17, 33, 2, 64, 5, 128)
_WIDE_REQUESTS = 48
WALKING = (ForkedRequest(drafts=("legal",) * 40),)
"""One request, whose steps have another number of drafts each: after 41 steps every number up to 40 was there."""


@st.composite
def wide_automaton_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
) -> AutomatonCase:
    """48 requests over some steps: grammars of many tokens or none, 0 to 128 drafts, one in a hundred of them illegal.

    In later steps each request has another number of drafts, so that rows of all requests move.
    """
    open_to, seed = Narrowing("wide_automaton_cases", capabilities), draw(bulk_seeds())
    rng, vocab_size = bulk_rng("wide automata", seed), draw(st.sampled_from((100, 64, 33, 257)))
    places = places_of_all(draw, _WIDE_REQUESTS)
    automata = tuple(_many_edges(vocab_size, rng) for _ in range(5))
    requests = [
        ForkedRequest(
            automaton=number % 6 - 1,
            drafts=tuple(rng.choice(("legal", "illegal"), _DRAFT_COUNTS[number % 10], p=(0.99, 0.01)).tolist()),
            logits=("normal", "half", "flat")[number % 3],
            walked=number % 4,
        )
        for number in range(_WIDE_REQUESTS)
    ]
    return AutomatonCase(
        vocab_size=vocab_size,
        automata=automata,
        requests=tuple(requests[place] for place in places),
        num_steps=draw(st.sampled_from((3, 4, 5, 1))),
        dtype=draw(st.sampled_from(open_to.dtypes(None))),
        seed=seed,
    )


def _many_edges(vocab_size: int, rng: np.random.Generator) -> TokenAutomaton:
    """Five states; in each some tokens are allowed, up to half of the vocabulary, and lead anywhere."""
    edges: list[tuple[int, int, int]] = []
    for state in range(5):
        tokens = rng.choice(vocab_size, rng.integers(1, vocab_size // 2), replace=False)
        edges += zip([state] * len(tokens), tokens.tolist(), rng.integers(0, 5, len(tokens)).tolist(), strict=True)
    return TokenAutomaton(tuple(edges))
