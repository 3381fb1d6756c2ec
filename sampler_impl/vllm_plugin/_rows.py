"""Output lists followed by draft tokens. vLLM copies them in every step; here they are copied only if they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

Rows = Sequence[list[int]]


class CombinedRows(Sequence[list[int]]):
    """The result of vLLM's `_combine_outputs_with_spec_tokens`, made at the first read.

    Args:
        combine: vLLM's function, with its arguments.
        output_token_ids: The batch's live lists.
        spec_token_ids: Draft tokens per row.
    """

    def __init__(self, combine: Callable[[], Rows], output_token_ids: Rows, spec_token_ids: Rows) -> None:
        self.output_token_ids = output_token_ids
        self.spec_token_ids = spec_token_ids
        self._combine = combine
        self._rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        if self._rows is None:
            self._rows = self._combine()
        return self._rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> list[int] | Rows:
        return self.rows[index]


def combine(upstream: Callable[[], Rows], output_token_ids: Rows, spec_token_ids: Rows | None = None) -> Rows:
    """For vLLM's own code, which reads the rows with bad words, and all rows that ours does not take."""
    return output_token_ids if spec_token_ids is None else CombinedRows(upstream, output_token_ids, spec_token_ids)


def live_rows(rows: Rows) -> Rows:
    """The batch's own lists, without drafts."""
    return rows.output_token_ids if isinstance(rows, CombinedRows) else rows
