"""Samplers of LMDeploy's PyTorch engine (PyPI `lmdeploy`, tried: 0.18.0), with its portable backend.

Files of the package are imported by themselves, since the package around them needs CUDA:
`backends/default/rejection_sampling.py` verifies, `spec_decode/reject_sampler.py` calls it, and
`engine/logits_process.py` applies temperature and filters. A greedy request is one with top-k 1, as
`SamplingParam.from_gen_config` makes it; a top-k above the vocabulary, which its `torch.topk` refuses, is cut to it.

Every request of its speculative step has the same number of drafts (`_chains`).
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow, inject_noise
from fairdraw.contracts import FunctionSampler, FunctionTokenSampler, SamplingBatch, SamplingNoise, SpecDecodeBatch
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._chains import Chains, verify_by_length
from fairdraw_engines._step_of_one import sample_by_verifying
from fairdraw_engines._torch import race_noise

_STUBS: dict[str, dict[str, Any]] = {  # Any: see `_bare.Stubs`
    "lmdeploy.messages": {},
    "lmdeploy.pytorch.envs": {},
    "lmdeploy.pytorch.messages": {},
    "lmdeploy.pytorch.engine.guided_process": {},
    "lmdeploy.pytorch.backends.base": {"BuildSpec": dict},
}
_POLICY = contracts.FilterPolicy(("top_k", "top_p", "min_p"), top_k_ties="some")


@dataclass(frozen=True)
class _Released:
    """Parts of the release that are called."""

    inputs: Any  # Any: here and below, of another project
    processor: Any
    verifier: Any
    step: Any


def rejection(row: SamplerRow, device: str) -> FunctionSampler:
    """Return LMDeploy's verification of drafts; the name carries the release."""
    return FunctionSampler(function=partial(_verify, _load().verifier), **row.facts(release_of("lmdeploy"), device))


def sampling(row: SamplerRow, device: str, *, verified: bool = False) -> FunctionTokenSampler:
    """Return LMDeploy's processing of logits, and its draw; the name carries the release.

    Args:
        verified: Draw the first token of a speculative step with one draft; it must be drawn as without drafts.
    """
    function = partial(_sample_by_verifying if verified else _sample, _load())
    return FunctionTokenSampler(function=function, filters=_POLICY, **row.facts(release_of("lmdeploy"), device))


@cache
def _load() -> _Released:
    process, draw, verify, step = import_bare(
        "lmdeploy.pytorch.engine.logits_process",
        "lmdeploy.pytorch.backends.default.multinomial_sampling",
        "lmdeploy.pytorch.backends.default.rejection_sampling",
        "lmdeploy.pytorch.spec_decode.reject_sampler",
        stubs={**_STUBS, "lmdeploy.pytorch.backends": {"get_backend": lambda name: _Portable}},
    )
    process._multinomial_sampling = draw.DefaultMultinomialSamplingImpl().forward
    _Portable.verifier = verify.DefaultRejectionSamplingImpl()
    return _Released(process.SamplingInputs, process.FusedLogitsProcessor, _Portable.verifier, step.RejectionSampler())


class _Portable:
    """LMDeploy's default backend."""

    verifier: Any = None  # Any: of another project

    @classmethod
    def build_op(cls, spec: object) -> Any:  # Any: as above
        return cls.verifier


def _verify(
    verifier: Any, batch: SpecDecodeBatch, noise: contracts.Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    def verify(chains: Chains) -> Tensor:  # [num_requests, num_drafts + 1] int64
        if not isinstance(noise, contracts.ExplicitNoise):
            return _verify_chains(verifier, batch, chains)
        required = not bool(batch.is_greedy[chains.requests].all())
        with inject_noise(noise.select(batch, chains.requests.tolist()), required=required):
            return _verify_chains(verifier, batch, chains)

    return verify_by_length(batch, verify)


def _verify_chains(
    verifier: Any, batch: SpecDecodeBatch, chains: Chains
) -> Tensor:  # [num_requests, num_drafts + 1] int64
    is_greedy, bonus = batch.is_greedy[chains.requests], batch.bonus_token_ids[chains.requests, 0].long()
    logits, drafts = chains.logits[:, :-1], chains.drafts.long()
    tokens: Tensor
    if bool(is_greedy.all()):
        tokens = verifier.forward_greedy(torch.cat([logits.argmax(-1), bonus[:, None]], 1), drafts)[0]
        return tokens
    draft_probs = None if batch.draft_probs is None else batch.draft_probs[chains.rows]
    given = is_greedy if bool(is_greedy.any()) else None
    tokens = verifier.forward(logits, drafts, bonus, is_greedy=given, draft_probs=draft_probs)[0]
    return tokens


def _sample(released: _Released, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    processor = released.processor(_inputs(released, batch))
    with race_noise(noise):
        tokens: Tensor = processor.sampling(_processed(processor, batch.logits))
    return tokens


def _sample_by_verifying(
    released: _Released, batch: SamplingBatch, noise: SamplingNoise
) -> Tensor:  # [batch_size] int64
    def verify(drafts: Tensor, seed: int) -> list[list[int]]:  # [batch_size] int64
        inputs = _inputs(released, batch.select([i for i in range(batch.batch_size) for _ in range(2)]))
        logits = _processed(released.processor(inputs), batch.logits.repeat_interleave(2, 0))
        tokens, *_ = released.step(logits.view(-1, 2, batch.vocab_size), drafts[:, None], inputs)
        rows: list[list[int]] = tokens.tolist()
        return rows

    return sample_by_verifying(verify, batch, noise)


def _processed(processor: Any, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32
    """Return a coroutine that waits for nothing here."""
    try:
        processor(logits.float().clone()).send(None)
    except StopIteration as done:
        processed: Tensor = done.value[0]
        return processed
    raise RuntimeError("lmdeploy's logits processor waits for something")


def _inputs(released: _Released, batch: SamplingBatch) -> Any:  # Any: of another project
    """Make inputs as `ARSamplingStrategy.make_sampling_inputs` does: what no request needs is absent."""
    size, greedy = batch.batch_size, batch.is_greedy
    common = {"batch_size": size, "max_num_logprobs": -1, "logits_processors": [None] * size}
    temperature = torch.where(greedy, 1.0, batch.temperature)
    top_k = torch.zeros(size, dtype=torch.int64) if batch.top_k is None else batch.top_k.long()
    top_k = torch.where(greedy, 1, top_k.clamp(max=batch.vocab_size))
    max_top_k = int(top_k.max()) if int(top_k.min()) > 0 else 0
    common |= {"temperature": None if bool((temperature == 1).all()) else temperature, "max_top_k": max_top_k}
    common["has_greedy"] = bool((top_k == 1).any())
    if max_top_k == 1:
        return released.inputs(**common)
    return released.inputs(
        **common,
        top_k=None if bool((top_k == max_top_k).all()) else top_k,
        top_p=None if batch.top_p is None or bool((batch.top_p == 1).all()) else batch.top_p,
        min_p=None if batch.min_p is None or bool((batch.min_p == 0).all()) else batch.min_p,
    )
