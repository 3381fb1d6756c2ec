"""The thinking-budget contract, executable: every answer follows from the whole text, token by token.

Nothing is remembered between steps. A request's text is its prompt followed by its output; a step's drafts follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID

if TYPE_CHECKING:
    from collections.abc import Sequence


class ThinkingBudgetOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them.

    Args:
        start_token_ids: Opens a section.
        end_token_ids: Closes it; these tokens are forced.
    """

    name = "oracle"

    def __init__(self, start_token_ids: Sequence[int], end_token_ids: Sequence[int]) -> None:
        self.start, self.end = tuple(start_token_ids), tuple(end_token_ids)

    def think_count(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        """Thinking tokens in the section that is open at the end of the text; `None` if none is.

        A start marker inside a section begins it anew if it is part of the prompt, where earlier turns may have been
        cut off. In the output it is a thinking token like others.
        """
        text = (*prompt, *output)
        count: int | None = None
        for length in range(1, len(text) + 1):
            may_end = text[length - 1] in (self.start[-1], self.end[-1])
            marker = self.marker_at_end(text[:length]) if may_end else None
            if marker == self.end:
                count = None
            elif marker == self.start and (count is None or length <= len(prompt)):
                count = 0
            elif count is not None:
                count += 1
        return count

    def marker_at_end(self, text: Sequence[int]) -> tuple[int, ...] | None:
        """The marker that the text ends with, the longer one if both fit."""
        fitting = [marker for marker in (self.start, self.end) if tuple(text[-len(marker) :]) == marker]
        return max(fitting, key=len, default=None)

    def next_token(self, prompt: Sequence[int], output: Sequence[int], budget: int) -> int | None:
        """The forced token after this text; `None` if none is forced.

        Once the budget is spent, the end marker is forced from its first token on. If the text already ends with some
        of its tokens, they are not repeated, provided that they came after the budget was spent.
        """
        count = self.think_count(prompt, output)
        if count is None or count < budget:
            return None
        text = (*prompt, *output)
        for length in range(min(len(self.end) - 1, count - budget), 0, -1):
            if text[-length:] == self.end[:length]:
                return self.end[length]
        return self.end[0]

    def known(self, prompt: Sequence[int], output: Sequence[int], budget: int) -> tuple[int, ...]:
        """The output, in which each placeholder at the end is replaced by the token forced there, if any."""
        known = list(output)
        while known and known[-1] == PLACEHOLDER_TOKEN_ID:
            known.pop()
        while len(known) < len(output):
            token_id = self.next_token(prompt, known, budget)
            known.append(PLACEHOLDER_TOKEN_ID if token_id is None else token_id)
        return tuple(known)

    def forced(
        self, prompt: Sequence[int], output: Sequence[int], drafts: Sequence[int], budget: int | None
    ) -> list[tuple[int, int]]:
        """Position and token of everything that is forced in one step, if drafts are accepted one by one.

        Positions after a draft that cannot be accepted are never reached, and nothing is forced there.
        """
        forced: list[tuple[int, int]] = []
        if budget is None:
            return forced
        output = self.known(prompt, output, budget)
        for position in range(len(drafts) + 1):
            token_id = self.next_token(prompt, (*output, *drafts[:position]), budget)
            if token_id is not None:
                forced.append((position, token_id))
                if position < len(drafts) and drafts[position] != token_id:
                    break
        return forced
