"""The verification step that is measured: the most expensive one there is.

The target forbids every draft token, so each request recovers a token at its first position. What a call moves is then
a function of the sizes alone, and at its maximum. (With accepted drafts a request reads no recovered row, or a bonus
row in its place.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from fairdraw._core.seeds import derive_seed
from fairdraw._core.tensor_types import OutputTokens
from fairdraw.contracts import Capability, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch
from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._device_time import event_clock, gpu_watches
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds, calibrate, cpu_clock
from fairdraw.perf_regression._world import BenchmarkWorld, Sizes, Step

SHORTEST_SAMPLE = {"cpu": 5e-4, "cuda": 2e-4}


def unwritten_batch(sizes: Sizes, device: str = "cpu", dtype: torch.dtype = torch.float32) -> SpecDecodeBatch:
    """Return a batch whose logits and draft probabilities are uninitialised: for steps whose kernels do not run."""
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
    """Return a batch in which every draft token is rejected; always the same for the same sizes."""
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
    """Count target logits once; of each request's rejected row the target logits again, and the draft's float32 row."""
    rows = (sizes.max_spec_len + 1) * logit_bytes + 4
    return rows * sizes.batch_size * sizes.vocab_size


class RejectionWorld(BenchmarkWorld):
    """The rejection contract, with float32 logits. Two samplers may be on a GPU and work with several threads."""

    is_determined = False
    warm_up = 0

    def __init__(self, sizes: Sizes, device: str = "cpu", *, run_kernels: bool = True) -> None:
        super().__init__(sizes, device, torch.float32)
        self.batch = rejection_batch(sizes, device) if run_kernels else unwritten_batch(sizes, device)
        self._seeds = count(1)

    def _noise_for(self, subject: Any) -> Noise:  # Any: of the contract
        """Return explicit noise if `subject` supports it, so that only the step is measured; else a seed."""
        if Capability.EXPLICIT_NOISE not in subject.capabilities:
            return SeededNoise(derive_seed("bench noise"))
        generator = torch.Generator(self.device).manual_seed(derive_seed("bench noise"))
        batch = self.batch
        uniforms = torch.rand(batch.num_tokens, generator=generator, device=self.device, dtype=torch.float64)
        exponentials = torch.empty(batch.batch_size, batch.vocab_size, device=self.device)
        return ExplicitNoise(uniforms, exponentials.exponential_(generator=generator))

    def renew(self, subject: Any) -> None:  # Any: of the contract
        """Make another batch and other noise, by a seed if `subject` takes one."""
        self.batch = rejection_batch(self.sizes, self.device)
        if Capability.SEEDED_NOISE in subject.capabilities:
            self.noise: Noise = SeededNoise(next(self._seeds))

    def unchecked_step(self, subject: Any) -> Step:  # Any: of the contract
        """Return the step without a look at its answer: for kernels that do not run."""
        self.noise = self._noise_for(subject)
        explicit = vars(self.noise) if isinstance(self.noise, ExplicitNoise) else {}
        self.tensors = {**self.batch.tensors(), **explicit}
        return lambda: subject.verify(self.batch, self.noise)

    def own_step(self, subject: Any) -> Step:  # Any: of the contract
        """Return one call of `verify`, once it has recovered a token for every request: a wrong kernel is fast."""
        step = self.unchecked_step(subject)
        with torch.random.fork_rng(devices=[self.batch.device] if self.device != "cpu" else []):
            _require_recovered(subject.name, step().cpu())
        return step

    def rounds(self, steps: Mapping[str, Step]) -> Rounds:
        """Return rounds of samples that last long enough for the clock."""
        on_cpu = self.device == "cpu"
        clock = cpu_clock if on_cpu else event_clock
        inner = calibrate(steps, SHORTEST_SAMPLE[self.device], clock)
        return Rounds(steps, inner=inner, clock=clock, watches=[] if on_cpu else gpu_watches())


def _require_recovered(name: str, output: OutputTokens) -> None:
    if not (bool((output[:, 0] >= 0).all()) and bool((output[:, 1:] == -1).all())):
        raise NoVerdictError(f"{name} accepts draft tokens that the target forbids. Run: fairdraw check")


def fast_path_steps(batch: SpecDecodeBatch) -> dict[bool, partial[Tensor]]:
    """Return our counter kernels on one batch, with a workspace (`True`) and without, as functions without arguments.

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
