"""Samplers of LitGPT (PyPI `litgpt`, tried: 0.5.13): `generate/base.py`, and the step of `generate/speculative_decoding.py`.

Both files are imported by themselves: the package needs lightning. `sample` takes one row and one value of each
parameter, filters by top-k and divides by the temperature before top-p; temperature 0 takes the argmax.

The step gets two models that look up rows instead of computing: the target's are the batch's. The draft's are the same,
moved by one token, so that the one draft that it draws from them is kept or not; its first token is returned.
"""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.contracts import FilterPolicy, FunctionTokenSampler, RaceNoise
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._transformers import multinomial_noise

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw.adapters import SamplerRow
    from fairdraw.contracts import SamplingBatch, SamplingNoise

_UTILS = ("check_file_size_on_cpu_and_warn", "check_valid_checkpoint_dir", "extend_checkpoint_dir")
_NAMES = {
    "config": ("Config",),
    "constants": ("_BITANDBYTES_AVAILABLE_NOT_EQUAL_0_42_0",),
    "model": ("GPT",),
    "prompts": ("PromptStyle", "has_prompt_style", "load_prompt_style"),
    "tokenizer": ("Tokenizer",),
    "utils": (*_UTILS, "get_default_supported_precision", "load_checkpoint"),
}
_STUBS: dict[str, dict[str, Any]] = {  # Any: see `_bare.Stubs`
    "lightning": {"Fabric": object},
    "lightning.fabric.plugins": {"BitsandbytesPrecision": object},
} | {f"litgpt.{module}": dict.fromkeys(names, object) for module, names in _NAMES.items()}
_POLICY = FilterPolicy(("top_k", "top_p", "min_p"), top_k_ties="some")


def sampling(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return LitGPT's sampler, row by row; the name carries the release."""
    return _sampler(row, device, _token)


def verified(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the first token of a speculative step with one draft, which must be drawn as without drafts."""
    return _sampler(row, device, _first_token)


def _sampler(row: SamplerRow, device: str, token: Callable[..., Tensor]) -> FunctionTokenSampler:
    base, step = import_bare("litgpt.generate.base", "litgpt.generate.speculative_decoding", stubs=_STUBS)
    name, known = f"{row.name.partition('/')[2]} {release_of('litgpt')}", row.known_defects()
    sample = partial(_sample, partial(token, SimpleNamespace(sample=base.sample, step=step.speculative_decoding)))
    return FunctionTokenSampler(name, sample, None, device, row.capabilities(), _POLICY, known_defects=known)


def _sample(
    token: Callable[..., Tensor], batch: SamplingBatch, noise: SamplingNoise
) -> Tensor:  # [batch_size] int64
    columns = {"temperature": torch.where(batch.is_greedy, 0, batch.temperature)}
    columns |= {name: column for name in ("top_k", "top_p") if (column := getattr(batch, name)) is not None}
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    tokens = []
    for i, own in enumerate(values):
        with multinomial_noise(noise.select([i]) if isinstance(noise, RaceNoise) else None):
            tokens.append(token(batch.logits[i], **dict(zip(columns, own, strict=True))))
    return torch.cat(tokens)


def _token(released: SimpleNamespace, logits: Tensor, **parameters: float) -> Tensor:  # [vocab_size] -> [1] int64
    token: Tensor = released.sample(logits[None, None], **parameters)
    return token


def _first_token(released: SimpleNamespace, logits: Tensor, **parameters: float) -> Tensor:  # as above
    target = logits.expand(1, 2, -1)
    zero = torch.zeros(1, dtype=torch.int64)
    tokens: Tensor = released.step(lambda **_: target[:, :1].roll(1, -1), lambda **_: target, zero, zero, 1, 1, **parameters)
    return tokens[:1]
