"""A verifier under the sampling contract: the first token of a step with one draft per request.

An engine verifies drafts on a path of its own, from raw logits and the requests' parameters, and what it emits must be
distributed as what its sampler draws. The drafts come from the unfiltered distribution and from a generator of the
adapter, so that they are accepted and rejected, allowed and not.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fairdraw.adapters import derive_seed
from fairdraw.contracts import RaceNoise, SamplingBatch, SamplingNoise


def sample_by_verifying(
    verify: Callable[[Tensor, int], list[list[int]]], batch: SamplingBatch, noise: SamplingNoise
) -> Tensor:  # [batch_size] int64
    """Return the first token of each row that `verify(drafts, seed)` returns; drafts are `[batch_size] int64`."""
    assert not isinstance(noise, RaceNoise)  # unsupported
    generator = torch.Generator().manual_seed(derive_seed("drafts", noise.seed))
    drafts = torch.multinomial(batch.logits.float().softmax(-1), 1, generator=generator)[:, 0]
    return torch.tensor([row[0] for row in verify(drafts, noise.seed)])
