"""Wrong matchers, one fault each. Each class is the oracle with one step that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from torch import Tensor

from fairdraw._mutants._mutant import Mutant, mutant_as, mutants_in, name_of
from fairdraw._oracles.matchers import MatcherOracle, OpensOracle, derive_all, expression_of, is_complete
from fairdraw.contracts import MatcherGrammar, MatcherPolicy, SessionSampler


def right() -> SessionSampler:
    """The specification: what every mutant would be without its fault."""
    return maker_of(MatcherOracle, "oracle")


def maker_of(kind: type[MatcherOracle], name: str = "", policy: MatcherPolicy | None = None) -> SessionSampler:
    """Return what compiles grammars for matchers of a class."""
    return SessionSampler(name or name_of(kind), partial(OpensOracle, kind=kind), "matchers", policy=policy)


def _mutant(*caught_by: str, policy: MatcherPolicy | None = None) -> Callable[[type[MatcherOracle]], Mutant]:
    return mutant_as(partial(maker_of, policy=policy), *caught_by)


# Masks


@_mutant("MAT101")
class LooksUpTheFirstByte(MatcherOracle):
    """A token is allowed if one is that begins alike: the rest is left to the next step."""

    def allowed(self) -> list[int]:
        found, words = super().allowed(), self.grammar.text_tokens
        begins = {words[i][:1] for i in found if i in words}
        return [*found, *(i for i, token in words.items() if token[:1] in begins and i not in found)]


@_mutant("MAT101")
class KeepsLeavesOfTheTrie(MatcherOracle):
    """A token that is the beginning of another allowed one is an inner node, and gets no bit."""

    def allowed(self) -> list[int]:
        found, words = super().allowed(), self.grammar.text_tokens
        inner = {words[i][:size] for i in found if i in words for size in range(1, len(words[i]))}
        return [i for i in found if words.get(i) not in inner]


@_mutant("MAT101")
class KeepsOneOfEqualTokens(MatcherOracle):
    """Tokens are keys of a dict: of two with the same bytes, as a byte and a letter, the first one is lost."""

    def allowed(self) -> list[int]:
        return list({self.grammar.vocabulary[i]: i for i in super().allowed()}.values())


@_mutant("MAT101")
class MasksWholeCharactersOnly(MatcherOracle):
    """Tokens are decoded before they are compared: those that end within a character are dropped."""

    def allowed(self) -> list[int]:
        words = self.grammar.text_tokens
        return [i for i in super().allowed() if "\ufffd" not in words.get(i, b"").decode(errors="replace")]


@_mutant("MAT101", "MAT102")
class KnowsOneStopToken(MatcherOracle):
    """The first stop token alone gets its bit; others are accepted."""

    def allowed(self) -> list[int]:
        return [i for i in super().allowed() if i not in self.grammar.stop_token_ids[1:]]


@_mutant("MAT101")
class StopsWhereItMustNot(MatcherOracle):
    """Stop tokens are allowed everywhere, as a way out."""

    def allowed(self) -> list[int]:
        return sorted({*super().allowed(), *self.grammar.stop_token_ids})


@_mutant("MAT101")
class ReadsSpecialTokensAsText(MatcherOracle):
    """A special token is allowed where its name is text of the grammar."""

    def allowed(self) -> list[int]:
        found, vocabulary = super().allowed(), self.grammar.vocabulary
        texts = {vocabulary[i] for i in found}
        return [*found, *(i for i in self.grammar.special_token_ids if vocabulary[i] in texts)]


# Tokens and rollbacks


@_mutant("MAT102")
class FailsForGood(MatcherOracle):
    """A refused token leaves an error behind: nothing is accepted any more."""

    failed = False

    def accept(self, token_id: int) -> bool:
        self.failed = self.failed or token_id not in self.followers()
        return not self.failed and super().accept(token_id)


@_mutant("MAT103")
class RollsBackBytes(MatcherOracle):
    """The number of tokens is taken for a number of bytes."""

    def rollback(self, num_tokens: int) -> None:
        while num_tokens > 0:
            num_tokens -= len(self.grammar.vocabulary[self.token_ids.pop()])


@_mutant("MAT103")
class KeepsTheMaskOfTheDraft(MatcherOracle):
    """The mask is computed when a token is accepted; a rollback leaves it as it is."""

    mask: list[int] | None = None

    def accept(self, token_id: int) -> bool:
        answer = super().accept(token_id)
        self.mask = self.followers() if answer else self.mask
        return answer

    def allowed(self) -> list[int]:
        right = super().allowed()
        return right if self.mask is None else self.mask


@_mutant("MAT110")
class RemembersSixtyFourTokens(MatcherOracle):
    """The history is a ring of 64: a longer rollback ends there."""

    def rollback(self, num_tokens: int) -> None:
        super().rollback(min(num_tokens, 64))


# The end


@_mutant("MAT104")
class DoesNotCountTheStopToken(MatcherOracle):
    """Where nothing else can follow it has stopped before the stop token comes: it takes back one too many."""

    def rollback(self, num_tokens: int) -> None:
        if self.is_terminated and num_tokens:
            super().rollback(1)
            num_tokens -= not set(self.followers()) <= set(self.grammar.stop_token_ids)
        super().rollback(num_tokens)


@_mutant("MAT104")
class StaysEnded(MatcherOracle):
    """A rollback moves the state, and leaves the flag of the end."""

    has_ended = False

    @property
    def is_terminated(self) -> bool:
        self.has_ended = self.has_ended or super().is_terminated
        return self.has_ended


@_mutant("MAT104")
class AcceptsBehindTheEnd(MatcherOracle):
    """An ended matcher answers `True` to everything, and ignores it."""

    def accept(self, token_id: int) -> bool:
        return self.is_terminated or super().accept(token_id)


@_mutant("MAT104")
class EndsBeforeTheStopToken(MatcherOracle):
    """The text has ended as soon as a stop token can follow."""

    @property
    def is_terminated(self) -> bool:
        last = derive_all(expression_of(self.grammar.regex), self.text)
        return super().is_terminated or is_complete(last)


@_mutant("MAT104")
class FillsBehindTheEnd(MatcherOracle):
    """`fill` of an ended matcher allows nothing, and it declares that it raises."""

    def allowed(self) -> list[int]:
        return self.followers()


@_mutant("MAT104", policy=MatcherPolicy(ended_mask="stops"))
class AllowsTheLastStopToken(MatcherOracle):
    """An ended matcher allows the stop token that it saw, and declares that it allows all."""

    def allowed(self) -> list[int]:
        return self.followers() or self.token_ids[-1:]


# Several matchers


@_mutant("MAT105")
class SharesMasksByLength(MatcherOracle):
    """The compiled grammar caches a mask for each length of the text."""

    def allowed(self) -> list[int]:
        right = super().allowed()
        return list(self.shared.setdefault(len(self.token_ids), right))


@_mutant("MAT105")
class IsOneMatcher(MatcherOracle):
    """The compiled grammar holds the text: whoever walks moves all of its matchers."""

    def __init__(self, grammar: MatcherGrammar, shared: dict[Any, Any]) -> None:
        super().__init__(grammar, shared)
        self.token_ids = shared.setdefault("text", self.token_ids)


@_mutant("MAT106")
class ResetKeepsTheText(MatcherOracle):
    """`reset` clears the flag of the end: it takes back the stop token, and nothing else."""

    def reset(self) -> None:
        self.rollback(int(self.is_terminated))


@_mutant("MAT107")
class ForksShareTheirText(MatcherOracle):
    """The list of tokens is copied by reference."""

    def fork(self) -> Self:
        other = super().fork()
        other.token_ids = self.token_ids
        return other


@_mutant("MAT107")
class ForksForget(MatcherOracle):
    """A fork has the state and not the history: it cannot be rolled back behind the fork."""

    first = 0

    def fork(self) -> Self:
        other = super().fork()
        other.first = len(self.token_ids)
        return other

    def rollback(self, num_tokens: int) -> None:
        super().rollback(min(num_tokens, len(self.token_ids) - self.first))


@_mutant("MAT201")
class ForksBeginAnewWhereTheTextHasEnded(MatcherOracle):
    """A fork of an ended matcher is a new one."""

    def fork(self) -> Self:
        return type(self)(self.grammar, self.shared) if self.is_terminated else super().fork()


@_mutant("MAT108")
class JumpsOverTheEnd(MatcherOracle):
    """Where the text may end, the one way on is taken for forced."""

    def forced(self) -> bytes:
        begins = {self.grammar.text_tokens.get(i, b"")[:1] for i in self.followers()} - {b""}
        return super().forced() or b"".join(begins if len(begins) == 1 else ())


@_mutant("MAT108")
class JumpsAndStaysThere(MatcherOracle):
    """To ask what is forced moves the matcher: the bytes are walked, and not taken back."""

    def forced(self) -> bytes:
        found = super().forced()
        self.token_ids += [i for i, token in self.grammar.text_tokens.items() if token == found][:1]
        return found


# Rows and sizes


@_mutant("MAT109")
class NeverClearsTheRow(MatcherOracle):
    """Bits are set in a row that is thought to be empty."""

    def fill(self, bitmask: Tensor) -> None:
        before = bitmask.clone()
        super().fill(bitmask)
        bitmask |= before


@_mutant("MAT109")
class ClearsTheNextRow(MatcherOracle):
    """The row is cleared by a count of words that was rounded up."""

    def fill(self, bitmask: Tensor) -> None:
        super().fill(bitmask)
        bitmask.as_strided((1,), (1,), bitmask.storage_offset() + len(bitmask)).zero_()


@_mutant("MAT110")
class KnowsIdsOfSixteenBits(MatcherOracle):
    """Tokens beyond 65535 have no bit."""

    def allowed(self) -> list[int]:
        return [i for i in super().allowed() if i < 1 << 16]


MUTANTS = mutants_in(vars())
