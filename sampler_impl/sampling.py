"""Plain sampling: one token per request from its logits; also as the drafter, with the distribution of the draft.

    logits / temperature   ->   min-p   ->   top-k   ->   top-p   ->   softmax   ->   a draw

Filters are vLLM 0.22.0's, in its order, each on what the one before left: top-k keeps every token tied with the k-th,
top-p removes the least probable tokens while they add up to at most `1 - top_p`. Logits are copied, never written. A
request below temperature 1e-5 is greedy: the largest logit, the lowest id on ties; filters do not apply to it.

The draw is made with one of three kinds of noise:

* `UpstreamNoise`: the exponential race of vLLM 0.22.0's `Sampler`. Tokens and final generator states are equal.
* `RaceNoise`: the same with the exponentials handed in.
* `CounterNoise`: inverse CDF with one uniform that (seed, position) gives. A request's token depends on nothing else,
  and on a GPU logits are read once and no probability is written (`_sampling/kernels.py` says why not Gumbel noise).

An invalid row (NaN, +inf, or all -inf) gives token 0, and if it is greedy what `torch.argmax` gives. An id is always in
the vocabulary. Intentional deviations from vLLM 0.22.0:

=================== ============================================== ============================================
name                vLLM 0.22.0                                    here, and why
=================== ============================================== ============================================
zero-score          if all scores underflow to 0, emits id 0       a token without probability never wins
input-in-place      float32 logits are filtered where they lie     the caller's logits are not changed
block-filters       from 8 requests on, filters by another kernel  the same filters for every batch size
=================== ============================================== ============================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._sampling import pytorch
from ._sampling.parameters import (
    GREEDY_BELOW,
    KNOWN,
    CounterNoise,
    DrawCall,
    RaceNoise,
    SamplingNoise,
    SamplingParameters,
    UpstreamNoise,
    check_arguments,
)
from ._shared.backend import OF_KERNELS, BackendName, choose_backend
from ._shared.draws import DRAFT_STREAM, SAMPLE_STREAM, invert_cdf, philox_uniforms

if TYPE_CHECKING:
    from ._shared.tensors import LogitRows

__all__ = [
    "GREEDY_BELOW", "CounterNoise", "Draft", "RaceNoise", "SamplingNoise", "SamplingParameters", "UpstreamNoise",
    "draft", "draft_with_logsumexp", "sample",
]  # fmt: skip


def sample(
    logits: Tensor,  # [num_rows, vocab_size] float32
    parameters: SamplingParameters,
    noise: SamplingNoise,
    *,
    backend: BackendName | None = None,
    validate: bool = False,
) -> Tensor:  # [batch_size] int64
    """Draw one token per request.

    Args:
        logits: One row per request, after penalties and the like; any float type, any strides.
        backend: Of counter noise; `None` takes Triton on a GPU and PyTorch elsewhere. The race is PyTorch's.
        validate: Also check values inside tensors. Waits for the device.

    Returns:
        Token ids, in `[0, vocab_size)` whatever the logits are.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If arguments disagree, or with `validate=True` a value is out of its range. Nothing is drawn then.

    Randomness:
        As documented by the noise. If `parameters.all_greedy`, none.

    Limits:
        The race is biased by the rounding of a float32 quotient, relative 2**-23. With counter noise a token at most
        2**-42 times as probable as its row's best is not drawn by Triton.
    """
    if not validate and not parameters.all_greedy and backend in OF_KERNELS:
        known = _known_draw(logits, parameters, noise, SAMPLE_STREAM)
        if known is not None:
            sampled_token_ids, _ = known
            return sampled_token_ids
    check_arguments("sample", logits, parameters, noise, validate)
    if parameters.all_greedy:
        return logits.argmax(-1)
    if isinstance(noise, CounterNoise) and _uses_kernels("sample", backend, logits):
        return _sample_in_kernels(logits, parameters, noise)
    sampled_token_ids, _ = _draw(logits, parameters, noise, SAMPLE_STREAM)
    return sampled_token_ids


@dataclass(frozen=True, eq=False)
class Draft:
    """A draft token per request, and the distribution that it was drawn from: what a verifier calls `draft_probs`.

    Args:
        probs: Rows sum to 1; a greedy request's is 1 at its token, that of an invalid row is 1 at token 0.
    """

    sampled_token_ids: Tensor  # [batch_size] int64
    probs: Tensor  # [num_rows, vocab_size] float32


def draft(
    logits: Tensor,  # [num_rows, vocab_size] float32
    parameters: SamplingParameters,
    noise: SamplingNoise,
    *,
    validate: bool = False,
) -> Draft:
    """Draw one token per request and return the distribution as well.

    It is the very tensor that the token was drawn from. A drafter that reports another distribution, or one computed a
    second time with other parameters, makes speculative decoding lossy.

    Args, Raises:
        As `sample`.

    Randomness:
        As `sample`; counter noise is of another stream, so that draft and verification may share (seed, position).
    """
    check_arguments("draft", logits, parameters, noise, validate)
    sampled_token_ids, probs = _draw(logits, parameters, noise, DRAFT_STREAM)
    greedy = parameters.is_greedy
    certain = torch.zeros_like(probs).scatter_(-1, sampled_token_ids[:, None], 1.0)
    invalid = probs.isnan().any(-1)
    return Draft(sampled_token_ids, torch.where((greedy | invalid)[:, None], certain, probs))


def draft_with_logsumexp(
    logits: Tensor,  # [num_rows, vocab_size] float32
    temperature: Tensor,  # [batch_size] float32
    noise: CounterNoise,
    *,
    backend: BackendName | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [batch_size] float32
    """Draw one token per request from unfiltered logits; the distribution is `exp(logits / temperature - logsumexp)`.

    A verifier that takes draft logits needs this one number per row instead of a row of probabilities, and does not
    read the draft logits to find it. There are no filters here: the number cannot express what they removed.

    Returns:
        Tokens and log-sum-exps; the latter are 0 for greedy requests and NaN for invalid rows.

    Args, Raises:
        As `sample`.
    """
    parameters = SamplingParameters(temperature)
    if not validate and backend in OF_KERNELS:
        known = _known_draw(logits, parameters, noise, DRAFT_STREAM)
        if known is not None:
            return known
    check_arguments("draft_with_logsumexp", logits, parameters, noise, validate)
    if _uses_kernels("draft_with_logsumexp", backend, logits):
        from ._sampling import kernels

        return kernels.draw(DrawCall(logits, temperature, None, noise.seeds, noise.positions, DRAFT_STREAM))
    sampled_token_ids, _ = _draw(logits, parameters, noise, DRAFT_STREAM)
    logsumexp = pytorch.filtered_logits(logits, parameters).logsumexp(-1)
    logsumexp = logsumexp.masked_fill(~logsumexp.isfinite(), torch.nan)
    return sampled_token_ids, logsumexp.masked_fill(parameters.is_greedy, 0.0)


def _draw(
    logits: LogitRows, parameters: SamplingParameters, noise: SamplingNoise, stream: int
) -> tuple[Tensor, Tensor]:  # [batch_size] int64, [num_rows, vocab_size] float32
    """Draw tokens, and return the distribution of every request's draw too. Greedy ones are drawn too, and replaced."""
    probs = pytorch.filtered_logits(logits, parameters).softmax(-1, dtype=torch.float32)
    if parameters.all_greedy:
        return logits.argmax(-1), probs
    if isinstance(noise, CounterNoise):
        uniforms, _ = philox_uniforms(noise.seeds, noise.positions, stream)
        drawn = invert_cdf(probs, uniforms)
    else:
        exponentials = (
            noise.exponentials
            if isinstance(noise, RaceNoise)
            else pytorch.generate_exponentials(logits, noise.generators)
        )
        drawn = pytorch.race(probs, exponentials)
    if parameters.all_random:
        return drawn, probs
    return torch.where(parameters.is_greedy, logits.argmax(-1), drawn), probs


def _sample_in_kernels(
    logits: LogitRows, parameters: SamplingParameters, noise: CounterNoise
) -> Tensor:  # [batch_size] int64
    """Sample in kernels. Min-p is a threshold on the logit, which the kernels apply; top-k and top-p need a sort, which
    is torch's."""
    from ._sampling import kernels

    temperature, min_p = parameters.temperature, parameters.min_p
    if parameters.top_k is not None or parameters.top_p is not None:
        filtered = pytorch.filtered_logits(logits, parameters)
        greedy = parameters.is_greedy
        logits = torch.where(greedy[:, None], logits.float(), filtered)
        temperature, min_p = torch.where(greedy, temperature, 1.0), None
    call = DrawCall(logits, temperature, min_p, noise.seeds, noise.positions, SAMPLE_STREAM)
    sampled_token_ids, _ = kernels.draw(call)
    return sampled_token_ids


def _known_draw(
    logits: LogitRows, parameters: SamplingParameters, noise: SamplingNoise, stream: int
) -> tuple[Tensor, Tensor] | None:  # [batch_size] int64, [batch_size] float32
    """Draw by kernels, if arguments of this kind were before: then nothing is checked again."""
    if not isinstance(noise, CounterNoise) or parameters.top_k is not None or parameters.top_p is not None:
        return None
    call = DrawCall(logits, parameters.temperature, parameters.min_p, noise.seeds, noise.positions, stream)
    plan = KNOWN.find(call)
    return None if plan is None else plan(call)


def _uses_kernels(function: str, backend: BackendName | None, logits: LogitRows) -> bool:
    if choose_backend(function, backend, logits.device) == "torch":
        return False
    from ._sampling.kernels import MAX_VOCAB_SIZE

    if logits.shape[1] > MAX_VOCAB_SIZE:
        raise ValueError(
            f"{function}: vocab_size={logits.shape[1]}, but the kernels take at most {MAX_VOCAB_SIZE}. "
            f"Use backend='torch'."
        )
    return True
