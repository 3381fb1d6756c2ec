"""vLLM's padded output tensor, copied from the batch's token buffer instead of rebuilt from Python lists."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .history import PLACEHOLDER_TOKEN_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

TokenBuffer = NDArray[np.int32]


class PaddedOutputs:
    """Builder of the int64 tensor `[num_rows, longest]` of vLLM's `_convert_to_tensors`, pad id `vocab_size`.

    Its cost still grows with the length, but a row is one copy of a NumPy slice: B=128 and 12000 tokens take
    milliseconds instead of tens of them. `Penalties` needs no such tensor at all.

    Limits:
        Only cheap checks of the buffer are made: it must be as long as the list, a row's last token must be the list's,
        and a placeholder in the buffer is looked up in the list. The id is then written to the buffer, which vLLM
        itself never repairs under asynchronous scheduling, so each placeholder is looked up once. With asynchronous
        scheduling *and* speculative decoding vLLM leaves slots of the buffer unwritten, which is not always noticed: do
        not build from it then.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._staging = [_Staging(self.device), _Staging(self.device)]

    def build(
        self,
        output_token_ids: Sequence[list[int]],
        live_token_ids: Sequence[list[int] | None],
        token_ids_cpu: TokenBuffer,  # [max_num_reqs, max_model_len] int32
        num_prompt_tokens: NDArray[np.int32],  # [max_num_reqs] int32
        num_tokens: NDArray[np.int32],  # [max_num_reqs] int32
        vocab_size: int,
    ) -> Tensor | None:  # [num_rows, ...] int64
        """Return the padded tensor, or `None` if the rows are not the batch's own: then the engine's code must build
        it.

        Args:
            output_token_ids: The rows to build.
            live_token_ids: The batch's output lists; row `i` must be the very object `live_token_ids[i]`.
            token_ids_cpu: Prompt and output ids of each request; repaired in place.
            num_tokens: How many of them have been written (vLLM's `num_tokens_no_spec`).

        Returns:
            A tensor on `device`. On the CPU it is staging memory, valid until the next call but one.
        """
        num_rows = len(output_token_ids)
        if num_rows > len(live_token_ids) or not all(map(is_, output_token_ids, live_token_ids)):
            return None
        lengths = [len(ids) for ids in output_token_ids]
        bounds = zip(num_prompt_tokens.tolist(), num_tokens.tolist(), lengths, strict=False)
        rows = [token_ids_cpu[i, start:end][:length] for i, (start, end, length) in enumerate(bounds)]
        if not all(map(_agrees, rows, output_token_ids)):
            return None
        staging = self._staging.pop(0)
        self._staging.append(staging)
        padded = staging.reserve(num_rows, max(lengths, default=0))
        for target, row, ids in zip(padded, rows, output_token_ids, strict=True):
            _repair(row, ids)
            target[: len(row)] = row
            target[len(row) :] = vocab_size
        padded[padded == PLACEHOLDER_TOKEN_ID] = vocab_size
        return staging.to_device()


def _agrees(
    row: TokenBuffer,  # [length] int32
    output_token_ids: list[int],
) -> bool:
    """Whether the buffer is long enough, and ends with the list's last id or with a placeholder for it."""
    if len(row) != len(output_token_ids):
        return False
    return len(row) == 0 or row[-1] in (output_token_ids[-1], PLACEHOLDER_TOKEN_ID)


def _repair(
    row: TokenBuffer,  # [length] int32, written
    output_token_ids: list[int],
) -> None:
    for position in np.flatnonzero(row == PLACEHOLDER_TOKEN_ID).tolist():
        row[position] = output_token_ids[position]


class _Staging:
    """Host memory in which a tensor is built: pinned on CUDA, and not written again before its copy has finished."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=torch.int64)  # [capacity] int64
        self._shape = (0, 0)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def reserve(self, num_rows: int, length: int) -> NDArray[np.int64]:  # [num_rows, length] int64
        """Reserve memory for one tensor; it grows by halves, so that a growing batch rarely allocates."""
        if self._copied is not None:
            self._copied.synchronize()
        size = num_rows * length
        if size > len(self._memory):
            pinned = self.device.type == "cuda"
            self._memory = torch.empty(size + size // 2, dtype=torch.int64, pin_memory=pinned)
        self._shape = (num_rows, length)
        view: NDArray[np.int64] = self._memory[:size].view(num_rows, length).numpy()
        return view

    def to_device(self) -> Tensor:  # [num_rows, ...] int64
        """Start the copy to the device; on the CPU the memory itself."""
        num_rows, length = self._shape
        tensor = self._memory[: num_rows * length].view(num_rows, length).to(self.device, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return tensor
