"""The checks of the matchers contract, each made after every event of a trace.

10x are single kinds of events, 110 the sizes of production, 201 all events together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from hypothesis import strategies as st

from fairdraw._core.checks import Cases, Check, Conditions
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure
from fairdraw._oracles.matchers import longest_forced
from fairdraw.contracts import Capabilities, MatcherGrammar, MatcherMaker, MatcherPolicy, policy_of
from fairdraw.contracts import _matchers as calls
from fairdraw.strategies import matchers as traces
from fairdraw.strategies._token_automata import TokenMatcher
from fairdraw.strategies.matchers import MatcherEvent, MatcherTrace, automaton_of

__all__ = ["CHECKS"]

Judge = Literal["the grammar", "a fresh matcher"]


class Followed:
    """A matcher, and beside it what it should be: `model`, the same text under the automaton of the grammar."""

    def __init__(self, maker: MatcherMaker, grammar: MatcherGrammar, compiled: calls.CompiledGrammar) -> None:
        self.maker, self.grammar, self.compiled = maker, grammar, compiled
        self.matcher: Any = calls.call_matcher(maker, compiled.open)  # Any: a Matcher, and methods of its own
        self.model, self.token_ids = TokenMatcher(automaton_of(grammar)), list[int]()

    @property
    def allowed(self) -> list[int]:
        """The tokens that the grammar allows, in the order of their ids."""
        return sorted(self.model.automaton.allowed(self.model.state))

    @property
    def longest_forced(self) -> bytes:
        """The bytes that must follow."""
        return longest_forced(self.grammar.regex, b"".join(self.grammar.vocabulary[i] for i in self.token_ids))

    def mask(self, pattern: int = calls.FILLED_OVER[0]) -> frozenset[int]:
        """What the matcher allows, filled into a row that holds `pattern`; nothing once the text has ended."""
        if self.model.is_terminated:
            return frozenset()
        rows = calls.filled_rows(self.maker, self.matcher, self.grammar.num_words, pattern)
        if not bool((rows[::2] == pattern).all()):
            raise self.failure("fill wrote into the row of another matcher")
        return calls.tokens_of(rows[1], len(self.grammar.vocabulary))

    def fresh_mask(self) -> frozenset[int]:
        """The mask of a matcher that is opened anew, and walks the same text."""
        fresh = Followed(self.maker, self.grammar, self.compiled)
        for token_id in self.token_ids:
            fresh.accept(token_id)
        return fresh.mask()

    def accept(self, token_id: int) -> bool:
        """Accept a token; a matcher that refuses it stays where it is."""
        answer = calls.accept_token(self.maker, self.matcher, token_id)
        if answer and self.model.accept(token_id):
            self.token_ids.append(token_id)
        return answer

    def roll_back(self, count: int, how: str = "rollback") -> None:
        """Take back tokens, as many as there are at most."""
        count = max(0, min(count, len(self.token_ids)))
        calls.call_matcher(self.maker, getattr(self.matcher, how), *[count] * (how == "rollback"))
        self.model.rollback(count)
        del self.token_ids[len(self.token_ids) - count :]

    def fork(self) -> Followed:
        """Return the fork of a matcher."""
        other = copy(self)
        other.matcher = calls.call_matcher(self.maker, self.matcher.fork)
        other.model, other.token_ids = self.model.copy(), list(self.token_ids)
        return other

    def token(self, token_id: int) -> str:
        """Name a token, with its bytes."""
        return f"token {token_id} ({self.grammar.vocabulary[token_id]!r})"

    def failure(self, effect: str) -> CheckFailure:
        """Say what is wrong."""
        last = f"{len(self.token_ids)} tokens, at last {self.token_ids[-6:]}"
        return CheckFailure(f"a matcher of {self.grammar.regex!r} after {last}: {effect}")


class Playing:
    """A trace that is being played.

    Args:
        judge: What masks are compared with: `the grammar`, or `a fresh matcher` that walked the same text.
    """

    def __init__(self, maker: MatcherMaker, case: MatcherTrace, judge: Judge = "a fresh matcher") -> None:
        self.maker, self.judge, self.policy = maker, judge, policy_of(maker, MatcherPolicy)
        self.grammars = [grammar.within(self.policy) for grammar in case.build()]
        self._compiled = [calls.call_matcher(maker, maker.compile_grammar, grammar) for grammar in self.grammars]
        self.followed: list[Followed] = []
        self.open(0)

    def open(self, number: int) -> None:
        """Open a matcher at the beginning of a text."""
        number %= len(self.grammars)
        self.followed.append(Followed(self.maker, self.grammars[number], self._compiled[number]))

    # What happens

    def apply(self, event: MatcherEvent) -> None:
        """Let something happen to a matcher; what a matcher cannot do does not happen."""
        one = self.followed[event.at % len(self.followed)]
        match event:
            case traces.Open():
                self.open(event.number)
            case traces.Walk():
                self.walk(one, event.picks * event.times)
            case traces.Draft():
                kept = len(one.token_ids) + event.kept
                for pick in event.picks:
                    self.walk(one, (pick,))
                    self.require(one)
                one.roll_back(len(one.token_ids) - kept)
            case traces.Probe():
                self.probe(one)
            case traces.RollBack():
                one.roll_back(event.count)
            case traces.End():
                self.end(one, event.stop)
            case traces.Reset() if hasattr(one.matcher, "reset"):
                one.roll_back(len(one.token_ids), "reset")
            case traces.Fork() if hasattr(one.matcher, "fork"):
                self.followed.append(one.fork())
            case traces.Force() if hasattr(one.matcher, "forced") and not one.model.is_terminated:
                forced = calls.call_matcher(self.maker, one.matcher.forced)
                if not isinstance(forced, bytes) or not one.longest_forced.startswith(forced):
                    raise one.failure(f"forced={forced!r}, but no more than {one.longest_forced!r} must follow")
            case _:
                pass

    def walk(self, one: Followed, picks: Sequence[int]) -> None:
        """Accept tokens of text that the grammar allows, as far as there are any."""
        for pick in picks:
            choices = [token_id for token_id in one.allowed if token_id not in one.grammar.stop_token_ids]
            if not choices or not one.accept(choices[pick % len(choices)]):
                break

    def end(self, one: Followed, stop: int) -> None:
        """Accept what is missing, and a stop token, which must be accepted if its bit is set."""
        way, stops = traces.way_to_the_end(one.model.automaton, one.model.state), one.grammar.stop_token_ids
        if not one.model.is_terminated and all(one.accept(token_id) for token_id in way):
            token_id, mask = stops[stop % len(stops)], one.mask()
            if token_id in mask and not one.accept(token_id):
                raise one.failure(f"{one.token(token_id)} was refused, but the mask allows it")

    def probe(self, one: Followed) -> None:
        """Try every token, but for stop tokens that are allowed: those are tried by `end`."""
        mask, words = one.mask(), ("refused, but the mask allows", "accepted, but the mask forbids")
        left_out = set(one.allowed) - mask if self.is_loose(one) else ()
        for token_id in sorted({*range(len(one.grammar.vocabulary))} - mask.intersection(one.grammar.stop_token_ids)):
            answer = calls.accept_token(self.maker, one.matcher, token_id)
            if answer != (token_id in mask) and token_id not in left_out:
                raise one.failure(f"{one.token(token_id)} was {words[answer]} it")
            if answer:
                calls.call_matcher(self.maker, one.matcher.rollback, 1)

    # What must be so

    def is_loose(self, one: Followed) -> bool:
        """Whether the mask may leave out tokens."""
        return self.policy.forced_tokens == "some" and bool(one.longest_forced)

    def require(self, one: Followed) -> None:
        """Require that a matcher is where it should be."""
        is_terminated = calls.call_matcher(self.maker, lambda: one.matcher.is_terminated)
        if is_terminated != one.model.is_terminated:
            rule = f"it must be {one.model.is_terminated}: a stop token ends a text, and nothing else"
            raise one.failure(f"is_terminated={is_terminated}, but {rule}")
        by_grammar, mask = self.judge == "the grammar", one.mask()
        expected = frozenset(one.allowed) if by_grammar else one.fresh_mask()
        if not (mask and by_grammar and self.is_loose(one)):
            _require_bits(one, expected - mask, f"forbidden, but {self.judge} allows")
        _require_bits(one, mask - expected, f"allowed, but {self.judge} forbids")
        if one.model.is_terminated:
            self.require_ended_mask(one)

    def require_all(self) -> None:
        """Require that every matcher is where it should be."""
        for one in self.followed:
            self.require(one)

    def require_ended_mask(self, one: Followed) -> None:
        """Require what the policy says of a matcher whose text has ended."""
        declared, mask = self.policy.ended_mask, None
        with suppress(Exception):
            mask = calls.allowed_tokens(self.maker, one.matcher, one.grammar)
        expected = {"raises": None, "stops": frozenset(one.grammar.stop_token_ids)}.get(declared, mask)
        if mask != expected:
            answer = "raised" if mask is None else f"allowed {len(mask)} tokens"
            raise one.failure(f"fill {answer} behind the end, but `ended_mask` is {declared!r}")

    def require_own_row(self, one: Followed) -> None:
        """Require that a mask is written into its row alone, whatever stood there."""
        if len({one.mask(pattern) for pattern in calls.FILLED_OVER}) > 1:
            raise one.failure("the mask depends on what stood in the row before")


def _require_bits(one: Followed, wrong: frozenset[int], words: str) -> None:
    for token_id in sorted(wrong):
        raise one.failure(f"{one.token(token_id)} is {words} it")


@dataclass(frozen=True)
class MatcherCheck(Check):
    """A check of a method that matchers need not have; empty if it needs none."""

    method: str = field(default="", kw_only=True)

    def judge(self, sampler: Any, under: Conditions) -> int:  # Any: a MatcherMaker
        """Run the check, unless the matchers do not have the method."""
        if self.method and not _has(sampler, self.method):
            raise CapabilityUnsupported(f"its matchers have no method `{self.method}`")
        return super().judge(sampler, under)


def _has(maker: MatcherMaker, method: str) -> bool:
    """Whether matchers have a method; true as well if none can be opened, which the check will show."""
    try:
        matcher = maker.compile_grammar(MatcherGrammar("a", (b"a", b"</s>"), (1,))).open()
    except Exception:
        return True
    return hasattr(matcher, method)


def _play(maker: MatcherMaker, case: MatcherTrace, judge: Judge = "a fresh matcher") -> None:
    """Play a trace, and require after each event that every matcher is where it should be."""
    playing = Playing(maker, case, judge)
    playing.require_all()
    for event in case.events:
        playing.apply(event)
        playing.require_all()


def _play_by_the_grammar(maker: MatcherMaker, case: MatcherTrace) -> None:
    _play(maker, case, "the grammar")


def _check(
    code: str, *events: str, last: Sequence[MatcherEvent] = (), cases: Cases | None = None, **fields: Any
) -> Callable[[Callable[[], None]], MatcherCheck]:  # Any: other fields of a check
    """Make a check of traces of one grammar with these events, or of other cases; without a body they are played."""
    fields |= {"contract": "matchers", "depends_on": () if code == "MAT101" else ("MAT101",)}
    fields["cases"] = cases or (lambda can: traces.matcher_traces(can, events=events, last=last, max_grammars=1))
    return lambda says: MatcherCheck.named(says, code, **{"body": _play, **fields})


_exact = partial(_check, body=_play_by_the_grammar)


_SEVERAL, _FORKED = ("Open", "Walk", "Walk", "RollBack", "Draft"), (traces.Fork(), traces.RollBack(-1))
_PROBED = (traces.Walk(), traces.Probe()) * 4


def _probed(can: Capabilities) -> st.SearchStrategy[MatcherTrace]:
    """Traces that end with probes; in half of them texts often end within a character."""

    def within(case: MatcherTrace) -> MatcherTrace:
        return case if case.seed % 2 else case.replace(regexes=(f"(漢|é|{case.regexes[0]})*",))

    return traces.matcher_traces(can, events=("Walk", "Probe"), last=_PROBED, max_grammars=1).map(within)


@_exact("MAT101", "Walk", weight=2.0)
def a_mask_allows_what_the_grammar_allows() -> None:
    """A token is allowed if its bytes can go on the text, and a stop token if the text is complete.

    Masks are compared with an automaton that the suite derives from the regular expression. Tokens that are prefixes of
    each other, that begin or end within a character, or that are special are treated alike by mistake; a token is
    looked up by its first byte; a state that may end is taken for one that must.
    """


@_check("MAT102", cases=_probed)
def a_token_is_accepted_if_its_bit_is_set() -> None:
    """`accept` returns what the mask says, for every token; a token that is refused changes nothing.

    Two code paths decide, one for masks and one for tokens. A refused token leaves bytes behind, or an error from which
    the matcher does not recover.
    """


@_check("MAT103", "Walk", "RollBack", "Draft", "Probe", last=(traces.Draft(),), weight=2.0)
def what_was_rolled_back_leaves_no_trace() -> None:
    """After any walks and rollbacks the mask is that of a fresh matcher which walked what is left of the text.

    Rejected drafts are rolled back at every step of speculative decoding. One token too few or too many, bytes counted
    for tokens, a cached mask, or a history that also holds refused tokens.
    """


@_check("MAT104", "Walk", "End", "RollBack", "Probe", last=(traces.End(), traces.RollBack()), weight=2.0)
def ended_matchers_accept_nothing_and_can_be_rolled_back() -> None:
    """Only a stop token ends a text. Nothing is accepted behind it, and it is taken back as one token.

    A draft may end the text and be rejected. Matchers that stop by themselves where nothing else can follow do not
    count the stop token, and take back one token too many; others stay ended. What `fill` does is declared
    (`ended_mask`).
    """


@_exact("MAT105", cases=lambda can: traces.matcher_traces(can, events=_SEVERAL, max_events=16), weight=2.0)
def matchers_do_not_disturb_each_other() -> None:
    """Every matcher answers as if it were alone, beside others of the same compiled grammar and of another one.

    State that belongs to the compiled grammar, the vocabulary or the module instead of the matcher: masks that are
    cached by a number of the state, by the last token or by the length of the text.
    """


@_check("MAT106", "Walk", "End", "Draft", "Reset", last=(traces.Reset(),), method="reset")
def a_matcher_that_is_reset_begins_a_new_text() -> None:
    """After `reset` a matcher answers as a new one, whatever it had walked, and whether its text had ended.

    The state is new and the flag of the end, a cached mask or the history is old.
    """


@_check("MAT107", "Walk", "Fork", "RollBack", "Draft", last=_FORKED, method="fork", weight=2.0)
def forks_go_their_own_way() -> None:
    """A fork has the text of its matcher and can be rolled back as far; after that neither sees what the other does.

    The history is shared or was not copied; engines that verify trees of drafts then mask a branch by its neighbour.
    """


@_check("MAT108", "Walk", "Force", last=(traces.Force(),), method="forced", weight=2.0)
def what_is_forced_must_follow() -> None:
    """The bytes that `forced` returns are the only ones that can follow, one after the other; the matcher stays there.

    Engines append them without asking the model (jump-forward decoding). Too many where the text may end, or where one
    branch of an alternative is tried; a character that is cut in two by the last token.
    """


def _play_in_its_row(maker: MatcherMaker, case: MatcherTrace) -> None:
    """Play a trace, and require after each event that a mask does not depend on what stood in its row."""
    playing = Playing(maker, case)
    for event in case.events:
        playing.apply(event)
        playing.require_own_row(playing.followed[0])


@_check("MAT109", "Walk", "RollBack", weight=0.5, body=_play_in_its_row)
def a_mask_is_written_into_its_row_alone() -> None:
    """`fill` writes all words of its row, whatever stood there, and none of the rows beside it.

    Rows of a batch are used again from step to step. Bits are set and never cleared, or a word is written too many.
    """


@_exact("MAT110", cases=traces.wide_matcher_traces, weight=0.1)
def masks_are_right_at_the_sizes_of_production() -> None:
    """Vocabularies of 1025 to 70000 tokens, texts of hundreds of tokens, rollbacks of up to 300, eight more matchers.

    If the others pass, look for ids of 16 bits, a history of a fixed length, or a buffer for so many words.
    """


@_exact("MAT201", cases=lambda can: traces.matcher_traces(can, min_events=12, max_events=24), weight=2.0)
def every_mask_is_right_whatever_happened() -> None:
    """All events together, on matchers of two grammars: each mask is what the automaton says.

    If only this check fails, the fault needs two kinds of events: a fork of an ended matcher, a reset after a refused
    token. The smallest trace has both.
    """


CHECKS = tuple(value for value in list(globals().values()) if isinstance(value, MatcherCheck))
