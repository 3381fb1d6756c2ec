"""Verification of requests with equally many drafts at once, as engines do whose requests all have the same number.

A request without drafts gets its bonus token: its engine would decode it without this step.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, SpecDecodeBatch


class Chains(NamedTuple):
    """Requests of a batch that have equally many drafts; from the last row of logits their bonus token is drawn."""

    requests: Tensor  # [num_requests] int64
    rows: Tensor  # [num_requests, num_drafts] int64, of tensors with a row per draft
    drafts: Tensor  # [num_requests, num_drafts] int32
    logits: Tensor  # [num_requests, num_drafts + 1, vocab_size] as the batch's


def verify_by_length(
    batch: SpecDecodeBatch, verify: Callable[[Chains], Tensor]
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Call `verify` once per number of drafts; it returns `[num_requests, num_drafts + 1]` tokens."""
    shape = (batch.batch_size, batch.max_spec_len + 1)
    tokens = torch.full(shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32, device=batch.device)
    tokens[:, :1] = batch.bonus_token_ids
    counts = torch.tensor(batch.num_draft_tokens, device=batch.device)
    starts, bonus = counts.cumsum(0) - counts, bonus_rows(batch)
    for count in sorted(set(batch.num_draft_tokens) - {0}):
        requests = (counts == count).nonzero()[:, 0]
        rows = starts[requests, None] + torch.arange(count, device=batch.device)
        logits = torch.cat([batch.target_logits[rows], bonus[requests, None]], 1)
        chains = Chains(requests, rows, batch.draft_token_ids[rows], logits)
        tokens[requests, : count + 1] = verify(chains).int()
    return tokens


def bonus_rows(batch: SpecDecodeBatch) -> Tensor:  # [batch_size, vocab_size] as the target logits
    """Return the rows that bonus tokens are drawn from: the batch's, or rows that allow its bonus tokens alone."""
    if batch.bonus_logits is not None:
        return batch.bonus_logits.to(batch.target_logits.dtype)
    return rows_of(batch.bonus_token_ids[:, 0], batch)


def rows_of(token_ids: Tensor, batch: SpecDecodeBatch) -> Tensor:  # [num_rows] int32 -> [num_rows, vocab_size]
    """Return logits that allow one token each, as the target logits."""
    logits = batch.target_logits.new_full((len(token_ids), batch.vocab_size), -torch.inf)
    return logits.scatter(1, token_ids[:, None].long(), 0)
