"""The verification step that is measured: the most expensive one there is.

The target forbids every draft token, so each request recovers a token at its first position. What a call moves is then
a function of the sizes alone, and at its maximum. (With accepted drafts a request reads no recovered row, or a bonus
row in its place.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw._core.seeds import derive_seed
from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._counts import Counts, counted
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.protocols import Capability, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial

    from torch import Tensor

    from fairdraw.protocols import RejectionSampler


@dataclass(frozen=True)
class Sizes:
    """B requests, K draft tokens each, V entries in the vocabulary."""

    batch_size: int
    max_spec_len: int
    vocab_size: int

    def as_formula(self) -> dict[str, int]:
        return {"B": self.batch_size, "K": self.max_spec_len, "V": self.vocab_size}

    def __str__(self) -> str:
        return " ".join(f"{axis}={size}" for axis, size in self.as_formula().items())


def unwritten_batch(sizes: Sizes, device: str = "cpu", dtype: torch.dtype = torch.float32) -> SpecDecodeBatch:
    """A batch whose logits and draft probabilities are uninitialised: for steps whose kernels do not run."""
    num_tokens = sizes.batch_size * sizes.max_spec_len
    counts = torch.full((sizes.batch_size,), sizes.max_spec_len, dtype=torch.int32, device=device)
    return SpecDecodeBatch(
        draft_token_ids=torch.zeros(num_tokens, dtype=torch.int32, device=device),
        num_draft_tokens=[sizes.max_spec_len] * sizes.batch_size,
        cu_num_draft_tokens=counts.cumsum(0, dtype=torch.int32),
        max_spec_len=sizes.max_spec_len,
        draft_probs=torch.empty(num_tokens, sizes.vocab_size, device=device),
        target_logits=torch.empty(num_tokens, sizes.vocab_size, dtype=dtype, device=device),
        bonus_token_ids=torch.zeros(sizes.batch_size, 1, dtype=torch.int32, device=device),
        temperature=torch.ones(sizes.batch_size, device=device),
    )


def rejection_batch(sizes: Sizes, device: str = "cpu", dtype: torch.dtype = torch.float32) -> SpecDecodeBatch:
    """A batch in which every draft token is rejected; always the same for the same sizes."""
    generator = torch.Generator(device).manual_seed(derive_seed("bench batch", sizes))
    num_tokens = sizes.batch_size * sizes.max_spec_len
    shape = (num_tokens, sizes.vocab_size)
    logits = torch.randn(shape, generator=generator, device=device).to(dtype)
    draft = torch.randn(shape, generator=generator, device=device).softmax(-1)
    drafted = torch.randint(sizes.vocab_size, (num_tokens,), generator=generator, device=device, dtype=torch.int32)
    logits[torch.arange(num_tokens, device=device), drafted.long()] = -torch.inf
    empty = unwritten_batch(sizes, device, dtype)
    return empty.replace(draft_token_ids=drafted, draft_probs=draft, target_logits=logits)


def bytes_that_must_move(sizes: Sizes, logit_bytes: int) -> int:
    """Target logits once; of each request's rejected row the target logits again, and the draft's float32 row."""
    rows = (sizes.max_spec_len + 1) * logit_bytes + 4
    return rows * sizes.batch_size * sizes.vocab_size


def fresh_noise(sampler: RejectionSampler, batch: SpecDecodeBatch, seed: int) -> Noise:
    """Return seeded noise if the sampler takes it; else explicit noise, or a seed if it takes neither."""
    return SeededNoise(seed) if Capability.SEEDED_NOISE in sampler.capabilities else _noise_for(sampler, batch)


def _noise_for(sampler: RejectionSampler, batch: SpecDecodeBatch) -> Noise:
    """Return explicit noise if the sampler supports it, so that only the step is measured; else a seed."""
    if Capability.EXPLICIT_NOISE not in sampler.capabilities:
        return SeededNoise(derive_seed("bench noise"))
    generator = torch.Generator(batch.device).manual_seed(derive_seed("bench noise"))
    uniforms = torch.rand(batch.num_tokens, generator=generator, device=batch.device, dtype=torch.float64)
    exponentials = torch.empty(batch.batch_size, batch.vocab_size, device=batch.device)
    return ExplicitNoise(uniforms, exponentials.exponential_(generator=generator))


def rejection_step(sampler: RejectionSampler, batch: SpecDecodeBatch) -> Callable[[], Tensor]:
    """One call, as a function without arguments.

    Raises:
        NoVerdictError: If the sampler does not recover a token for every request: a wrong kernel is fast.
    """
    noise = _noise_for(sampler, batch)
    with torch.random.fork_rng(devices=[batch.device] if batch.device.type == "cuda" else []):
        _require_recovered(sampler.name, sampler.verify(batch, noise).cpu())
    return lambda: sampler.verify(batch, noise)


def _require_recovered(
    name: str,
    output: Tensor,  # [batch_size, max_spec_len + 1] int32
) -> None:
    if not (bool((output[:, 0] >= 0).all()) and bool((output[:, 1:] == -1).all())):
        raise NoVerdictError(f"{name} accepts draft tokens that the target forbids. Run: fairdraw check")


def fast_path_steps(batch: SpecDecodeBatch) -> dict[bool, partial[Tensor]]:
    """Our counter kernels on one batch, with a workspace (`True`) and without, as functions without arguments.

    Raises:
        NoVerdictError: If a request recovers no token, if the workspace changes a token, or if it is not left empty:
            a wrong kernel is fast.
    """
    name = "rejection/counter-triton"
    steps = {workspace: _internals.fast_path(batch, workspace=workspace) for workspace in (False, True)}
    outputs = {workspace: step() for workspace, step in steps.items()}
    _require_recovered(name, outputs[False])
    if not torch.equal(outputs[False], outputs[True]):
        raise NoVerdictError(f"{name} gives other tokens with a workspace than without. Run: fairdraw check {name}")
    if bool(steps[True].keywords["workspace"].any()):
        raise NoVerdictError(f"{name} does not leave its workspace empty, so the next step would start from old counts")
    return steps


def count_step(sampler: RejectionSampler, sizes: Sizes, *, run_kernels: bool = True) -> Counts:
    """Exact counts of one step, on the CPU; without `run_kernels` only its launches."""
    batch = rejection_batch(sizes) if run_kernels else unwritten_batch(sizes)
    noise = _noise_for(sampler, batch)
    explicit: dict[str, Any] = vars(noise) if isinstance(noise, ExplicitNoise) else {}  # Any: tensors
    with counted({**batch.tensors(), **explicit}, run_kernels=run_kernels) as counts:
        sampler.verify(batch, noise)
    return counts
