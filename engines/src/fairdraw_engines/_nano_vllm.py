"""The token sampler of nano-vllm: GeeeekExplorer's 0.2.0 from GitHub, or PyPI `nano-vllm-fork` (tried: 20260210).

Both are the package `nanovllm`. `layers/sampler.py`, which needs torch alone, is imported by itself: temperature,
softmax, and a race with exponentials that are at least 1e-10. The fork has top-k and top-p before them; its runner
writes top-k 0 for a request that asks for none, and leaves out what no request asks for. The engine compiles the
function; so does this on a GPU, while the CPU runs the same lines one by one.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from inspect import signature
from unittest import mock

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import FilterPolicy, FunctionTokenSampler, SamplingBatch, SamplingNoise
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._torch import race_noise

_POLICY = FilterPolicy(("top_k", "top_p", "min_p"))
_NO_FILTERS = {"only the fork has filters": ["top-k", "top-p"]}
_COMPILED = {"a compiled function draws its own": ["explicit-noise", "reference-race"]}


def make(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the sampler of the installed nano-vllm or fork; the name carries the release."""
    with nullcontext() if device == "cuda" else mock.patch("torch.compile", lambda function: function):
        (module,) = import_bare("nanovllm.layers.sampler")
    sampler = module.Sampler()
    filters = "top_ks" in signature(sampler.forward).parameters
    release = release_of("nano-vllm-fork" if filters else "nano-vllm")
    facts = row.facts(release, device, ({} if filters else _NO_FILTERS) | (_COMPILED if device == "cuda" else {}))
    return FunctionTokenSampler(function=partial(_sample, sampler.forward), filters=_POLICY, **facts)


def _sample(forward: Callable[..., Tensor], batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    filters = {}
    if batch.top_k is not None:
        filters["top_ks"] = torch.where(batch.top_k < batch.vocab_size, batch.top_k, 0)
    if batch.top_p is not None:
        filters["top_ps"] = batch.top_p
    with race_noise(noise):
        return forward(batch.logits.float().clone(), batch.temperature, **filters)
