"""Matchers that are correct and unlike the specification. The checks must pass every one of them."""

from typing import Any

from fairdraw._mutants.matchers import maker_of
from fairdraw._oracles.matchers import MatcherOracle, longest_forced
from fairdraw.contracts import MatcherPolicy
from fairdraw.strategies.matchers import automaton_of


class WalksATable(MatcherOracle):
    """A table of states, made when the grammar is compiled; the state is a number."""

    def followers(self) -> list[int]:
        automaton = automaton_of(self.grammar)
        return sorted(automaton.allowed(automaton.walk(0, self.token_ids)[-1]))


class SharesMasksByText(MatcherOracle):
    """The compiled grammar caches masks under the text, which is what they depend on."""

    def followers(self) -> list[int]:
        return list(self.shared.setdefault(tuple(self.token_ids), super().followers()))


class RollsBackByWalkingAgain(MatcherOracle):
    """Nothing is taken back: what is left of the text is accepted once more, as by a library that has no rollback."""

    def rollback(self, num_tokens: int) -> None:
        kept, self.token_ids = self.token_ids[: len(self.token_ids) - num_tokens], []
        assert all(self.accept(token_id) for token_id in kept)


class JumpsOneByte(MatcherOracle):
    """Returns the first byte of what is forced, and no more."""

    def forced(self) -> bytes:
        return super().forced()[:1]


class AllowsStopTokensBehindTheEnd(MatcherOracle):
    def allowed(self) -> list[int]:
        return list(self.grammar.stop_token_ids) if self.is_terminated else self.followers()


class AllowsAnythingBehindTheEnd(MatcherOracle):
    """Allows every token behind the end; takes one stop token and whole characters."""

    def allowed(self) -> list[int]:
        return list(range(len(self.grammar.vocabulary))) if self.is_terminated else self.followers()


class MasksOneTokenOfForcedText(MatcherOracle):
    """Where one text can follow, one token of it alone has a bit; `accept` takes them all."""

    def allowed(self) -> list[int]:
        found = super().allowed()
        return found[-1:] if longest_forced(self.grammar.regex, self.text) else found


class HasNoMore(MatcherOracle):
    """None of the methods that a matcher need not have."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("fork", "forced", "reset"):
            raise AttributeError(name)
        return super().__getattribute__(name)


_POLICIES = {
    AllowsStopTokensBehindTheEnd: MatcherPolicy(ended_mask="stops"),
    AllowsAnythingBehindTheEnd: MatcherPolicy(ended_mask="unasked", stop_tokens="one", tokens="text"),
    MasksOneTokenOfForcedText: MatcherPolicy(forced_tokens="some"),
}
_KINDS = (WalksATable, SharesMasksByText, RollsBackByWalkingAgain, JumpsOneByte, HasNoMore, *_POLICIES)
ODD = tuple(maker_of(kind, policy=_POLICIES.get(kind)) for kind in _KINDS)
"""Each is what a real engine does, or could do, without being wrong."""
