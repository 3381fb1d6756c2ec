"""The arithmetic of penalties in PyTorch: every device, dtype and stride."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .penalty_rows import IN_OUTPUT, Ids, PenaltyRows

if TYPE_CHECKING:
    from .._shared.tensors import SlotCounts, WrittenRows
    from .penalty_rows import Factors

_BLOCK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Logits per pass: on a CPU a block and its temporaries fit into the cache, on a GPU they stay below a gigabyte."""


def penalise(logits: WrittenRows, token_state: SlotCounts, rows: PenaltyRows, factors: Factors) -> None:
    """Penalise block by block; a block without penalised rows is skipped.

    A row without penalties in a block that is not skipped uses slot 0: its factors are neutral, so no bit changes
    whatever the counts are.
    """
    vocab_size, device = logits.shape[1], logits.device
    request = torch.from_numpy(rows.request).to(device, non_blocking=True)
    slots = torch.from_numpy(rows.slots.clip(0)).to(device, non_blocking=True)
    one = torch.ones(1, dtype=torch.int32, device=device)
    seen_row, seen_id = rows.seen_drafts(vocab_size)
    size = max(1, _BLOCK_ELEMENTS.get(device.type, 1 << 26) // vocab_size)
    for first in range(0, len(rows.slots), size):
        block = slice(first, first + size)
        if (rows.slots[block] < 0).all():
            continue
        seen_state = token_state.index_select(0, slots[block])
        begin, end = np.searchsorted(seen_row, (first, first + size))
        add(seen_state.view(-1), (seen_row[begin:end] - first) * vocab_size + seen_id[begin:end], one, IN_OUTPUT)
        _penalise_block(logits[block], seen_state, *(factor[request[block], None] for factor in factors))


def add(
    flat_state: Tensor,  # [...] int32, written
    index: Ids,  # [num_ids] int64
    one: Tensor,  # [1] int32
    amount: int,
) -> None:
    """Add `amount` once per index; an index may occur several times.

    Callers make the flattened view and `one` beforehand: made here, both would be a third of the cost.
    """
    if len(index) > 0:
        on_device = torch.from_numpy(index).to(flat_state.device, non_blocking=True)
        flat_state.index_add_(0, on_device, one.expand(len(index)), alpha=amount)


def _penalise_block(
    logits: Tensor,  # [num_rows, vocab_size] float32, written
    seen_state: Tensor,  # [num_rows, vocab_size] int32, written
    presence: Tensor,  # [num_rows, 1] float32
    frequency: Tensor,  # [num_rows, 1] float32
    repetition: Tensor,  # [num_rows, 1] float32
) -> None:
    """Apply the three penalties in vLLM's order, each rounded to the logits' dtype."""
    # Repetition: vLLM's CUDA kernel divides, its torch code multiplies by the reciprocal; the last bit differs.
    seen, positive = seen_state > 0, logits > 0
    if logits.is_cuda and logits.is_contiguous():
        scaled = torch.where(positive, logits / repetition, logits * repetition)
        logits.copy_(torch.where(seen, scaled, logits))
    else:
        logits *= torch.where(seen, torch.where(positive, 1.0 / repetition, repetition), 1.0)
    # Frequency, then presence: for tokens in the output only.
    output_counts = seen_state.bitwise_right_shift_(1)
    logits -= frequency * output_counts
    logits -= presence * (output_counts > 0)
