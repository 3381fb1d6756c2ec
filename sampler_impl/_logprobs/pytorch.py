"""The PyTorch backend of `logprobs`, and the readable twin of its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._shared.grid import is_in_vocab

if TYPE_CHECKING:
    from .._shared.tensors import LogitRows, RowInts

NO_ID = 0x7FFFFFFF


def top_logprobs(
    logits: LogitRows, emitted_token_ids: RowInts, number: int, *, normalise: bool
) -> tuple[Tensor, Tensor, Tensor]:  # [num_rows, 1 + num_logprobs] int64, ...
    """Return ids, values as float32, and ranks [num_rows] int64."""
    exact = logits.float()
    tokens = torch.where(is_in_vocab(emitted_token_ids, logits.shape[1]), emitted_token_ids.long(), 0)[:, None]
    scores = exact.log_softmax(-1) if normalise else exact
    found = torch.cat([tokens, best_ids(exact, number)], dim=1)
    ranks = (exact >= exact.gather(1, tokens)).sum(-1)
    return found, scores.gather(1, found), ranks


def best_ids(logits: LogitRows, number: int) -> Tensor:  # [num_rows, num_logprobs] int64
    """Return the ids of the largest logits, best first; ties go to the lowest id, which `torch.topk` leaves open."""
    words = argmax_words(logits.float())
    return (words.topk(number, dim=-1).values & NO_ID) ^ NO_ID


def argmax_words(logits: LogitRows) -> Tensor:  # [num_rows, vocab_size] int64
    """Return the order of each logit and its id in one integer, as in `_shared.kernels`; NaN is highest."""
    bits = (logits + 0.0).view(torch.int32)  # -0 becomes 0
    order = torch.where(logits.isnan(), NO_ID, torch.where(bits < 0, bits ^ NO_ID, bits))
    return (order.long() << 32) | (torch.arange(logits.shape[1], device=logits.device) ^ NO_ID)
