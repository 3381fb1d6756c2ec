"""vLLM's padded output tensor, built from the batch's token buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
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
    """The builder of one batch, and what the batch has used so far."""

    builders: dict[torch.device, PaddedOutputs] = field(default_factory=dict)
    speculative: bool = False
    asynchronous: bool = False

    def look(self, batch: Batch) -> None:
        self.speculative = self.speculative or any(batch.spec_token_ids)
        self.asynchronous = self.asynchronous or batch.prev_req_id_to_index is not None


_buffers = memory()


def watch(batch: Batch, changes: RowChanges) -> None:
    _buffers.setdefault(batch, _Buffer()).look(batch)


def convert_to_tensors(
    upstream: Upstream, output_token_ids: Sequence[list[int]], vocab_size: int, device: torch.device
) -> Tensor:  # [num_rows, length] int64
    """From the buffer if the rows are a batch's own."""
    build = partial(_padded, output_token_ids, vocab_size, device)
    built = _calls.served(_PIECE, build, "rows that ours does not take")
    return upstream() if built is None else built


def _padded(
    output_token_ids: Sequence[list[int]], vocab_size: int, device: torch.device
) -> Tensor:  # [num_rows, length] int64
    batch = batch_of(output_token_ids)
    if batch is None:
        raise _calls.NotOursError("rows that are not a batch's own")
    buffer: _Buffer = _buffers.setdefault(batch, _Buffer())
    buffer.look(batch)
    if buffer.speculative and buffer.asynchronous:  # then vLLM leaves slots of its buffer unwritten
        raise _calls.NotOursError("speculation and asynchronous scheduling")
    padded = buffer.builders.setdefault(device, PaddedOutputs(device)).build(
        output_token_ids=output_token_ids,
        live_token_ids=batch.req_output_token_ids,
        token_ids_cpu=batch.token_ids_cpu,
        num_prompt_tokens=batch.num_prompt_tokens,
        num_tokens=batch.num_tokens_no_spec,
        vocab_size=vocab_size,
    )
    if padded is None:
        raise _calls.NotOursError("a buffer that does not agree with the lists")
    return padded
