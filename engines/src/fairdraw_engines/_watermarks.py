"""Watermarks of vLLM (tried: 0.33.0) and SGLang (tried: 0.5.23).

vLLM: `GPUWatermarkSampler` of model runner V2 gets requests by `add_request`, finds contexts in the texts of its
`RequestState`, and draws ordinary tokens by its Gumbel kernel, in Triton's interpreter on a CPU. It derives both keys
of `dual_key_gumbel` from one, and `alpha` is the share of the second.

SGLang: `WatermarkState` has a ring of tokens and the hashes of contexts by request. It writes the one token that wins
into the logits, and a sampler draws it. Its state is begun anew for each call, as after a retraction.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow
from fairdraw.contracts import Context, SamplingNoise, WatermarkBatch, WatermarkedRequest, WatermarkPolicy
from fairdraw.contracts import WatermarkSetup as Setup
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._others import Upstream
from fairdraw_engines._sglang_sampling import FILE, POLICY, STUBS, arguments_of, sample_rows
from fairdraw_engines._vllm_v2_kernels import import_kernels, try_once
from fairdraw_engines._vllm_v2_runtime import import_v2, make_states, use_torch_filters
from fairdraw_engines._vllm_v2_sampling import LARGE, draw_rows, trial


@lru_cache(maxsize=8)
def _marker(setup: Setup, algorithm: str) -> Upstream:
    """Return vLLM's watermarker for a setup."""
    own = {"key": setup.keys[0], "context_width": setup.context_width, "prf": "philox", "alpha": 1 - setup.share}
    made: Upstream = importlib.import_module("vllm.v1.watermarking").create_watermarker(
        SimpleNamespace(algorithm=algorithm, **own)
    )
    return made


def vllm(row: SamplerRow, device: str, *, algorithm: str = "gumbel") -> contracts.FunctionWatermarker:
    """Return the watermarks of the importable vLLM; the name carries the release."""
    release, interpreted = import_kernels(device, "worker.gpu.sample.gumbel")
    import_v2(device, "states", "sample.sampler", "sample.watermark", first="0.33.0")
    kind = importlib.import_module("vllm.v1.watermarking.gpu_sampler").GPUWatermarkSampler
    if device == "cpu":
        use_torch_filters()
    vllm_marks = importlib.import_module("vllm.v1.watermarking")
    buffers = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
    parameters = inspect.signature(kind.__init__).parameters.items()
    usual = {name: one.default for name, one in parameters if name.startswith("deduplicate")}

    def sample(batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        texts = [[*one.prompt_token_ids, *one.output_token_ids] for one in batch.requests]
        size, longest = batch.batch_size, max(map(len, texts)) + 1
        states, plain = make_states(size, batch.vocab_size, device, longest=longest, num_drafts=1)
        marked = buffers.UvaBackedTensor(size, dtype=torch.bool)
        sampler = object.__new__(kind)
        vars(sampler).update(vars(plain), watermarker=_marker(batch.setup, algorithm), watermarking=marked, **usual)
        for i, (text, one) in enumerate(zip(texts, batch.requests, strict=True)):
            states.all_token_ids.gpu[i, : len(text)] = torch.tensor(text, dtype=torch.int32, device=device)
            states.total_len.gpu[i], states.prompt_len.np[i] = len(text), len(one.prompt_token_ids)
        states.prompt_len.copy_to_uva()
        wanted = [one.is_marked for one in batch.requests]
        return draw_rows(sampler, device, batch, noise, watermarking=wanted)[0]

    def numbers(setup: Setup, contexts: Sequence[Context], vocab_size: int) -> Tensor:
        made = _marker(setup, algorithm)
        both = (made,) if algorithm == "gumbel" else (made.draft_watermarker, made.target_watermarker)
        padded = [(-1,) * (setup.context_width - len(one)) + one for one in contexts]
        table, ids = torch.tensor(padded, dtype=torch.int64), torch.arange(vocab_size)
        return torch.stack([one.prf.uniform(table, ids) for one in both])[:, None]

    def detect(setup: Setup, prompt: Sequence[int], output: Sequence[int]) -> float:
        own: dict[str, Any] = {"key": setup.keys[0], "context_width": setup.context_width}  # Any: one type each
        if algorithm == "gumbel":
            made = vllm_marks.GumbelWatermarkDetector(**own)
        else:
            made = vllm_marks.DualKeyGumbelWatermarkDetector(**own, alpha=1 - setup.share)
        return float(made.detect(list(output)).p_value)

    request = WatermarkedRequest(0, [1], [])
    own: dict[str, Any] = dict(trial(device).tensors())  # Any: tensors, and what else a batch has
    small = WatermarkBatch(**own, setup=Setup((1, 2)), requests=(request,))
    try_once(release, interpreted, lambda: sample(small, contracts.SeededNoise(0)))
    facts = row.facts(release, device, LARGE if interpreted else {}, slow=interpreted)
    policy = WatermarkPolicy(keys="one" if algorithm == "gumbel" else "drawn")
    return contracts.FunctionWatermarker(
        function=sample, policy=policy, watermark_numbers=numbers, detect=detect, **facts
    )


# SGLang

_FILES = tuple(f"sglang.srt.sampling.watermarking.{name}" for name in ("core", "detector"))
_EXTENDED = SimpleNamespace(is_extend_without_speculative=lambda: True)


def _returned(one: WatermarkedRequest) -> Upstream:
    """Return a request as it comes back after a retraction."""
    config = SimpleNamespace(enabled=one.is_marked, key=None, context_window=None)
    text = {"origin_input_ids": one.prompt_token_ids, "output_ids": one.output_token_ids}
    return SimpleNamespace(retracted_stain=True, sampling_params=SimpleNamespace(watermark=config, top_k=2), **text)


def sglang(row: SamplerRow, device: str, *, has_two: bool = False) -> contracts.FunctionWatermarker:
    """Return the watermarks of the installed SGLang; the name carries the release."""
    core, detectors = import_bare(*_FILES)
    (sampling,) = import_bare(FILE, stubs=STUBS)

    def about(setup: Setup) -> dict[str, Any]:  # Any: one type each
        keys = [f"{key:x}" for key in setup.keys]
        two = {"key_b": keys[1], "mixing_probability": setup.share} if has_two else {}
        return {"key": keys[0], "context_window": setup.context_width, **two}

    def state_of(batch: WatermarkBatch) -> Upstream:
        sizes = {"max_num_reqs": batch.batch_size, "max_contexts_per_req": 4096}
        state = core.WatermarkState(**sizes, **about(batch.setup), device=device)
        state._ensure_selection_buffers = lambda *_: (None, None, None)  # of its kernels, which a CPU does not run
        returned = SimpleNamespace(forward_mode=_EXTENDED, reqs=[_returned(one) for one in batch.requests])
        texts = ([*one.prompt_token_ids, *one.output_token_ids] for one in batch.requests)
        tails = [text[-batch.setup.context_width :] for text in texts]
        state.init_from_prompt(torch.arange(batch.batch_size), tails, state.retracted_context_hashes(returned))
        return state

    def sample(batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64 | int32
        state, logits = state_of(batch), batch.logits.float().clone()
        is_marked = torch.tensor([one.is_marked for one in batch.requests], device=device)
        info = SimpleNamespace(
            **arguments_of(batch)[2],
            temperatures=torch.where(batch.is_greedy, 1.0, batch.temperature)[:, None],
            has_watermark_candidates=bool((is_marked & ~batch.is_greedy).any()),
            watermark_keys=state.default_key_buffer,
            watermark_context_windows=state.default_context_window_buffer,
            watermark_enabled=is_marked,
        )
        state.force(logits, torch.arange(batch.batch_size, device=device), info)
        return sample_rows(sampling, batch.replace(logits=logits), noise)

    def numbers(setup: Setup, contexts: Sequence[Context], vocab_size: int) -> Tensor:
        hashes, ids = torch.tensor([detectors.hash_context(one) for one in contexts]), torch.arange(vocab_size)
        keys = [torch.full_like(hashes, core.parse_watermark_key(f"{key:x}")) for key in setup.keys]
        found = torch.stack([core._watermark_hash32_torch(key, hashes, ids) for key in keys])
        chosen = torch.zeros_like(hashes)
        if has_two and len(keys) > 1:
            shares = torch.full_like(hashes, int(setup.share * 2**32))
            chosen = (~core._dual_key_a_mask_torch(*keys, hashes, shares)).long()
        made: Tensor = (found[chosen, torch.arange(len(hashes))].double() + 0.5) / 2**32
        return made[None, None]

    def detect(setup: Setup, prompt: Sequence[int], output: Sequence[int]) -> float:
        made = detectors.WatermarkDetector(**about(setup))
        return float(made.detect_tokens(output, prompt_token_ids=prompt).combined.p_value)

    policy = WatermarkPolicy(context="text", short_context="unless_empty", keys="by_context" if has_two else "one")
    parts: dict[str, Any] = {"filters": POLICY, "policy": policy, **row.facts(release_of("sglang"), device)}
    return contracts.FunctionWatermarker(function=sample, watermark_numbers=numbers, detect=detect, **parts)
