"""Tensors by their shape."""

from __future__ import annotations

from torch import Tensor

LogitRows = Tensor  # [num_rows, vocab_size] float32; of a call of one row per request [batch_size, vocab_size]
AnyLogitRows = Tensor  # [num_rows, vocab_size] any
RequestInts = Tensor  # [batch_size] int64
OutputTokens = Tensor  # [batch_size, max_spec_len + 1] int32
