"""vLLM's `ThinkingBudgetStateHolder`, decided by ours.

vLLM's object goes on following the rows, so that it can decide any step that ours does not take. What it knows of a
request is then what it knows of one that has just been resumed: it reads the output anew.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..thinking_budget import ThinkingBudget
from . import _calls
from ._batches import RowChanges
from ._memory import memory
from ._rows import Rows, live_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ._calls import Upstream

_PIECE = "thinking budget"

Holder = Any
"""vLLM's `ThinkingBudgetStateHolder`."""


class _Decider:
    """Who decides for one holder: `ours`, or vLLM's own code while that is `None`."""

    def __init__(self) -> None:
        self.ours: ThinkingBudget | None = None
        self.decides = False
        """Whether ours decided the last step."""
        self.ask_upstream: Callable[[], None] = _nothing

    def follow(self, holder: Holder, changes: RowChanges) -> None:
        try:
            if self.ours is None and changes.is_whole:
                self.ours = ThinkingBudget(holder.think_start_token_ids, holder.think_end_token_ids)
            if self.ours is not None:
                self.ours.sync_batch(changes)
        except Exception as error:  # a budget or markers out of range: nothing may stop the server
            self.ours = None
            _calls.upstream(_PIECE, "a request or markers that ours does not take", error)

    def decide(self, holder: Holder, rows: Rows, drafts: Rows | None) -> bool:
        """Whether ours decides this step."""
        if self.ours is None:
            _calls.upstream(_PIECE, "a batch that was not followed from its beginning")
            return False
        try:
            self.ours.update_state(rows, drafts)
        except ValueError as error:
            _calls.upstream(_PIECE, "rows that ours does not take", error)
            return False
        if not self.decides:
            _restart(holder)
        return True


def _nothing() -> None: ...


def _restart(holder: Holder) -> None:
    """Make vLLM's states those of requests that have just been added."""
    for row, state in holder._state.items():
        entry = holder._init_state_entry(state["prompt_tok_ids"], state["thinking_token_budget"])
        holder._state[row] = {**entry, "output_tok_ids": state["output_tok_ids"]}


_deciders = memory()


def _decider(holder: Holder) -> _Decider:
    decider: _Decider = _deciders.setdefault(holder, _Decider())
    return decider


def sync_batch(upstream: Callable[..., None], holder: Holder, batch_update: RowChanges | None) -> None:
    upstream(holder, batch_update)
    if batch_update:
        changes = RowChanges(batch_update.batch_size, batch_update.removed, batch_update.added, batch_update.moved)
        _decider(holder).follow(holder, changes)


def update_state(
    upstream: Callable[..., None],
    holder: Holder,
    output_token_ids: Rows,
    spec_token_ids: Rows | None,
    repeat_indices: Tensor | None = None,  # [num_rows] int64
) -> None:
    """Decide what this step must emit."""
    decider = _decider(holder)
    decider.ask_upstream = partial(upstream, holder, output_token_ids, spec_token_ids, repeat_indices)
    if not holder.has_tracked_requests():
        return
    if repeat_indices is not None:
        _calls.upstream(_PIECE, "repeated rows")
        decider.decides = False
    else:
        decider.decides = decider.decide(holder, live_rows(output_token_ids), spec_token_ids)
    if not decider.decides:
        decider.ask_upstream()


def apply_to_logits(
    upstream: Upstream,
    holder: Holder,
    logits: Tensor,  # [num_rows, vocab_size] float32
    predict_bonus_token: bool,
    spec_token_ids: Rows | None,
) -> Tensor:  # [num_rows, vocab_size] float32
    """Force what was decided; should ours not be able to, vLLM decides this step after all."""
    decider = _decider(holder)
    if decider.decides and decider.ours is not None:
        try:
            logits = decider.ours.apply_to_logits(logits, predict_bonus_token, spec_token_ids)
        except ValueError as error:
            _calls.upstream(_PIECE, "logits that ours does not take", error)
            decider.decides = False
            decider.ask_upstream()
        else:
            _calls.ours(_PIECE)
            return logits
    return upstream(holder, logits, predict_bonus_token, spec_token_ids)
