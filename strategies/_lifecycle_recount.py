"""The thinking-budget specification, quick enough for texts of thousands of tokens that grow step by step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle, Thoughts
from fairdraw.contracts import ThinkingPolicy

_BLOCK = 128


class QuickThinkingOracle(ThinkingBudgetOracle):
    """The same answers: what each block of tokens leaves is remembered by the tokens before it."""

    def __init__(self, start_token_ids: Sequence[int], end_token_ids: Sequence[int], policy: ThinkingPolicy) -> None:
        super().__init__(start_token_ids, end_token_ids, policy)
        self.reach = max(len(self.start), len(self.end))
        self._settled = lru_cache(maxsize=512)(self.thoughts)

    def thoughts(self, text: tuple[int, ...], num_prompt: int) -> Thoughts:
        known = max(0, (len(text) - 1) // _BLOCK * _BLOCK)
        before = self._settled(text[:known], min(num_prompt, known)) if known > 0 else Thoughts()
        return self.read(before, text, known, num_prompt)
