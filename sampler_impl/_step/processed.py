"""Processed logits of whole rows, for tests and for log-probabilities, and masks of what they keep: after a step."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import argmax_order
from .named import Row, RowInputs
from .rows import MIN_TEMPERATURE, TILE, find_request, ids_of, load_one_tile, locate, scaled_by


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def processed_kernel(
    processed_ptr,  # [num_rows, vocab_size] float32, -inf at first; or None
    kept_words_ptr,  # [num_rows, num_words] int32, 0 at first; or None
    words_stride,
    words_step,
    kept_ptr,  # [max_rows] int32
    inputs,
    requests,
    num_rows,
    num_slots,
    sizes,
):
    inputs, vocab_size = RowInputs(*inputs), sizes.vocab_size  # as `rows` says
    request, slot = find_request(requests, tl.program_id(0), num_rows, num_slots, sizes.max_spec_len)
    offset = tl.program_id(2)
    if offset < request.count:
        row_idx = (request.first + offset).to(tl.int64)
        row = Row(inputs, locate(inputs, row_idx, slot, offset))
        logits, indices = load_one_tile(row, tl.program_id(1), vocab_size)
        given = tl.load(requests.temperature_ptr + slot)
        if given != 0:
            logits = scaled_by(logits, tl.maximum(given, MIN_TEMPERATURE))
            kept = tl.load(kept_ptr + row_idx)
            logits = tl.where(argmax_order(logits) >= kept, logits, float("-inf"))
        ids = ids_of(row, indices, vocab_size)
        is_written = (logits != float("-inf")) & (ids >= 0) & (ids < vocab_size)
        if processed_ptr is not None:
            tl.store(processed_ptr + row_idx * vocab_size + ids, logits, mask=is_written)
        if kept_words_ptr is not None:
            bits = tl.where(is_written, tl.full((), 1, tl.int32) << (ids & 31), 0)
            kept_words_ptr += row_idx * words_stride
            if tl.program_id(1) * TILE < vocab_size:
                # Ids of a word lie side by side; those that edits move come from another program.
                words = tl.sum(tl.reshape(bits, (TILE // 32, 32)), axis=1)
                places = tl.program_id(1) * (TILE // 32) + tl.arange(0, TILE // 32)
                tl.atomic_or(kept_words_ptr + places * words_step, words, mask=words != 0, sem="relaxed")
            else:
                tl.atomic_or(kept_words_ptr + ids // 32 * words_step, bits, mask=bits != 0, sem="relaxed")
