"""The specification of matchers: derivatives of a regular expression (Brzozowski, JACM 1964).

An expression is a tuple: a kind, and its parts. The derivative by a byte is what may follow that byte. Expressions are
kept in a normal form in which one without any text is `NOTHING`, so that a text can go on unless that is left of it.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Self

from torch import Tensor

from fairdraw.contracts import MatcherGrammar, words_of

Expression = tuple[Any, ...]  # Any: a kind, then expressions or bytes

NOTHING: Expression = ("or", frozenset())
EMPTY_TEXT: Expression = ("then",)


def either(*parts: Expression) -> Expression:
    """Return the union."""
    found = {inner for part in parts for inner in (part[1] if part[0] == "or" else (part,))}
    return next(iter(found)) if len(found) == 1 else ("or", frozenset(found))


def then(*parts: Expression) -> Expression:
    """Return the parts one after another."""
    found = [inner for part in parts for inner in (part[1:] if part[0] == "then" else (part,))]
    if NOTHING in found:
        return NOTHING
    return found[0] if len(found) == 1 else ("then", *found)


def repeated(part: Expression) -> Expression:
    """Return the part any number of times."""
    return EMPTY_TEXT if part in (NOTHING, EMPTY_TEXT) else part if part[0] == "star" else ("star", part)


@lru_cache(maxsize=1 << 16)
def is_complete(expression: Expression) -> bool:
    """Whether the empty text matches."""
    kind, *parts = expression
    if kind == "or":
        return any(map(is_complete, parts[0]))
    return kind == "star" or (kind == "then" and all(map(is_complete, parts)))


@lru_cache(maxsize=1 << 18)
def derive(expression: Expression, byte: int) -> Expression:
    """Return what may follow `byte`."""
    kind, *parts = expression
    if kind == "byte":
        return EMPTY_TEXT if byte == parts[0] else NOTHING
    if kind == "or":
        return either(*(derive(part, byte) for part in parts[0]))
    if kind == "star":
        return then(derive(parts[0], byte), expression)
    if not parts:
        return NOTHING
    rest = then(*parts[1:])
    after = then(derive(parts[0], byte), rest)
    return either(after, derive(rest, byte)) if is_complete(parts[0]) else after


def derive_all(expression: Expression, text: bytes) -> Expression:
    """Return what may follow `text`."""
    for byte in text:
        expression = derive(expression, byte)
        if expression == NOTHING:
            break
    return expression


class _Parser:
    """Reads the expressions that `MatcherGrammar` describes."""

    def __init__(self, regex: str) -> None:
        self._regex, self._at = regex, 0

    def _next(self) -> str:
        return self._regex[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._regex[self._at - 1]

    def whole(self) -> Expression:
        """Read up to the end, or to the bracket that closes a group."""
        branches = [self._branch()]
        while self._next() == "|":
            self._take()
            branches.append(self._branch())
        return either(*branches)

    def _branch(self) -> Expression:
        parts = []
        while self._next() not in ("", "|", ")"):
            part = self._atom()
            while self._next() and self._next() in "*+?{":
                part = self._counted(part, self._take())
            parts.append(part)
        return then(*parts)

    def _counted(self, part: Expression, mark: str) -> Expression:
        if mark == "{":
            low, _, high = self._up_to("}").partition(",")
            return then(*[part] * int(low), *[either(EMPTY_TEXT, part)] * (int(high or low) - int(low)))
        if mark == "?":
            return either(EMPTY_TEXT, part)
        return then(*[part] * (mark == "+"), repeated(part))

    def _atom(self) -> Expression:
        mark = self._take()
        if mark == "(":
            inner = self.whole()
            self._take()
            return inner
        letters = self._up_to("]") if mark == "[" else mark
        return either(*(then(*(("byte", byte) for byte in letter.encode())) for letter in letters))

    def _up_to(self, end: str) -> str:
        begin, self._at = self._at, self._regex.index(end, self._at) + 1
        return self._regex[begin : self._at - 1]


@lru_cache(maxsize=4096)
def expression_of(regex: str) -> Expression:
    """Return a regular expression in normal form."""
    return _Parser(regex).whole()


def longest_forced(regex: str, text: bytes) -> bytes:
    """Return the bytes that must follow `text`, up to where there is a choice.

    Example:
        >>> longest_forced("a(bc|bd)", b"a")
        b'b'
    """
    found, expression = bytearray(), derive_all(expression_of(regex), text)
    while not is_complete(expression):
        choices = [byte for byte in range(256) if derive(expression, byte) != NOTHING]
        if len(choices) != 1:
            break
        found.append(choices[0])
        expression = derive(expression, choices[0])
    return bytes(found)


@lru_cache(maxsize=512)
def _followers(grammar: MatcherGrammar, expression: Expression) -> dict[int, Expression]:
    """Return the text tokens that may follow, and what may follow each."""
    after = ((i, derive_all(expression, token)) for i, token in grammar.text_tokens.items() if token)
    return {i: rest for i, rest in after if rest != NOTHING}


def edges_of(grammar: MatcherGrammar) -> Iterator[tuple[int, int, int]]:
    """Yield the edges of the automaton over tokens: state, token id, and the state behind it; -1 ends the text."""
    states = {expression_of(grammar.regex): 0}
    queue = list(states)
    for number, expression in enumerate(queue):
        for token_id, after in _followers(grammar, expression).items():
            if after not in states:
                states[after] = len(queue)
                queue.append(after)
            yield number, token_id, states[after]
        if is_complete(expression):
            yield from ((number, token_id, -1) for token_id in grammar.stop_token_ids)


class MatcherOracle:
    """A matcher that keeps its text, and derives from all of it what may follow.

    Args:
        shared: What all matchers of one compiled grammar have in common: nothing, if they are right.
    """

    def __init__(self, grammar: MatcherGrammar, shared: dict[Any, Any]) -> None:  # Any: whatever a mutant shares
        self.grammar, self.shared = grammar, shared
        self.token_ids: list[int] = []

    @property
    def text(self) -> bytes:
        """The bytes of the tokens."""
        return b"".join(self.grammar.vocabulary[token_id] for token_id in self.token_ids)

    @property
    def is_terminated(self) -> bool:
        """A stop token was accepted."""
        return not {*self.token_ids[-1:]}.isdisjoint(self.grammar.stop_token_ids)

    def followers(self) -> list[int]:
        """Return the tokens that may follow."""
        if self.is_terminated:
            return []
        last = derive_all(expression_of(self.grammar.regex), self.text)
        return [*_followers(self.grammar, last), *(self.grammar.stop_token_ids if is_complete(last) else ())]

    def accept(self, token_id: int) -> bool:
        """Advance by a token; `False`, and nothing changes, if it is not allowed."""
        is_allowed = token_id in self.followers()
        self.token_ids += [token_id] * is_allowed
        return is_allowed

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        del self.token_ids[max(0, len(self.token_ids) - num_tokens) :]

    def allowed(self) -> list[int]:
        """Return the tokens that get a bit."""
        if self.is_terminated:
            raise RuntimeError("fill: is_terminated=True, but the text must go on. Do not ask behind its end.")
        return self.followers()

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        """Write the mask."""
        bitmask.copy_(bitmask.new_tensor(words_of(self.allowed(), len(bitmask))))

    def reset(self) -> None:
        """Begin a new text."""
        self.token_ids.clear()

    def fork(self) -> Self:
        """Return another matcher with the same text."""
        other = type(self)(self.grammar, self.shared)
        other.token_ids = list(self.token_ids)
        return other

    def forced(self) -> bytes:
        """Return the bytes that must come next."""
        return b"" if self.is_terminated else longest_forced(self.grammar.regex, self.text)


class OpensOracle:
    """A compiled grammar, which opens matchers of a class."""

    def __init__(self, grammar: MatcherGrammar, kind: type[MatcherOracle] = MatcherOracle) -> None:
        self._grammar, self._kind = grammar, kind
        self._shared: dict[Any, Any] = {}  # Any: as above

    def open(self) -> MatcherOracle:
        """Return a matcher at the beginning of a text."""
        return self._kind(self._grammar, self._shared)
