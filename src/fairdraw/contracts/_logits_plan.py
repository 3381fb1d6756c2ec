"""The logits-plan contract: apply a batch's logits processors, and copy only where one of them has work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from fairdraw._core.batches import Batch, RequestRows
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability
from fairdraw._core.contracts import Contract
from fairdraw._core.policies import Policy
from fairdraw._core.rounding import Rounding
from fairdraw.contracts._live import RequestParams, SessionLook, SessionSampler
from fairdraw.contracts._penalties import PenaltyPolicy
from fairdraw.contracts._thinking_budget import ThinkingPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw._core.rows import RowChanges
    from fairdraw._core.tensor_types import LogitRows


@dataclass(frozen=True)
class LogitsPolicy(Policy):
    """What the processors of a logits plan see.

    Args:
        bad_words_see: Where a bad word may begin.
            * `"output"`: bad words begin in the output: one that the prompt begins may be completed (vLLM)
            * `"text"`: bad words begin anywhere: also in the prompt (transformers)
        penalties: How it penalises.
        thinking: How it keeps budgets.
    """

    bad_words_see: Literal["output", "text"] = "output"
    penalties: PenaltyPolicy = field(default_factory=PenaltyPolicy)
    thinking: ThinkingPolicy = field(default_factory=ThinkingPolicy)


@dataclass(frozen=True)
class LogitsParams(RequestParams):
    """Sampling parameters of one request, under the names of vLLM's `SamplingParams`; these defaults change nothing.

    Ids beyond the vocabulary are refused by an exception, or have no effect; none is negative.

    Args:
        temperature: Below 1e-5 the request is greedy, and temperature and filters do not apply to it.
        top_k: 0 and -1 keep all tokens.
        allowed_token_ids: All others are excluded. `None` allows all.
        bad_words_token_ids: The last id of each is excluded where the output (or the text, by its policy) ends with the
            ids before it.
        min_tokens: Stop tokens are excluded until the output has as many.
        logit_bias: Token id to what is added to its logit.
        custom: Names of custom processors that the request uses.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    min_tokens: int = 0
    all_stop_token_ids: frozenset[int] = frozenset()
    logit_bias: Mapping[int, float] | None = None
    custom: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LogitsRequest:
    """One row of the batch.

    Args:
        output_token_ids: The live list: the same object as long as the request stays, changed in place between steps;
            it grows, or loses its end, or both. -1 at its end stands for a token that is still on the device.
        draft_token_ids: Of this step; -1 for one that is not known yet.
    """

    params: LogitsParams
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    draft_token_ids: list[int] = field(default_factory=list)


class RowOfRequest(NamedTuple):
    """One row of logits, as a custom processor is given it."""

    row: int
    request: int
    token_ids: list[int]
    """Output and drafts before this row."""


class CustomLogitsProcessor(Protocol):
    """A processor that the engine does not know. `apply` is called once per step, with all rows that use it."""

    @property
    def name(self) -> str: ...
    def is_argmax_invariant(self) -> bool: ...
    def wants(self, params: LogitsParams) -> bool: ...
    def apply(self, logits: LogitRows, rows: Sequence[RowOfRequest]) -> LogitRows: ...


@dataclass(frozen=True, eq=False)
class PlanSetup:
    """What stays the same for all steps of a batch.

    Args:
        start_token_ids: Marker that begins a thinking section.
        end_token_ids: Marker that ends it.
        custom_processors: In the order in which they run.
    """

    vocab_size: int
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    custom_processors: tuple[CustomLogitsProcessor, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class LogitsBatch(RequestRows, Batch):
    """One step.

    A request with `n` drafts owns `n + 1` consecutive rows: those that its drafts are verified with, then that of the
    bonus token. Each row sees the output and the drafts before it.

    Args:
        logits: As the model gave them; they must not be written.
        change: What happened to the rows since the last step of the same session, `None` for nothing; in the first
            step everything is added.
    """

    logits: Tensor  # [num_rows, vocab_size] float32 | bfloat16 | float16
    requests: tuple[LogitsRequest, ...]
    change: RowChanges | None = None

    def rows(self) -> list[RowOfRequest]:
        """All rows, and what each sees."""
        return [
            RowOfRequest(first + j, i, [*request.output_token_ids, *request.draft_token_ids[:j]])
            for i, (request, first) in enumerate(zip(self.requests, self.first_rows, strict=True))
            for j in range(len(request.draft_token_ids) + 1)
        ]


@runtime_checkable
class LogitsSession(Protocol):
    """One live batch, followed step by step."""

    def process(self, batch: LogitsBatch) -> Tensor:
        """The processed logits, `[num_rows, vocab_size]`: `batch.logits` itself if no processor has work.

        They belong to the caller: a later call does not change them.
        """
        ...


@runtime_checkable
class LogitsPlanner(AnySampler, Protocol):
    """An implementation under the logits-plan contract. Any object with these attributes is one; do not subclass.

    The order of the processors is vLLM's: allowed ids, bad words, min tokens, logit bias, custom, penalties, thinking
    budget, temperature, min-p, custom for random requests, top-k, top-p. No rounding is required. Of tokens that tie at
    the edge of a filter any may stay. Beside a forced token all others must have a probability of 0. A planner that
    documents its bits has an attribute `rounding` (`Rounding`). One that sees other texts, and is right, says so by its
    attribute `policy` (`LogitsPolicy`).
    """

    def open_plan(self, setup: PlanSetup) -> LogitsSession: ...


ProcessFunction = Callable[[LogitsBatch, PlanSetup], "Tensor"]


@dataclass(frozen=True)
class _FunctionSession:
    """A session without state."""

    function: ProcessFunction
    setup: PlanSetup

    def process(self, batch: LogitsBatch) -> LogitRows:
        return self.function(batch, self.setup)


def logits_planner(
    function: ProcessFunction,
    *,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    slow: bool = False,
    rounding: Rounding | str = Rounding.FREE,
    policy: LogitsPolicy | None = None,
) -> SessionSampler:
    """Wrap `function(batch, setup) -> processed_logits`, which keeps no state between steps, for the suite.

    Args:
        name: Shown in reports; the function's name if `None`.
        device: Where the logits are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        slow: Draw fewer examples.
        rounding: The documented bits, if any.
        policy: What the processors see, if not what vLLM's do.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason, or `rounding` is no known word.
    """
    capabilities = Capabilities.of(unsupported or {}, slow)
    own: dict[str, Any] = {"rounding": rounding, "policy": policy}  # Any: a word becomes a member there
    opened = partial(_FunctionSession, function)
    return SessionSampler(name or function.__name__, opened, "logits_plan", device, capabilities, **own)


def _uses(batch: LogitsBatch) -> Iterator[Capability]:
    """Yield what a step has that a correct planner may not take."""
    requests = batch.requests
    if any(-1 in request.draft_token_ids for request in requests):
        yield Capability.PLACEHOLDER_DRAFTS
    if any(-1 in request.output_token_ids[-1:] for request in requests):
        yield Capability.SEVERAL_TOKENS
    own = [request for request in requests if request.params.custom]
    if own:
        yield Capability.CUSTOM_PROCESSORS
    bent = [*own, *(r for r in requests if r.params.logit_bias or r.params.min_p)]
    if any(request.draft_token_ids for request in bent):
        yield Capability.DRAFT_PROCESSORS


CONTRACT = Contract(
    "logits_plan",
    call="open_plan(setup)",
    case="fairdraw.strategies.logits_plan:LogitsCase",
    raised="PLAN100",
    answer="a tensor of logits with the shape of those given",
    policy=LogitsPolicy,
    session=lambda _: SessionLook(None),
    uses=_uses,
)
