"""Samplers of MLX-LM (PyPI `mlx-lm` with `mlx[cpu]`, tried: 0.32.2 with 0.32.4), on MLX's CPU backend.

`mlx_lm.generate.speculative_generate_step` is driven for one step per request, by two models that look up rows instead
of computing: the draft's allow the drafted token alone, the target's are the batch's, with a last row that allows the
bonus token alone. It does not verify token by token: it draws a token at every position of the target, keeps drafts as
long as they are equal, and never reads the draft's distribution. What it emits still has to follow the target.

`mlx_lm.sample_utils.make_sampler` takes one value of each parameter for all rows, so one is made per request; it gets
log-probabilities, as `generate_step` passes them. MLX-LM filters by top-p, min-p and top-k, and divides by the
temperature what they leave.

MLX draws from its own generator, which is seeded from seeded noise.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow, quiet_imports
from fairdraw.contracts import ExplicitNoise, FunctionSampler, FunctionTokenSampler, SamplingBatch, SpecDecodeBatch
from fairdraw_engines._chains import rows_of


def speculative_step(row: SamplerRow, device: str) -> FunctionSampler:
    """Return MLX-LM's step behind the suite's `verify`; its name carries the release. It always runs on the CPU."""
    return FunctionSampler(function=_verify, **row.facts(_release(), "cpu"))


def token_sampler(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the sampler of the installed MLX-LM; its name carries the release. It always runs on the CPU."""
    policy = contracts.FilterPolicy(
        ("top_p", "min_p", "top_k"), temperature="last", top_k_ties="some", top_p_ties="all"
    )
    return FunctionTokenSampler(function=_sample, filters=policy, **row.facts(_release(), "cpu"))


def _release() -> str:
    """Return the release of MLX-LM, which is imported and put on the CPU."""
    with quiet_imports():
        import mlx.core
        import mlx_lm.generate

    mlx.core.set_default_device(mlx.core.Device(mlx.core.DeviceType.cpu, 0))
    return str(mlx_lm.__version__)


def _verify(batch: SpecDecodeBatch, noise: contracts.Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    import mlx.core as mx

    assert not isinstance(noise, ExplicitNoise)  # unsupported
    mx.random.seed(noise.seed % 2**64)  # MLX takes no negative seed
    return batch.padded([_tokens(batch, request) for request in range(batch.batch_size)])


def _tokens(batch: SpecDecodeBatch, request: int) -> list[int]:
    """Return the tokens of one step: accepted drafts, then the target's token."""
    import mlx.core as mx
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.sample_utils import make_sampler

    own = batch.token_slice(request)
    drafts = batch.draft_token_ids[own]
    bonus = rows_of(batch.bonus_token_ids[request], batch)
    target: Any = _Lookup(torch.cat([batch.target_logits[own], bonus]))  # Any: for mlx.nn.Module; it is only called
    draft: Any = _Lookup(rows_of(drafts, batch))  # Any: as above
    step = speculative_generate_step(
        mx.array([0], mx.uint32),
        target,
        draft,
        num_draft_tokens=len(drafts),
        max_tokens=len(drafts) + 1,
        # Temperature is applied already: 1 draws, 0 takes the argmax.
        sampler=make_sampler(temp=0.0 if batch.is_greedy[request] else 1.0),
        prompt_cache=[],
    )
    tokens: list[int] = []
    for token, _, from_draft in step:
        tokens.append(int(token))
        if not from_draft:
            break
    return tokens


@dataclass
class _Lookup:
    """A model whose logits are known: each call reads as many rows as it is given tokens."""

    logits: Tensor  # [num_rows, vocab_size] as the batch's logits
    read: int = 0
    layers: list[object] = field(default_factory=list)

    def __call__(self, token_ids: Any, cache: object) -> Any:  # Any: mlx.core.array, which is no import of this module
        import mlx.core as mx

        start, self.read = self.read, self.read + token_ids.shape[1]
        rows = self.logits[start : self.read]
        dtype = getattr(mx, str(rows.dtype).removeprefix("torch."))
        return mx.array(rows.float().numpy()).astype(dtype)[None]


def _sample(batch: SamplingBatch, noise: contracts.SamplingNoise) -> Tensor:  # [batch_size] int64
    import mlx.core as mx

    assert not isinstance(noise, contracts.RaceNoise)  # unsupported
    mx.random.seed(noise.seed % 2**64)  # MLX takes no negative seed
    return torch.tensor([_drawn(batch.select([i])) for i in range(batch.batch_size)])


def _drawn(request: SamplingBatch) -> int:
    import mlx.core as mx
    from mlx_lm.sample_utils import make_sampler

    logits = mx.array(request.logits.float().numpy())
    top_k = 0 if request.top_k is None else int(request.top_k)
    sampler = make_sampler(
        temp=0.0 if bool(request.is_greedy) else float(request.temperature),
        top_p=0.0 if request.top_p is None else float(request.top_p),
        min_p=0.0 if request.min_p is None else float(request.min_p),
        top_k=top_k if top_k < request.vocab_size else 0,  # it takes no others
    )
    return int(sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0])
