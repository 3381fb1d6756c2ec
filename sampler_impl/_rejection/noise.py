"""The random numbers of one call, drawn from the same generators in the same order as vLLM 0.22.0 draws them.

The order is part of the interface: with the same seeds, tokens *and* final generator states equal upstream's.
Both global draws are made for all requests, also for those whose numbers are then overwritten from their own generator;
a request without draft tokens takes nothing from its own generator.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._shared.checks import Generators


def generate_uniforms(
    num_draft_tokens: Sequence[int],  # [batch_size]
    generators: Generators,
    device: torch.device,
) -> Tensor:  # [num_tokens] float64
    """Draw one uniform per draft token, in [0, 1).

    float64, because a float32 uniform is exactly 0 once in 2**24 draws, and 0 accepts everything.

    Randomness:
        `num_tokens` from the default generator, then `num_draft_tokens[i]` from each own generator in request order.
    """
    uniforms = torch.rand(sum(num_draft_tokens), dtype=torch.float64, device=device)
    if generators:
        ends = list(accumulate(num_draft_tokens))
        for req_idx in sorted(generators):
            if num_draft_tokens[req_idx] > 0:
                start = ends[req_idx] - num_draft_tokens[req_idx]
                uniforms[start : ends[req_idx]].uniform_(generator=generators[req_idx])
    return uniforms


def generate_exponentials(
    num_draft_tokens: Sequence[int],  # [batch_size]
    vocab_size: int,
    generators: Generators,
    device: torch.device,
) -> Tensor:  # [batch_size, vocab_size] float32
    """Draw one exponential per request and vocabulary entry; a request recovers at most one token.

    Randomness:
        `batch_size * vocab_size` from the default generator, then `vocab_size` from each own generator in dict order.
    """
    exponentials = torch.empty(len(num_draft_tokens), vocab_size, dtype=torch.float32, device=device)
    exponentials.exponential_()
    for req_idx, generator in generators.items():
        if num_draft_tokens[req_idx] > 0:
            exponentials[req_idx].exponential_(generator=generator)
    return exponentials
