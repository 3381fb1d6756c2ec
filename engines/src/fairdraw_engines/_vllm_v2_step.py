"""A whole verification step of vLLM's model runner V2 (PyPI `vllm`, tried: 0.22.0, 0.28.0, 0.33.0).

`vllm.v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler` is called with raw logits and a real `InputBatch`.
It finds drafts and positions in the step's inputs, applies the requests' parameters and verifies; from 0.27.0 on in
chunks of at most 1 GiB of logits.

The contract's logits are processed. Every other random request is given temperature 1/2, and logits halved, which is
exact; a batch with such a request goes through V2's processing, one without is passed on as it is.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, UnusableRelease, quiet_floats, release_number
from fairdraw.contracts import ExplicitNoise, FunctionSampler, Noise, SamplingBatch, SeededNoise, SpecDecodeBatch
from fairdraw_engines._others import Upstream, vllm_module
from fairdraw_engines._vllm_v2 import beyond, emitted, kernel_arguments, trial_batch
from fairdraw_engines._vllm_v2_kernels import import_kernels, try_once
from fairdraw_engines._vllm_v2_runtime import import_v2, make_input_batch, make_verifier
from fairdraw_engines._vllm_v2_sampling import add_requests, make_sampler

_MODULE = "worker.gpu.spec_decode.rejection_sampler"
_KERNELS = ("worker.gpu.spec_decode.rejection_sampler_utils", "worker.gpu.sample.gumbel")
_FLOAT32_BYTES = 4


def make(row: SamplerRow, device: str, *, chunk_rows: int | None = None) -> FunctionSampler:
    """Return the `RejectionSampler` of the importable vLLM; its name carries the release.

    Args:
        chunk_rows: Verify at most so many rows of logits at once, instead of 1 GiB of them.
    """
    release, interpreted = import_kernels(device, *_KERNELS)
    import_v2(device, "states", "input_batch", "sample.sampler", "spec_decode.rejection_sampler")
    if chunk_rows is not None and not hasattr(vllm_module(_MODULE), "MAX_CHUNK_BYTES"):
        rule = f"vLLM {release} verifies all logits at once, 0.27.0 brought chunks"
        raise UnusableRelease(rule, "Install a newer release: python tools/install.py vllm 0.33.0")
    verify = partial(_verify, release_number(release), chunk_rows)
    try_once(release, interpreted, lambda: verify(trial_batch(device), SeededNoise(0)))
    facts = row.facts(release, device, beyond(release, interpreted), slow=interpreted)
    return FunctionSampler(function=verify, **facts)


def _verify(
    release: tuple[int, ...], chunk_rows: int | None, batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    assert not isinstance(noise, ExplicitNoise)  # unsupported
    layout = kernel_arguments(batch, noise)
    temperature = torch.where(torch.arange(batch.batch_size, device=batch.device) % 2 == 1, 0.5, 1.0)
    temperature = temperature.masked_fill(batch.is_greedy, 0.0)
    logits, draft_logits = layout["target_logits"], layout["draft_logits"]
    scale = torch.where(batch.is_greedy, 1.0, temperature)
    if draft_logits is not None and release >= (0, 28):  # before that drafters stored them divided
        draft_logits = draft_logits * scale[:, None, None]
    raw = logits * scale[layout["expanded_idx_mapping"].long(), None].to(logits.dtype)
    step = _rejection_sampler(batch, temperature, layout["seed"], noise)
    names, counts = list(map(str, range(batch.batch_size))), [count + 1 for count in batch.num_draft_tokens]
    inputs = {"input_ids": layout["draft_sampled"], "positions": layout["pos"]}
    requests = make_input_batch(names, range(len(names)), counts, counts, batch.device, **inputs)
    with quiet_floats(), _chunks(chunk_rows, batch.vocab_size):
        output = step(raw, requests, draft_logits)
    return emitted(batch, output.sampled_token_ids, output.num_sampled)


def _rejection_sampler(
    batch: SpecDecodeBatch,
    temperature: Tensor,  # [batch_size] float32
    seeds: Tensor,  # [batch_size] int64
    noise: SeededNoise,
) -> Upstream:
    """Return V2's sampler with the batch's requests, and what verifies around it."""
    sampler = make_sampler(batch.batch_size, batch.vocab_size, str(batch.device), max(batch.max_spec_len, 1))
    unused = torch.zeros(batch.batch_size, dtype=torch.int64)
    requests = SamplingBatch(batch.target_logits, temperature, None, None, None, unused)
    add_requests(sampler, requests, seeds.cpu(), noise.request_seeds)
    step = make_verifier(sampler, batch.max_spec_len, batch.device)
    step.synthetic_conditional_rates = batch.synthetic_rates
    return step


def _chunks(rows: int | None, vocab_size: int) -> AbstractContextManager[object]:
    if rows is None:
        return nullcontext()
    return mock.patch.object(vllm_module(_MODULE), "MAX_CHUNK_BYTES", rows * vocab_size * _FLOAT32_BYTES)
