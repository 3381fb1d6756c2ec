"""Masks of two engines: vLLM's model runner V2 (PyPI `vllm`, tried: 0.33.0) and SGLang (PyPI `sglang`, tried: 0.5.23).

vLLM's `Sampler` returns the logits that it drew from; `SamplingMaskTensors.from_logits` makes of them ids, counts and
bytes of bits. SGLang's `Sampler._sample_from_probs` keeps the probabilities that it drew from, sorted, and
`_build_sampling_mask_output` makes ids of them; the rows' words are made of these ids here.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from fairdraw import contracts
from fairdraw.adapters import SamplerRow
from fairdraw.contracts import FunctionMaskedSampler, MaskedTokens, MaskPolicy, MaskRows, SamplingBatch, SamplingNoise
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._sglang_sampling import FILE, POLICY, STUBS, arguments_of
from fairdraw_engines._vllm_v2_kernels import import_kernels, try_once
from fairdraw_engines._vllm_v2_runtime import call, import_v2
from fairdraw_engines._vllm_v2_sampling import LARGE, sample_rows, trial


def vllm(row: SamplerRow, device: str) -> FunctionMaskedSampler:
    """Return the sampler and the masks of the importable vLLM; its name carries the release."""
    release, interpreted = import_kernels(device, "worker.gpu.sample.gumbel", "worker.gpu.sample.output")
    import_v2(device, "states", "sample.sampler", "sample.output")
    masks = importlib.import_module("vllm.v1.worker.gpu.sample.output").SamplingMaskTensors

    def sample(batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        tokens, processed = sample_rows(device, batch, noise)
        places = torch.arange(batch.batch_size + 1, dtype=torch.int32, device=device)
        made = call(
            masks.from_logits,
            logits=processed,
            cu_num_logits=places,
            num_sampled_tokens=torch.ones_like(places[1:]),
            max_num_kept=into.token_ids.shape[1],
        )
        into.words.zero_().view(torch.uint8)[:, : made.packed_mask.shape[1]] = made.packed_mask
        into.token_ids[:, : made.token_ids.shape[1]] = made.token_ids
        into.counts.copy_(made.counts)
        return MaskedTokens(tokens)

    empty = torch.zeros(1, 8, dtype=torch.int32, device=device)
    try_once(
        release, interpreted, lambda: sample(trial(device), contracts.SeededNoise(0), MaskRows(empty, empty, empty[0]))
    )
    return FunctionMaskedSampler(
        function=sample, **row.facts(release, device, LARGE if interpreted else {}, slow=interpreted)
    )


def sglang(row: SamplerRow, device: str) -> FunctionMaskedSampler:
    """Return the sampler of the installed SGLang, with masks for all requests; the name carries the release."""
    exec_of = SimpleNamespace(kernel=SimpleNamespace(sampling_backend="pytorch"))
    stubs = STUBS | {"sglang.srt.runtime_context": STUBS["sglang.srt.runtime_context"] | {"get_exec": lambda: exec_of}}
    status = SimpleNamespace(OK=0, INVALID=1, OVERFLOW=2)
    stubs["sglang.srt.layers.logits_processor"] = {"SamplingMaskOutput": SimpleNamespace, "SamplingMaskStatus": status}
    (module,) = import_bare(FILE, stubs=stubs)

    def sample(batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        sampler: Any = object.__new__(module.Sampler)  # Any: SGLang's
        sampler.__dict__ |= {"sampling_mask_max_tokens": batch.vocab_size, "tp_sync_group": None}
        rows = torch.arange(batch.batch_size, device=device)
        if bool(batch.is_greedy.all()):
            tokens = batch.logits.float().argmax(-1)
            made = sampler._build_greedy_sampling_mask_output(rows, tokens, None)
        else:
            probs, plain, given = arguments_of(batch)
            info = SimpleNamespace(**given, sampling_mask_batch_indices=rows, sampling_seed=None)
            tokens, capture = sampler._sample_from_probs(probs, info, batch.positions, plain)
            made = sampler._build_sampling_mask_output(tokens, capture, None)
        is_listed = torch.arange(made.token_ids.shape[1], device=device) < made.lengths[:, None]
        bits = torch.zeros(batch.batch_size, 32 * into.words.shape[1], dtype=torch.long, device=device)
        bits.scatter_add_(1, made.token_ids.long(), is_listed.long())
        into.words.copy_((bits.view(batch.batch_size, -1, 32) << torch.arange(32, device=device)).sum(-1))
        width = min(into.token_ids.shape[1], made.token_ids.shape[1])
        into.token_ids[:, :width] = made.token_ids[:, :width]
        into.counts.copy_(made.lengths)
        return MaskedTokens(tokens, made.selected_logprobs)

    facts = row.facts(release_of("sglang"), device)
    policy = MaskPolicy(greedy_mask="token", ids_order="any")
    return FunctionMaskedSampler(function=sample, filters=POLICY, policy=policy, **facts)
