"""The PyTorch backend of `sampling`: the production path on a CPU, and wherever a whole distribution is wanted.

Rows are independent: every operation below reduces along the vocabulary alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._shared.filters import apply_min_p, apply_top_k_top_p

if TYPE_CHECKING:
    from .._shared.checks import Generators
    from .._shared.tensors import LogitRows, RequestRows
    from .parameters import SamplingParameters


def filtered_logits(logits: LogitRows, parameters: SamplingParameters) -> Tensor:  # [num_rows, vocab_size] float32
    """Return a copy of the logits over temperature, then min-p, top-k and top-p, in float32; masked tokens have -inf.

    Rows of greedy requests are divided by 1; their filtered logits are not used.
    """
    temperature = parameters.temperature
    if not parameters.all_random:
        temperature = temperature.masked_fill(parameters.is_greedy, 1.0)
    scaled = logits.float() / temperature[:, None]
    if parameters.min_p is not None:
        scaled = apply_min_p(scaled, parameters.min_p)
    if parameters.top_k is not None or parameters.top_p is not None:
        scaled = apply_top_k_top_p(scaled, parameters.top_k, parameters.top_p)
    return scaled


def generate_exponentials(logits: LogitRows, generators: Generators) -> Tensor:  # [batch_size, vocab_size] float32
    """Draw what vLLM's `Sampler` draws, in its order.

    Randomness:
        One per request and token from the default generator, unless every request has a generator of its own; then
        each own row from its generator, in dict order.
    """
    exponentials = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if len(generators) != logits.shape[0]:
        exponentials.exponential_()
    for req_idx, generator in generators.items():
        exponentials[req_idx].exponential_(generator=generator)
    return exponentials


def race(probs: LogitRows, exponentials: RequestRows) -> Tensor:  # [batch_size] int64
    """Return the token of the highest `prob / exponential`, lowest id on ties, among tokens of positive probability.

    -1 stands for a token that does not take part. In an invalid row (NaN) none does, and the token is 0.
    """
    scores = probs / exponentials
    scores.masked_fill_(~(probs > 0), -1.0)
    return scores.argmax(-1)
