"""One step of each contract but rejection, for a counter and for a clock: benchmark batches, and samplers on them.

    sampling.plain        one token per request, bfloat16 logits, temperature 1
    sampling.filtered     with min-p, top-k and top-p
    logits_plan.idle      no processor has work
    logits_plan.busy      every second request has a bias, bad words, a minimal length or penalties, all a temperature
    penalties.whole       from live lists to penalised logits
    thinking_budget.step  inside a section, far from its budget

vLLM's samplers are called without the suite's adapters (`_upstream_steps`), so that only vLLM's own work is measured;
ours and third-party samplers are called through their contract.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw._core.contracts import contract_name
from fairdraw._core.seeds import derive_seed
from fairdraw.perf_regression._counts import Counts, counted
from fairdraw.perf_regression._named import NoVerdictError, load
from fairdraw.perf_regression._scanner_steps import END_ID, PARAMS, START_ID, Outputs
from fairdraw.protocols import Capability, RaceNoise, SamplingBatch, SeededNoise
from fairdraw.protocols._lifecycle import Markers, all_added
from fairdraw.protocols._logits_plan import LogitsBatch, LogitsParams, LogitsRequest, PlanSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from fairdraw.protocols import AnySampler, SamplingNoise

    Step = Callable[[], Any]  # Any: an answer of the contract's kind

UPSTREAM_STEPS = "fairdraw.perf_regression._upstream_steps"


@dataclass(frozen=True)
class WorldSizes:
    """B requests, V entries in the vocabulary, outputs of L tokens."""

    batch_size: int
    vocab_size: int
    length: int

    def as_formula(self) -> dict[str, int]:
        return {"B": self.batch_size, "K": 0, "V": self.vocab_size}

    def __str__(self) -> str:
        return f"B={self.batch_size} V={self.vocab_size} L={self.length}"


class BenchmarkBatch:
    """A live batch, and the steps of samplers on it."""

    is_determined = True
    """Whether correct answers are the same numbers: tensors, which may hold -inf."""
    needs: tuple[Capability, ...] = ()
    """What a sampler must support to be given this batch."""

    def __init__(self, sizes: WorldSizes, params: list[LogitsParams] | None = None) -> None:
        self.sizes = sizes
        self.outputs = Outputs(sizes.batch_size, vocab_size=sizes.vocab_size, params=params or [PARAMS])
        if sizes.length:
            self.outputs.grow(sizes.length)
        self.tensors: Mapping[str, Tensor] = {}
        """Tensors whose traffic is counted separately."""

    def restore(self) -> None:
        """Undo what a step may write."""

    def advance(self) -> None:
        """One decode step later."""
        self.outputs.advance()

    def step(self, subject: Any) -> Step:  # Any: of the contract
        """What `subject` does at each step.

        Raises:
            NoVerdictError: If its answer cannot be right: a wrong step is fast. Or if it does not support the batch.
        """
        why = subject.capabilities.why_unsupported(self.needs)
        if why is not None:
            raise NoVerdictError(f"{subject.name} cannot be given this batch: {why}")
        return self._upstream_step(subject) or self.own_step(subject)

    def own_step(self, subject: Any) -> Step:  # Any: of the contract
        raise NotImplementedError

    def _upstream_step(self, subject: AnySampler) -> Step | None:
        """vLLM's own code without the suite's adapter; `None` if `subject` is not vLLM."""
        package, _, module = type(subject).__module__.rpartition(".")
        if package != "fairdraw_engines" or not module.startswith("_vllm"):
            return None
        step: Step = load(f"{UPSTREAM_STEPS}:{contract_name(subject)}_step")(subject, self)
        return step


def _logits(sizes: WorldSizes, device: str) -> Tensor:  # [batch_size, vocab_size] float32
    generator = torch.Generator(device).manual_seed(derive_seed("world", sizes))
    return torch.randn(sizes.batch_size, sizes.vocab_size, generator=generator, device=device)


class SamplingWorld(BenchmarkBatch):
    """The sampling contract. Tokens are drawn from fresh noise, so correct answers differ, except with top-k 1.

    Nothing is restored: logits are bfloat16, so a sampler that writes makes a copy.
    """

    is_determined = False

    def __init__(self, sizes: WorldSizes, device: str, *, filtered: bool = False) -> None:
        super().__init__(sizes)

        def column(value: float, dtype: torch.dtype) -> Tensor:  # [batch_size] int32 | int64 | float32
            return torch.full((sizes.batch_size,), value, dtype=dtype, device=device)

        self.batch = SamplingBatch(
            logits=_logits(sizes, device).bfloat16(),
            temperature=column(1.0, torch.float32),
            top_k=column(50, torch.int32) if filtered else None,
            top_p=column(0.9, torch.float32) if filtered else None,
            min_p=column(0.01, torch.float32) if filtered else None,
            positions=column(sizes.length, torch.int64),
        )
        self.tensors = self.batch.tensors()
        filters = (Capability.TOP_K, Capability.TOP_P, Capability.MIN_P)
        self.needs = (Capability.HALF_LOGITS, *filters) if filtered else (Capability.HALF_LOGITS,)

    def noise(self, subject: Any, seed: int) -> SamplingNoise:  # Any: of the sampling contract
        """Return seeded noise if `subject` takes it or no other; else explicit noise."""
        can = subject.capabilities
        if Capability.SEEDED_NOISE in can or Capability.EXPLICIT_NOISE not in can:
            return SeededNoise(seed)
        generator = torch.Generator(self.batch.device).manual_seed(derive_seed("world noise", seed))
        exponentials = torch.empty(
            self.batch.logits.shape, device=self.batch.device
        )  # [batch_size, vocab_size] float32
        return RaceNoise(exponentials.exponential_(generator=generator).clamp_min_(1e-30))

    def step(self, subject: Any) -> Step:  # Any: of the sampling contract
        step = super().step(subject)
        if Capability.TOP_K not in subject.capabilities:
            return step
        best = self.batch.replace(top_k=torch.ones_like(self.batch.temperature, dtype=torch.int32))
        ties = best.logits == best.logits.amax(-1, keepdim=True)
        drawn = subject.sample(best, self.noise(subject, derive_seed("world")))
        if not bool(ties.gather(1, drawn.long()[:, None]).all()):
            raise NoVerdictError(f"{subject.name} does not keep the best token with top_k=1. Run: fairdraw check")
        return step

    def own_step(self, subject: Any) -> Step:  # Any: of the sampling contract
        noise = self.noise(subject, 1)
        return lambda: subject.sample(self.batch, noise)


class LogitsWorld(BenchmarkBatch):
    """The logits-plan contract, without drafts. Logits are never written under it."""

    needs = (Capability.HALF_LOGITS,)

    def __init__(self, sizes: WorldSizes, device: str, *, busy: bool = False) -> None:
        super().__init__(sizes, busy_params() if busy else [LogitsParams()])
        served = zip(self.outputs.requests, self.outputs.lists, strict=True)
        requests = tuple(LogitsRequest(r.params, r.prompt_token_ids, output) for r, output in served)
        self.setup = PlanSetup(sizes.vocab_size, (START_ID,), (END_ID,))
        self.first = LogitsBatch(_logits(sizes, device).bfloat16(), requests, all_added(requests))
        self.tensors = {"logits": self.first.logits}

    def own_step(self, subject: Any) -> Step:  # Any: of the logits-plan contract
        session, later = subject.open_plan(self.setup), self.first.replace(change=None)
        session.process(self.first)
        return lambda: session.process(later)


def busy_params() -> list[LogitsParams]:
    """Four of eight kinds set something beside a temperature."""
    penalties = {name: value for name, value in asdict(PARAMS).items() if name.endswith("_penalty")}
    working = [
        {"logit_bias": {400: 2.0, 500: -3.0}},
        {"bad_words_token_ids": [[300, 301], [302]]},
        {"min_tokens": 100_000, "all_stop_token_ids": frozenset({2, 5})},
        penalties,
    ]
    kinds: list[Any] = [params for one in working for params in (one, {})]  # Any: one type for each field
    return [LogitsParams(temperature=0.8, **params) for params in kinds]


class PenaltiesWorld(BenchmarkBatch):
    """The penalties contract, without drafts. Logits are penalised in place, so each step gets fresh ones."""

    def __init__(self, sizes: WorldSizes, device: str) -> None:
        super().__init__(sizes)
        self.fresh = _logits(sizes, device)
        self.logits = self.fresh.clone()
        self.batch = self.outputs.batch()
        self.tensors = {"logits": self.logits}

    def restore(self) -> None:
        self.logits.copy_(self.fresh)

    def advance(self) -> None:
        self.restore()
        super().advance()

    def own_step(self, subject: Any) -> Step:  # Any: of the penalties contract
        session = subject.open_penalties(self.sizes.vocab_size)
        session.sync(all_added(self.batch.requests))
        return lambda: session.penalise(self.logits, self.batch)


class ThinkingWorld(BenchmarkBatch):
    """The thinking-budget contract: all requests think, and none has spent its budget, so nothing may be forced."""

    is_determined = False

    def __init__(self, sizes: WorldSizes, device: str) -> None:
        super().__init__(sizes)
        self.batch = self.outputs.batch()

    def own_step(self, subject: Any) -> Step:  # Any: of the thinking-budget contract
        session = subject.open_thinking(Markers((START_ID,), (END_ID,)))
        session.sync(all_added(self.batch.requests))
        if session.forced(self.batch):
            raise NoVerdictError(f"{subject.name} forces tokens within the budget. Run: fairdraw check")
        return lambda: session.forced(self.batch)


WORLDS: dict[str, tuple[Callable[..., BenchmarkBatch], WorldSizes]] = {
    "sampling.plain": (SamplingWorld, WorldSizes(16, 32_000, 0)),
    "sampling.filtered": (lambda *at: SamplingWorld(*at, filtered=True), WorldSizes(4, 32_000, 0)),
    "logits_plan.idle": (LogitsWorld, WorldSizes(32, 32_000, 100)),
    "logits_plan.busy": (lambda *at: LogitsWorld(*at, busy=True), WorldSizes(32, 32_000, 100)),
    "penalties.whole": (PenaltiesWorld, WorldSizes(32, 32_000, 2_000)),
    "thinking_budget.step": (ThinkingWorld, WorldSizes(32, 32_000, 2_000)),
}
"""Benchmark batches by name, which begins with the contract, and the sizes at which they are timed."""


def steps_of_both(world: BenchmarkBatch, ours: AnySampler, reference: AnySampler) -> dict[str, Step]:
    """Two samplers as the arms `ours` and `reference`.

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


def count_world(subject: AnySampler, world: BenchmarkBatch) -> Counts:
    """Exact counts of one decode step, on the CPU."""
    step = world.step(subject)
    step()
    world.advance()
    with counted(world.tensors) as counts:
        step()
    return counts
