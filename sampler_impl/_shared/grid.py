"""Flat per-token values as a grid with one row per request: what both verification steps do in PyTorch.

There is no loop over requests, positions or vocabulary. `drafted` marks the cells of the grid that hold a draft token.
Boolean masks run in row-major order, which is the order of the flat tensors, so `grid[drafted]` and `masked_scatter`
convert between the two.

    num_draft_tokens = [2, 0, 3]      drafted = 1 1 0      flat tokens  a b c d e      grid = a b .
                                                0 0 0                                        . . .
                                                1 1 1                                        c d e
"""

from __future__ import annotations

import torch
from torch import Tensor


def count_drafts(
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
) -> Tensor:  # [batch_size] int32
    return cu_num_draft_tokens.diff(prepend=cu_num_draft_tokens.new_zeros(1))


def drafted_cells(
    counts: Tensor,  # [batch_size] int32
    max_spec_len: int,
) -> Tensor:  # [batch_size, max_spec_len] bool
    return torch.arange(max_spec_len, device=counts.device) < counts[:, None]


def prefix_length(
    drafted: Tensor,  # [batch_size, max_spec_len] bool
    accepted: Tensor,  # [num_tokens] bool
) -> Tensor:  # [batch_size] int64
    """How many tokens each request keeps before the first that is not accepted."""
    return torch.zeros_like(drafted).masked_scatter_(drafted, accepted).cumprod(-1).sum(-1)


def write_tokens(
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
    cells: Tensor,  # [batch_size, max_spec_len] bool
    drafted: Tensor,  # [batch_size, max_spec_len] bool
    token_ids: Tensor,  # [num_tokens] int32
) -> None:
    """Put the flat `token_ids` into these cells of the output; leave the rest as it is."""
    output_token_ids[:, : cells.shape[1]].masked_scatter_(cells, token_ids[cells[drafted]].to(torch.int32))


def is_in_vocab(
    ids: Tensor,  # [...] int32
    vocab_size: int,
) -> Tensor:  # [...] bool
    """False for placeholder draft tokens (-1) and for ids that the model does not have."""
    return (ids >= 0) & (ids < vocab_size)


def clamped_column(
    ids: Tensor,  # [...] int32
    vocab_size: int,
) -> Tensor:  # [...] int64
    """Ids to gather one entry per row with; any id for one outside the vocabulary."""
    return ids.long().clamp(0, vocab_size - 1)[:, None]


def remove_entries(
    targets: Tensor,  # [num_rejected, vocab_size] float32
    ids: Tensor,  # [...] int32
) -> Tensor:  # [num_rejected, vocab_size] float32
    """The residual of one-hot drafts: each row without its drafted id."""
    column = clamped_column(ids, targets.shape[1])
    kept = targets.gather(-1, column).masked_fill(is_in_vocab(ids, targets.shape[1])[:, None], 0)
    return targets.scatter(-1, column, kept)
