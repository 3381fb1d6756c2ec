"""Tensors by their shape."""

from torch import Tensor

LogitRows = Tensor  # [num_rows, vocab_size] float32; of a call of one row per request [batch_size, vocab_size]
AnyLogitRows = Tensor  # [num_rows, vocab_size] any
Bitmasks = Tensor  # [num_rows, num_words] int32
RowFlags = Tensor  # [num_rows] bool
RowFloats = Tensor  # [num_rows] float32
RequestInts = Tensor  # [batch_size] int64
RequestCounts = Tensor  # [batch_size] int32
RequestFloats = Tensor  # [batch_size] float32
RequestFlags = Tensor  # [batch_size] bool
DraftRows = Tensor  # [batch_size, max_spec_len, vocab_size] float32
OutputTokens = Tensor  # [batch_size, max_spec_len + 1] int32
