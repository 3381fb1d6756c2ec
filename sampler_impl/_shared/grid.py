"""Flat per-token values as a grid with one row per request: what all verification steps do in PyTorch.

There is no loop over requests, positions or vocabulary, and every index is one of a token that exists, whatever the
tensors say.

    num_draft_tokens = [2, 0, 3]      flat tokens  a b c d e      grid = a b .       cells(counts) = 1 1 0
                                                                         . . .                       0 0 0
                                                                         c d e                       1 1 1
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .._shared.tensors import Int32s, RejectedRows, RequestBounds, RequestInts


class Grid:
    """Places of the draft tokens of each request.

    Args:
        bounds: Where each request begins, and where the last one ends.
        num_tokens: All draft tokens; counts are cut to them, and to `width`.
        width: Most tokens of a request.
    """

    def __init__(self, bounds: RequestBounds, num_tokens: int, width: int) -> None:
        self.num_tokens = num_tokens
        cut, device = bounds.long().clamp(0, num_tokens), bounds.device
        self.starts = cut[:-1]  # [batch_size] int64
        self.counts = (cut[1:] - self.starts).clamp(0, width)  # [batch_size] int64
        self.columns = torch.arange(width, device=device)  # [max_spec_len] int64
        tokens = torch.arange(num_tokens, device=device)
        owners = torch.searchsorted(self.starts + self.counts, tokens, right=True)
        self.owners = owners.clamp(max=len(self.starts) - 1)  # [num_tokens] int64
        self.places = (tokens - self.starts[self.owners]).clamp(0, max(width - 1, 0))  # [num_tokens] int64

    @cached_property
    def rows(self) -> Tensor:  # [batch_size, max_spec_len] int64
        """Return the token of each cell; any token in a cell behind the request's last."""
        return (self.starts[:, None] + self.columns).clamp(max=max(self.num_tokens - 1, 0))

    def cells(self, counts: RequestInts) -> Tensor:  # [batch_size, max_spec_len] bool
        """Return the first cells of each row, so many of them."""
        return self.columns < counts[:, None]

    def laid_out(
        self,
        per_token: Tensor,  # [num_tokens] any
    ) -> Tensor:  # [batch_size, max_spec_len] any
        """Return the values of each request's tokens, and any behind them."""
        return per_token[self.rows] if self.num_tokens else per_token.new_zeros(self.rows.shape)

    def num_accepted(
        self,
        accepted: Tensor,  # [num_tokens] bool
    ) -> Tensor:  # [batch_size] int64
        """Return how many tokens each request keeps before the first that is not accepted."""
        return (self.laid_out(accepted) & self.cells(self.counts)).cumprod(-1).sum(-1)

    def write(
        self,
        output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
        counts: Tensor,  # [batch_size] int64
        token_ids: Tensor,  # [num_tokens] int32
    ) -> None:
        """Write each request's first tokens, so many of them, and leave the rest of the output as it is."""
        columns = output_token_ids[:, : len(self.columns)]
        columns.copy_(torch.where(self.cells(counts), self.laid_out(token_ids), columns))


def is_in_vocab(ids: Int32s, vocab_size: int) -> Tensor:  # [...] bool
    """Whether ids are tokens; False for placeholder draft tokens (-1) and for ids that the model does not have."""
    return (ids >= 0) & (ids < vocab_size)


def clamped_column(ids: Int32s, vocab_size: int) -> Tensor:  # [...] int64
    """Return ids to gather one entry per row with; any id for one outside the vocabulary."""
    return ids.long().clamp(0, vocab_size - 1)[:, None]


def remove_entries(targets: RejectedRows, ids: Int32s) -> Tensor:  # [num_rejected, vocab_size] float32
    """Return the residual of one-hot drafts: each row without its drafted id."""
    column = clamped_column(ids, targets.shape[1])
    kept = targets.gather(-1, column).masked_fill(is_in_vocab(ids, targets.shape[1])[:, None], 0)
    return targets.scatter(-1, column, kept)
