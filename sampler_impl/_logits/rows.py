"""Rows of one step's logits: the request of each row, and the tokens that it sees.

A request with drafts d0 and d1 owns three rows, one without drafts owns one; the layout is that of vLLM's `logits`:

    row          0          1          2           3
    request      0          0          0           1
    predicts     d0         d1         the bonus   its next token
    sees         output     .. + d0    .. + d0 d1  output
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._scanners.history import PLACEHOLDER_TOKEN_ID, drafts_of_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class SeenBy(NamedTuple):
    """One row of logits, for a custom processor."""

    row: int
    request: int
    token_ids: list[int]
    """The request's output and the drafts before this row; a copy."""


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Numbers of rows that requests have. Tensors that depend on nothing else are cached per layout."""

    num_draft_tokens: list[int]  # [batch_size]
    device: torch.device

    @cached_property
    def first_row(self) -> list[int]:  # [batch_size]
        ends = accumulate(count + 1 for count in self.num_draft_tokens)
        return [end - count - 1 for end, count in zip(ends, self.num_draft_tokens, strict=True)]

    @cached_property
    def num_rows(self) -> int:
        return sum(self.num_draft_tokens) + len(self.num_draft_tokens)

    @cached_property
    def request_of_row(self) -> Tensor | None:  # [num_rows] int64
        """Return the request of each row; `None` if row and request are the same."""
        if not any(self.num_draft_tokens):
            return None
        counts = np.array(self.num_draft_tokens, np.int64) + 1
        return on_device(np.repeat(np.arange(len(counts)), counts), self.device)


@dataclass(frozen=True, eq=False)
class Step:
    """The arguments of one call of the plan."""

    layout: RowLayout
    output_token_ids: Sequence[list[int]]
    draft_token_ids: Sequence[Sequence[int]]

    def tail(self, request: int, length: int) -> list[int]:
        """Return the last `length` tokens of the output, then the drafts."""
        output = self.output_token_ids[request]
        return [*output[max(0, len(output) - length) :], *self.draft_token_ids[request]]

    def seen_by(self, request: int) -> list[SeenBy]:
        """Return the rows of one request."""
        output, drafts = self.output_token_ids[request], self.draft_token_ids[request]
        first = self.layout.first_row[request]
        return [SeenBy(first + j, request, [*output, *drafts[:j]]) for j in range(len(drafts) + 1)]


class PerRequest:
    """A tensor with one entry per request, repeated for the request's rows; kept while the layout stays."""

    def __init__(
        self,
        per_request: Tensor,  # [batch_size, ...] any
    ) -> None:
        self._per_request = per_request
        self._layout: RowLayout | None = None
        self._per_row = per_request

    def rows(self, layout: RowLayout) -> Tensor:  # [num_rows, ...] any
        if layout is not self._layout:
            index = layout.request_of_row
            self._per_row = self._per_request if index is None else self._per_request.index_select(0, index)
            self._layout = layout
        return self._per_row


def on_device(
    values: NDArray[np.int64] | NDArray[np.float32],  # [...] any
    device: torch.device,
) -> Tensor:  # [...] any
    """Copy without waiting for the device."""
    host = torch.from_numpy(values)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def step_of(
    function: str,
    output_token_ids: Sequence[list[int]],
    draft_token_ids: Sequence[Sequence[int]] | None,
    batch_size: int,
    vocab_size: int,
    last: RowLayout,
) -> Step:
    """Check the drafts, and reuse the last layout if the numbers of drafts are the same.

    Raises:
        ValueError: If a request has no list of drafts, or an id is out of range.
    """
    drafts = drafts_of_batch(function, [()] * batch_size if draft_token_ids is None else draft_token_ids, batch_size)
    counts = [len(ids) for ids in drafts]
    if any(counts):
        _check_drafts(function, drafts, vocab_size)
    layout = last if counts == last.num_draft_tokens else RowLayout(counts, last.device)
    return Step(layout, output_token_ids, drafts)


def _check_drafts(function: str, drafts: Sequence[Sequence[int]], vocab_size: int) -> None:
    low, high = min(chain.from_iterable(drafts)), max(chain.from_iterable(drafts))
    if low < PLACEHOLDER_TOKEN_ID or high >= vocab_size:
        bad = low if low < PLACEHOLDER_TOKEN_ID else high
        raise ValueError(
            f"{function}: draft_token_ids has {bad}, but ids must be in [0, {vocab_size}), or -1 for a placeholder. "
            f"Correct the drafter, or the plan's vocab_size."
        )
