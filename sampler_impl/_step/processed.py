"""Processed logits of whole rows, for tests and for log-probabilities: not a part of a step."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl

from .._shared.kernels import argmax_order
from .named import Row, RowInputs
from .rows import MIN_TEMPERATURE, find_request, ids_of, load_one_tile, locate, scaled_by


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def processed_kernel(
    processed_ptr,  # [num_rows, vocab_size] float32, -inf at first
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
        tl.store(processed_ptr + row_idx * vocab_size + ids, logits, mask=is_written)
