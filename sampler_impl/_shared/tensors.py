"""Tensors by their shape, where many functions share one."""

from __future__ import annotations

from torch import Tensor

LogitRows = Tensor  # [num_rows, vocab_size] float32
AnyLogitRows = Tensor  # [num_rows, vocab_size] any
LogitRows64 = Tensor  # [num_rows, vocab_size] float64
TokenRows = Tensor  # [num_tokens, vocab_size] float32
RequestRows = Tensor  # [batch_size, vocab_size] float32
RejectedRows = Tensor  # [num_rejected, vocab_size] float32
Bitmasks = Tensor  # [num_rows, num_words] int32
RowLists = Tensor  # [num_rows, length] int64
Uniforms = Tensor  # [num_tokens] float64
TokenInts = Tensor  # [num_tokens] int64
RowInts = Tensor  # [num_rows] int64
RowIds = Tensor  # [num_rows] int32
RowFloat64s = Tensor  # [num_rows] float64
RowFloats = Tensor  # [num_rows] float32
RequestCounts = Tensor  # [batch_size] int32
RequestInts = Tensor  # [batch_size] int64
OutputUniforms = Tensor  # [batch_size, max_spec_len + 1] float64
RequestBounds = Tensor  # [batch_size + 1] int32
WrittenRows = Tensor  # [num_rows, vocab_size] float32, written
Int64s = Tensor  # [...] int64
Int32s = Tensor  # [...] int32
RowColumn = Tensor  # [num_rows, 1] float32
RowColumn64 = Tensor  # [num_rows, 1] float64
AnyRowLists = Tensor  # [num_rows, length] any
RowListFlags = Tensor  # [num_rows, length] bool
WrittenIds = Tensor  # [batch_size, max_spec_len + 1] int32, written
SlotFlags = Tensor  # [num_slots] bool
SlotCounts = Tensor  # [num_slots, vocab_size] int32
SlotDraftRows = Tensor  # [num_slots, max_spec_len, vocab_size] any
