"""Output lists with draft tokens behind them, which vLLM copies in every step: here only if somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

Rows = Sequence[list[int]]


class CombinedRows(Sequence[list[int]]):
    """What vLLM's `_combine_outputs_with_spec_tokens` returns, made at the first look.

    Args:
        output_token_ids: The batch's live lists.
        spec_token_ids: Draft tokens per row.
    """

    def __init__(self, combine: Callable[[Rows, Rows], Rows], output_token_ids: Rows, spec_token_ids: Rows) -> None:
        self.output_token_ids = output_token_ids
        self.spec_token_ids = spec_token_ids
        self._combine = combine
        self._rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        if self._rows is None:
            self._rows = self._combine(self.output_token_ids, self.spec_token_ids)
        return self._rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> list[int] | Rows:
        return self.rows[index]


def combine(upstream: Callable[[Rows, Rows], Rows], output_token_ids: Rows, spec_token_ids: Rows | None = None) -> Rows:
    """For vLLM's own code, which reads the rows that have bad words, or whatever ours does not take."""
    return output_token_ids if spec_token_ids is None else CombinedRows(upstream, output_token_ids, spec_token_ids)


def live_rows(rows: Rows) -> Rows:
    """The batch's own lists, without drafts."""
    return rows.output_token_ids if isinstance(rows, CombinedRows) else rows
