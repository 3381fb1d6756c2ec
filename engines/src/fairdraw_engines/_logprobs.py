"""Log-probabilities of other projects: vLLM's model runners V1 and V2, transformers, and SGLang's fused kernel.

Each gets what its engine would pass: -1 becomes the size of the vocabulary, and a row that emitted nothing has token 0
(both as vLLM does it). transformers casts scores to float32 before it keeps them.

vLLM counts ranks with a compiled function; without a GPU the function itself is called, since compiling it takes longer
than a run.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, quiet_floats, quiet_imports, triton_is_interpreted
from fairdraw.contracts import FunctionLogprobsSampler, LogprobsBatch, LogprobsResult, SamplingBatch, SamplingNoise
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._others import Upstream, import_vllm, vllm_module


def _tokens(batch: LogprobsBatch) -> Tensor:  # [num_rows] int64
    """Return ids to gather with; 0 for a row that emitted nothing."""
    return batch.token_ids.long().clamp(min=0)


# -- vLLM -------------------------------------------------------------------------------------------------------------


def vllm(row: SamplerRow, device: str) -> FunctionLogprobsSampler:
    """Return `compute_logprobs` and `gather_logprobs` of the V1 sampler, and its whole `forward` for drawn tokens."""
    from fairdraw_engines._torch import race_noise
    from fairdraw_engines._vllm import sampling, sampling_metadata

    sampling(row, device)  # it prepares vLLM's filters
    release, _ = import_vllm(device, "sample.sampler", "sample.ops.logprobs")
    module = vllm_module("sample.sampler")
    if device == "cpu":
        counting = module.batched_count_greater_than
        module.batched_count_greater_than = getattr(counting, "_torchdynamo_orig_callable", counting)
    forward = module.Sampler(logprobs_mode="processed_logprobs")

    def logprobs(batch: LogprobsBatch) -> LogprobsResult:
        logits = batch.stage_logits
        scores = logits.to(torch.float32) if batch.wants_logits else module.Sampler.compute_logprobs(logits)
        return _result(module.Sampler.gather_logprobs(scores, batch.most_logprobs, _tokens(batch)))

    def draw(batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult:
        metadata = sampling_metadata(batch, noise)
        metadata.max_num_logprobs = batch.vocab_size
        with race_noise(noise):
            return _result(forward(batch.logits.clone(), metadata).logprobs_tensors)

    return FunctionLogprobsSampler(function=logprobs, drawing=draw, **row.facts(release, device))


def _result(tensors: Upstream) -> LogprobsResult:
    return LogprobsResult(tensors.logprob_token_ids, tensors.logprobs, tensors.selected_token_ranks)


def vllm_v2(row: SamplerRow, device: str) -> FunctionLogprobsSampler:
    """Return `compute_topk_scores` of model runner V2, which until 0.26 is `compute_topk_logprobs` and returns no
    logits."""
    from fairdraw_engines._vllm_v2_runtime import call, import_v2

    release, interpreted = import_v2(device, "sample.logprob")
    module = vllm_module("worker.gpu.sample.logprob")
    function = getattr(module, "compute_topk_scores", None) or module.compute_topk_logprobs

    def logprobs(batch: LogprobsBatch) -> LogprobsResult:
        with quiet_floats():
            found = call(
                function,
                logits=batch.stage_logits,
                num_logprobs=batch.most_logprobs,
                sampled_token_ids=_tokens(batch),
                logits_mode=batch.wants_logits,
            )
        return _result(found)

    missing: dict[str, tuple[str, ...]] = {}
    if not hasattr(module, "compute_topk_scores"):
        missing["this release returns log-probabilities alone"] = ("logit-scores",)
    if interpreted:
        missing["the interpreter compares bfloat16 by its bits, a GPU does not"] = ("half-logits",)
    return FunctionLogprobsSampler(function=logprobs, **row.facts(release, device, missing, slow=interpreted))


# -- others -----------------------------------------------------------------------------------------------------------


def transformers(row: SamplerRow, device: str) -> FunctionLogprobsSampler:
    """Return `compute_transition_scores`, of the scores of one generated token of each sequence."""
    with quiet_imports():
        release = importlib.import_module("transformers").__version__
        mixin: Any = importlib.import_module("transformers.generation.utils").GenerationMixin

    def logprobs(batch: LogprobsBatch) -> LogprobsResult:
        text = SimpleNamespace(vocab_size=batch.vocab_size)
        model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
        tokens, scores = _tokens(batch)[:, None], (batch.stage_logits.to(torch.float32, copy=True),)
        values = mixin.compute_transition_scores(model, tokens, scores, normalize_logits=not batch.wants_logits)
        return LogprobsResult(tokens, values)

    return FunctionLogprobsSampler(function=logprobs, **row.facts(release, device))


def sglang(row: SamplerRow, device: str) -> FunctionLogprobsSampler:
    """Return `row_logsumexp_topk` and `row_logsumexp`, as the input log-probabilities of a GPU are computed; longer
    lists take `torch.topk`."""
    interpreted = triton_is_interpreted(device)
    (module,) = import_bare("sglang.srt.layers.logsumexp")

    def logprobs(batch: LogprobsBatch) -> LogprobsResult:
        logits, number, tokens = batch.stage_logits, batch.most_logprobs, _tokens(batch)[:, None]
        with quiet_floats():
            maximum, log_sum, best, ids = _sglang_rows(module, logits, number)
        values = torch.cat([logits.gather(1, tokens).float(), best], dim=1)
        return LogprobsResult(torch.cat([tokens, ids], dim=1), (values - maximum[:, None]) - log_sum[:, None])

    return FunctionLogprobsSampler(function=logprobs, **row.facts(release_of("sglang"), device, slow=interpreted))


def _sglang_rows(
    module: Any,  # Any: the file of the kernels
    logits: Tensor,  # [num_rows, vocab_size] any
    number: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # [num_rows] float32, ..., [num_rows, number] float32, int64
    """Return the maximum, logarithm of the sum, the largest logits and their ids."""
    if 0 < number <= module.FUSED_TOPK_MAX_K:
        found: tuple[Tensor, Tensor, Tensor, Tensor] = module.row_logsumexp_topk(logits, number)
        return found
    best = logits.topk(number, dim=1)
    return (*module.row_logsumexp(logits), best.values.float(), best.indices)
