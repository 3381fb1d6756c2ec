"""Arrays by what they hold, and often by their shape, too. Where a name says no shape, it stands beside the array."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Float64s = NDArray[np.float64]
Float32s = NDArray[np.float32]

Row32 = Float32s  # [vocab_size]
Row64 = Float64s  # [vocab_size]
RowFlags = Flags  # [vocab_size]
Rows32 = Float32s  # [num_rows, vocab_size]
Rows64 = Float64s  # [num_rows, vocab_size]
RowsFlags = Flags  # [num_rows, vocab_size]
AnyRows32 = Float32s  # [..., vocab_size]
AnyRows64 = Float64s  # [..., vocab_size]
PerRequest = Ints  # [batch_size]
Outputs = NDArray[np.int32]  # [batch_size, max_spec_len + 1]
PoolInts = Ints  # [num_pools]
Pool64s = Float64s  # [num_pools]
