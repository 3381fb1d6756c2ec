"""Strategies of the grammar contract: bitmasks over rows of logits, token automata, and steps under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import BITS_PER_WORD, BitmaskBatch, Capabilities, Capability, num_words
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._cases import _argument, strided_like
from fairdraw.strategies._covering import covering_settings, places_of_all
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._recipe import DTYPES, PrintsAsCode, Recipe
from fairdraw.strategies._row_traces import TENSOR_NEEDS, RowTrace
from fairdraw.strategies._serving import settings_of_calls
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies._token_automata import (
    DONE,
    DRAFT_TOKEN_KINDS,
    AutomatonCase,
    ForkedRequest,
    GrammarCase,
    TokenAutomaton,
    TokenMatcher,
)
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_rng, bulk_seeds, target_row

__all__ = [
    "DONE", "DRAFT_TOKEN_KINDS", "INDEX_KINDS", "LOGIT_KINDS", "MASK_KINDS", "MASK_LAYOUTS", "TAIL_KINDS",
    "AutomatonCase", "BitmaskCase", "ForkedRequest", "GrammarCase", "MaskTrace", "MaskedRow", "TokenAutomaton",
    "TokenMatcher", "automaton_cases", "bitmask_batches", "bitmask_cases", "token_automata", "wide_automaton_cases",
]  # fmt: skip


_SPECIAL = (0.0, -0.0, 1.5, 1e-45, -1e-45, 1e-39, -1e-39, 65504.0, -65504.0, 3.4e38, -3.4e38)
"""And the infinities and NaN: what arithmetic on a logit would change, and a copy does not."""


def _special(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    values = np.array((*_SPECIAL, np.inf, -np.inf, np.nan), np.float32)
    return rng.permutation(np.resize(values, size))


LOGIT_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {
    **TARGET_KINDS,
    **INVALID_KINDS,
    "special": _special,
}
"""Logit rows: those of other contracts, and one of every special number."""


def _in_word(*bits: int) -> Callable[[NDArray[np.int64], int, np.random.Generator], NDArray[np.bool_]]:
    return lambda ids, row, rng: np.isin(ids % BITS_PER_WORD, bits)


MASK_KINDS: dict[str, Callable[[NDArray[np.int64], int, np.random.Generator], NDArray[np.bool_]]] = {
    "all": lambda ids, row, rng: np.ones(ids.size, bool),  # a request without grammar
    "none": lambda ids, row, rng: np.zeros(ids.size, bool),
    "walking": lambda ids, row, rng: ids == row % ids.size,
    "all-but-one": lambda ids, row, rng: ids != row % ids.size,
    "random": lambda ids, row, rng: rng.random(ids.size) < 0.5,
    "sparse": lambda ids, row, rng: rng.random(ids.size) < 0.02,
    "last": lambda ids, row, rng: ids == ids.size - 1,
    "last-word": lambda ids, row, rng: ids // BITS_PER_WORD == (ids.size - 1) // BITS_PER_WORD,
    "sign-bits": _in_word(31),  # words are signed: these are negative
    "all-but-sign-bits": lambda ids, row, rng: ids % BITS_PER_WORD != 31,
    "word-edges": _in_word(0, 31),
}
"""Which tokens a row allows: from their ids and the number of the row."""

TAIL_KINDS: tuple[str, ...] = ("ones", "zeros", "random")
"""Bits beyond the vocabulary, which mean nothing."""

_GUARD = 512
"""Elements before and behind the logits, to show what is written there, and to keep the process alive: more than a
bitmask of 7 words too many has bits."""

INDEX_KINDS: tuple[str, ...] = ("none", "all", "subset", "reversed", "one", "repeated", "empty")
"""Which rows are masked: all without indices, all named, some, all in reverse order, the last, some twice, no row."""

MASK_LAYOUTS: tuple[str, ...] = ("contiguous", "sliced", "transposed")
"""How bitmasks lie in memory: in order, inside wider rows, word by word."""


@dataclass(frozen=True, repr=False)
class MaskedRow(Recipe):
    """One row of logits and its bitmask.

    Args:
        logits: Shape of the row (`LOGIT_KINDS`).
        mask: Which tokens are allowed (`MASK_KINDS`).

    Raises:
        ValueError: If a kind is unknown.
    """

    logits: str = "flat"
    mask: str = "all"

    def __post_init__(self) -> None:
        self._require_words(logits=LOGIT_KINDS, mask=MASK_KINDS)


class _DrawnBitmaskBatch(PrintsAsCode, BitmaskBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False)
class BitmaskCase(GrammarCase):
    """Rows of logits with their bitmasks, as data.

    Args:
        vocab_size: Columns of the logits.
        extra_words: Words that the bitmask has beyond those of the vocabulary; fewer if negative.
        tail: Bits beyond the vocabulary (`TAIL_KINDS`).
        indices: Which rows are masked (`INDEX_KINDS`).
        mask_layout: Strides of the bitmask (`MASK_LAYOUTS`).
        seed: For every bulk number.

    Raises:
        ValueError: If there is no row, no vocabulary or no word, or a word is unknown.

    Example:
        >>> BitmaskCase(vocab_size=3, requests=(MaskedRow(mask="last"),)).batch().bitmask.tolist()
        [[-4]]
    """

    vocab_size: int
    requests: tuple[MaskedRow, ...]
    extra_words: int = 0
    tail: str = "ones"
    indices: str = "none"
    dtype: str = "float32"
    layout: str = "contiguous"
    mask_layout: str = "contiguous"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("MaskedRow()")
        self._require_words(tail=TAIL_KINDS, indices=INDEX_KINDS, mask_layout=MASK_LAYOUTS)
        if self.width < 1:
            rule = f"a bitmask must have a word, and {self.vocab_size} tokens need {num_words(self.vocab_size)}"
            raise ValueError(f"BitmaskCase: extra_words={self.extra_words}, but {rule}. Use 0.")

    @property
    def width(self) -> int:
        """Words of the bitmask."""
        return num_words(self.vocab_size) + self.extra_words

    def allowed(self) -> NDArray[np.bool_]:  # [num_rows, vocab_size] bool
        """What each row's bitmask says; columns that it has no word for are not allowed by it."""
        ids = np.arange(self.vocab_size)
        rows = [MASK_KINDS[r.mask](ids, i, bulk_rng("mask", self.seed, i)) for i, r in enumerate(self.requests)]
        return np.asarray(np.stack(rows) & (ids < self.width * BITS_PER_WORD))

    def named_rows(self) -> list[int]:
        """The rows that are masked, in the order of the indices."""
        every = list(range(len(self.requests)))
        rng = bulk_rng("indices", self.seed)
        some = [row for row in every if rng.random() < 0.5]
        kinds: dict[str, list[int]] = {
            "subset": some,
            "reversed": every[::-1],
            "one": every[-1:],
            "repeated": [*some, *some[:2]],
            "empty": [],
        }
        return kinds.get(self.indices, every)

    def batch(self, device: str = "cpu") -> BitmaskBatch:
        """Build new tensors. With indices, the bitmask has one row more than the logits.

        Logits lie inside larger memory, filled with 7, so that a write beyond them can be seen.
        """
        rows = [_logits_row(r.logits, self.vocab_size, derive_seed(self.seed, i)) for i, r in enumerate(self.requests)]
        # First to the device: a copy to another one may change strides.
        logits = torch.from_numpy(np.stack(rows)).to(device, getattr(torch, self.dtype))
        words = torch.from_numpy(self._words()).to(device)
        named = strided_like(torch.tensor(self.named_rows(), dtype=torch.int64, device=device), self.mask_layout)
        laid = strided_like(logits, self.layout)
        return _DrawnBitmaskBatch(
            logits=laid if self.layout == "huge-stride" else _guarded(laid),  # that has room around it
            bitmask=strided_like(words, self.mask_layout),
            indices=None if self.indices == "none" else named,
            origin=f"{self!r}.batch({_argument(device)})",
        )

    def _words(self) -> NDArray[np.int32]:  # [num_masks, num_words] int32
        shares = {"ones": 1.0, "zeros": 0.0, "random": 0.5}
        shape = (len(self.requests), self.width * BITS_PER_WORD)
        bits = bulk_rng("tail", self.seed).random(shape) < shares[self.tail]
        used = min(self.vocab_size, bits.shape[1])
        bits[:, :used] = self.allowed()[:, :used]
        words = np.packbits(bits, axis=1, bitorder="little").view("<i4").astype(np.int32)
        return words if self.indices == "none" else np.concatenate([words, ~words[-1:]])


def _logits_row(kind: str, vocab_size: int, seed: int) -> NDArray[np.float32]:  # [vocab_size] float32
    if kind == "special":
        return _special(vocab_size, bulk_rng("special", seed))
    return target_row(kind, vocab_size, seed)


def _guarded(logits: torch.Tensor) -> torch.Tensor:  # [num_rows, vocab_size], both
    """The same values and strides, inside larger memory."""
    own = logits.new_empty(0).set_(logits.untyped_storage())
    store = logits.new_full((own.numel() + 2 * _GUARD,), 7.0)
    store[_GUARD:-_GUARD] = own
    return store.as_strided(logits.shape, logits.stride(), logits.storage_offset() + _GUARD)


INDEX_NEEDS = {**dict.fromkeys(INDEX_KINDS[1:], Capability.ROW_INDICES), "repeated": Capability.REPEATED_INDICES}
_CALLS: dict[str, tuple[Any, ...]] = {  # Any: words and counts
    "dtype": DTYPES,
    "layout": ("contiguous", "sliced", "contiguous", "transposed"),
    "mask_layout": MASK_LAYOUTS,
    "tail": TAIL_KINDS,
    "indices": ("none", "all", "subset", "reversed", "repeated", "one", "empty"),
    "extra_words": (0, 1, 7, -1, -7),
}
_NEEDS: dict[tuple[str, Any], Capability] = {  # Any: a word or a count
    **TENSOR_NEEDS,
    **{("mask_layout", layout): Capability.STRIDED_BITMASK for layout in MASK_LAYOUTS[1:]},
    **{("indices", kind): need for kind, need in INDEX_NEEDS.items()},
    **{("extra_words", words): Capability.WIDE_BITMASK for words in (1, 7)},
    **{("extra_words", words): Capability.NARROW_BITMASK for words in (-1, -7)},
}


class MaskTrace(RowTrace):
    """Calls of one masker: rows with every pair of logits and mask, and every pair of what a call may have."""

    def library(self) -> BitmaskCase:
        """Return all rows, those without a grammar first."""
        rows = [MaskedRow(kind) for kind in _PLAIN]
        rows += [
            MaskedRow(**one) for one in covering_settings({"logits": tuple(LOGIT_KINDS), "mask": tuple(MASK_KINDS)})
        ]
        return BitmaskCase(self.vocab_size, self.chosen(rows, len(_PLAIN)))

    def cases(self) -> Iterator[tuple[int, BitmaskCase]]:
        """Yield the calls with their numbers; each is built when it is asked for."""
        unindexed = str(Capability.ROW_INDICES) in self.without  # then none are repeated, either
        without = (*self.without, *[str(Capability.REPEATED_INDICES)] * unindexed)
        settings = settings_of_calls(_CALLS, _NEEDS, without, self.seed)
        rows = self.library().requests
        for call in self.rows_played([*map(vars, rows)], len(_PLAIN)):
            setting = {name: value for name, value in settings[call.number % len(settings)].items() if name in _CALLS}
            setting["extra_words"] = max(setting["extra_words"], 1 - num_words(self.vocab_size))
            chosen, own = tuple(rows[place] for place in call.places.tolist()), derive_seed(self.seed, call.number)
            yield call.number, BitmaskCase(self.vocab_size, chosen, seed=own, **setting)


_PLAIN = ("normal", "zipf", "special", "half")


GrammarCase.others = (BitmaskCase, AutomatonCase, MaskTrace)


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
    automata = token_automata(vocab_size=vocab_size, min_states=2, dead_ends=dead_ends, ends=ends)
    drafted = st.lists(st.sampled_from(kinds), min_size=min_drafts, max_size=max_drafts).map(tuple)
    if "last" in kinds:  # also behind others that stay in the text
        drafted |= st.integers(max(1, min_drafts), max_drafts).map(lambda n: ("legal",) * (n - 1) + ("last",))
    one = st.builds(
        ForkedRequest,
        automaton=st.integers(-1 if without_grammar else 0, max_requests - 1),
        drafts=drafted,
        logits=st.sampled_from(("flat", "normal", "half")),
        walked=st.integers(0, 3),
    )
    requests = draw(st.lists(one, min_size=min_requests, max_size=max_requests))
    return AutomatonCase(
        vocab_size=vocab_size,
        automata=tuple(draw(st.lists(automata, min_size=1, max_size=max_requests))),
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
