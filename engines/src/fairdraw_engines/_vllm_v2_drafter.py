"""The drafter of vLLM's model runner V2, keyed as its speculators key it, for the pair that `_vllm_v2` verifies.

`Speculator._sample_draft` (0.22.0; `sample_draft` later) draws with `gumbel_sample` at the position of the draft's
*input*, plus 1, which is one less than that of the token drawn. The verifier reads the position of the row of target
logits from which a token is drawn: the same number. From 0.29.0 on `is_drafting` salts the drafter's key.
"""

from inspect import signature

import torch
from torch import Tensor

from fairdraw.adapters import quiet_floats
from fairdraw.contracts import Drafted, DraftStep, SeededNoise, SpecDecodeBatch
from fairdraw_engines._others import vllm_module
from fairdraw_engines._vllm_v2_sampling import request_seeds

GUMBEL = "worker.gpu.sample.gumbel"


def propose(step: DraftStep, noise: SeededNoise) -> Drafted:
    """Return tokens of the release's own `gumbel_sample`, and the softmax that its speculator hands over."""
    gumbel_sample = vllm_module(GUMBEL).gumbel_sample
    known = signature(gumbel_sample).parameters
    batch_size, vocab_size = step.draft_logits.shape
    cache = step.draft_logits.new_empty((batch_size, step.step + 1, vocab_size))
    column = torch.tensor(step.step, device=step.device)
    # Named by release. With a cache, releases from 0.31.0 on key by its column, too.
    given = {
        "output_processed_logits": cache,
        "output_processed_logits_col": column,
        "logits_cache": cache,
        "logits_cache_col": column,
        "is_drafting": True,
    }
    with quiet_floats():
        token_ids = gumbel_sample(
            step.draft_logits,
            torch.arange(batch_size, dtype=torch.int32, device=step.device),
            step.temperature,
            seeds_of(noise, batch_size, step.device),
            step.positions - 1,
            apply_temperature=True,
            **{name: value for name, value in given.items() if name in known},
        )
    probs = (step.draft_logits / step.temperature[:, None]).softmax(dim=-1)
    greedy = torch.zeros_like(probs).scatter_(1, token_ids[:, None], 1.0)
    return Drafted(token_ids.int(), torch.where(step.temperature[:, None] == 0, greedy, probs))


def seeds_of(noise: SeededNoise, batch_size: int, device: torch.device) -> Tensor:  # [batch_size] int64
    """Return a seed per request. One without a seed is given one when it is first seen, and keeps it: so does its
    engine."""
    kept = noise.kept.get("seeds")
    if not isinstance(kept, torch.Tensor) or len(kept) != batch_size:
        noise.kept["seeds"] = kept = request_seeds(batch_size, noise.request_seeds).to(device)
    return kept


def row_positions(
    batch: SpecDecodeBatch,
    row_request: Tensor,  # [num_rows] int64
    row_position: Tensor,  # [num_rows] int64
) -> Tensor:  # [num_rows] int64
    """Return the position of each row of target logits: one less than that of the token that is drawn from it."""
    return row_position if batch.positions is None else batch.positions[row_request] - 1 + row_position
