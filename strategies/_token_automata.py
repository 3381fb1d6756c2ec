"""Tiny deterministic automata over tokens: grammars whose every answer is known, and steps of requests under them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import GrammarBatch, GrammarRequest, num_words, words_of
from fairdraw.strategies._recipe import BatchRecipe, Recipe
from fairdraw.strategies.rows import TARGET_KINDS, bulk_rng, target_row

DONE = -1
"""The state after the last token of a text."""

Edge = tuple[int, int, int]
"""State, token id, and the state behind it."""


@dataclass(frozen=True, repr=False)
class TokenAutomaton(Recipe):
    """A grammar: which tokens may follow in each state, and the state behind each. It begins in state 0.

    A state without edges is a dead end: no token may follow, and the text is not complete either.

    Args:
        edges: State, token id, next state; -1 (`DONE`) ends the text.

    Raises:
        ValueError: If a state has two edges for a token.

    Example:
        >>> TokenAutomaton(((0, 5, 1), (0, 7, 0), (1, 2, -1))).allowed(0)
        (5, 7)
    """

    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(tuple(map(int, edge)) for edge in self.edges))
        if len({edge[:2] for edge in self.edges}) < len(self.edges):
            raise ValueError(
                f"TokenAutomaton: edges={self.edges}, but a state must have one edge for a token. Drop the others."
            )

    @cached_property
    def _states(self) -> Mapping[int, dict[int, int]]:
        found: dict[int, dict[int, int]] = {}
        for state, token_id, after in self.edges:
            found.setdefault(state, {})[token_id] = after
        return found

    def allowed(self, state: int) -> tuple[int, ...]:
        """The tokens that may follow."""
        return tuple(self._states.get(state, ()))

    def step(self, state: int, token_id: int) -> int | None:
        """The state behind a token; `None` if it is not allowed."""
        return self._states.get(state, {}).get(token_id)

    def walk(self, state: int, token_ids: Sequence[int]) -> list[int]:
        """The states before, between and behind these tokens, as far as they are allowed and the text goes on.

        Example:
            >>> TokenAutomaton(((0, 5, 1), (1, 2, -1))).walk(0, [5, 2, 5])
            [0, 1, -1]
        """
        states = [state]
        for token_id in token_ids:
            after = self.step(states[-1], token_id)
            if after is None:
                break
            states.append(after)
        return states


class TokenMatcher:
    """The state of one text under an automaton: a `TokenGrammar`, as the suite hands it to a masker."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton, self._states = automaton, [0]

    @property
    def state(self) -> int:
        """The number of the state, or `DONE`."""
        return self._states[-1]

    @property
    def is_terminated(self) -> bool:
        """The text is complete."""
        return self.state == DONE

    def accept(self, token_id: int) -> bool:
        """Advance by a token; `False`, and nothing changes, if it is not allowed."""
        after = self.automaton.step(self.state, int(token_id))
        if after is not None:
            self._states.append(after)
        return after is not None

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted.

        Raises:
            ValueError: If there were not so many.
        """
        if not 0 <= num_tokens < len(self._states):
            rule = f"{len(self._states) - 1} tokens were accepted"
            raise ValueError(f"rollback: num_tokens={num_tokens}, but {rule}. Take back what was accepted.")
        del self._states[len(self._states) - num_tokens :]

    def fill(
        self,
        bitmask: torch.Tensor,  # [num_words] int32
    ) -> None:
        """Write the tokens that are allowed now.

        Raises:
            RuntimeError: If the text is complete.
        """
        if self.is_terminated:
            raise RuntimeError("fill: is_terminated=True, but the text must go on. Do not ask behind its end.")
        width = bitmask.shape[-1]
        token_ids = [i for i in self.automaton.allowed(self.state) if num_words(i + 1) <= width]
        bitmask.copy_(torch.tensor(words_of(token_ids, width), dtype=torch.int32))

    def __deepcopy__(self, memo: Any) -> TokenMatcher:  # Any: of the copy module
        return self.copy()

    def copy(self) -> TokenMatcher:
        """Another text, in the same state."""
        other = TokenMatcher(self.automaton)
        other._states = list(self._states)
        return other


class GrammarCase(BatchRecipe):
    """A case of the grammar contract: a `BitmaskCase`, an `AutomatonCase` or a `MaskTrace`."""


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
