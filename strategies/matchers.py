"""Grammars with their vocabularies, and traces of what happens to matchers, as recipes.

>>> from fairdraw._mutants.matchers import right
>>> trace = MatcherTrace(("a(b|c)*",), events=(Walk(picks=(0, 1)), RollBack(count=1), End()))
>>> trace.grammar(0).regex
'a(b|c)*'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from hypothesis import strategies as st

from fairdraw._oracles.matchers import edges_of
from fairdraw.contracts import Capabilities, MatcherGrammar
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._recipe import Recipe
from fairdraw.strategies._token_automata import DONE, TokenAutomaton
from fairdraw.strategies.rows import bulk_rng, bulk_seeds

__all__ = [
    "EVENTS", "Draft", "End", "Force", "Fork", "MatcherEvent", "MatcherTrace", "Open", "Probe", "Reset", "RollBack",
    "Walk", "automaton_of", "matcher_traces", "regexes", "way_to_the_end", "wide_matcher_traces",
]  # fmt: skip


@dataclass(frozen=True, repr=False)
class MatcherEvent(Recipe):
    """Something that happens to one matcher. Any sequence of events is valid.

    Args:
        at: Which of the open matchers, modulo their number.
    """

    tag = "kind"
    at: int = 0


@dataclass(frozen=True, repr=False)
class Open(MatcherEvent):
    """Another matcher begins a text under the grammar of this number, modulo theirs."""

    number: int = 0


@dataclass(frozen=True, repr=False)
class Walk(MatcherEvent):
    """Tokens of text that the grammar allows are accepted; each pick is the number of one, modulo theirs.

    Args:
        times: How often the picks are repeated.
    """

    picks: tuple[int, ...] = (0,)
    times: int = 1


@dataclass(frozen=True, repr=False)
class Draft(MatcherEvent):
    """Drafts are walked, and a mask is made for each; then all but the first `kept` are rolled back."""

    picks: tuple[int, ...] = (0, 0)
    kept: int = 0


@dataclass(frozen=True, repr=False)
class Probe(MatcherEvent):
    """Every token is tried, and taken back if it was accepted."""


@dataclass(frozen=True, repr=False)
class RollBack(MatcherEvent):
    """The last tokens are taken back, as many as there are at most."""

    count: int = 1


@dataclass(frozen=True, repr=False)
class End(MatcherEvent):
    """The text goes the shortest way to its end, and a stop token is accepted; `stop` is its number, modulo theirs."""

    stop: int = 0


@dataclass(frozen=True, repr=False)
class Reset(MatcherEvent):
    """The matcher begins a new text."""


@dataclass(frozen=True, repr=False)
class Fork(MatcherEvent):
    """Another matcher with the same text is opened."""


@dataclass(frozen=True, repr=False)
class Force(MatcherEvent):
    """The matcher says which bytes must come next."""


EVENTS = {kind.__name__: kind for kind in (Walk, RollBack, Open, End, Draft, Probe, Reset, Fork, Force)}
"""The kinds of events by name."""
MatcherEvent.others = tuple(EVENTS.values())

_CHARACTERS = "abcdé漢"
_NUM_SPECIAL, _LONGEST = 2, 32


@dataclass(frozen=True, repr=False)
class MatcherTrace(Recipe):
    """What happens to the matchers of some grammars over one vocabulary. One matcher of the first grammar is open.

    The vocabulary has every byte and every character of the grammars, one of them twice, special tokens that look like
    text, and longer tokens that begin and end anywhere; its order and its longer tokens follow from the seed.

    Args:
        regexes: The grammars.
        vocab_size: Tokens, about: more if the grammars need them, fewer if one character makes no more.
        num_stops: Tokens that end a text.

    Raises:
        ValueError: If there is no grammar, or no stop token.
    """

    regexes: tuple[str, ...]
    events: tuple[MatcherEvent, ...] = ()
    vocab_size: int = 24
    num_stops: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.regexes or self.num_stops < 1:
            given = f"regexes={self.regexes}, num_stops={self.num_stops}"
            raise ValueError(f"MatcherTrace: {given}, but there must be one of both. Use ('a',) and 1.")

    def grammar(self, number: int) -> MatcherGrammar:
        """Return a grammar with the vocabulary."""
        texts, stops = self._texts, self.num_stops
        order = bulk_rng("vocabulary", self.seed).permutation(len(texts)).tolist()
        places = {old: new for new, old in enumerate(order)}
        special = tuple(sorted(places[i] for i in range(stops, stops + _NUM_SPECIAL)))
        vocabulary, ends = tuple(texts[old] for old in order), tuple(sorted(places[i] for i in range(stops)))
        return MatcherGrammar(self.regexes[number % len(self.regexes)], vocabulary, ends, special)

    @cached_property
    def _texts(self) -> list[bytes]:
        """The stop tokens, the special ones, and all others."""
        rng, known = bulk_rng("tokens", self.seed), sorted({c for regex in self.regexes for c in regex if c.isalpha()})
        characters = [character.encode() for character in known or ["a"]]
        found = dict.fromkeys([*characters, *(bytes([byte]) for character in characters for byte in character)])
        size = max(0, self.vocab_size - self.num_stops - _NUM_SPECIAL - 1)
        text = b"".join([characters[i] for i in rng.integers(len(characters), size=64 + self.vocab_size).tolist()])
        longest = 2 + size.bit_length()
        while len(found) < size and longest < _LONGEST:
            begins, lengths = rng.integers(len(text), size=size), rng.integers(1, longest, size=size)
            places = zip(begins.tolist(), lengths.tolist(), strict=True)
            parts = (text[begin : begin + length] for begin, length in places)
            found |= dict.fromkeys(islice((part for part in parts if part not in found), size - len(found)))
            longest += 1
        stops = [b"</s>", b"a", *(b"<%d>" % i for i in range(self.num_stops))][: self.num_stops]
        return [*stops, characters[0], b"<pad>", characters[-1], *found]

    def build(self) -> list[MatcherGrammar]:
        """Return all grammars; an event trace has nothing else to build."""
        return [self.grammar(number) for number in range(len(self.regexes))]


@lru_cache(maxsize=64)
def automaton_of(grammar: MatcherGrammar) -> TokenAutomaton:
    """Return the specification of a grammar; `DONE` follows its stop tokens."""
    return TokenAutomaton(tuple(edges_of(grammar)))


def way_to_the_end(automaton: TokenAutomaton, state: int) -> list[int]:
    """Return the fewest tokens after which a stop token may follow.

    Example:
        >>> way_to_the_end(TokenAutomaton(((0, 5, 1), (1, 2, -1))), 0)
        [5]
    """
    ways: dict[int, list[int]] = {state: []}
    queue = [state]
    for one in queue:
        for token_id in automaton.allowed(one):
            after = automaton.step(one, token_id)
            if after == DONE:
                return ways[one]
            if after is not None and after not in ways:
                ways[after] = [*ways[one], token_id]
                queue.append(after)
    return []


def regexes(max_leaves: int = 6) -> st.SearchStrategy[str]:
    """Regular expressions of few characters, some of several bytes, which every engine reads alike."""
    character = st.sampled_from(_CHARACTERS)
    letters = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map("".join)

    def longer(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        mark = st.sampled_from(("*", "?", "+", "{1,3}", "{2}"))
        both = st.tuples(inner, inner)
        return st.one_of(both.map("".join), both.map("({0[0]}|{0[1]})".format), st.builds("({}){}".format, inner, mark))

    leaf = st.one_of(character, letters.map("[{}]".format), letters)
    part = st.recursive(leaf, longer, max_leaves=max_leaves)
    return st.builds(str.format, st.sampled_from(_SHAPES), part, part)


_SHAPES = (
    "{0}",
    "({0})*{1}",
    "{0}{1}",
    "({0}{1})+",
    "{0}({1}|{0})*",
    "({0}|{1})*",
    "({0}[ab]{{3}}{0}|{1}[ab]{{3}}{1})*",
)
"""In the last one, what may come was decided several tokens ago."""

_PICKS = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {  # Any: of the field
    "at": st.integers(0, 3),
    "number": st.integers(0, 1),
    "picks": _PICKS,
    "kept": st.integers(0, 5),
    "count": st.sampled_from((1, 2, 1, 3, 5, 8)),
    "stop": st.integers(0, 2),
}


def _events(kind: str) -> st.SearchStrategy[MatcherEvent]:
    made: Any = EVENTS[kind]  # Any: its fields vary
    names = [f.name for f in dataclasses.fields(made)]
    return st.builds(made, **{name: _FIELDS[name] for name in names if name in _FIELDS})


@st.composite
def matcher_traces(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    events: Sequence[str] | None = None,
    min_events: int = 1,
    max_events: int = 12,
    max_grammars: int = 2,
    last: Sequence[MatcherEvent] = (),
    max_vocab_size: int = 300,
) -> MatcherTrace:
    """Traces of some grammars over one vocabulary.

    Args:
        events: Kinds of events (`EVENTS`, all of them if `None`); a kind that is named twice comes twice as often.
        last: Events at the end of every trace.

    Raises:
        TypeError, ValueError: If a bound or kind is invalid; when the first trace is drawn.
    """
    check_interval("matcher_traces", "min_events", min_events, "max_events", max_events)
    kinds = check_kinds("matcher_traces", "events", events, tuple(EVENTS))
    happens = st.sampled_from(kinds).flatmap(_events)
    sizes = [size for size in (24, 12, 32, 33, 64, 65, 100, 257) if size <= max_vocab_size]
    drawn = [draw(happens) for _ in range(draw(st.integers(min_events, max_events)))]
    if draw(st.booleans()):  # what happened to a matcher is met again by what happens to the same one next
        drawn[1:] = (dataclasses.replace(one, at=(number // 3) % 4) for number, one in enumerate(drawn[1:]))
    if {"Walk", "Open"} <= {*kinds} and draw(st.booleans()):  # two texts that differ in their first token alone
        rest, (one, other) = draw(_PICKS), draw(st.permutations(range(4)))[:2]
        drawn[:1] = Walk(0, (one, *rest)), Open(), Walk(-1, (other, *rest))
    return MatcherTrace(
        regexes=tuple(draw(st.lists(regexes(), min_size=1, max_size=max_grammars))),
        events=(*drawn, *last),
        vocab_size=draw(st.sampled_from(sizes)),
        num_stops=draw(st.integers(1, 3)),
        seed=draw(bulk_seeds()),
    )


@st.composite
def wide_matcher_traces(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
) -> MatcherTrace:
    """Vocabularies up to 70000 tokens, texts of hundreds, and many matchers."""
    picks = tuple(draw(st.lists(st.integers(0, 2_000), min_size=3, max_size=5)))
    others = range(1, 1 + draw(st.sampled_from((8, 3))))
    events = (
        Walk(0, picks, draw(st.sampled_from((100, 200)))),
        *(Open() for _ in others),
        *(Walk(at, picks[at % 3 :]) for at in others),
        RollBack(0, draw(st.integers(70, 300))),
        Draft(0, picks * 8, 3),
        *(End(at) for at in (0, *others)),
        RollBack(0, 5),
    )
    regex = draw(st.sampled_from(("([ab]{7}c)*", "(漢[abc]{3}d)*", "((a|b|cd)é[ab])*")))
    return MatcherTrace((regex,), events, draw(st.sampled_from((66_016, 4_097, 33_001, 1_024))), 2, draw(bulk_seeds()))
