"""The thinking-budget contract, executable: every answer follows from the whole text, token by token.

Nothing is remembered between steps. A request's text is its prompt followed by its output; a step's drafts follow it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ThinkingPolicy

_VLLM = ThinkingPolicy()


class Thoughts(NamedTuple):
    """Thinking tokens of a text.

    Args:
        open: Those of the section that is open at its end; `None` if none is.
        ended: Those of the sections that its output has ended; `None` if it has ended none.
    """

    open: int | None = None
    ended: int | None = None


class ThinkingBudgetOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them.

    Args:
        start_token_ids: Opens a section.
        end_token_ids: Closes it; these tokens are forced.
        policy: What becomes of begun end markers and of later sections.
    """

    name = "oracle"
    reach: int | None = None
    """How many of the last tokens a marker is looked for in; `None` for as many as the longer marker has."""

    def __init__(
        self, start_token_ids: Sequence[int], end_token_ids: Sequence[int], policy: ThinkingPolicy = _VLLM
    ) -> None:
        self.start, self.end, self.policy = tuple(start_token_ids), tuple(end_token_ids), policy

    def think_count(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        """Thinking tokens in the section that is open at the end of the text; `None` if none is."""
        return self.thoughts((*prompt, *output), len(prompt)).open

    def thoughts(self, text: tuple[int, ...], num_prompt: int) -> Thoughts:
        """Thinking tokens of a text whose first `num_prompt` tokens are the prompt."""
        return self.read(Thoughts(), text, 0, num_prompt)

    def read(self, before: Thoughts, text: tuple[int, ...], known: int, num_prompt: int) -> Thoughts:
        """Go on from what the first `known` tokens are.

        A start marker inside a section begins it anew if it is part of the prompt, where earlier turns may have been
        cut off. In the output it is a thinking token like others.
        """
        (count, ended), reach = before, self.reach or max(len(self.start), len(self.end))
        for length in range(known + 1, len(text) + 1):
            may_end = text[length - 1] in (self.start[-1], self.end[-1])
            marker = self.marker_at_end(text[max(0, length - reach) : length]) if may_end else None
            if marker == self.end:
                if count is not None and length > num_prompt:
                    ended = (ended or 0) + max(0, count + 1 - len(self.end))
                count = None
            elif marker == self.start and (count is None or length <= num_prompt):
                count = 0
            elif count is not None:
                count += 1
        return Thoughts(count, ended)

    def marker_at_end(self, text: Sequence[int]) -> tuple[int, ...] | None:
        """The marker that the text ends with, the longer one if both fit."""
        return max((one for one in (self.start, self.end) if tuple(text[-len(one) :]) == one), key=len, default=None)

    def next_token(self, prompt: Sequence[int], output: Sequence[int], budget: int) -> int | None:
        """The forced token after this text; `None` if none is forced.

        Once the budget is spent, the end marker is forced from its first token on. If the text already ends with some
        of its tokens, they are not repeated, provided that they came after the budget was spent; by another policy also
        if they came before.
        """
        count, left = self.think_count(prompt, output), self.left(prompt, output, budget)
        if count is None or left is None:
            return None
        text, is_new = (*prompt, *output), self.policy.begun_end == "restarted"
        lengths = range(min(len(self.end) - 1, count - left if is_new else count), 0, -1)
        begun = next((length for length in lengths if text[-length:] == self.end[:length]), 0)
        spent = count - begun if self.policy.begun_end == "uncounted" else count
        return self.end[begun] if spent >= left else None

    def left(self, prompt: Sequence[int], output: Sequence[int], budget: int) -> int | None:
        """What the open section may spend; `None` if it has no budget."""
        if self.policy.later_sections == "budgeted":
            return budget
        ended = self.thoughts((*prompt, *output), len(prompt)).ended
        if self.policy.later_sections == "free":
            return budget if ended is None else None
        return max(0, budget - (ended or 0))

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
            if (token_id := self.next_token(prompt, (*output, *drafts[:position]), budget)) is not None:
                forced.append((position, token_id))
                if position < len(drafts) and drafts[position] != token_id:
                    break
        return forced
