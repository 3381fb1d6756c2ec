"""The arithmetic of penalties as one Triton kernel, for float32 logits.

One program per row and tile reads its logits and counts once, adds the drafts that the row sees, and writes: 12 bytes
per logit. vLLM's CUDA path moves about 80 (two int64 count tensors, their masks, three passes). Programs of rows
without penalties return immediately.

Each operation is rounded separately, as in vLLM: the division is `div_rn`, and products are not fused into subtractions
(`enable_fp_fusion=False`).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# (Both because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from .._shared.tensors import SlotCounts, WrittenRows
    from .penalty_rows import Factors, PenaltyRows

TILE = 2048
"""Vocabulary entries per program. Chosen on an H200; other widths are not recorded."""


def penalise(logits: WrittenRows, token_state: SlotCounts, rows: PenaltyRows, factors: Factors) -> None:
    """Penalise by one upload of the row layout and one launch; logits whose rows are not in order are copied twice."""
    num_rows, vocab_size = logits.shape
    in_order = logits if logits.stride(1) == 1 or vocab_size == 1 else logits.contiguous()
    layout = np.stack([rows.slots, rows.request, rows.first_draft, rows.num_drafts])
    uploaded = torch.from_numpy(np.append(layout, rows.draft_token_ids)).to(logits.device, non_blocking=True)
    if num_rows == 0:
        return
    presence, frequency, repetition = (factor.contiguous() for factor in factors)
    # The interpreter computes with NumPy, which warns of NaN and inf in logits.
    with np.errstate(all="ignore"), torch.cuda.device_of(logits):
        _penalise_kernel[(num_rows, triton.cdiv(vocab_size, TILE))](
            logits_ptr=in_order,
            token_state_ptr=token_state,
            layout_ptr=uploaded,
            drafts_ptr=uploaded[4 * num_rows :],
            presence_penalties_ptr=presence,
            frequency_penalties_ptr=frequency,
            repetition_penalties_ptr=repetition,
            num_rows=num_rows,
            vocab_size=vocab_size,
            logits_stride=in_order.stride(0),
            TILE=TILE,
            num_warps=8,
            enable_fp_fusion=False,
        )
    if in_order is not logits:
        logits.copy_(in_order)


@triton.jit(do_not_specialize=["num_rows"])
def _penalise_kernel(
    logits_ptr,  # [num_rows, vocab_size] float32, written
    token_state_ptr,  # [num_slots, vocab_size] int32
    layout_ptr,  # [4, num_rows] int64: slot, request, first draft, number of drafts
    drafts_ptr,  # [num_tokens] int64
    presence_penalties_ptr,  # [batch_size] float32
    frequency_penalties_ptr,  # [batch_size] float32
    repetition_penalties_ptr,  # [batch_size] float32
    num_rows,
    vocab_size,
    logits_stride,
    TILE: tl.constexpr,
):
    # Layout: which counts, factors and drafts belong to this row. Slot -1: a row without penalties.
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(layout_ptr + row)
    if slot < 0:
        return
    request = tl.load(layout_ptr + num_rows + row)
    first_draft = tl.load(layout_ptr + 2 * num_rows + row)
    num_drafts = tl.load(layout_ptr + 3 * num_rows + row)

    # Counts of the committed output, then of the drafts that this row sees. Bit 0 is the prompt's, hence 2 per token.
    token_ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    in_vocab = token_ids < vocab_size
    state = tl.load(token_state_ptr + slot * vocab_size + token_ids, mask=in_vocab, other=0)
    for i in range(first_draft, first_draft + num_drafts):
        state += tl.where(token_ids == tl.load(drafts_ptr + i), 2, 0)  # a placeholder (-1) matches no token

    # Repetition: for tokens in prompt or output. A true division, as in vLLM's CUDA kernel.
    logits = tl.load(logits_ptr + row * logits_stride + token_ids, mask=in_vocab)
    repetition = tl.load(repetition_penalties_ptr + request)
    repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(state > 0, repeated, logits)

    # Frequency, then presence: for tokens in the output. The order decides the rounding.
    output_counts = state >> 1
    logits = logits - tl.load(frequency_penalties_ptr + request) * output_counts.to(tl.float32)
    logits = logits - tl.load(presence_penalties_ptr + request) * (output_counts > 0).to(tl.float32)
    tl.store(logits_ptr + row * logits_stride + token_ids, logits, mask=in_vocab)
