"""The log-probabilities contract: what an engine returns beside the tokens that it emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from fairdraw.protocols._batch import Batch, rows_of
from fairdraw.protocols._capabilities import Capabilities, Capability, KnownDefect
from fairdraw.protocols._sampling import SamplingBatch, SamplingNoise

if TYPE_CHECKING:
    from torch import Tensor

STAGES: tuple[str, ...] = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
"""Which numbers are returned, under the names of vLLM's `logprobs_mode`: of the model's logits or of those that the
token was drawn from; their log-softmax in float32, or the logits themselves."""

NOT_EMITTED = -1
"""The token of a row that emits none, as after a rejected draft: nothing is read of what is returned for it."""

ALL_LOGPROBS = -1
"""The number of log-probabilities that stands for the whole vocabulary."""


class RankTies(StrEnum):
    """The rank of a token that ties with others. Ranks begin at 1; without ties both words mean the same."""

    LAST = "last"
    """The number of tokens with at least its value, as vLLM counts."""
    FIRST = "first"
    """1 more than the number of tokens with a larger value."""


@dataclass(frozen=True, eq=False, repr=False)
class LogprobsBatch(Batch):
    """Rows of logits with the token that each emitted, and how many log-probabilities each request asks for.

    A row is a decoded token, one of the rows 0..K of a request with K drafts, or a place of a prompt, whose token is
    the next one of the prompt. Rows of a request are consecutive.

    Args:
        logits: As the model gave them.
        processed_logits: After penalties, masks, temperature and filters; -inf for what they exclude. They are final.
        token_ids: What each row emitted; `NOT_EMITTED` (-1) after a rejected draft.
        num_rows: Of each request; 0 is possible.
        num_logprobs: Of each request: 0 for the emitted token alone, `ALL_LOGPROBS` (-1) for the whole vocabulary,
            `None` for a request that asks for none and whose rows are not looked at. One request at least asks.
        stage: One of `STAGES`; it says which of the two logits count.
    """

    logits: Tensor  # [num_rows, vocab_size] float32 | bfloat16 | float16
    processed_logits: Tensor  # [num_rows, vocab_size] float32
    token_ids: Tensor  # [num_rows] int32 | int64
    num_rows: list[int]
    num_logprobs: list[int | None]
    stage: str = STAGES[0]

    @property
    def batch_size(self) -> int:
        return len(self.num_rows)

    @property
    def stage_logits(self) -> Tensor:  # [num_rows, vocab_size] float32 | bfloat16 | float16
        """Those of the two that the stage names."""
        return self.logits if self.stage.startswith("raw") else self.processed_logits

    @property
    def wants_logits(self) -> bool:
        """Whether the stage returns logits as they are."""
        return self.stage.endswith("logits")

    @property
    def row_requests(self) -> list[int]:
        """The request of each row."""
        return [request for request, count in enumerate(self.num_rows) for _ in range(count)]

    @property
    def row_logprobs(self) -> list[int | None]:
        """Per row, how many its request asks for; the whole vocabulary as a number."""
        wanted = [self.vocab_size if one == ALL_LOGPROBS else one for one in self.num_logprobs]
        return [wanted[request] for request in self.row_requests]

    @property
    def most_logprobs(self) -> int:
        """The most that a request asks for."""
        asked = [one for one in self.num_logprobs if one is not None]
        return self.vocab_size if ALL_LOGPROBS in asked else max(asked, default=0)

    def select(self, rows: Sequence[int]) -> LogprobsBatch:
        """The batch of these rows, in this order; each is a request of its own, with the number that it asked for."""
        index, owners = rows_of(rows, self.device), self.row_requests
        return self.replace(
            **{name: value[index] for name, value in self.tensors().items()},
            num_rows=[1] * len(rows),
            num_logprobs=[self.num_logprobs[owners[row]] for row in rows],
        )


@dataclass(frozen=True, eq=False)
class LogprobsResult:
    """What is returned for a batch: vLLM's layout.

    The first column is the emitted token, the others are the most probable ones, best first. `N` is the most that a
    request asks for; a row is read as far as its own request asks. The emitted token stands among the most probable
    ones as well, if it is one of them. Tensors may have any strides, and may be written again by the next call.

    Args:
        ranks: Of the emitted tokens, from 1 on; `None` if `token-ranks` is unsupported.
    """

    token_ids: Tensor  # [num_rows, 1 + N] int32 | int64
    logprobs: Tensor  # [num_rows, 1 + N] float32
    ranks: Tensor | None = None  # [num_rows] int32 | int64


@runtime_checkable
class LogprobsSampler(Protocol):
    """A function under the log-probabilities contract. Any object with these attributes is one; do not subclass.

    Values of the stages `*_logprobs` are the float32 log-softmax of the stage's logits: within
    `2**-24 * (64 + 2 * |logit - max| + 4 * log(sum))` of the exact one, where `sum` is that of `exp(logit - max)`.
    Values of `*_logits` are the logits. Nothing may be written into the batch. A row with a NaN has no distribution:
    its log-probabilities are NaN. One that is all -inf has none either: they are NaN or -inf. Its ids are ids.

    An attribute `rank_ties` (`RankTies`) says how ties are ranked; without one, as vLLM does.
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult: ...


@runtime_checkable
class DrawingLogprobsSampler(LogprobsSampler, Protocol):
    """One that also draws (capability `drawn-tokens`): tokens in the first column, and the whole vocabulary beside
    them, at stage `processed_logprobs`.
    """

    def draw(self, batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult: ...


def rank_ties_of(sampler: object) -> RankTies:
    """How `sampler` says that it ranks ties."""
    return RankTies(getattr(sampler, "rank_ties", RankTies.LAST))


LogprobsFunction = Callable[[LogprobsBatch], LogprobsResult]
DrawFunction = Callable[[SamplingBatch, SamplingNoise], LogprobsResult]


@dataclass(frozen=True)
class FunctionLogprobsSampler:
    """A plain function as a `LogprobsSampler`; made by `logprobs_sampler`."""

    name: str
    function: LogprobsFunction
    drawing: DrawFunction | None = None
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    rank_ties: RankTies = RankTies.LAST
    contract: Literal["logprobs"] = "logprobs"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        return self.function(batch)

    def draw(self, batch: SamplingBatch, noise: SamplingNoise) -> LogprobsResult:
        """Tokens and their log-probabilities.

        Raises:
            TypeError: If there is no drawing function.
        """
        if self.drawing is None:
            raise TypeError(f"draw: drawing=None, but {self.name} must have one. Use logprobs_sampler(drawing=...).")
        return self.drawing(batch, noise)


def logprobs_sampler(
    function: LogprobsFunction,
    *,
    drawing: DrawFunction | None = None,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    rank_ties: RankTies | str = RankTies.LAST,
    slow: bool = False,
) -> FunctionLogprobsSampler:
    """Wrap `function(batch) -> LogprobsResult` for the suite.

    Args:
        drawing: `function(batch, noise) -> LogprobsResult` that draws its tokens; without one the capability
            `drawn-tokens` is unsupported.
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's tensors are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        rank_ties: The rank of tokens that tie.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason, or `rank_ties` is no known word.
    """
    combined: dict[str, str] = {} if drawing else {Capability.DRAWN_TOKENS.value: "it is given its tokens"}
    capabilities = Capabilities.of(combined | dict(unsupported or {}), slow)
    return FunctionLogprobsSampler(
        name or function.__name__, function, drawing, device, capabilities, RankTies(rank_ties)
    )
