"""Samplers of LitGPT (PyPI `litgpt`, tried: 0.5.13): `sample`, and the step of `speculative_decoding`.

Their files are imported by themselves: the package needs lightning. `sample` takes one row and one value of each
parameter, filters by top-k and then, at the temperature, by top-p; temperature 0 takes the argmax. It computes in the
dtype of the model's logits; here that is float32.

The step gets two models that look up rows instead of computing: the target's are the batch's. The draft's are the same,
moved by one token, so that the one draft that it draws from them is kept or not; its first token is returned.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import FilterPolicy, FunctionTokenSampler, RaceNoise, SamplingBatch, SamplingNoise
from fairdraw_engines._bare import Stubs, import_bare, release_of
from fairdraw_engines._transformers import multinomial_noise

_OWN = ("config", "constants", "model", "prompts", "tokenizer", "utils")
_STUBS: Stubs = {name: {} for name in ("lightning", "lightning.fabric.plugins", *(f"litgpt.{one}" for one in _OWN))}
_POLICY = FilterPolicy(("top_k", "top_p", "min_p"), top_k_ties="some")


def sampling(row: SamplerRow, device: str, *, verified: bool = False) -> FunctionTokenSampler:
    """Return LitGPT's sampler, row by row; the name carries the release.

    Args:
        verified: Draw the first token of a speculative step with one draft; it must be drawn as without drafts.
    """
    base, speculative = import_bare("litgpt.generate.base", "litgpt.generate.speculative_decoding", stubs=_STUBS)
    token = partial(_first_token, speculative.speculative_decoding) if verified else base.sample
    facts = row.facts(release_of("litgpt"), device)
    return FunctionTokenSampler(function=partial(_sample, token), filters=_POLICY, **facts)


def _sample(token: Callable[..., Tensor], batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    columns = {"temperature": torch.where(batch.is_greedy, 0, batch.temperature)}
    columns |= {name: column for name in ("top_k", "top_p") if (column := getattr(batch, name)) is not None}
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    tokens = []
    for i, own in enumerate(values):
        with multinomial_noise(noise.select([i]) if isinstance(noise, RaceNoise) else None):
            tokens.append(token(batch.logits[None, i : i + 1].float(), **dict(zip(columns, own, strict=True))))
    return torch.cat(tokens)


def _first_token(step: Callable[..., Tensor], logits: Tensor, **parameters: float) -> Tensor:  # [1, 1, vocab_size]
    zero, draft, target = torch.zeros(1, dtype=torch.int64), logits.roll(1, -1), logits.expand(1, 2, -1)
    return step(lambda **_: draft, lambda **_: target, zero, zero, 1, 1, **parameters)[:1]  # [1] int64
