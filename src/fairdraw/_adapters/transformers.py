"""Speculative sampling of Hugging Face transformers (PyPI `transformers`, tried: 5.23.0).

`transformers.generation.utils._speculative_sampling` verifies one sequence, and draws the bonus token itself: it gets a
last row that allows the batch's bonus token alone. Its recovered token comes from `torch.multinomial`, which for one
token is an exponential race inside ATen; with explicit noise the race is run on the exponentials handed in.

Unsupported: greedy requests and n-gram drafts, which `generate` verifies in a branch of its own; placeholders and rows
without a distribution, which its generation never makes; tokens bit for bit, since it takes logits of the draft and
normalises them again; generators per request, since it draws from torch's default one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from fairdraw._adapters._inject import inject_noise
from fairdraw._adapters._others import KnownSampler, defects_of, padded, unsupported
from fairdraw._adapters._runtime import default_device, quiet_imports
from fairdraw.protocols import Capability, ExplicitNoise, Noise, SpecDecodeBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

__all__ = ["make", "multinomial_noise"]

_CAPABILITIES = unsupported(
    ("generate verifies these in a branch of its own", (Capability.GREEDY, Capability.ONE_HOT_DRAFTS)),
    (
        "its generation makes no such rows",
        (Capability.PLACEHOLDER_DRAFTS, Capability.NAN_LOGITS, Capability.EMPTY_ROWS),
    ),
    ("it normalises the draft's logits again, which rounds", (Capability.REFERENCE_RACE,)),
    ("it draws from torch's default generator", (Capability.REQUEST_SEEDS, Capability.UPSTREAM_STREAM)),
    ("it has no such mode", (Capability.SYNTHETIC_RATES, Capability.COUNTER_NOISE)),
    slow=True,  # a call costs milliseconds: one request at a time
)


def make(device: str | None = None) -> KnownSampler:
    """transformers' function behind the suite's `verify`; its name carries the release.

    Raises:
        ModuleNotFoundError: If transformers is missing.
    """
    with quiet_imports():
        import transformers
        from transformers.generation.utils import _speculative_sampling

    return KnownSampler(
        f"transformers {transformers.__version__}",
        partial(_verify, _speculative_sampling),
        device or default_device(),
        _CAPABILITIES,
        known_defects=defects_of("transformers"),
    )


def _verify(
    speculative_sampling: Callable[..., tuple[Tensor, Tensor]], batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    rows = []
    for i, count in enumerate(batch.num_draft_tokens):
        if count == 0:  # generate then samples as without drafts: the bonus token
            rows.append([int(batch.bonus_token_ids[i])])
            continue
        with multinomial_noise(noise.select(batch, [i]) if isinstance(noise, ExplicitNoise) else None):
            tokens, _ = speculative_sampling(*_arguments(batch, i))
        rows.append(tokens[0].tolist())
    return padded(rows, batch)


def _arguments(batch: SpecDecodeBatch, request: int) -> tuple[Tensor, Tensor, int, Tensor]:
    """Draft tokens, logits of the draft, their number, logits of the target with the row of the bonus token."""
    own = batch.token_slice(request)
    assert batch.draft_probs is not None  # one-hot drafts are unsupported
    bonus = torch.full((1, batch.vocab_size), -torch.inf, device=batch.device)
    bonus[0, batch.bonus_token_ids[request].long()] = 0
    target_logits = torch.cat([batch.target_logits[own].float(), bonus])
    draft_logits = batch.draft_probs[own].log()
    return batch.draft_token_ids[own].long()[None], draft_logits[None], own.stop - own.start, target_logits[None]


def multinomial_noise(noise: ExplicitNoise | None) -> AbstractContextManager[object]:
    """Within it, `torch.rand_like` gives the uniforms and `torch.multinomial` draws by the exponentials of `noise`."""
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


def _race(probs: Tensor, num_samples: int) -> Tensor:  # [1, vocab_size] float32 -> [1, 1] int64
    """`torch.multinomial` for one token, as ATen computes it: the test of this file shows that they are equal."""
    if num_samples != 1 or not bool((probs >= 0).all() & probs.isfinite().all() & (probs.sum() > 0)):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)
