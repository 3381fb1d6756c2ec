"""The thinking-budget specification, quick enough for texts of thousands of tokens that grow step by step."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK = 128


class QuickThinkingOracle(ThinkingBudgetOracle):
    """The same answers: the count after each block of tokens is remembered by the tokens before it."""

    def __init__(self, start_token_ids: Sequence[int], end_token_ids: Sequence[int]) -> None:
        super().__init__(start_token_ids, end_token_ids)
        self._last = {self.start[-1], self.end[-1]}
        self._reach = max(len(self.start), len(self.end))
        self._settled = lru_cache(maxsize=512)(self._count)

    def think_count(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        return self._count((*prompt, *output), len(prompt))

    def _count(self, text: tuple[int, ...], num_prompt: int) -> int | None:
        """As `think_count`, of a text whose first `num_prompt` tokens are the prompt."""
        known = max(0, (len(text) - 1) // _BLOCK * _BLOCK)
        count = self._settled(text[:known], min(num_prompt, known)) if known > 0 else None
        for length in range(known + 1, len(text) + 1):
            is_last = text[length - 1] in self._last
            marker = self.marker_at_end(text[max(0, length - self._reach) : length]) if is_last else None
            if marker == self.end:
                count = None
            elif marker == self.start and (count is None or length <= num_prompt):
                count = 0
            elif count is not None:
                count += 1
        return count
