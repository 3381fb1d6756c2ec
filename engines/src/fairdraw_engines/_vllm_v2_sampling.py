"""The token sampler of vLLM's model runner V2 (PyPI `vllm`, tried: 0.22.0, 0.28.0, 0.33.0).

`vllm.v1.worker.gpu.sample.sampler.Sampler` gets requests by `add_request`, and a step's raw logits by `sample`: it
copies them if any request has work, applies temperature, min-p, top-k and top-p, and takes the largest logit with
Gumbel noise of (seed, position). On a CPU its kernels run in Triton's interpreter, and top-k and top-p take vLLM's
PyTorch code.

A request without a seed gets one from torch's default generator; its engine draws it from NumPy's.
"""

import importlib
from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, quiet_floats
from fairdraw.contracts import GREEDY_BELOW, FunctionTokenSampler, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise
from fairdraw_engines._others import Upstream
from fairdraw_engines._vllm_v2_kernels import import_kernels, try_once
from fairdraw_engines._vllm_v2_runtime import call, import_v2, make_states

LARGE = {"in the interpreter a call with 151936 tokens takes seconds": ("large-vocab",)}


def make(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the `Sampler` of the importable vLLM; its name carries the release."""
    release, interpreted = import_kernels(device, "worker.gpu.sample.gumbel")
    import_v2(device, "states", "sample.sampler")
    sample = partial(_sample, device)
    try_once(release, interpreted, lambda: sample(trial(device), SeededNoise(0)))
    facts = row.facts(release, device, LARGE if interpreted else {}, slow=interpreted)
    return FunctionTokenSampler(function=sample, **facts)


def trial(device: str) -> SamplingBatch:
    """Return one request with every parameter."""
    one = torch.ones(1, device=device)
    return SamplingBatch(torch.zeros(1, 4, device=device), 0.5 * one, one.int(), 0.5 * one, 0.1 * one, one.long())


def _sample(device: str, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    tokens, _ = sample_rows(device, batch, noise)
    return tokens


def sample_rows(
    device: str, batch: SamplingBatch, noise: SamplingNoise
) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size, vocab_size] float32
    """Return the tokens of a step, and the processed logits that they were drawn from."""
    return draw_rows(make_sampler(batch.batch_size, batch.vocab_size, device), device, batch, noise)


def draw_rows(
    sampler: Upstream, device: str, batch: SamplingBatch, noise: SamplingNoise, **columns: list[Any]
) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size, vocab_size] float32
    """Return the same, by a sampler with room for the batch; `columns` are further parameters of each request."""
    assert not isinstance(noise, RaceNoise)  # unsupported
    size = batch.batch_size
    add_requests(sampler, batch, request_seeds(size, noise.request_seeds), noise.request_seeds, columns)
    zeros, rows = torch.zeros(size, dtype=torch.int32, device=device), np.arange(size, dtype=np.int32)
    with quiet_floats():
        found: tuple[Tensor, Tensor] = call(
            sampler.sample,
            logits=batch.logits,
            expanded_idx_mapping=torch.from_numpy(rows).to(device),
            idx_mapping=torch.from_numpy(rows).to(device),
            idx_mapping_np=rows,
            pos=batch.positions,
            input_ids=zeros,
            expanded_local_pos=zeros,
            seq_lens_upper_bound_np=batch.positions.cpu().numpy(),
        )
    return found


@lru_cache(maxsize=4)
def make_sampler(max_num_reqs: int, vocab_size: int, device: str, num_drafts: int = 1) -> Upstream:
    """Return a `Sampler` with room for so many requests; kept, as a server keeps it, and filled anew at each step."""
    return make_states(max_num_reqs, vocab_size, device, longest=1, num_drafts=num_drafts)[1]


def add_requests(
    sampler: Upstream,
    batch: SamplingBatch,
    seeds: Tensor,  # [batch_size] int64
    own: Mapping[int, int],
    more: Mapping[str, list[Any]] = MappingProxyType({}),  # Any: a value per request
) -> None:
    """Put request i of the batch into slot i. A seed is written as it is: in vLLM's parameters -1 stands for none."""
    params = importlib.import_module("vllm").SamplingParams
    given = {"top_k": batch.top_k, "top_p": batch.top_p, "min_p": batch.min_p}
    columns = {name: column.tolist() for name, column in given.items() if column is not None}
    for i, temperature in enumerate(batch.temperature.tolist()):
        greedy = temperature < GREEDY_BELOW
        filters = {} if greedy else {name: column[i] for name, column in columns.items()}
        one = params(temperature=0.0 if greedy else 1.0, seed=0 if i in own else None, **filters)
        for name, values in more.items():
            setattr(one, name, values[i])
        one.temperature = 0.0 if greedy else temperature  # the constructor raises one below 0.01
        call(sampler.add_request, req_idx=i, prompt_len=0, sampling_params=one)
    sampler.sampling_states.seeds.np[: len(seeds)] = seeds.numpy()
    sampler.apply_staged_writes()


def request_seeds(batch_size: int, own: Mapping[int, int]) -> Tensor:  # [batch_size] int64
    """Return per-request seeds, and numbers of torch's default generator for the others."""
    seeds = torch.randint(2**62, (batch_size,))
    for request, seed in own.items():
        seeds[request] = seed
    return seeds
