"""vLLM's `ThinkingBudgetStateHolder`, decided by ours.

vLLM's object keeps following the rows, so that it can decide any step that ours cannot serve. It then knows as much
about a request as about one that has just been resumed: it reads the whole output again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..thinking_budget import ThinkingBudget
from . import _calls
from ._batches import Following, RowChanges
from ._memory import memory
from ._rows import Rows, live_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .._shared.tensors import LogitRows, RowInts
    from ._calls import Upstream

_PIECE = "thinking budget"

Holder = Any
"""vLLM's `ThinkingBudgetStateHolder`."""


class _Decider(Following):
    """Who decides for one holder: `ours`, or vLLM's own code."""

    def __init__(self) -> None:
        self.decides = False
        """Whether ours decided the last step."""
        self.ask_upstream: Callable[[], None] = lambda: None
        """Lets vLLM decide the last step."""

    def decide(self, holder: Holder, rows: Rows, drafts: Rows | None, repeated: bool) -> bool:
        """Decide this step; `True` if nothing is raised.

        Raises:
            NotOursError: If a request may have been missed, or rows are repeated.
            ValueError: If the lists are not the ones that were followed.
        """
        if repeated:
            raise _calls.NotOursError("repeated rows")
        self.followed().update_state(rows, drafts)
        if not self.decides:
            _restart(holder)
        return True


def _restart(holder: Holder) -> None:
    """Make vLLM's states those of requests that have just been added."""
    for row, state in holder._state.items():
        entry = holder._init_state_entry(state["prompt_tok_ids"], state["thinking_token_budget"])
        holder._state[row] = {**entry, "output_tok_ids": state["output_tok_ids"]}


_deciders = memory()


def _decider(holder: Holder) -> _Decider:
    decider: _Decider = _deciders.setdefault(holder, _Decider())
    return decider


def sync_batch(upstream: Callable[[], None], holder: Holder, batch_update: RowChanges | None) -> None:
    upstream()
    if batch_update:
        changes = RowChanges(batch_update.batch_size, batch_update.removed, batch_update.added, batch_update.moved)
        make = partial(ThinkingBudget, holder.think_start_token_ids, holder.think_end_token_ids)
        _decider(holder).follow(_PIECE, changes, make, "a request or markers that ours does not take")


def update_state(
    upstream: Callable[[], None],
    holder: Holder,
    output_token_ids: Rows,
    spec_token_ids: Rows | None,
    repeat_indices: RowInts | None = None,
) -> None:
    """Decide what this step must emit."""
    decider = _decider(holder)
    decider.ask_upstream = upstream
    if not holder.has_tracked_requests():
        return
    repeated = repeat_indices is not None
    decide = partial(decider.decide, holder, live_rows(output_token_ids), spec_token_ids, repeated)
    decider.decides = _calls.served(_PIECE, decide, "rows that ours does not take", count=False) or False
    if not decider.decides:
        decider.ask_upstream()


def apply_to_logits(
    upstream: Upstream, holder: Holder, logits: LogitRows, predict_bonus_token: bool, spec_token_ids: Rows | None
) -> Tensor:  # [num_rows, vocab_size] float32
    """Force what was decided; on any error, fall back to vLLM for this step."""
    decider = _decider(holder)
    if decider.decides and decider.ours is not None:
        force = partial(decider.ours.apply_to_logits, logits, predict_bonus_token, spec_token_ids)
        if _calls.served(_PIECE, force, "logits that ours does not take") is not None:
            return logits
        decider.decides = False
        decider.ask_upstream()
    return upstream()
