"""vLLM's padded output tensor, built from the batch's token buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..penalties import PaddedOutputs
from . import _calls
from ._batches import Batch, RowChanges, batch_of
from ._memory import memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from ._calls import Upstream

_PIECE = "penalties tensor"


@dataclass
class _Buffer:
    """One batch's builder, and what was seen of it."""

    builders: dict[torch.device, PaddedOutputs] = field(default_factory=dict)
    speculative: bool = False
    asynchronous: bool = False

    def look(self, batch: Batch) -> None:
        self.speculative = self.speculative or any(batch.spec_token_ids)
        self.asynchronous = self.asynchronous or batch.prev_req_id_to_index is not None

    def builder(self, device: torch.device) -> PaddedOutputs:
        return self.builders.setdefault(device, PaddedOutputs(device))


_buffers = memory()


def watch(batch: Batch, changes: RowChanges) -> None:
    _buffers.setdefault(batch, _Buffer()).look(batch)


def convert_to_tensors(
    upstream: Upstream,
    output_token_ids: Sequence[list[int]],
    vocab_size: int,
    device: torch.device,
) -> Tensor:  # [num_rows, length] int64
    """From the buffer if the rows are a batch's own.

    With speculation and asynchronous scheduling vLLM leaves slots of the buffer unwritten: once both were seen in a
    batch, it is no longer read.
    """
    batch = batch_of(output_token_ids)
    if batch is None:
        return _left(upstream, output_token_ids, vocab_size, device, "rows that are not a batch's own")
    buffer: _Buffer = _buffers.setdefault(batch, _Buffer())
    buffer.look(batch)
    if buffer.speculative and buffer.asynchronous:
        return _left(upstream, output_token_ids, vocab_size, device, "speculation and asynchronous scheduling")
    padded = buffer.builder(device).build(
        output_token_ids,
        batch.req_output_token_ids,
        batch.token_ids_cpu,
        batch.num_prompt_tokens,
        batch.num_tokens_no_spec,
        vocab_size,
    )
    if padded is None:
        return _left(upstream, output_token_ids, vocab_size, device, "a buffer that does not agree with the lists")
    _calls.ours(_PIECE)
    return padded


def _left(
    upstream: Upstream,
    output_token_ids: Sequence[list[int]],
    vocab_size: int,
    device: torch.device,
    reason: str,
) -> Tensor:  # [num_rows, length] int64
    _calls.upstream(_PIECE, reason)
    return upstream(output_token_ids, vocab_size, device)
