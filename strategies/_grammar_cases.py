"""Recipes of the grammar contract: plain data that builds bitmasks and logits, or steps under grammars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import BITS_PER_WORD, BitmaskBatch, Capability, GrammarBatch, GrammarRequest, num_words
from fairdraw.strategies._cases import _argument, strided_like
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._recipe import DTYPES, BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies._row_traces import MOST_ROWS, TENSOR_NEEDS, RowTrace
from fairdraw.strategies._serving import settings_of_calls
from fairdraw.strategies._token_automata import DONE, TokenAutomaton, TokenMatcher
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_rng, target_row

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

_GUARD = 64
"""Elements before and behind contiguous logits, to show what is written there, and to keep the process alive."""

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


class GrammarCase(BatchRecipe):
    """A case of the grammar contract: a `BitmaskCase`, an `AutomatonCase` or a `MaskTrace`."""


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
        logits = torch.from_numpy(np.stack(rows)).to(getattr(torch, self.dtype))
        words = torch.from_numpy(self._words())
        logits, words = logits.to(device), words.to(device)  # first: a copy to another device may change strides
        named = strided_like(torch.tensor(self.named_rows(), dtype=torch.int64, device=device), self.mask_layout)
        return _DrawnBitmaskBatch(
            logits=_guarded(logits) if self.layout == "contiguous" else strided_like(logits, self.layout),
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


def _guarded(logits: torch.Tensor) -> torch.Tensor:  # [num_rows, vocab_size]
    """The same values, contiguous, inside larger memory."""
    store = logits.new_full((logits.numel() + 2 * _GUARD,), 7.0)
    inner = store[_GUARD:-_GUARD].view(logits.shape)
    inner.copy_(logits)
    return inner


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
        without = self.without
        if str(Capability.ROW_INDICES) in without:  # then none are repeated, either
            without = (*without, str(Capability.REPEATED_INDICES))
        settings = settings_of_calls(_CALLS, _NEEDS, without, self.seed)
        rows = self.library().requests
        for call in self.rows_played(len(rows), len(_PLAIN)):
            setting = {name: value for name, value in settings[call.number % len(settings)].items() if name in _CALLS}
            setting["extra_words"] = max(setting["extra_words"], 1 - num_words(self.vocab_size))
            chosen, own = tuple(rows[place] for place in call.places.tolist()), derive_seed(self.seed, call.number)
            yield call.number, BitmaskCase(self.vocab_size, chosen, seed=own, **setting)


_PLAIN = ("normal", "zipf", "special", "half")


def mask_trace(masker: Any, seed: int, size: int, rows: int, *rest: Any) -> MaskTrace:  # Any: fields of a trace
    """Return a trace for `masker`."""
    return MaskTrace(seed, size, min(rows, MOST_ROWS), *rest)


DRAFT_TOKEN_KINDS: tuple[str, ...] = ("legal", "illegal", "last")
"""A token that the grammar allows, one that it forbids, and one that ends the text if there is one."""


@dataclass(frozen=True, repr=False)
class ForkedRequest(Recipe):
    """One request of some steps.

    Args:
        automaton: Which of the case's automata; -1: it has no grammar.
        drafts: Kinds of its drafts in the first step (`DRAFT_TOKEN_KINDS`); later steps have other numbers of them.
        logits: Shape of its rows (`TARGET_KINDS`).
        walked: Tokens before the first step, at most.

    Raises:
        ValueError: If a kind is unknown.
    """

    automaton: int = 0
    drafts: tuple[str, ...] = ()
    logits: str = "flat"
    walked: int = 0

    def __post_init__(self) -> None:
        self._require_words(logits=TARGET_KINDS, drafts=DRAFT_TOKEN_KINDS)


@dataclass(frozen=True, repr=False)
class AutomatonCase(GrammarCase):
    """Steps of requests with grammars, as data.

    Args:
        automata: The grammars; requests name them by number.
        num_steps: After each but the last, some of each request's drafts are accepted, and one more token.
        seed: For every bulk number.

    Raises:
        ValueError: If there is no request or no vocabulary, or a word is unknown.
    """

    vocab_size: int
    automata: tuple[TokenAutomaton, ...]
    requests: tuple[ForkedRequest, ...]
    num_steps: int = 1
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("ForkedRequest()")

    def texts(self) -> list[Text]:
        """The requests' texts before the first step."""
        return [Text(self, number) for number in range(len(self.requests))]

    def batch(self, texts: Sequence[Text], step: int, device: str = "cpu") -> GrammarBatch:
        """The tensors of one step: a request's drafts follow from its text."""
        requests = tuple(GrammarRequest(text.matcher, text.drafts(step)) for text in texts)
        rows = [
            target_row(text.request.logits, self.vocab_size, derive_seed(self.seed, step, i, row))
            for i, (text, request) in enumerate(zip(texts, requests, strict=True))
            for row in range(len(request.draft_token_ids) + 1)
        ]
        logits = torch.from_numpy(np.stack(rows)).to(getattr(torch, self.dtype))
        return GrammarBatch(logits.to(device), requests)

    def steps(self, device: str = "cpu") -> Iterator[tuple[Sequence[Text], GrammarBatch]]:
        """Each step; what comes between them happens when the next is asked for."""
        texts = self.texts()
        for step in range(self.num_steps):
            batch = self.batch(texts, step, device)
            yield texts, batch
            for text, request in zip(texts, batch.requests, strict=True):
                text.emit(step, request.draft_token_ids)

    def build(self) -> None:
        """Build everything once; raises what a damaged recipe raises."""
        for _ in self.steps():
            pass


GrammarCase.others = (BitmaskCase, AutomatonCase, MaskTrace)


class Text:
    """One request's text, followed beside the masker: what is true whatever that one does to the matcher."""

    def __init__(self, case: AutomatonCase, number: int) -> None:
        self._case, self._number, self.request = case, number, case.requests[number]
        given = self.request.automaton
        self.automaton = None if given < 0 else case.automata[given % len(case.automata)]
        self.matcher = None if self.automaton is None else TokenMatcher(self.automaton)
        self.state = 0
        for place in range(self.request.walked):
            self._accept(self._legal("walked", place))

    def states(self, drafts: Sequence[int]) -> list[int]:
        """The states in which each row is: as far as the drafts are allowed."""
        return [] if self.automaton is None else self.automaton.walk(self.state, drafts)

    def drafts(self, step: int) -> tuple[int, ...]:
        """The drafts of a step: in the first as many as there are kinds, in later ones another number."""
        size = len(self.request.drafts)
        kinds, tokens, state = self.request.drafts[: (size + step) % (size + 1)], [], self.state
        for place, kind in enumerate(kinds):
            tokens.append(self._draft(kind, state, step, place))
            after = None if self.automaton is None else self.automaton.step(state, tokens[-1])
            state = state if after is None else after
        return tuple(tokens)

    def _draft(self, kind: str, state: int, step: int, place: int) -> int:
        rng = bulk_rng("draft", self._case.seed, self._number, step, place)
        anything = int(rng.integers(self._case.vocab_size))
        if self.automaton is None:
            return anything
        allowed = self.automaton.allowed(state)
        last = [token_id for token_id in allowed if self.automaton.step(state, token_id) == DONE]
        going_on = [token_id for token_id in allowed if token_id not in last]
        others = [token_id for token_id in range(min(self._case.vocab_size, 64)) if token_id not in allowed]
        choices = {"legal": going_on or allowed, "last": last or allowed, "illegal": others}[kind]
        return int(rng.choice(choices)) if choices else anything

    def _legal(self, *place: object) -> int | None:
        """Any token that may follow, preferably one after which the text goes on."""
        allowed = () if self.automaton is None else self.automaton.allowed(self.state)
        going_on = [i for i in allowed if self.automaton is not None and self.automaton.step(self.state, i) != DONE]
        choices = going_on or allowed
        return int(bulk_rng("text", self._case.seed, self._number, *place).choice(choices)) if choices else None

    def emit(self, step: int, drafts: Sequence[int]) -> None:
        """Accept some of the drafts that are allowed, and one more token."""
        most = len(self.states(drafts)) - 1
        if most >= 0:
            accepted = int(bulk_rng("accepted", self._case.seed, self._number, step).integers(most + 1))
            for token_id in drafts[:accepted]:
                self._accept(token_id)
            self._accept(self._legal("emitted", step))

    def _accept(self, token_id: int | None) -> None:
        after = None if self.automaton is None or token_id is None else self.automaton.step(self.state, token_id)
        if self.matcher is not None and token_id is not None and after is not None:
            self.matcher.accept(token_id)
            self.state = after
