"""`Tensor.exponential_` as a plain sampler: the token is the argmax of probability over exponential.

Several engines draw by this one line. Explicit noise is injected; a request with a generator of its own gets its row of
exponentials from that generator. Unsupported: filters, greedy requests and rows without a distribution, about which the
line says nothing; vLLM's order of draws.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from fairdraw._adapters._inject import inject_noise
from fairdraw._adapters._others import unsupported
from fairdraw._adapters._runtime import default_device
from fairdraw._adapters.sampling_multinomial import tempered_probs
from fairdraw.protocols import Capability, ExplicitNoise, FunctionTokenSampler, RaceNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

__all__ = ["make", "race_noise"]

_CAPABILITIES = unsupported(
    ("the line has no filters", (Capability.TOP_K, Capability.TOP_P, Capability.MIN_P)),
    ("the line always draws", (Capability.GREEDY,)),
    ("it draws every row from the default generator first", (Capability.UPSTREAM_STREAM,)),
    ("it draws from torch generators, which advance", (Capability.COUNTER_NOISE,)),
    ("the line gives such rows some token", (Capability.NAN_LOGITS, Capability.EMPTY_ROWS)),
    ("it returns tokens alone", (Capability.DRAFT_DISTRIBUTION,)),
)


def make(device: str | None = None) -> FunctionTokenSampler:
    """The line, with the installed torch."""
    name = f"torch exponential_ {torch.__version__.partition('+')[0]}"
    return FunctionTokenSampler(name, _sample, None, device or default_device(), _CAPABILITIES)


def _sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    probs = tempered_probs(batch)
    with race_noise(noise):
        exponentials = torch.empty_like(probs).exponential_()
    if not isinstance(noise, RaceNoise):
        for request, generator in noise.generators(batch.device).items():
            exponentials[request].exponential_(generator=generator)
    return (probs / exponentials).argmax(-1)


def race_noise(noise: SamplingNoise) -> AbstractContextManager[object]:
    """Explicit noise injected into what is called within; nothing for seeded noise."""
    if not isinstance(noise, RaceNoise):
        return nullcontext()
    return inject_noise(ExplicitNoise(noise.exponentials.new_empty(0), noise.exponentials), required=False)
