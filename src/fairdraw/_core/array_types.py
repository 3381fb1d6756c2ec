"""Arrays by what they hold. The shape stands beside each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Float64s = NDArray[np.float64]
Float32s = NDArray[np.float32]
