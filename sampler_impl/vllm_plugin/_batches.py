"""vLLM's live batches: found by their output lists, and followed through every change of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import _calls
from ._memory import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Batch = Any
"""vLLM's `InputBatch`."""


class RowChanges(NamedTuple):
    """vLLM's `BatchUpdate`."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]  # Any: vLLM's SamplingParams
    moved: Sequence[tuple[int, int, Any]]  # Any: vLLM's MoveDirectionality

    @property
    def is_whole(self) -> bool:
        """All requests of the batch were added just now, so nothing is missed by following it from here on."""
        return len(self.added) >= self.batch_size


class Following:
    """Our object for one of vLLM's; `None` while a request may have been missed."""

    ours: Any = None  # Any: Penalties or ThinkingBudget

    def follow(self, piece: str, changes: RowChanges, make: Callable[[], Any], refused: str) -> None:
        """Follow changed rows.

        If the batch was joined midway, or a request cannot be served, `ours` is unknown until the batch has turned
        over.
        """
        try:
            if self.ours is None and changes.is_whole:
                self.ours = make()
            if self.ours is not None:
                self.ours.sync_batch(changes)
        except Exception as error:  # a parameter out of range, no memory: nothing may stop the server
            self.ours = None
            _calls.upstream(piece, refused, error)

    def followed(self) -> Any:  # Any: as `ours`
        """Ours, if no request may have been missed."""
        if self.ours is None:
            raise _calls.NotOursError("a batch that was not followed from its beginning")
        return self.ours


listeners: list[Callable[[Batch, RowChanges], None]] = []
_batches = memory()


def refresh_metadata(upstream: Callable[[], None], batch: Batch) -> None:
    """After vLLM has reported the changes to its own logits processors, report them to the listeners."""
    builder = batch.batch_update_builder
    changes = RowChanges(batch.num_reqs, builder.removed, builder.added, builder.moved)
    upstream()  # passes on these very lists, and starts new ones
    if not batch.is_pooling_model:
        _batches[batch] = True
        for listener in listeners:
            listener(batch, changes)


def batch_of(output_token_ids: object) -> Batch | None:
    """The batch whose live rows these are: the very list, not one that is equal."""
    return next((batch for batch in list(_batches) if batch.req_output_token_ids is output_token_ids), None)
