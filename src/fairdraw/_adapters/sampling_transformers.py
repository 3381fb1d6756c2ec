"""Logits warpers of Hugging Face transformers (PyPI `transformers`, tried: 5.23.0), and the draw of its `generate`.

`TemperatureLogitsWarper`, `TopKLogitsWarper`, `TopPLogitsWarper` and `MinPLogitsWarper` take one value for all rows, so
they are made per request, in the order of `generate`; then softmax and `torch.multinomial`, or argmax if the request is
greedy. With explicit noise, `multinomial` is run as the race that it is, as in the adapter `transformers`.

Unsupported: generators per request and vLLM's order of draws, since it draws from torch's default generator; rows
without a distribution, which `multinomial` refuses.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fairdraw._adapters._others import KnownTokenSampler, defects_of, unsupported
from fairdraw._adapters._runtime import default_device, quiet_imports
from fairdraw._adapters.transformers import multinomial_noise
from fairdraw.protocols import Capability, ExplicitNoise, FilterPolicy, RaceNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

__all__ = ["make"]

_CAPABILITIES = unsupported(
    ("it draws from torch's default generator", (Capability.REQUEST_SEEDS, Capability.UPSTREAM_STREAM)),
    ("it draws from torch's default generator", (Capability.COUNTER_NOISE,)),
    ("torch.multinomial refuses such rows", (Capability.NAN_LOGITS, Capability.EMPTY_ROWS)),
    ("it returns tokens alone", (Capability.DRAFT_DISTRIBUTION,)),
    slow=True,  # a call costs milliseconds: one request at a time
)


def make(device: str | None = None) -> KnownTokenSampler:
    """The warpers of the installed transformers; the name carries the release.

    Raises:
        ModuleNotFoundError: If transformers is missing.
    """
    with quiet_imports():
        import transformers
        from transformers.generation import logits_process

    return KnownTokenSampler(
        f"transformers warpers {transformers.__version__}",
        partial(_sample, logits_process),
        None,
        device or default_device(),
        _CAPABILITIES,
        FilterPolicy(order=("top_k", "top_p", "min_p")),
        known_defects=defects_of("sampling_transformers"),
    )


def _sample(
    warpers: Any, batch: SamplingBatch, noise: SamplingNoise
) -> Tensor:  # [batch_size] int64  # Any: a module of theirs
    return torch.cat([_token(warpers, batch.select([i]), _noise_of(noise, i)) for i in range(batch.batch_size)])


def _noise_of(noise: SamplingNoise, request: int) -> SamplingNoise:
    return noise.select([request]) if isinstance(noise, RaceNoise) else noise


def _token(warpers: Any, request: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [1] int64  # Any: as above
    scores = request.logits.float()
    if bool(request.is_greedy):
        return scores.argmax(-1)
    chain = [warpers.TemperatureLogitsWarper(float(request.temperature))]
    if request.top_k is not None:
        chain.append(warpers.TopKLogitsWarper(int(request.top_k)))
    if request.top_p is not None and float(request.top_p) < 1:
        chain.append(warpers.TopPLogitsWarper(float(request.top_p)))
    if request.min_p is not None:
        chain.append(warpers.MinPLogitsWarper(float(request.min_p)))
    for warper in chain:
        scores = warper(None, scores)
    explicit = None
    if isinstance(noise, RaceNoise):
        explicit = ExplicitNoise(noise.exponentials.new_empty(0), noise.exponentials)
    with multinomial_noise(explicit):
        return torch.multinomial(scores.softmax(-1), 1)[:, 0]
