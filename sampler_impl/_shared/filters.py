"""Min-p, top-k and top-p on processed logits, with the bits of vLLM's PyTorch code.

All three write -inf over what they drop, and keep every bit of what stays. vLLM's order is temperature, min-p, top-k,
top-p: each filter uses the probabilities that the one before it left, renormalised.

Ties, as in vLLM 0.22.0:

* min-p and top-k keep every token that ties with the last one kept, so top-k may keep more than `k`;
* top-p drops from the small end of an unstable ascending sort, so among equal logits at its edge the sort decides;
* top-p keeps the greatest logit whatever its probability, and drops tokens whose probabilities, added up from the small
  end, are exactly 0. So it is not the identity at 1.0 once logits are about 104 below the maximum: a row without top-p
  loses tokens that could not be drawn as soon as another row of its batch uses top-p.

Everything here is pure but for `logits`, which is changed in place and returned; it must be float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .._shared.tensors import LogitRows, RowFloats

DROPPED = float("-inf")


def apply_min_p(logits: LogitRows, min_p: RowFloats) -> Tensor:  # [num_rows, vocab_size] float32
    """Drop tokens less probable than `min_p` times the most probable one; 0 drops nothing."""
    probs = logits.softmax(dim=-1)
    least = probs.amax(dim=-1, keepdim=True) * min_p.unsqueeze(1)
    return logits.masked_fill_(probs < least, DROPPED)


def apply_top_k_top_p(
    logits: Tensor,  # [num_rows, vocab_size] float32
    top_k: Tensor | None,  # [num_rows] int32 | int64
    top_p: Tensor | None,  # [num_rows] float32
) -> Tensor:  # [num_rows, vocab_size] float32
    """Keep the `top_k` greatest logits, then the fewest of those that together have probability `top_p`.

    Args:
        top_k: In `[1, vocab_size]`; `vocab_size` keeps all. `None`: no row uses it.
        top_p: In `(0, 1]`; see above about 1. `None`: no row uses it.
    """
    if top_k is None and top_p is None:
        return logits
    ascending, token_ids = logits.sort(dim=-1)
    if top_k is not None:
        # A place outside of the row would end the process on a card; a wrong `top_k` keeps one token or all.
        places = (logits.shape[1] - top_k.long()).clamp_(0, logits.shape[1] - 1)
        edge = ascending.gather(1, places.unsqueeze(1))
        if top_p is None:
            return logits.masked_fill_(logits < edge, DROPPED)
        ascending.masked_fill_(ascending < edge, DROPPED)
    if top_p is not None:
        cumulative = torch.cumsum(ascending.softmax(dim=-1), dim=-1)
        is_tail = cumulative[:, :-1] <= (1 - top_p).unsqueeze(1)  # the greatest stays, whatever its probability
        ascending[:, :-1].masked_fill_(is_tail, DROPPED)
    return logits.scatter_(dim=-1, index=token_ids, src=ascending)
