"""The log-probabilities contract: what an engine returns beside the tokens that it emits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fairdraw._core.batches import Batch, rows_of
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.looks import NO_TOKENS, Look, add_choice
from fairdraw._core.noise import seeded
from fairdraw._core.validation import INTEGERS, Answer, Validator
from fairdraw.contracts import _sampling
from fairdraw.contracts._sampling import SamplingBatch, SamplingNoise, check_sampling_batch, check_sampling_noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
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
class LogprobsSampler(AnySampler, Protocol):
    """A function under the log-probabilities contract. Any object with these attributes is one; do not subclass.

    Values of the stages `*_logprobs` are the float32 log-softmax of the stage's logits: within
    `2**-24 * (64 + 2 * |logit - max| + 4 * log(sum))` of the exact one, where `sum` is that of `exp(logit - max)`.
    Values of `*_logits` are the logits. Nothing may be written into the batch. A row with a NaN has no distribution:
    its log-probabilities are NaN. One that is all -inf has none either: they are NaN or -inf. Its ids are ids.

    An attribute `rank_ties` (`RankTies`) says how ties are ranked; without one, as vLLM does.
    """

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


# -- how the suite calls a function of this contract: with batch and answer checked -----------------------------------


@dataclass(frozen=True)
class Returned:
    """The result of one call; copies."""

    token_ids: NDArray[np.int64]  # [num_rows, 1 + N] int64
    logprobs: NDArray[np.float32]  # [num_rows, 1 + N] float32
    ranks: NDArray[np.int64] | None  # [num_rows] int64


def call_logprobs(sampler: LogprobsSampler, batch: LogprobsBatch) -> Returned:
    """Call `sampler.logprobs` once. The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If the batch breaks the contract (a fault of the caller).
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).
    """
    check_logprobs_batch(batch)
    answer = Answer.of(sampler, "logprobs", batch.device, batch)
    has_ranks = Capability.TOKEN_RANKS in sampler.capabilities
    return _copied(answer, [int(batch.logits.shape[0]), 1 + batch.most_logprobs], has_ranks=has_ranks)


def call_draw(sampler: DrawingLogprobsSampler, batch: SamplingBatch, noise: SamplingNoise) -> Returned:
    """Call `sampler.draw` once; everything else is as in `call_logprobs`.

    Randomness:
        With `SeededNoise`, the global generators (torch's, NumPy's, Python's) are seeded with `noise.seed` just before
        the call. `seeded` says when their states are put back.
    """
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    with seeded(noise, batch.device):
        answer = Answer.of(sampler, "draw", batch.device, batch, noise)
        return _copied(answer, [batch.batch_size, 1 + batch.vocab_size], has_ranks=False)


def _copied(answer: Answer, wide: list[int], *, has_ranks: bool) -> Returned:
    found, hint = answer.as_kind(LogprobsResult, "token_ids, logprobs, ranks"), "([num_rows, 1 + N])."
    return Returned(
        answer.numbers("token_ids", found.token_ids, wide, INTEGERS, hint),
        answer.numbers("logprobs", found.logprobs, wide, ("float32",), hint),
        answer.numbers("ranks", found.ranks, wide[:1], INTEGERS, "([num_rows]).") if has_ranks else None,
    )


_DTYPES = {
    "logits": ("float32", "bfloat16", "float16"),
    "processed_logits": ("float32",),
    "token_ids": ("int64", "int32"),
}


def check_logprobs_batch(batch: LogprobsBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `LogprobsBatch`.
        ValueError: If shapes, dtypes, devices, ids, counts or the stage disagree with `LogprobsBatch`.
    """
    validator = Validator("check_logprobs_batch")
    validator.kind("batch", batch, LogprobsBatch, "Build one.")
    known = ", ".join(STAGES)
    validator.require(batch.stage in STAGES, f"stage={batch.stage!r}", f"it must be one of: {known}", "Name one.")
    shape = list(batch.logits.shape)
    rule = f"it must be [{sum(batch.num_rows)}, vocab_size] with at least one token in the vocabulary"
    fits = len(shape) == 2 and shape[0] == sum(batch.num_rows) and shape[1] >= 1
    validator.require(fits, f"logits.shape={shape}", rule, "num_rows must add up to the rows of logits.")
    for name, tensor in batch.tensors().items():
        validator.dtype(name, tensor, _DTYPES[name])
        validator.shape(name, tensor, shape[: tensor.ndim], ", as of logits", "Give each row one token.")
        validator.device(name, tensor, batch.device, "logits")
    ids, size = batch.token_ids, batch.vocab_size
    rule, remedy = f"ids must lie in [0, {size}) or be {NOT_EMITTED}", "Use -1 for a row that emits none."
    validator.values("token_ids", ids, (ids >= NOT_EMITTED) & (ids < size), rule, remedy)
    _check_numbers(validator, batch)


def _check_numbers(validator: Validator, batch: LogprobsBatch) -> None:
    given, numbers = f"num_logprobs={batch.num_logprobs}", batch.num_logprobs
    rule = f"it must have one entry for each of {batch.batch_size} requests"
    validator.require(len(numbers) == batch.batch_size, given, rule, "Use None for none.")
    rule = f"each must be None, {ALL_LOGPROBS} or in [0, {batch.vocab_size}]"
    is_right = all(one is None or ALL_LOGPROBS <= one <= batch.vocab_size for one in numbers)
    validator.require(is_right, given, rule, "Use -1 for the whole vocabulary.")
    asks = any(one is not None for one in numbers)
    validator.require(asks, given, "one request must ask", "Do not call if nobody asks.")


# -- what reports say of it -------------------------------------------------------------------------------------------


def _features(found: Look, batch: LogprobsBatch | SamplingBatch, *noise: Any) -> None:  # Any: SamplingNoise
    """Add the features of one call."""
    if isinstance(batch, SamplingBatch):
        _sampling.features(found, batch, *noise)
        return
    words = ("no log-probabilities", "all log-probabilities")
    levels = [words[0] if number is None else words[1] if number < 0 else number for number in batch.num_logprobs]
    found.each("log-probabilities", levels, words)
    found.each("rows per request", batch.num_rows)
    found.all_have("stage", batch.stage, STAGES)
    add_choice(found, "ids", "ids of 64 bits", "ids of 32 bits", batch.token_ids.element_size() == 4)
    add_choice(found, "emitted", "rows that emitted a token", NO_TOKENS, (batch.token_ids < 0).any())


def _uses(batch: LogprobsBatch | SamplingBatch) -> Iterator[Capability]:
    """Yield what a batch has that a correct function may not take."""
    if isinstance(batch, SamplingBatch):
        return _sampling.uses(batch)
    numbers = {
        Capability.TOP_LOGPROBS: batch.most_logprobs > 0,
        Capability.LOGIT_SCORES: batch.wants_logits,
        Capability.NO_ROWS: not len(batch.token_ids),
        Capability.RAGGED: len(set(batch.num_rows)) > 1,
    }
    return (capability for capability, is_so in numbers.items() if is_so)


CONTRACT = Contract(
    "logprobs",
    call="logprobs(batch)",
    beside={"draw": None},
    case="fairdraw.strategies.logprobs:LogprobsCase",
    raised="LPR100",
    answer="a LogprobsResult: ids and float32 values [num_rows, 1 + N], ranks [num_rows]",
    features=_features,
    uses=_uses,
    has_distributions=True,
    draws_with="drawn-tokens",
)
