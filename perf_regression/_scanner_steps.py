"""A batch whose outputs grow step by step, and the host work of our scanners on it, without torch.

`instructions` runs this module's factories under valgrind, where importing torch would take minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw.perf_regression._internals import (
    History,
    ThinkingBudget,
    bonus_rows,
    changed_counts,
    draft_rows,
)
from fairdraw.protocols._lifecycle import RequestParams, all_added
from fairdraw.strategies._serving_batch import ServingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


VOCAB_SIZE = 151936
START_ID, END_ID, FIRST_ORDINARY_ID = 7, 8, 300
PROMPT = [1, 2, 3]
MANY_TOKENS = 10**9
PARAMS = RequestParams(1.5, 0.2, 1.1, MANY_TOKENS)
"""Penalties, and a thinking budget that is never spent."""


class Outputs(ServingBatch):
    """A batch whose requests stay. Their output lists grow token by token, as on a server.

    Args:
        num_drafts: Per request and step; a step with drafts emits as many tokens (one more than was accepted).
        max_length: Room in `token_ids_cpu`, the buffer that vLLM keeps beside its lists.
        params: Used in turn.
        counted: Lists count what is read.
    """

    def __init__(
        self,
        batch_size: int,
        num_drafts: int = 0,
        *,
        max_length: int = 0,
        vocab_size: int = VOCAB_SIZE,
        params: Sequence[Any] = (PARAMS,),  # Any: those of the contract
        counted: bool = False,
    ) -> None:
        super().__init__(vocab_size, most_requests=batch_size, counted=counted)
        for row in range(batch_size):
            self.add(params[row % len(params)], PROMPT, [START_ID])
        self.num_drafts = num_drafts
        self.lists: list[Any] = [request.output_token_ids for request in self.requests]  # Any: lists that are counted
        self.drafts: list[list[int]] = [[] for _ in range(batch_size)]
        self.token_ids_cpu = np.zeros((batch_size, len(PROMPT) + max_length), np.int32)
        self.token_ids_cpu[:, len(PROMPT) : len(PROMPT) + 1] = START_ID
        self._rng = np.random.default_rng(derive_seed("outputs", batch_size))

    def drawn(self, num_rows: int, num_columns: int) -> list[list[int]]:
        drawn: list[list[int]] = self._rng.integers(
            FIRST_ORDINARY_ID, self.vocab_size, (num_rows, num_columns)
        ).tolist()
        return drawn

    def grow(self, num_tokens: int) -> None:
        """Append to all lists in turn, so that the `int` objects lie in memory as a server leaves them."""
        new, first = self.drawn(num_tokens, len(self.lists)), len(PROMPT) + len(self.lists[0])
        for step_ids in new:
            for output, token_id in zip(self.lists, step_ids, strict=True):
                output.append(token_id)
        room = self.token_ids_cpu[:, first : first + num_tokens]
        room[:] = np.transpose(new)[:, : room.shape[1]]

    def advance(self) -> None:
        """One decode step later."""
        self.grow(max(1, self.num_drafts))
        self.drafts = self.drawn(len(self.lists), self.num_drafts) if self.num_drafts else self.drafts


Program = tuple["Callable[[], object]", "Callable[[], object]"]
"""What precedes each step, and the step."""


def penalties_program(length: int, batch_size: int, num_drafts: int) -> Program:
    """Read the new tokens, index the counts, and lay out the draft rows: all that `Penalties` does before torch."""
    outputs = _grown(length, batch_size, num_drafts)
    histories = [History(output) for output in outputs.lists]
    slots = np.arange(batch_size)

    def step() -> None:
        list(changed_counts(histories, slots, VOCAB_SIZE))
        if num_drafts:
            lay_out_drafts(slots, outputs.drafts)

    return outputs.advance, step


def lay_out_drafts(slots: Any, drafts: list[list[int]]) -> None:  # Any: NumPy's int64 slots
    """What `Penalties` does on the host for the bonus rows and draft rows of a step."""
    for rows in (bonus_rows, draft_rows):
        rows(slots, drafts, VOCAB_SIZE).seen_drafts(VOCAB_SIZE)


def thinking_program(length: int, batch_size: int, num_drafts: int) -> Program:
    """The whole of `ThinkingBudget.update_state`."""
    thinking: Any = ThinkingBudget([START_ID], [END_ID])
    outputs = _grown(length, batch_size, num_drafts)
    thinking.sync_batch(all_added(outputs.requests))
    return outputs.advance, lambda: thinking.update_state(outputs.lists, outputs.drafts)


def _grown(length: int, batch_size: int, num_drafts: int) -> Outputs:
    """Lengths differ by a prime, so that not all lists move to a larger block in the same step."""
    outputs = Outputs(batch_size, num_drafts)
    for row, output in enumerate(outputs.lists):
        output += outputs.drawn(1, length - 1 + 37 * row)[0]
    return outputs
