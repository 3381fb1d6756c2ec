"""vLLM's live batches: found by their output lists, and followed through every change of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
        """All requests of the batch were added just now: whoever follows it from here on misses nothing."""
        return len(self.added) >= self.batch_size


listeners: list[Callable[[Batch, RowChanges], None]] = []
_batches = memory()


def refresh_metadata(upstream: Callable[[Batch], None], batch: Batch) -> None:
    """After vLLM has told its own logits processors what changed, tell the listeners."""
    builder = batch.batch_update_builder
    changes = RowChanges(batch.num_reqs, builder.removed, builder.added, builder.moved)
    upstream(batch)  # hands these very lists on, and begins new ones
    if not batch.is_pooling_model:
        _batches[batch] = True
        for listener in listeners:
            listener(batch, changes)


def batch_of(output_token_ids: object) -> Batch | None:
    """The batch whose live rows these are: the very list, not one that is equal."""
    return next((batch for batch in list(_batches) if batch.req_output_token_ids is output_token_ids), None)
