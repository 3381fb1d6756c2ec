"""`torch.multinomial` as a plain sampler: softmax of the logits over the temperature, then one draw per row.

A request with a generator of its own is drawn alone, with that generator. Unsupported: filters and greedy requests,
which the function does not have; explicit noise, since it draws for itself; rows without a distribution, which it
refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fairdraw._adapters._others import unsupported
from fairdraw._adapters._runtime import default_device
from fairdraw.protocols import Capability, FunctionTokenSampler, RaceNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

__all__ = ["make", "tempered_probs"]

_CAPABILITIES = unsupported(
    ("the function has no filters", (Capability.TOP_K, Capability.TOP_P, Capability.MIN_P)),
    ("the function always draws", (Capability.GREEDY,)),
    ("it draws for itself", (Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE, Capability.UPSTREAM_STREAM)),
    ("it draws from torch generators, which advance", (Capability.COUNTER_NOISE,)),
    ("it refuses such rows", (Capability.NAN_LOGITS, Capability.EMPTY_ROWS)),
    ("it returns tokens alone", (Capability.DRAFT_DISTRIBUTION,)),
)


def make(device: str | None = None) -> FunctionTokenSampler:
    """The function of the installed torch."""
    name = f"torch.multinomial {torch.__version__.partition('+')[0]}"
    return FunctionTokenSampler(name, _sample, None, device or default_device(), _CAPABILITIES)


def _sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    assert not isinstance(noise, RaceNoise)  # unsupported
    probs = tempered_probs(batch)
    tokens = torch.multinomial(probs, 1)[:, 0]
    for request, generator in noise.generators(batch.device).items():
        tokens[request] = torch.multinomial(probs[request], 1, generator=generator)[0]
    return tokens


def tempered_probs(batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32
    """The distribution at the temperature of each request."""
    return (batch.logits.float() / batch.temperature[:, None]).softmax(-1)
