"""The matchers contract: what makes bitmasks, by walking a grammar token by token.

compiled = maker.compile_grammar(grammar); matcher = compiled.open()
matcher.fill(bitmask); matcher.accept(token_id); matcher.rollback(1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fairdraw._core.capabilities import AnySampler
from fairdraw._core.contracts import Contract
from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.looks import VOCABULARY, Look
from fairdraw._core.policies import Policy
from fairdraw.contracts._grammar import TokenGrammar, num_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True, eq=False)
class MatcherGrammar:
    """What a matcher is compiled from.

    Args:
        regex: The whole text matches it, as UTF-8. It has characters, classes (`[abc]`), groups, `|`, `*`, `+`, `?`
            and `{1,3}`, which all engines read alike.
        vocabulary: The bytes of each token, by id; tokens may be parts of characters, and several may be alike.
        stop_token_ids: Each ends a text that is complete; the grammar allows them nowhere else.
        special_token_ids: Never allowed, whatever their bytes are.
    """

    regex: str
    vocabulary: tuple[bytes, ...]
    stop_token_ids: tuple[int, ...]
    special_token_ids: tuple[int, ...] = ()

    @cached_property
    def text_tokens(self) -> dict[int, bytes]:
        """The tokens that are text: neither stop tokens nor special."""
        others = {*self.stop_token_ids, *self.special_token_ids}
        return {i: token for i, token in enumerate(self.vocabulary) if i not in others}

    @property
    def num_words(self) -> int:
        """Words of a bitmask."""
        return num_words(len(self.vocabulary))

    def within(self, policy: MatcherPolicy) -> MatcherGrammar:
        """Return the grammar as an engine of that policy takes it: what it has no word for is a special token."""
        stops = self.stop_token_ids[: 1 if policy.stop_tokens == "one" else None]
        special = {*self.special_token_ids, *self.stop_token_ids[len(stops) :]}
        if policy.tokens == "text":
            special |= {i for i, token in self.text_tokens.items() if "\ufffd" in token.decode(errors="replace")}
        return replace(self, stop_token_ids=stops, special_token_ids=tuple(sorted(special)))


@dataclass(frozen=True)
class MatcherPolicy(Policy):
    """What a matcher's vocabulary may hold, and what it answers where one way or none is left.

    Args:
        ended_mask: What `fill` does once a stop token was accepted.
            * `"raises"`: ended matchers raise: there is no next token to ask for (xgrammar, vLLM with it)
            * `"stops"`: ended matchers allow stop tokens: those that may end a text, and no other (llguidance)
            * `"unasked"`: ended matchers unasked: the answer means nothing, and the engine never asks (outlines-core)
        forced_tokens: Which tokens a mask has where only one text can follow.
            * `"all"`: all tokens of forced text: each whose bytes can follow, as elsewhere (xgrammar, outlines-core)
            * `"some"`: some tokens of forced text: those that the tokenizer makes of it, at least one (llguidance)
        stop_tokens: How many tokens may end a text.
            * `"several"`: several stop tokens: any of those that the grammar was given (xgrammar, llguidance)
            * `"one"`: one stop token: its library takes no other (outlines-core)
        tokens: What a token is.
            * `"bytes"`: tokens of bytes: a character may be divided among tokens (xgrammar, llguidance)
            * `"text"`: tokens of characters: one that ends within a character is never allowed (lm-format-enforcer)
    """

    ended_mask: Literal["raises", "stops", "unasked"] = "raises"
    forced_tokens: Literal["all", "some"] = "all"
    stop_tokens: Literal["several", "one"] = "several"
    tokens: Literal["bytes", "text"] = "bytes"


class Matcher(TokenGrammar, Protocol):
    """The state of one text. A stop token is accepted like any other, ends the text, and counts as a token of it.

    It may have three more methods, which are judged where they are: `reset()` begins a new text; `fork()` returns
    another matcher with the same text, which goes its own way and can be rolled back as far; `forced()` returns bytes
    that must come next, all or some of them, and moves nothing.
    """


class CompiledGrammar(Protocol):
    """A grammar, compiled once for all texts."""

    def open(self) -> Matcher:
        """Return a matcher at the beginning of a text."""
        ...


@runtime_checkable
class MatcherMaker(AnySampler, Protocol):
    """An implementation under the matchers contract. Any object with these attributes is one; do not subclass.

    A token is allowed if its bytes can go on the text so that some text of the grammar begins with both; a stop token
    if the text is complete. A matcher that does otherwise at the edges, and is right, says so by its attribute `policy`
    (`MatcherPolicy`).
    """

    def compile_grammar(self, grammar: MatcherGrammar) -> CompiledGrammar: ...


# -- how the suite calls a matcher: the same way everywhere, with the answer checked ----------------------------------

FILLED_OVER = (0x55555555, 0, -1)
"""What stands in a row before it is filled, and in its neighbours."""


def call_matcher(maker: MatcherMaker, method: Callable[..., Any], *arguments: Any) -> Any:  # Any: of the method
    """Call a method; what it raises is marked as the maker's own."""
    with calling(maker):
        return method(*arguments)


def accept_token(maker: MatcherMaker, matcher: Matcher, token_id: int) -> bool:
    """Accept a token.

    Raises:
        AdapterError: If the answer is no bool.
    """
    answer = call_matcher(maker, matcher.accept, token_id)
    if type(answer) is not bool:
        rule = f"but {maker.name} must return whether the token was accepted. Return a bool"
        raise AdapterError(f"accept: answer={answer!r}, {rule}.")
    return answer


def filled_rows(maker: MatcherMaker, matcher: Matcher, width: int, pattern: int) -> Tensor:  # [3, num_words] int32
    """Fill the middle one of three rows that hold `pattern`."""
    import torch

    rows = torch.full((3, width), pattern, dtype=torch.int32)
    call_matcher(maker, matcher.fill, rows[1])
    return rows


def allowed_tokens(maker: MatcherMaker, matcher: Matcher, grammar: MatcherGrammar) -> frozenset[int]:
    """Return the tokens that are allowed now."""
    return tokens_of(filled_rows(maker, matcher, grammar.num_words, FILLED_OVER[0])[1], len(grammar.vocabulary))


def tokens_of(words: Tensor, vocab_size: int) -> frozenset[int]:  # [num_words] int32
    """Return the tokens whose bits are set; bits beyond the vocabulary mean nothing."""
    import numpy as np

    bits = np.unpackbits(words.numpy().view(np.uint8), bitorder="little", count=vocab_size)
    return frozenset(np.flatnonzero(bits).tolist())


# -- what reports say of it -------------------------------------------------------------------------------------------

_STOPS, _PARTS = ("one stop token", "several stop tokens"), ("whole characters", "parts of characters")


class MatcherLook:
    """Looks at the grammar whenever a matcher is opened."""

    def __init__(self, grammar: MatcherGrammar) -> None:
        self._grammar = grammar

    def look(self, _: tuple[Any, ...]) -> Look:  # Any: of the method
        """Return what the matcher is opened with."""
        found, grammar = Look(1), self._grammar
        found.all_have(VOCABULARY, len(grammar.vocabulary))
        found.all_have("stop tokens", _STOPS[len(grammar.stop_token_ids) > 1], _STOPS)
        is_parted = any("\ufffd" in token.decode(errors="replace") for token in grammar.text_tokens.values())
        found.all_have("tokens", _PARTS[is_parted], _PARTS)
        return found.add_pairs()


CONTRACT = Contract(
    "matchers",
    call="compile_grammar(grammar)",
    case="fairdraw.strategies.matchers:MatcherTrace",
    default="matchers/oracle",
    reference="",
    raised="MAT100",
    answer="a compiled grammar, whose matchers return a bool, or fill a row of a bitmask",
    policy=MatcherPolicy,
    session=MatcherLook,
)
