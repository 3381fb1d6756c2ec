"""Wrong matchers, one fault each.

Each function stands for one step of the oracle, with that step's arguments; `right` has the correct steps. A class is
the oracle with more than a step that is wrong.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from torch import Tensor

from fairdraw._mutants._mutant import Mutant, mutant_as, mutants_in, name_of, patching
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


_patched = patching(_mutant, MatcherOracle)


# Masks


@_patched("allowed", "MAT101")
def looks_up_the_first_byte(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """A token is allowed if one is that begins alike: the rest is left to the next step."""
    found, words = right.allowed(), own.grammar.text_tokens
    begins = {words[i][:1] for i in found if i in words}
    return [*found, *(i for i, token in words.items() if token[:1] in begins and i not in found)]


@_patched("allowed", "MAT101")
def keeps_leaves_of_the_trie(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """A token that is the beginning of another allowed one is an inner node, and gets no bit."""
    found, words = right.allowed(), own.grammar.text_tokens
    inner = {words[i][:size] for i in found if i in words for size in range(1, len(words[i]))}
    return [i for i in found if words.get(i) not in inner]


@_patched("allowed", "MAT101")
def keeps_one_of_equal_tokens(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """Tokens are keys of a dict: of two with the same bytes, as a byte and a letter, the first one is lost."""
    return list({own.grammar.vocabulary[i]: i for i in right.allowed()}.values())


@_patched("allowed", "MAT101")
def masks_whole_characters_only(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """Tokens are decoded before they are compared: those that end within a character are dropped."""
    words = own.grammar.text_tokens
    return [i for i in right.allowed() if "\ufffd" not in words.get(i, b"").decode(errors="replace")]


@_patched("allowed", "MAT101", "MAT102")
def knows_one_stop_token(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """The first stop token alone gets its bit; others are accepted."""
    return [i for i in right.allowed() if i not in own.grammar.stop_token_ids[1:]]


@_patched("allowed", "MAT101")
def stops_where_it_must_not(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """Stop tokens are allowed everywhere, as a way out."""
    return sorted({*right.allowed(), *own.grammar.stop_token_ids})


@_patched("allowed", "MAT101")
def reads_special_tokens_as_text(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """A special token is allowed where its name is text of the grammar."""
    found, vocabulary = right.allowed(), own.grammar.vocabulary
    texts = {vocabulary[i] for i in found}
    return [*found, *(i for i in own.grammar.special_token_ids if vocabulary[i] in texts)]


# Tokens and rollbacks


@_mutant("MAT102")
class FailsForGood(MatcherOracle):
    """A refused token leaves an error behind: nothing is accepted any more."""

    failed = False

    def accept(self, token_id: int) -> bool:
        self.failed = self.failed or token_id not in self.followers()
        return not self.failed and super().accept(token_id)


@_patched("rollback", "MAT103")
def rolls_back_bytes(right: MatcherOracle, num_tokens: int, *, own: MatcherOracle) -> None:
    """The number of tokens is taken for a number of bytes."""
    while num_tokens > 0:
        num_tokens -= len(own.grammar.vocabulary[own.token_ids.pop()])


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


@_patched("rollback", "MAT110")
def remembers_sixty_four_tokens(right: MatcherOracle, num_tokens: int) -> None:
    """The history is a ring of 64: a longer rollback ends there."""
    right.rollback(min(num_tokens, 64))


# The end


@_patched("rollback", "MAT104")
def does_not_count_the_stop_token(right: MatcherOracle, num_tokens: int, *, own: MatcherOracle) -> None:
    """Where nothing else can follow it has stopped before the stop token comes: it takes back one too many."""
    if own.is_terminated and num_tokens:
        right.rollback(1)
        num_tokens -= not set(own.followers()) <= set(own.grammar.stop_token_ids)
    right.rollback(num_tokens)


@_mutant("MAT104")
class StaysEnded(MatcherOracle):
    """A rollback moves the state, and leaves the flag of the end."""

    has_ended = False

    @property
    def is_terminated(self) -> bool:
        self.has_ended = self.has_ended or super().is_terminated
        return self.has_ended


@_patched("accept", "MAT104")
def accepts_behind_the_end(right: MatcherOracle, token_id: int) -> bool:
    """An ended matcher answers `True` to everything, and ignores it."""
    return right.is_terminated or right.accept(token_id)


@_mutant("MAT104")
class EndsBeforeTheStopToken(MatcherOracle):
    """The text has ended as soon as a stop token can follow."""

    @property
    def is_terminated(self) -> bool:
        return super().is_terminated or is_complete(derive_all(expression_of(self.grammar.regex), self.text))


@_patched("allowed", "MAT104")
def fills_behind_the_end(right: MatcherOracle) -> list[int]:
    """`fill` of an ended matcher allows nothing, and it declares that it raises."""
    return right.followers()


@_patched("allowed", "MAT104", policy=MatcherPolicy(ended_mask="stops"))
def allows_the_last_stop_token(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """An ended matcher allows the stop token that it saw, and declares that it allows all."""
    return own.followers() or own.token_ids[-1:]


# Several matchers


@_patched("allowed", "MAT105")
def shares_masks_by_length(right: MatcherOracle, *, own: MatcherOracle) -> list[int]:
    """The compiled grammar caches a mask for each length of the text."""
    return list(own.shared.setdefault(len(own.token_ids), right.allowed()))


@_mutant("MAT105")
class IsOneMatcher(MatcherOracle):
    """The compiled grammar holds the text: whoever walks moves all of its matchers."""

    def __init__(self, grammar: MatcherGrammar, shared: dict[Any, Any]) -> None:
        super().__init__(grammar, shared)
        self.token_ids = shared.setdefault("text", self.token_ids)


@_patched("reset", "MAT106")
def reset_keeps_the_text(right: MatcherOracle) -> None:
    """`reset` clears the flag of the end: it takes back the stop token, and nothing else."""
    right.rollback(int(right.is_terminated))


@_patched("fork", "MAT107")
def forks_share_their_text(right: MatcherOracle, *, own: MatcherOracle) -> MatcherOracle:
    """The list of tokens is copied by reference."""
    other = right.fork()
    other.token_ids = own.token_ids
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


@_patched("fork", "MAT201")
def forks_begin_anew_where_the_text_has_ended(right: MatcherOracle, *, own: MatcherOracle) -> MatcherOracle:
    """A fork of an ended matcher is a new one."""
    return type(own)(own.grammar, own.shared) if own.is_terminated else right.fork()


@_patched("forced", "MAT108")
def jumps_over_the_end(right: MatcherOracle, *, own: MatcherOracle) -> bytes:
    """Where the text may end, the one way on is taken for forced."""
    begins = {own.grammar.text_tokens.get(i, b"")[:1] for i in own.followers()} - {b""}
    return right.forced() or b"".join(begins if len(begins) == 1 else ())


@_patched("forced", "MAT108")
def jumps_and_stays_there(right: MatcherOracle, *, own: MatcherOracle) -> bytes:
    """To ask what is forced moves the matcher: the bytes are walked, and not taken back."""
    found = right.forced()
    own.token_ids += [i for i, token in own.grammar.text_tokens.items() if token == found][:1]
    return found


# Rows and sizes


@_patched("fill", "MAT109")
def never_clears_the_row(right: MatcherOracle, bitmask: Tensor) -> None:
    """Bits are set in a row that is thought to be empty."""
    before = bitmask.clone()
    right.fill(bitmask)
    bitmask |= before


@_patched("fill", "MAT109")
def clears_the_next_row(right: MatcherOracle, bitmask: Tensor) -> None:
    """The row is cleared by a count of words that was rounded up."""
    right.fill(bitmask)
    bitmask.as_strided((1,), (1,), bitmask.storage_offset() + len(bitmask)).zero_()


@_patched("allowed", "MAT110")
def knows_ids_of_sixteen_bits(right: MatcherOracle) -> list[int]:
    """Tokens beyond 65535 have no bit."""
    return [i for i in right.allowed() if i < 1 << 16]


MUTANTS = mutants_in(vars())
