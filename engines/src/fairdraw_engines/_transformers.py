"""Samplers of Hugging Face transformers (PyPI `transformers`, tried: 5.23.0).

`transformers.generation.utils._speculative_sampling` verifies one sequence, and draws the bonus token itself: it gets a
last row that allows the batch's bonus token alone, or the row that the bonus token is to be drawn from. Its drafter is
what an assistant model's `generate` does with a row of logits: the temperature's warper, softmax, `torch.multinomial`,
request by request; the warped row travels with the draft. Logits warpers take one value for all rows, so they are made
per request, in the order of `generate`; then softmax and `torch.multinomial`, or argmax if the request is greedy.

Both draw with `torch.multinomial`, which for one token is an exponential race inside ATen; with explicit noise the race
is run on the exponentials handed in.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from fairdraw.adapters import SamplerRow, inject_noise, quiet_imports
from fairdraw.contracts import (
    Drafted,
    ExplicitNoise,
    FilterPolicy,
    FunctionSampler,
    FunctionTokenSampler,
    Noise,
    RaceNoise,
    SpecDecodeBatch,
)
from fairdraw_engines._chains import bonus_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fairdraw.contracts import DraftStep, SamplingBatch, SamplingNoise, SeededNoise


def speculative_sampling(row: SamplerRow, device: str) -> FunctionSampler:
    """Return transformers' function behind the suite's `verify`; its name carries the release."""
    with quiet_imports():
        import transformers
        from transformers.generation import logits_process
        from transformers.generation.utils import _speculative_sampling

    function, drafter = partial(_verify, _speculative_sampling), partial(_propose, logits_process)
    return FunctionSampler(function=function, propose=drafter, **row.facts(transformers.__version__, device))


def warpers(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the warpers of the installed transformers; the name carries the release."""
    with quiet_imports():
        import transformers
        from transformers.generation import logits_process

    function, policy = partial(_sample, logits_process), FilterPolicy(order=("top_k", "top_p", "min_p"))
    return FunctionTokenSampler(function=function, filters=policy, **row.facts(transformers.__version__, device))


def _verify(
    speculative_sampling: Callable[..., tuple[Tensor, Tensor]], batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    rows = []
    for i, count in enumerate(batch.num_draft_tokens):
        if count == 0:  # generate then samples as without drafts: the bonus token
            rows.append([int(batch.bonus_token_ids[i])])
            continue
        with multinomial_noise(noise.select(batch, [i]) if isinstance(noise, ExplicitNoise) else None):
            tokens, _ = speculative_sampling(*_arguments(batch.select([i])))
        rows.append(tokens[0].tolist())
    return batch.padded(rows)


def _arguments(request: SpecDecodeBatch) -> tuple[Tensor, Tensor, int, Tensor]:
    """Return draft tokens, logits of the draft, their number, logits of the target with the row of the bonus token."""
    assert request.draft_probs is not None  # one-hot drafts are unsupported
    target_logits = torch.cat([request.target_logits, bonus_rows(request)]).float()
    drafts = request.draft_token_ids.long()
    return drafts[None], request.draft_probs.log()[None], len(drafts), target_logits[None]


def _propose(warpers: Any, step: DraftStep, noise: SeededNoise) -> Drafted:  # Any: a module of theirs
    """Return a draft of every request, and what it was drawn from. Its drafter makes no greedy drafts beside random
    ones: a greedy request gets random ones, too."""
    scores = []
    for row, temperature in zip(step.draft_logits.float(), step.temperature.tolist(), strict=True):
        scores.append(warpers.TemperatureLogitsWarper(temperature or 1.0)(None, row[None]))
    probs = torch.cat(scores).softmax(-1)
    tokens = torch.cat([torch.multinomial(row, 1) for row in probs])
    return Drafted(tokens.int(), probs)


def multinomial_noise(noise: ExplicitNoise | RaceNoise | None) -> AbstractContextManager[object]:
    """Let `torch.rand_like` give the uniforms and `torch.multinomial` draws by the exponentials of `noise`."""
    if isinstance(noise, RaceNoise):
        noise = ExplicitNoise(noise.exponentials.new_empty(0), noise.exponentials)
    return nullcontext() if noise is None else _MultinomialNoise(noise)


class _MultinomialNoise(TorchFunctionMode):
    """Uniforms are injected; `multinomial` is run as the race that it is, on exponentials that are injected."""

    def __init__(self, noise: ExplicitNoise) -> None:
        super().__init__()
        self.injection = inject_noise(noise, required=bool(noise.uniforms.numel()))

    def __enter__(self) -> _MultinomialNoise:
        self.injection.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *error: Any) -> None:  # Any: the three arguments of every such method
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # as above
        self.injection.__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: arguments of whatever function is called
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func is torch.multinomial:
            return _race(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _race(probs: Tensor, num_samples: int, generator: None = None) -> Tensor:  # [rows, vocab_size] -> [rows, 1] int64
    """Draw one token as `torch.multinomial` does, as ATen computes it: a test compares them."""
    if num_samples != 1 or not bool((probs >= 0).all() & probs.isfinite().all() & (probs.sum() > 0)):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)


def _sample(
    warpers: Any, batch: SamplingBatch, noise: SamplingNoise
) -> Tensor:  # [batch_size] int64  # Any: a module of theirs
    tokens = []
    for i in range(batch.batch_size):
        with multinomial_noise(noise.select([i]) if isinstance(noise, RaceNoise) else None):
            tokens.append(_token(warpers, batch.select([i])))
    return torch.cat(tokens)


def _token(warpers: Any, request: SamplingBatch) -> Tensor:  # [1] int64  # Any: as above
    scores = request.logits.float()
    if bool(request.is_greedy):
        return scores.argmax(-1)
    chain = [warpers.TemperatureLogitsWarper(float(request.temperature))]
    if request.top_k is not None:
        chain.append(warpers.TopKLogitsWarper(int(request.top_k)))
    if request.top_p is not None and float(request.top_p) < 1:
        chain.append(warpers.TopPLogitsWarper(float(request.top_p)))
    if request.min_p is not None:
        chain.append(warpers.MinPLogitsWarper(float(request.min_p)))
    for warper in chain:
        scores = warper(None, scores)
    return torch.multinomial(scores.softmax(-1), 1)[:, 0]
