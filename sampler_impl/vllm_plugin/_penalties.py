"""vLLM's `apply_penalties`, of plain, bonus and draft rows, from counts that follow the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..penalties import Penalties
from . import _calls
from ._batches import Batch, Following, RowChanges, batch_of
from ._memory import memory
from ._rows import CombinedRows, Rows, live_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .._shared.tensors import LogitRows
    from ._calls import Upstream

_PIECE = "penalties"

Metadata = Any
"""vLLM's `SamplingMetadata`."""

_followed = memory()


def follow(batch: Batch, changes: RowChanges) -> None:
    """Keep the counts of `batch` in step with its rows."""
    counts: Following = _followed.setdefault(batch, Following())
    if changes.removed or changes.added or changes.moved:
        counts.follow(
            _PIECE, changes, lambda: Penalties(batch.vocab_size, batch.device), "a request that ours does not take"
        )


def apply_penalties(
    upstream: Upstream, logits: LogitRows, sampling_metadata: Metadata, output_token_ids: Rows
) -> Tensor:  # [num_rows, vocab_size] float32
    """Plain rows, or bonus rows if the outputs are followed by drafts."""
    if sampling_metadata.no_penalties:
        return logits

    def serve() -> Tensor:  # [num_rows, vocab_size] float32
        drafts = output_token_ids.spec_token_ids if isinstance(output_token_ids, CombinedRows) else None
        return _counts(sampling_metadata, output_token_ids).apply(logits, *_factors(sampling_metadata), drafts)

    return _penalised(upstream, serve)


def apply_penalties_to_drafts(
    upstream: Upstream,
    logits: Tensor,  # [num_rows, vocab_size] float32
    sampling_metadata: Metadata,
    metadata: Any,  # Any: vLLM's SpecDecodeMetadata
    repeat_indices: Tensor,  # [num_rows] int64
    output_token_ids: Rows,
) -> Tensor:  # [num_rows, vocab_size] float32
    """Draft rows; each sees the output and the drafts before it."""
    if sampling_metadata.no_penalties:
        return logits

    def serve() -> Tensor:  # [num_rows, vocab_size] float32
        counts, factors = _counts(sampling_metadata, output_token_ids), _factors(sampling_metadata)
        return counts.apply_to_drafts(logits, *factors, _drafts(output_token_ids, metadata))

    return _penalised(upstream, serve)


def _penalised(upstream: Upstream, serve: Callable[[], Tensor]) -> Tensor:  # [num_rows, vocab_size] float32
    penalised = _calls.served(_PIECE, serve, "rows that ours does not take")
    return upstream() if penalised is None else penalised


def _counts(sampling_metadata: Metadata, output_token_ids: Rows) -> Penalties:
    """The counts of these rows, up to date.

    Raises:
        NotOursError: If the rows are not those of a batch that was followed.
        ValueError: If the lists are not the ones that were followed, or an id is out of range.
    """
    live = live_rows(output_token_ids)
    if live is not sampling_metadata.output_token_ids:
        raise _calls.NotOursError("rows that are not the metadata's")
    batch = batch_of(live)
    counts: Penalties = (Following() if batch is None else _followed.get(batch, Following())).followed()
    counts.update(live)
    return counts


def _drafts(output_token_ids: Rows, metadata: Any) -> Rows:  # Any: vLLM's SpecDecodeMetadata
    if not isinstance(output_token_ids, CombinedRows):
        raise _calls.NotOursError("draft rows of unknown origin")
    drafts = output_token_ids.spec_token_ids[: len(metadata.num_draft_tokens)]
    if list(map(len, drafts)) != list(metadata.num_draft_tokens):
        raise _calls.NotOursError("drafts that are not the metadata's")
    return drafts


def _factors(metadata: Metadata) -> tuple[Tensor, Tensor, Tensor]:  # [batch_size] float32 each
    return metadata.presence_penalties, metadata.frequency_penalties, metadata.repetition_penalties
