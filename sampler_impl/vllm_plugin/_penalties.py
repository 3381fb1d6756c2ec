"""vLLM's `apply_penalties`, of plain, bonus and draft rows, from counts that follow the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..penalties import Penalties
from . import _calls
from ._batches import Batch, RowChanges, batch_of
from ._memory import memory
from ._rows import CombinedRows, Rows, live_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ._calls import Upstream

_PIECE = "penalties"

Metadata = Any
"""vLLM's `SamplingMetadata`."""


class _NotOursError(Exception):
    """This call is vLLM's; the reason, of a kind."""


@dataclass
class _Followed:
    """Counts of one batch; `None` while a request may have been missed."""

    penalties: Penalties | None = None


_followed = memory()


def follow(batch: Batch, changes: RowChanges) -> None:
    """Keep the counts of `batch` in step with its rows.

    A batch that was joined midway, or met a request that ours does not take, is unknown until it has turned over.
    """
    state: _Followed = _followed.setdefault(batch, _Followed())
    if not (changes.removed or changes.added or changes.moved):
        return
    try:
        if state.penalties is None and changes.is_whole:
            state.penalties = Penalties(batch.vocab_size, batch.device)
        if state.penalties is not None:
            state.penalties.sync_batch(changes)
    except Exception as error:  # an id outside the vocabulary, no memory for the counts: nothing may stop the server
        state.penalties = None
        _calls.upstream(_PIECE, "a request that ours does not take", error)


def apply_penalties(
    upstream: Upstream,
    logits: Tensor,  # [num_rows, vocab_size] float32
    sampling_metadata: Metadata,
    output_token_ids: Rows,
) -> Tensor:  # [num_rows, vocab_size] float32
    """Plain rows, or bonus rows if drafts stand behind the outputs."""
    if sampling_metadata.no_penalties:
        return logits

    def serve() -> None:
        drafts = output_token_ids.spec_token_ids if isinstance(output_token_ids, CombinedRows) else None
        _counts(sampling_metadata, output_token_ids).apply(logits, *_factors(sampling_metadata), drafts)

    return logits if _is_served(serve) else upstream(logits, sampling_metadata, output_token_ids)


def apply_penalties_to_drafts(
    upstream: Upstream,
    logits: Tensor,  # [num_rows, vocab_size] float32
    sampling_metadata: Metadata,
    metadata: Any,  # Any: vLLM's SpecDecodeMetadata
    repeat_indices: Tensor,  # [num_rows] int64
    output_token_ids: Rows,
) -> Tensor:  # [num_rows, vocab_size] float32
    """Rows of which each sees the output and the drafts before it."""
    if sampling_metadata.no_penalties:
        return logits

    def serve() -> None:
        drafts = _drafts(output_token_ids, metadata)
        _counts(sampling_metadata, output_token_ids).apply_to_drafts(logits, *_factors(sampling_metadata), drafts)

    if _is_served(serve):
        return logits
    return upstream(logits, sampling_metadata, metadata, repeat_indices, output_token_ids)


def _is_served(serve: Callable[[], None]) -> bool:
    """Whether ours penalised the logits in place; if not, nothing has been written."""
    try:
        serve()
    except _NotOursError as reason:
        _calls.upstream(_PIECE, str(reason))
        return False
    except ValueError as error:
        _calls.upstream(_PIECE, "rows that ours does not take", error)
        return False
    _calls.ours(_PIECE)
    return True


def _counts(sampling_metadata: Metadata, output_token_ids: Rows) -> Penalties:
    """The counts behind these rows, up to date.

    Raises:
        _NotOursError: If the rows are not those of a batch that was followed.
        ValueError: If the lists are not the ones that were followed, or an id is out of range.
    """
    live = live_rows(output_token_ids)
    if live is not sampling_metadata.output_token_ids:
        raise _NotOursError("rows that are not the metadata's")
    batch = batch_of(live)
    if batch is None or batch not in _followed or (penalties := _followed[batch].penalties) is None:
        raise _NotOursError("a batch that was not followed from its beginning")
    penalties.update(live)
    counts: Penalties = penalties
    return counts


def _drafts(output_token_ids: Rows, metadata: Any) -> Rows:  # Any: vLLM's SpecDecodeMetadata
    if not isinstance(output_token_ids, CombinedRows):
        raise _NotOursError("draft rows of unknown origin")
    drafts = output_token_ids.spec_token_ids[: len(metadata.num_draft_tokens)]
    if list(map(len, drafts)) != list(metadata.num_draft_tokens):
        raise _NotOursError("drafts that are not the metadata's")
    return drafts


def _factors(metadata: Metadata) -> tuple[Tensor, Tensor, Tensor]:  # [batch_size] float32 each
    return metadata.presence_penalties, metadata.frequency_penalties, metadata.repetition_penalties
