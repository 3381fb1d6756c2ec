"""Watermarks of vLLM (tried: 0.33.0) and SGLang (tried: 0.5.23).

vLLM: `GPUWatermarkSampler` of model runner V2 gets requests by `add_request`, finds contexts in the texts of its
`RequestState`, and draws ordinary tokens by its Gumbel kernel, in Triton's interpreter on a CPU. It derives both keys
of `dual_key_gumbel` from one, and `alpha` is the share of the second.

SGLang: `WatermarkState` keeps a ring of tokens and the hashes of contexts by request. It writes the one token that wins
into the logits, and a sampler draws it. Its state is begun anew, as after a retraction, unless a text has grown by the
token that the last call drew.
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

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import (
    Context,
    FunctionWatermarker,
    SamplingNoise,
    SeededNoise,
    WatermarkBatch,
    WatermarkedRequest,
    WatermarkPolicy,
    WatermarkSetup,
)
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._others import Upstream
from fairdraw_engines._sglang_sampling import FILE, POLICY, STUBS, arguments_of, sample_rows
from fairdraw_engines._vllm_v2_kernels import import_kernels, try_once
from fairdraw_engines._vllm_v2_runtime import import_v2, make_states, use_torch_filters
from fairdraw_engines._vllm_v2_sampling import LARGE, draw_rows, trial


@lru_cache(maxsize=8)
def _marker(setup: WatermarkSetup, algorithm: str) -> Upstream:
    """Return vLLM's watermarker for a setup."""
    own = {"key": setup.keys[0], "context_width": setup.context_width, "prf": "philox", "alpha": 1 - setup.share}
    made: Upstream = importlib.import_module("vllm.v1.watermarking").create_watermarker(
        SimpleNamespace(algorithm=algorithm, **own)
    )
    return made


def vllm(row: SamplerRow, device: str, *, algorithm: str = "gumbel") -> FunctionWatermarker:
    """Return the watermarks of the importable vLLM; the name carries the release."""
    release, interpreted = import_kernels(device, "worker.gpu.sample.gumbel")
    import_v2(device, "states", "sample.sampler", "sample.watermark", first="0.33.0")
    kind = importlib.import_module("vllm.v1.watermarking.gpu_sampler").GPUWatermarkSampler
    if device == "cpu":
        use_torch_filters()
    detectors = importlib.import_module("vllm.v1.watermarking")
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

    def numbers(setup: WatermarkSetup, contexts: Sequence[Context], vocab_size: int) -> Tensor:
        made = _marker(setup, algorithm)
        both = (made,) if algorithm == "gumbel" else (made.draft_watermarker, made.target_watermarker)
        padded = [(-1,) * (setup.context_width - len(one)) + one for one in contexts]
        table, ids = torch.tensor(padded, dtype=torch.int64), torch.arange(vocab_size)
        return torch.stack([one.prf.uniform(table, ids) for one in both])[:, None]

    def detect(setup: WatermarkSetup, prompt: Sequence[int], output: Sequence[int]) -> float:
        own: dict[str, Any] = {"key": setup.keys[0], "context_width": setup.context_width}  # Any: one type each
        if algorithm == "gumbel":
            return float(detectors.GumbelWatermarkDetector(**own).detect(list(output)).p_value)
        made = detectors.DualKeyGumbelWatermarkDetector(**own, alpha=1 - setup.share)
        return float(made.detect(list(output)).p_value)

    request = WatermarkedRequest(0, [1], [])
    own: dict[str, Any] = dict(trial(device).tensors())  # Any: tensors, and what else a batch has
    small = WatermarkBatch(**own, setup=WatermarkSetup((1, 2)), requests=(request,))
    try_once(release, interpreted, lambda: sample(small, SeededNoise(0)))
    facts = row.facts(release, device, LARGE if interpreted else {}, slow=interpreted)
    policy = WatermarkPolicy(keys="one" if algorithm == "gumbel" else "drawn")
    return FunctionWatermarker(function=sample, policy=policy, watermark_numbers=numbers, detect=detect, **facts)


# SGLang

_FILES = tuple(f"sglang.srt.sampling.watermarking.{name}" for name in ("core", "detector"))


class _Texts:
    """SGLang's state for one setup, and the text that each request had at its last call."""

    def __init__(self, core: Upstream, setup: WatermarkSetup, device: str, *, has_two: bool) -> None:
        keys = [f"{key:x}" for key in setup.keys[: 1 + has_two]]
        self.core, self.device, self.width = core, device, setup.context_width
        self.slots, self.texts = dict[int, int](), dict[int, list[int]]()
        self.state: Upstream = core.WatermarkState(
            max_num_reqs=_SLOTS,
            context_window=self.width,
            max_contexts_per_req=4096,
            key=keys[0],
            key_b=keys[1] if has_two else None,
            mixing_probability=setup.share,
            device=device,
        )
        self.state._ensure_selection_buffers = lambda *_: (None, None, None)  # of its kernels, which a CPU does not run

    def follow(self, request: WatermarkedRequest) -> int:
        """Let the state have the text of a request; the request's slot."""
        slot = self.slots.setdefault(request.request_id, len(self.slots) % _SLOTS)
        text, index = [*request.prompt_token_ids, *request.output_token_ids], torch.tensor([slot], device=self.device)
        if text[:-1] == self.texts.get(slot) and request.output_token_ids:
            self.state.append(index, torch.tensor(text[-1:], device=self.device))
        else:
            self.state.init_from_prompt(index, [text[-self.width :]], [self.history(request, text)])
        self.texts[slot] = text
        return slot

    def history(self, request: WatermarkedRequest, text: list[int]) -> list[int]:
        """Return the hashes of contexts that the output has had, by SGLang's code for requests that return."""
        config = SimpleNamespace(enabled=request.is_marked, key=None, context_window=None)
        params = SimpleNamespace(watermark=config, top_k=2)
        own = {"origin_input_ids": list(request.prompt_token_ids), "output_ids": list(request.output_token_ids)}
        one = SimpleNamespace(retracted_stain=True, sampling_params=params, **own)
        mode = SimpleNamespace(is_extend_without_speculative=lambda: True)
        found = self.state.retracted_context_hashes(SimpleNamespace(forward_mode=mode, reqs=[one]))
        return list(found[0]) if found else []


_SLOTS = 64


def sglang(row: SamplerRow, device: str, *, has_two: bool = False) -> FunctionWatermarker:
    """Return the watermarks of the installed SGLang; the name carries the release."""
    core, detectors = import_bare(*_FILES)
    (sampling,) = import_bare(FILE, stubs=STUBS)
    texts_of = lru_cache(maxsize=4)(lambda setup: _Texts(core, setup, device, has_two=has_two))

    def sample(batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64 | int32
        texts, (_, _, given) = texts_of(batch.setup), arguments_of(batch)
        slots = torch.tensor([texts.follow(one) for one in batch.requests], device=device)
        is_marked = torch.tensor([one.is_marked for one in batch.requests], device=device)
        info = SimpleNamespace(
            **given,
            temperatures=torch.where(batch.is_greedy, 1.0, batch.temperature)[:, None],
            has_watermark_candidates=bool((is_marked & ~batch.is_greedy).any()),
            watermark_keys=texts.state.default_key_buffer[: batch.batch_size],
            watermark_context_windows=texts.state.default_context_window_buffer[: batch.batch_size],
            watermark_enabled=is_marked,
        )
        logits = batch.logits.float().clone()
        texts.state.force(logits, slots, info)
        return sample_rows(sampling, batch.replace(logits=logits), noise)

    def numbers(setup: WatermarkSetup, contexts: Sequence[Context], vocab_size: int) -> Tensor:
        hashes = torch.tensor([detectors.hash_context(one) for one in contexts])
        keys = [torch.full_like(hashes, core.parse_watermark_key(f"{key:x}")) for key in setup.keys]
        ids = torch.arange(vocab_size)
        found = core._watermark_hash32_torch(keys[0], hashes, ids)
        if has_two and len(keys) > 1:
            shares = torch.full_like(hashes, int(setup.share * 2**32))
            is_first = core._dual_key_a_mask_torch(*keys, hashes, shares)[:, None]
            found = torch.where(is_first, found, core._watermark_hash32_torch(keys[1], hashes, ids))
        made: Tensor = ((found.double() + 0.5) / 2**32)[None, None]
        return made

    def detect(setup: WatermarkSetup, prompt: Sequence[int], output: Sequence[int]) -> float:
        keys = [f"{key:x}" for key in setup.keys]
        own: dict[str, Any] = {"context_window": setup.context_width}  # Any: one type each
        if has_two:
            own |= {"key_b": keys[1], "mixing_probability": setup.share}
        found = detectors.WatermarkDetector(keys[0], **own).detect_tokens(output, prompt_token_ids=prompt)
        return float(found.combined.p_value)

    policy = WatermarkPolicy(context="text", short_context="unless_empty", keys="by_context" if has_two else "one")
    facts = row.facts(release_of("sglang"), device)
    return FunctionWatermarker(
        function=sample, filters=POLICY, policy=policy, watermark_numbers=numbers, detect=detect, **facts
    )
