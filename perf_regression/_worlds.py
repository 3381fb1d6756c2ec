"""Every contract's steps as worlds, for a counter and for a clock.

    sampling.plain         one token per request, bfloat16 logits, temperature 1
    sampling.filtered      with min-p, top-k and top-p
    logits_plan.idle       no processor has work
    logits_plan.busy       every second request has a bias, bad words, a minimal length or penalties, all a temperature
    penalties.whole        from live lists to penalised logits
    thinking_budget.step   inside a section, far from its budget
    rejection.step         every draft is rejected (`_rejection`)
    penalties.host, thinking_budget.host, and with drafts: what our scanners do on the host, from live lists on

vLLM's samplers are called without the suite's adapters (`_upstream_steps`), so that only vLLM's own work is measured;
ours and third-party samplers are called through their contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import (
    AnySampler,
    Capability,
    LogitsBatch,
    LogitsParams,
    LogitsRequest,
    Markers,
    PlanSetup,
    RaceNoise,
    RowChanges,
    SamplingBatch,
    SamplingNoise,
    SeededNoise,
    all_added,
)
from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._counts import Counts, counted
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rejection import RejectionWorld
from fairdraw.perf_regression._world import END_ID, PARAMS, START_ID, BenchmarkWorld, Outputs, Sizes, Step


def _logits(sizes: Sizes, device: str) -> Tensor:  # [batch_size * (max_spec_len + 1), vocab_size] float32
    generator = torch.Generator(device).manual_seed(derive_seed("world", sizes))
    num_rows = sizes.batch_size * (sizes.max_spec_len + 1)
    return torch.randn(num_rows, sizes.vocab_size, generator=generator, device=device)


class SamplingWorld(BenchmarkWorld):
    """The sampling contract. Tokens are drawn from fresh noise, so correct answers differ, except with top-k 1.

    Nothing is restored: logits are bfloat16, so a sampler that writes makes a copy.
    """

    is_determined = False

    def __init__(
        self, sizes: Sizes, device: str = "cpu", dtype: torch.dtype = torch.bfloat16, *, filtered: bool = False
    ) -> None:
        if filtered:
            self.needs = (Capability.TOP_K, Capability.TOP_P, Capability.MIN_P)
        super().__init__(sizes, device, dtype)

        def column(value: float, dtype: torch.dtype) -> Tensor:  # [batch_size] int32 | int64 | float32
            return torch.full((sizes.batch_size,), value, dtype=dtype, device=device)

        self.batch = SamplingBatch(
            logits=_logits(replace(sizes, max_spec_len=0), device).to(dtype),
            temperature=column(1.0, torch.float32),
            top_k=column(50, torch.int32) if filtered else None,
            top_p=column(0.9, torch.float32) if filtered else None,
            min_p=column(0.01, torch.float32) if filtered else None,
            positions=column(sizes.length, torch.int64),
        )
        self.tensors = self.batch.tensors()
        self._num_made = 0

    def noise_for(self, subject: Any, seed: int) -> SamplingNoise:  # Any: of the sampling contract
        """Return seeded noise if `subject` takes it or no other; else explicit noise."""
        can = subject.capabilities
        if Capability.SEEDED_NOISE in can or Capability.EXPLICIT_NOISE not in can:
            return SeededNoise(seed)
        generator = torch.Generator(self.batch.device).manual_seed(derive_seed("world noise", seed))
        noise = torch.empty(self.batch.logits.shape, device=self.batch.device)  # [batch_size, vocab_size] float32
        return RaceNoise(noise.exponential_(generator=generator).clamp_min_(1e-30))

    def renew(self, subject: Any) -> None:  # Any: of the sampling contract
        self._num_made += 1
        self.batch = self.batch.replace(logits=self.batch.logits.clone())
        self.noise = self.noise_for(subject, 1 + self._num_made)

    def step(self, subject: Any) -> Step:  # Any: of the sampling contract
        step = super().step(subject)
        if Capability.TOP_K not in subject.capabilities:
            return step
        best = self.batch.replace(top_k=torch.ones_like(self.batch.temperature, dtype=torch.int32))
        ties = best.logits == best.logits.amax(-1, keepdim=True)
        drawn = subject.sample(best, self.noise_for(subject, derive_seed("world")))
        if not bool(ties.gather(1, drawn.long()[:, None]).all()):
            raise NoVerdictError(f"{subject.name} does not keep the best token with top_k=1. Run: fairdraw check")
        return step

    def own_step(self, subject: Any) -> Step:  # Any: of the sampling contract
        self.noise = self.noise_for(subject, 1)
        return lambda: subject.sample(self.batch, self.noise)


class LiveWorld(BenchmarkWorld):
    """A batch whose requests stay, unless they are renewed."""

    def __init__(
        self,
        sizes: Sizes,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        params: Sequence[Any] = (PARAMS,),  # Any: those of the contract
        counted: bool = False,
    ) -> None:
        super().__init__(sizes, device, dtype)
        self.outputs = Outputs(sizes, params, counted=counted)
        self.changes: RowChanges | None = None
        self.show()

    @property
    def num_read(self) -> int:  # type: ignore[override]  # of a plain world it is 0
        return sum(getattr(output, "num_read", 0) for output in self.outputs.lists)

    def show(self) -> None:
        """Take what a sampler is shown from the outputs."""
        self.batch = self.outputs.batch()

    def advance(self) -> None:
        self.outputs.advance()
        self.show()

    def renew(self, subject: Any) -> None:  # Any: of the contract
        self.changes = self.outputs.replace_first()
        self.show()

    def tell(self, session: Any) -> None:  # Any: of the contract
        """Say which requests came and went."""
        if self.changes is not None:
            session.sync(self.changes)
            self.changes = None


class LogitsWorld(LiveWorld):
    """The logits-plan contract. Logits are never written under it."""

    def __init__(
        self,
        sizes: Sizes,
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        *,
        busy: bool = False,
        counted: bool = False,
    ) -> None:
        self.setup = PlanSetup(sizes.vocab_size, (START_ID,), (END_ID,))
        self.logits = _logits(sizes, device).to(dtype)
        super().__init__(sizes, device, dtype, params=busy_params() if busy else [LogitsParams()], counted=counted)
        self.tensors = {"logits": self.logits}

    def show(self) -> None:
        served = zip(self.outputs.requests, self.outputs.lists, strict=True)
        requests = tuple(LogitsRequest(r.params, r.prompt_token_ids, out, r.draft_token_ids) for r, out in served)
        self.now = LogitsBatch(self.logits, requests, self.changes)
        self.changes = None

    @property
    def first(self) -> LogitsBatch:
        """Return this step as the first one of a session."""
        return replace(self.now, change=all_added(self.now.requests))

    def own_step(self, subject: Any) -> Step:  # Any: of the logits-plan contract
        session = subject.open_plan(self.setup)
        session.process(self.first)
        return lambda: session.process(self.now)


def busy_params() -> list[LogitsParams]:
    """Return eight kinds of requests, of which four set something beside a temperature."""
    penalties = {name: value for name, value in asdict(PARAMS).items() if name.endswith("_penalty")}
    working = [
        {"logit_bias": {400: 2.0, 500: -3.0}},
        {"bad_words_token_ids": [[300, 301], [302]]},
        {"min_tokens": 100_000, "all_stop_token_ids": frozenset({2, 5})},
        penalties,
    ]
    kinds: list[Any] = [params for one in working for params in (one, {})]  # Any: one type for each field
    return [LogitsParams(temperature=0.8, **params) for params in kinds]


class PenaltiesWorld(LiveWorld):
    """The penalties contract. Logits are penalised in place, so each step gets fresh ones."""

    def __init__(self, sizes: Sizes, device: str = "cpu", *, counted: bool = False) -> None:
        super().__init__(sizes, device, counted=counted)
        self.fresh = _logits(sizes, device)
        self.logits, self.draft_logits = self.fresh.clone().tensor_split([sizes.batch_size])
        self.tensors = {"logits": self.logits}

    def restore(self) -> None:
        self.logits.copy_(self.fresh[: len(self.logits)])

    def advance(self) -> None:
        self.restore()
        super().advance()

    def own_step(self, subject: Any) -> Step:  # Any: of the penalties contract
        session = subject.open_penalties(self.sizes.vocab_size)
        session.sync(all_added(self.batch.requests))

        def step() -> object:
            self.tell(session)
            penalised = session.penalise(self.logits, self.batch)
            if len(self.draft_logits):
                session.penalise_drafts(self.draft_logits, self.batch)
            return penalised

        return step


class ThinkingWorld(LiveWorld):
    """The thinking-budget contract: all requests think, and none has spent its budget, so nothing may be forced."""

    is_determined = False

    def own_step(self, subject: Any) -> Step:  # Any: of the thinking-budget contract
        session = subject.open_thinking(Markers((START_ID,), (END_ID,)))
        session.sync(all_added(self.batch.requests))
        if session.forced(self.batch):
            raise NoVerdictError(f"{subject.name} forces tokens within the budget. Run: fairdraw check")

        def step() -> object:
            self.tell(session)
            return session.forced(self.batch)

        return step


class HostWorld(LiveWorld):
    """The host's part of a scanner's step: what it reads from the lists, and the rows that it lays out for drafts."""

    host = True
    is_determined = False

    def __init__(self, sizes: Sizes, device: str = "cpu", *, work: Callable[..., Step]) -> None:
        super().__init__(sizes, device)
        self._work = work

    def own_step(self, subject: Any) -> Step:  # Any: a scanner of ours
        return self._work(self.outputs)


WORLDS: dict[str, tuple[Callable[..., BenchmarkWorld], Sizes]] = {
    "sampling.plain": (SamplingWorld, Sizes(16, 0, 32_000)),
    "sampling.filtered": (partial(SamplingWorld, filtered=True), Sizes(4, 0, 32_000)),
    "logits_plan.idle": (LogitsWorld, Sizes(32, 0, 32_000, 100)),
    "logits_plan.busy": (partial(LogitsWorld, busy=True), Sizes(32, 0, 32_000, 100)),
    "penalties.whole": (PenaltiesWorld, Sizes(32, 0, 32_000, 2_000)),
    "thinking_budget.step": (ThinkingWorld, Sizes(32, 0, 32_000, 2_000)),
}
"""Worlds by name, which begins with the contract, and the sizes at which they are measured."""
_PENALTIES = partial(HostWorld, work=_internals.penalties_host)
_THINKING = partial(HostWorld, work=_internals.thinking_host)
HOST_WORLDS: dict[str, tuple[Callable[..., BenchmarkWorld], Sizes]] = {
    "penalties.host": (_PENALTIES, Sizes(64, 0, 151_936, 4_000)),
    "penalties.host.drafts": (_PENALTIES, Sizes(64, 3, 151_936, 4_000)),
    "thinking_budget.host": (_THINKING, Sizes(64, 0, 151_936, 4_000)),
    "thinking_budget.host.drafts": (_THINKING, Sizes(64, 3, 151_936, 4_000)),
}
"""Worlds of our own scanners and of vLLM's, below their contracts."""
SWEPT: dict[str, tuple[Callable[..., BenchmarkWorld], Sizes]] = {
    "rejection.step": (RejectionWorld, Sizes(4, 3, 16_000))
}


def make_world(name: str, device: str = "cpu", **sizes: int) -> BenchmarkWorld:
    """Make a world by its name, with some of its sizes replaced."""
    make, standard = {**WORLDS, **HOST_WORLDS, **SWEPT}[name]
    return make(replace(standard, **sizes), device)


def contract_of(world: str) -> str:
    """Return the contract of a world, by its name."""
    return world.partition(".")[0]


def small_world(contract: str, sizes: Sizes) -> BenchmarkWorld:
    """Return a world of any contract and size that asks for little, and whose lists count what is read."""
    if contract == "rejection":
        return RejectionWorld(replace(sizes, max_spec_len=max(1, sizes.max_spec_len)))
    if contract == "sampling":
        return SamplingWorld(sizes, dtype=torch.float32)
    if contract == "logits_plan":
        return LogitsWorld(sizes, dtype=torch.float32, busy=True, counted=True)
    return (PenaltiesWorld if contract == "penalties" else ThinkingWorld)(sizes, counted=True)


def steps_of_both(world: BenchmarkWorld, ours: AnySampler, reference: AnySampler) -> dict[str, Step]:
    """Return the steps of two samplers as the arms `ours` and `reference`.

    Raises:
        NoVerdictError: If they give different answers where there is one.
    """
    steps = {"ours": world.step(ours), "reference": world.step(reference)}
    if world.is_determined:
        answers = []
        for step in steps.values():
            world.restore()
            answers.append(step().float().clone())
        if not torch.allclose(answers[0], answers[1], rtol=1e-4, atol=1e-4):
            raise NoVerdictError(f"{ours.name} and {reference.name} give different logits. Run: fairdraw check")
    return steps


def count_world(world: BenchmarkWorld, step: Step, *, run_kernels: bool = True) -> Counts:
    """Count one decode step exactly, on the CPU, after `warm_up` others: what is set up once is not counted."""
    for _ in range(world.warm_up):
        step()
        world.advance()
    before = world.num_read
    with counted(world.tensors, run_kernels=run_kernels) as counts:
        step()
    counts.tokens_read = world.num_read - before
    return counts
