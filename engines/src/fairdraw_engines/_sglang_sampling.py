"""The token sampler of SGLang (PyPI `sglang`, tried: 0.5.23): the functions of its backend `pytorch`.

`srt/layers/sampler.py` is imported by itself, since the package around it needs CUDA. Where no request filters, it
draws by `sampling_from_probs_torch`, else by `top_k_top_p_min_p_sampling_from_probs_torch`. A greedy request has top-k
1 and temperature 1, as `SamplingParams` makes it, and a batch that is all greedy takes the argmax. Every filter looks
at the unfiltered distribution.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import FilterPolicy, FunctionTokenSampler, RaceNoise, SamplingBatch, SamplingNoise
from fairdraw_engines._bare import import_bare, release_of

FILE = "sglang.srt.layers.sampler"
POLICY = FilterPolicy(("top_k", "top_p", "min_p"), joint=True, top_k_ties="some")


def _no(*arguments: object) -> bool:
    return False


_DEVICES = ("is_cuda", "is_gfx1250_supported", "is_hip", "is_musa", "is_npu", "is_xpu", "get_bool_env_var")
STUBS: dict[str, dict[str, Any]] = {  # Any: see `_bare.Stubs`
    "sglang.kernels.ops.sampling": {},
    "sglang.kernels.ops.sampling.murmur_hash": {},
    "sglang.srt.arg_groups.choices": {"BUILT_IN_SAMPLING_BACKENDS": ()},
    "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": _no},
    "sglang.srt.layers.logits_processor": {},
    "sglang.srt.layers.logprob_processor": {},
    "sglang.srt.runtime_context": dict.fromkeys(("get_exec", "get_parallel", "get_server_args"), _no),
    "sglang.srt.sampling.sampling_batch_info": {},
    "sglang.srt.sampling.sampling_params": {"TOP_K_ALL": 1 << 30},
    "sglang.srt.utils.async_probe": dict.fromkeys(("maybe_detect_nan", "sanitize_nan_logits"), _no),
    "sglang.srt.utils.common": dict.fromkeys(_DEVICES, _no),
    "sglang.utils": {},
}


def make(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the sampler of the installed SGLang; the name carries the release."""
    (module,) = import_bare(FILE, stubs=STUBS)
    facts = row.facts(release_of("sglang"), device)
    return FunctionTokenSampler(function=partial(sample_rows, module), filters=POLICY, **facts)


def sample_rows(sampler: Any, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64 | int32
    assert not isinstance(noise, RaceNoise)  # unsupported
    if bool(batch.is_greedy.all()):
        return batch.logits.float().argmax(-1)
    probs, is_plain, given = arguments_of(batch)
    if is_plain:
        tokens: Tensor = sampler.sampling_from_probs_torch(probs)
        return tokens
    filters = (given["top_ks"], given["top_ps"], given["min_ps"], given["need_min_p_sampling"])
    filtered = sampler.top_k_top_p_min_p_sampling_from_probs_torch
    tokens = filtered(probs, *filters, None, batch.positions, max_top_k=given["max_top_k"])
    return tokens


def arguments_of(batch: SamplingBatch) -> tuple[Tensor, bool, dict[str, Any]]:  # [batch_size, vocab_size] float32
    """Return probabilities, whether no request filters, and the filters. Any: as `SamplingBatchInfo` names them."""
    greedy, one = batch.is_greedy, torch.ones_like(batch.temperature)
    probs = (batch.logits.float() / torch.where(greedy, 1.0, batch.temperature)[:, None]).softmax(-1)
    top_k = one.int() * batch.vocab_size if batch.top_k is None else batch.top_k.clamp(max=batch.vocab_size)
    top_k = torch.where(greedy, 1, top_k)
    top_p, min_p = one if batch.top_p is None else batch.top_p, 0 * one if batch.min_p is None else batch.min_p
    needs_min_p = bool((min_p > 0).any())
    is_plain = bool((top_k >= batch.vocab_size).all() & (top_p >= 1).all()) and not needs_min_p
    given = {"top_ks": top_k, "top_ps": top_p, "min_ps": min_p, "max_top_k": int(top_k.max())}
    return probs, is_plain, given | {"need_min_p_sampling": needs_min_p}
