"""Two lines of PyTorch by which engines draw: `torch.multinomial`, and the argmax of probability over `exponential_`.

A request with its own generator is drawn from that generator. Explicit noise is injected into the draw of exponentials.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, inject_noise
from fairdraw.contracts import ExplicitNoise, FunctionTokenSampler, RaceNoise, SamplingBatch, SamplingNoise

_RELEASE = torch.__version__.partition("+")[0]


def multinomial(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the function of the installed torch."""
    return FunctionTokenSampler(function=_multinomial, **row.facts(_RELEASE, device))


def exponential(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the line's sampler, with the installed torch."""
    return FunctionTokenSampler(function=_exponential, **row.facts(_RELEASE, device))


def race_noise(noise: SamplingNoise) -> AbstractContextManager[object]:
    """Inject explicit noise into what is called within; do nothing for seeded noise."""
    if not isinstance(noise, RaceNoise):
        return nullcontext()
    return inject_noise(ExplicitNoise(noise.exponentials.new_empty(0), noise.exponentials), required=False)


def _multinomial(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    assert not isinstance(noise, RaceNoise)  # unsupported
    probs = _tempered_probs(batch)
    tokens = torch.multinomial(probs, 1)[:, 0]
    for request, generator in noise.generators(batch.device).items():
        tokens[request] = torch.multinomial(probs[request], 1, generator=generator)[0]
    return tokens


def _exponential(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    probs = _tempered_probs(batch)
    with race_noise(noise):
        exponentials = torch.empty_like(probs).exponential_()
    if not isinstance(noise, RaceNoise):
        for request, generator in noise.generators(batch.device).items():
            exponentials[request].exponential_(generator=generator)
    return (probs / exponentials).argmax(-1)


def _tempered_probs(batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32
    return (batch.logits.float() / batch.temperature[:, None]).softmax(-1)
