"""One step of each contract but rejection, for a counter and for a clock: a batch that lives, and samplers on it.

    sampling.plain        one token per request, bfloat16 logits, temperature 1
    sampling.filtered     with min-p, top-k and top-p
    logits_plan.idle      no processor has work
    logits_plan.busy      every second request has a bias, bad words, a minimal length or penalties, all a temperature
    penalties.whole       from live lists to penalised logits
    thinking_budget.step  in the middle of a section, far from its budget

vLLM's samplers are called without the suite's adapters (`_upstream_steps`), so that only vLLM's own work is charged to
it; ours and a stranger's are called through their contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fairdraw._core.contracts import contract_name
from fairdraw._core.seeds import derive_seed
from fairdraw.perf_regression._counts import Counts, counted
from fairdraw.perf_regression._named import NoVerdictError, load
from fairdraw.perf_regression._scanner_steps import END_ID, MANY_TOKENS, PROMPT, START_ID, Outputs
from fairdraw.protocols import SamplingBatch, SeededNoise
from fairdraw.protocols._lifecycle import AddedRow, LiveBatch, LiveRequest, Markers, RequestParams, RowChanges
from fairdraw.protocols._logits_plan import BatchChange, LogitsBatch, LogitsParams, LogitsRequest, PlanSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from fairdraw.protocols import AnySampler

    Step = Callable[[], Any]  # Any: an answer of the contract's kind

__all__ = ["WORLDS", "World", "WorldSizes", "count_world", "steps_of_both"]

UPSTREAM_STEPS = "fairdraw.perf_regression._upstream_steps"
FACTORS = {"presence_penalty": 1.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}


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


class World(Protocol):
    """A batch that lives, and the steps of samplers on it."""

    sizes: WorldSizes
    is_determined: bool
    """Whether right answers are the same numbers: tensors, in which -inf may stand."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Whose traffic is told apart."""
        ...

    def restore(self) -> None:
        """Undo what a step may write."""
        ...

    def advance(self) -> None:
        """One decode step later."""
        ...

    def step(self, subject: AnySampler) -> Step:
        """What `subject` does at each step.

        Raises:
            NoVerdictError: If its answer cannot be right: a wrong step is fast.
        """
        ...


def _upstream_step(subject: AnySampler, world: World) -> Step | None:
    """vLLM's own code without the suite's adapter; `None` if `subject` is somebody else."""
    package, _, module = type(subject).__module__.rpartition(".")
    if package != "fairdraw._adapters" or not module.startswith("_vllm"):
        return None
    step: Step = load(f"{UPSTREAM_STEPS}:{contract_name(subject)}_step")(subject, world)
    return step


def _logits(sizes: WorldSizes, device: str) -> Tensor:  # [batch_size, vocab_size] float32
    generator = torch.Generator(device).manual_seed(derive_seed("world", sizes))
    return torch.randn(sizes.batch_size, sizes.vocab_size, generator=generator, device=device)


class SamplingWorld:
    """The sampling contract. Tokens are drawn from fresh noise, so right answers differ: with top-k 1 they must not."""

    is_determined = False

    def __init__(self, sizes: WorldSizes, device: str, *, filtered: bool = False) -> None:
        def column(value: float, dtype: torch.dtype) -> Tensor:  # [batch_size] int32 | int64 | float32
            return torch.full((sizes.batch_size,), value, dtype=dtype, device=device)

        self.sizes = sizes
        self.batch = SamplingBatch(
            logits=_logits(sizes, device).bfloat16(),
            temperature=column(1.0, torch.float32),
            top_k=column(50, torch.int32) if filtered else None,
            top_p=column(0.9, torch.float32) if filtered else None,
            min_p=column(0.01, torch.float32) if filtered else None,
            positions=column(sizes.length, torch.int64),
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.batch.tensors()

    def restore(self) -> None:
        """Logits are bfloat16: whoever wants to write makes a copy."""

    def advance(self) -> None:
        """Nothing is remembered between steps."""

    def step(self, subject: Any) -> Step:  # Any: of the sampling contract
        best = self.batch.replace(top_k=torch.ones_like(self.batch.temperature, dtype=torch.int32))
        ties = best.logits == best.logits.amax(-1, keepdim=True)
        drawn = subject.sample(best, SeededNoise(derive_seed("world")))
        if not bool(ties.gather(1, drawn.long()[:, None]).all()):
            raise NoVerdictError(f"{subject.name} does not keep the best token with top_k=1. Run: fairdraw check")
        return _upstream_step(subject, self) or (lambda: subject.sample(self.batch, SeededNoise(1)))


class LogitsWorld:
    """The logits-plan contract, without drafts."""

    is_determined = True

    def __init__(self, sizes: WorldSizes, device: str, *, busy: bool = False) -> None:
        self.sizes, self.outputs = sizes, Outputs(sizes.batch_size, vocab_size=sizes.vocab_size)
        self.outputs.grow(sizes.length)
        kinds = _busy_params() if busy else [LogitsParams()]
        requests = [LogitsRequest(kinds[i % len(kinds)], PROMPT, ids) for i, ids in enumerate(self.outputs.lists)]
        added = [(i, r.params, r.prompt_token_ids, r.output_token_ids) for i, r in enumerate(requests)]
        self.setup = PlanSetup(sizes.vocab_size, (START_ID,), (END_ID,))
        self.first = LogitsBatch(
            _logits(sizes, device).bfloat16(), tuple(requests), BatchChange(added=added, batch_size=len(added))
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return {"logits": self.first.logits}

    def restore(self) -> None:
        """Logits are never written under this contract."""

    def advance(self) -> None:
        self.outputs.advance()

    def step(self, subject: Any) -> Step:  # Any: of the logits-plan contract
        upstream = _upstream_step(subject, self)
        if upstream is not None:
            return upstream
        session, later = subject.open_plan(self.setup), self.first.replace(change=None)
        session.process(self.first)
        return lambda: session.process(later)


def _busy_params() -> list[LogitsParams]:
    """Four of eight kinds ask for something beside a temperature."""
    asking = [
        {"logit_bias": {400: 2.0, 500: -3.0}},
        {"bad_words_token_ids": [[300, 301], [302]]},
        {"min_tokens": 100_000, "all_stop_token_ids": frozenset({2, 5})},
        FACTORS,
    ]
    asked: list[Any] = [params for one in asking for params in (one, {})]  # Any: one type for each field
    return [LogitsParams(temperature=0.8, **params) for params in asked]


class PenaltiesWorld:
    """The penalties contract, without drafts. Logits are penalised where they lie, so each step gets fresh ones."""

    is_determined = True

    def __init__(self, sizes: WorldSizes, device: str) -> None:
        self.sizes, self.outputs = sizes, Outputs(sizes.batch_size, vocab_size=sizes.vocab_size)
        self.outputs.grow(sizes.length)
        self.fresh = _logits(sizes, device)
        self.logits = self.fresh.clone()
        self.batch = _live(self.outputs, _penalised())

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return {"logits": self.logits}

    def restore(self) -> None:
        self.logits.copy_(self.fresh)

    def advance(self) -> None:
        self.restore()
        self.outputs.advance()

    def step(self, subject: Any) -> Step:  # Any: of the penalties contract
        upstream = _upstream_step(subject, self)
        if upstream is not None:
            return upstream
        session = subject.open_penalties(self.sizes.vocab_size)
        session.sync(_all_added(self.batch))
        return lambda: session.penalise(self.logits, self.batch)


class ThinkingWorld:
    """The thinking-budget contract: all requests think, and none has spent its budget, so nothing may be forced."""

    is_determined = False

    def __init__(self, sizes: WorldSizes, device: str) -> None:
        self.sizes, self.outputs = sizes, Outputs(sizes.batch_size, vocab_size=sizes.vocab_size)
        self.outputs.grow(sizes.length)
        self.batch = _live(self.outputs, RequestParams(thinking_token_budget=MANY_TOKENS))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return {}

    def restore(self) -> None:
        """Nothing is written."""

    def advance(self) -> None:
        self.outputs.advance()

    def step(self, subject: Any) -> Step:  # Any: of the thinking-budget contract
        upstream = _upstream_step(subject, self)
        if upstream is not None:
            return upstream
        session = subject.open_thinking(Markers((START_ID,), (END_ID,)))
        session.sync(_all_added(self.batch))
        if session.forced(self.batch):
            raise NoVerdictError(f"{subject.name} forces tokens within the budget. Run: fairdraw check")
        return lambda: session.forced(self.batch)


def _penalised() -> RequestParams:
    values: dict[str, Any] = FACTORS  # Any: one type for each field
    return RequestParams(**values)


def _live(outputs: Outputs, params: RequestParams) -> LiveBatch:
    return LiveBatch(tuple(LiveRequest(f"r{i}", params, PROMPT, ids) for i, ids in enumerate(outputs.lists)))


def _all_added(batch: LiveBatch) -> RowChanges:
    requests = enumerate(batch.requests)
    added = tuple(AddedRow(i, r.params, r.prompt_token_ids, r.output_token_ids) for i, r in requests)
    return RowChanges(len(added), added=added)


WORLDS: dict[str, tuple[Callable[..., World], WorldSizes]] = {
    "sampling.plain": (SamplingWorld, WorldSizes(16, 32_000, 0)),
    "sampling.filtered": (lambda *at: SamplingWorld(*at, filtered=True), WorldSizes(4, 32_000, 0)),
    "logits_plan.idle": (LogitsWorld, WorldSizes(32, 32_000, 100)),
    "logits_plan.busy": (lambda *at: LogitsWorld(*at, busy=True), WorldSizes(32, 32_000, 100)),
    "penalties.whole": (PenaltiesWorld, WorldSizes(32, 32_000, 2_000)),
    "thinking_budget.step": (ThinkingWorld, WorldSizes(32, 32_000, 2_000)),
}
"""Every world by its name, which begins with its contract; and the sizes at which it is timed."""


def steps_of_both(world: World, ours: AnySampler, reference: AnySampler) -> dict[str, Step]:
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


def count_world(subject: AnySampler, world: World) -> Counts:
    """Exact counts of one step in the middle of a trace, on the CPU."""
    step = world.step(subject)
    step()
    world.advance()
    with counted(world.tensors) as counts:
        step()
    return counts
