"""Tiny deterministic automata over tokens: grammars whose every answer is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fairdraw.contracts import num_words, words_of
from fairdraw.strategies._recipe import Recipe

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
