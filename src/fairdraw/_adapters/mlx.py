"""The speculative step of MLX-LM (PyPI `mlx-lm` with `mlx[cpu]`, tried: 0.32.2 with 0.32.4), on MLX's CPU backend.

`mlx_lm.generate.speculative_generate_step` is driven for one step per request, by two models that look up rows instead
of computing: the draft's allow the drafted token alone, the target's are the batch's, with a last row that allows the
bonus token alone. Its way is not token verification: it draws a token at every position of the target, keeps drafts as
long as they are equal, and never looks at the draft's distribution. What it emits still has to follow the target.

Unsupported: explicit noise and generators per request, since MLX draws from a generator of its own, which seeded noise
seeds; placeholders, synthetic rates and rows without a distribution, which it does not take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fairdraw._adapters._others import KnownSampler, defects_of, padded, unsupported
from fairdraw._adapters._runtime import quiet_imports
from fairdraw.protocols import Capability, ExplicitNoise, Noise, SpecDecodeBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["make"]

_CAPABILITIES = unsupported(
    ("MLX draws from a generator of its own", (Capability.EXPLICIT_NOISE, Capability.REQUEST_SEEDS)),
    ("MLX draws from a generator of its own", (Capability.UPSTREAM_STREAM, Capability.REFERENCE_RACE)),
    ("it keeps a draft if the target draws the same token", (Capability.TOKEN_VERIFICATION,)),
    ("its models make no such rows", (Capability.PLACEHOLDER_DRAFTS, Capability.NAN_LOGITS, Capability.EMPTY_ROWS)),
    ("it has no such mode", (Capability.SYNTHETIC_RATES,)),
    slow=True,  # a call costs milliseconds: one request at a time
)


def make(device: str | None = None) -> KnownSampler:
    """MLX-LM's step behind the suite's `verify`; its name carries the release. It runs on the CPU.

    Raises:
        ModuleNotFoundError: If mlx or mlx-lm is missing.
    """
    with quiet_imports():
        import mlx.core
        import mlx_lm
        import mlx_lm.generate

    mlx.core.set_default_device(mlx.core.Device(mlx.core.DeviceType.cpu, 0))
    name = f"mlx-lm {mlx_lm.__version__}"
    return KnownSampler(name, _verify, "cpu", _CAPABILITIES, known_defects=defects_of("mlx"))


def _verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    import mlx.core as mx

    assert not isinstance(noise, ExplicitNoise)  # unsupported
    mx.random.seed(noise.seed)
    return padded([_tokens(batch, request) for request in range(batch.batch_size)], batch)


def _tokens(batch: SpecDecodeBatch, request: int) -> list[int]:
    """One step: accepted drafts, then the target's token."""
    import mlx.core as mx
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.sample_utils import make_sampler

    own = batch.token_slice(request)
    drafts = batch.draft_token_ids[own].long()
    bonus = _only(batch, batch.bonus_token_ids[request].long())
    target: Any = _Lookup(torch.cat([batch.target_logits[own], bonus]))  # Any: for mlx.nn.Module; it is only called
    draft: Any = _Lookup(_only(batch, drafts))  # Any: as above
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


def _only(
    batch: SpecDecodeBatch,
    token_ids: Tensor,  # [num_rows] int64
) -> Tensor:  # [num_rows, vocab_size] as the batch's logits
    """Rows that allow one token each."""
    logits = batch.target_logits.new_full((len(token_ids), batch.vocab_size), -torch.inf)
    return logits.scatter(1, token_ids[:, None], 0)


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
