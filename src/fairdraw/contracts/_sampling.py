"""The sampling contract: one token per request; a drafter also returns the distributions that it drew from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from fairdraw._core.batches import Batch, rows_of
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.looks import FILTERS, Look, add_noises, read_positions, read_temperatures
from fairdraw._core.noise import Drafted, SeededNoise, default_state, generator_states, seeded
from fairdraw._core.rows import SyncFunction, seat_others
from fairdraw._core.switches import SizeSwitches, checked_switches
from fairdraw._core.validation import INTEGERS, Answer, Validator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


GREEDY_BELOW = 1e-5
"""A request of the sampling contract with a lower temperature is greedy, as in vLLM's `Sampler`."""


@dataclass(frozen=True, eq=False, repr=False)
class SamplingBatch(Batch):
    """One decoding step: a row of logits per request, and the parameters of each request.

    Args:
        logits: After penalties, biases and the like; temperature and filters are the sampler's work.
        temperature: Divides the logits; below 1e-5 a request is greedy, and filters do not concern it.
        top_k: Keep this many of the most probable tokens; `vocab_size` keeps all. `None`: no request filters.
        top_p: Keep the most probable tokens with at least this mass; 1 keeps all.
        min_p: Keep tokens with at least this fraction of the largest probability; 0 keeps all.
        positions: Index of the token to be drawn in its request's text; a sampler with counters needs it.
    """

    logits: Tensor  # [batch_size, vocab_size] float32 | bfloat16 | float16
    temperature: Tensor  # [batch_size] float32
    top_k: Tensor | None  # [batch_size] int32
    top_p: Tensor | None  # [batch_size] float32
    min_p: Tensor | None  # [batch_size] float32
    positions: Tensor  # [batch_size] int64

    @property
    def batch_size(self) -> int:
        return int(self.logits.shape[0])

    @property
    def is_greedy(self) -> Tensor:  # [batch_size] bool
        return self.temperature < GREEDY_BELOW

    def select(self, requests: Sequence[int]) -> Self:
        """The batch made of these requests, in this order (a permutation, a subset, or with repeats)."""
        index = rows_of(requests, self.device)
        return self.replace(**{name: value[index] for name, value in self.tensors().items()})


@dataclass(frozen=True, eq=False)
class RaceNoise:
    """Explicit noise of the sampling contract: the token is the argmax of `prob / exponential`.

    A division and a product with the reciprocal are both right; formulas that round otherwise are, too, if
    `reference-rounding` is unsupported.
    """

    exponentials: Tensor  # [batch_size, vocab_size] float32, > 0

    def select(self, requests: Sequence[int]) -> RaceNoise:
        """The noise of `batch.select(requests)`."""
        return RaceNoise(self.exponentials[rows_of(requests, self.exponentials.device)])


SamplingNoise = RaceNoise | SeededNoise
"""What a token sampler draws from: exponentials to be used as they are, or seeds."""


@dataclass(frozen=True)
class FilterPolicy:
    """How a sampler filters. Engines differ here and are correct; the suite tests what is declared.

    The default is vLLM's. transformers filters by top-k, top-p and min-p; MLX-LM by top-p, min-p and top-k, with the
    temperature last.

    Args:
        order: The filters in the order of their application.
        temperature: `first`: filters see the distribution at the request's temperature. `last`: they see the
            distribution of the logits as given, and the tokens that they leave are drawn at the temperature.
        joint: Every filter looks at the unfiltered distribution, and the supports are intersected; otherwise each looks
            at what the one before it left.
        top_k_ties: `all` tokens tied with the k-th stay, or `some` of them.
        top_p_ties: The same for tokens tied at the edge of top-p.

    Raises:
        ValueError: If a word is unknown or a filter is missing.
    """

    order: tuple[str, ...] = ("min_p", "top_k", "top_p")
    temperature: Literal["first", "last"] = "first"
    joint: bool = False
    top_k_ties: Literal["all", "some"] = "all"
    top_p_ties: Literal["all", "some"] = "some"

    def __post_init__(self) -> None:
        if sorted(self.order) != ["min_p", "top_k", "top_p"]:
            rule = "it must name min_p, top_k and top_p once each"
            raise ValueError(f"FilterPolicy: order={self.order}, but {rule}. Reorder them.")
        words = {"temperature": ("first", "last"), "top_k_ties": ("all", "some"), "top_p_ties": ("all", "some")}
        for name, known in words.items():
            if getattr(self, name) not in known:
                rule = " or ".join(known)
                raise ValueError(f"FilterPolicy: {name}={getattr(self, name)!r}, but it must be {rule}. Correct it.")


@runtime_checkable
class TokenSampler(AnySampler, Protocol):
    """A sampler under the sampling contract. Any object with these attributes is one; do not subclass.

    `sample` returns one token id per request, `[batch_size]` int32 or int64, with any strides; it may be a buffer that
    the next call writes again, because the suite copies it at once. It must not modify the batch. An attribute
    `filters` (a `FilterPolicy`) says how it filters; without one, as vLLM 0.22.0 does. Also optional: an attribute
    `size_switches`, the sizes at which its kernels switch; a method `sync(changes)`, which gets before a call what
    happened to the rows since the call before (`RowChanges`), if something is kept by row.
    """

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor: ...


@runtime_checkable
class TokenDrafter(TokenSampler, Protocol):
    """A token sampler that also returns the distribution that it drew from (capability `draft-distribution`)."""

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted: ...


def filter_policy(sampler: object) -> FilterPolicy:
    """How `sampler` says that it filters."""
    declared: FilterPolicy = getattr(sampler, "filters", FilterPolicy())
    return declared


SampleFunction = Callable[[SamplingBatch, SamplingNoise], "Tensor"]
DraftFunction = Callable[[SamplingBatch, SamplingNoise], Drafted]


@dataclass(frozen=True)
class FunctionTokenSampler:
    """A plain function as a `TokenSampler`; made by `token_sampler`."""

    name: str
    function: SampleFunction
    drafting: DraftFunction | None = None
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    filters: FilterPolicy = field(default_factory=FilterPolicy)
    contract: Literal["sampling"] = "sampling"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)
    sync: SyncFunction | None = field(default=None, kw_only=True)
    size_switches: SizeSwitches = field(default_factory=dict, kw_only=True)

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32 | int64
        return self.function(batch, noise)

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """Tokens and distributions.

        Raises:
            TypeError: If there is no drafting function.
        """
        if self.drafting is None:
            raise TypeError(f"draft: drafting=None, but {self.name} must have one. Use token_sampler(drafting=...).")
        return self.drafting(batch, noise)


def token_sampler(
    function: SampleFunction,
    *,
    drafting: DraftFunction | None = None,
    sync: SyncFunction | None = None,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    filters: FilterPolicy | None = None,
    size_switches: SizeSwitches | None = None,
    slow: bool = False,
) -> FunctionTokenSampler:
    """Wrap `function(batch, noise) -> token_ids` for the suite.

    Args:
        drafting: `function(batch, noise) -> Drafted`; without one the capability `draft-distribution` is unsupported.
        sync: `function(changes)`, if something is kept by row: what happened to the rows, before the call.
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's tensors are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        filters: How it filters; as vLLM 0.22.0 does if `None`.
        size_switches: Sizes at which kernels switch, of `vocabulary` and `rows`: both sides are walked.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason, or `size_switches` an unknown size.
    """
    combined: dict[str, str] = {} if drafting else {Capability.DRAFT_DISTRIBUTION.value: "it returns tokens alone"}
    capabilities = Capabilities.of(combined | dict(unsupported or {}), slow)
    switches = checked_switches("token_sampler", size_switches or {}, drafts=False)
    policy = filters or FilterPolicy()
    own = (name or function.__name__, function, drafting, device, capabilities, policy)
    return FunctionTokenSampler(*own, sync=sync, size_switches=switches)


# -- how the suite calls a sampler: the same way everywhere, with batch, noise and output checked ---------------------


@dataclass(frozen=True)
class Sampled:
    """The result of one call of a token sampler.

    Args:
        generator_states: Request to the final state of its own generator (seeded noise only).
        default_state: Final state of torch's default generator on the sampler's device.
        draft_probs: The distributions that a drafter returned.
    """

    tokens: NDArray[np.int64]  # [batch_size] int64
    generator_states: dict[int, bytes]
    default_state: bytes
    draft_probs: NDArray[np.float32] | None = None  # [batch_size, vocab_size] float32


def sample_tokens(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> Sampled:
    """Call `sampler.sample` once. The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If batch or noise break the contract (a fault of the caller).
        AdapterError: If the output is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).

    Randomness:
        With `SeededNoise`, the global generators (torch's, NumPy's, Python's) are seeded with `noise.seed` just before
        the call. `seeded` says when their states are put back.
    """
    return call_sampler(sampler, "sample", batch, noise)


def sample_next(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> NDArray[np.int64]:
    """The tokens of a call within `seeded`, `[batch_size]`: torch's default generators go on from where they are."""
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    answer = _answer(sampler, "sample", batch, noise)
    return _tokens(answer, answer.value, batch)


def draft_tokens(sampler: TokenDrafter, batch: SamplingBatch, noise: SamplingNoise) -> Sampled:
    """Call `sampler.draft` once; everything else is as in `sample_tokens`."""
    return call_sampler(sampler, "draft", batch, noise)


def call_sampler(sampler: object, method: str, batch: SamplingBatch, noise: SamplingNoise) -> Sampled:
    """Call `method` of the sampler once: it returns tokens, and `draft` distributions beside them."""
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    with seeded(noise, batch.device):
        answer, probs = _answer(sampler, method, batch, noise), None
        if method == "draft":
            drafted = answer.as_kind(Drafted, "token_ids, draft_probs")
            tokens, shape = _tokens(answer, drafted.token_ids, batch), [batch.batch_size, batch.vocab_size]
            hint = "([batch_size, vocab_size])."
            probs = answer.numbers("draft_probs", drafted.draft_probs, shape, ("float32",), hint)
        else:
            tokens = _tokens(answer, answer.value, batch)
        return Sampled(tokens, generator_states(noise, batch.device), default_state(batch.device), probs)


def _answer(sampler: object, method: str, batch: SamplingBatch, noise: SamplingNoise) -> Answer:
    seat_others(sampler, batch.batch_size, noise)
    return Answer.of(sampler, method, batch.device, batch, noise)


def _tokens(answer: Answer, output: object, batch: SamplingBatch) -> NDArray[np.int64]:  # [batch_size] int64
    hint = "([batch_size]). Return one token per request."
    return answer.numbers("token_ids", output, [batch.batch_size], INTEGERS, hint)


_DTYPES = {
    "logits": ("float32", "bfloat16", "float16"),
    "temperature": ("float32",),
    "top_k": ("int32",),
    "top_p": ("float32",),
    "min_p": ("float32",),
    "positions": ("int64",),
}
_RANGES = {
    "temperature": (0.0, float("inf"), "finite and at least 0", "Use 0 for greedy."),
    "top_p": (2.0**-149, 1.0, "in (0, 1]", "Use 1 to keep all."),
    "min_p": (0.0, 1.0, "in [0, 1]", "Use 0 to keep all."),
    "positions": (0, 2**62, "at least 0", "Count the tokens of the request's text."),
}


def check_sampling_batch(batch: SamplingBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `SamplingBatch`.
        ValueError: If shapes, dtypes, devices or parameters disagree with `SamplingBatch`.
    """
    validator = Validator("check_sampling_batch")
    validator.kind("batch", batch, SamplingBatch, "Build one.")
    given, rule = f"logits.shape={list(batch.logits.shape)}", "it must be [batch_size, vocab_size], each at least 1"
    fits = batch.logits.ndim == 2 and 0 not in batch.logits.shape
    validator.require(fits, given, rule, "Do not call without requests.")
    for name, tensor in batch.tensors().items():
        validator.dtype(name, tensor, _DTYPES[name])
        if name != "logits":
            why = ", one per row of logits"
            validator.shape(name, tensor, [batch.batch_size], why, "Give each request one value.")
        validator.device(name, tensor, batch.device, "logits")
    top_k = {"top_k": (1, batch.vocab_size, f"in [1, {batch.vocab_size}]", "Use vocab_size.")}
    for name, (low, high, rule, remedy) in (top_k | _RANGES).items():
        values = getattr(batch, name)
        if values is not None:
            is_right = (values >= low) & (values <= high) & values.isfinite()
            validator.values(name, values, is_right, f"it must be {rule}", remedy)


def check_sampling_noise(batch: SamplingBatch, noise: SamplingNoise) -> None:
    """Refuse noise that does not belong to `batch`.

    Raises:
        TypeError: If it is neither a race's nor seeded.
        ValueError: If a shape, dtype or device is wrong, an exponential is not positive, or a request that the batch
            does not have is given a seed.
    """
    validator = Validator("check_sampling_noise")
    if validator.is_seeded(noise, RaceNoise, batch.batch_size):
        return
    values, shape = noise.exponentials, [batch.batch_size, batch.vocab_size]
    validator.shape("exponentials", values, shape, ", one row per request", "Draw them for this batch.")
    validator.dtype("exponentials", values, ("float32",))
    validator.device("exponentials", values, batch.device, "logits")
    validator.values("exponentials", values, values > 0, "they must be positive", "Use Tensor.exponential_().")


# -- what reports say of it -------------------------------------------------------------------------------------------


def features(found: Look, batch: SamplingBatch, noise: SamplingNoise) -> None:
    """Add the features of one call."""
    add_noises(found, noise)
    read_temperatures(found, batch)
    read_positions(found, batch)
    columns = []
    for name, off in (("top_k", batch.vocab_size), ("top_p", 1.0), ("min_p", 0.0)):
        values = getattr(batch, name)
        word = name.replace("_", "-")
        columns.append([None] * found.rows if values is None else [word if v != off else None for v in values.tolist()])
    rows = [tuple(word for word in row if word) for row in zip(*columns, strict=True)]
    found.each(FILTERS, rows, ("top-k", "top-p", "min-p"))


def uses(batch: SamplingBatch) -> Iterator[Capability]:
    """Yield the filters that a batch has."""
    filters = ("top_k", "top_p", "min_p")
    return (Capability(name.replace("_", "-")) for name in filters if getattr(batch, name) is not None)


CONTRACT = Contract(
    "sampling",
    call="sample(batch, noise)",
    beside={"draft": None},
    case="fairdraw.strategies.sampling:SamplingCase",
    mutants=(
        "fairdraw._mutants.sampling:MUTANTS",
        "fairdraw._mutants.sampling_distributions:DISTRIBUTION_MUTANTS",
        "fairdraw._mutants._dependence:SAMPLING_MUTANTS",
    ),
    raised="SAM100",
    answer="an int64 or int32 tensor [batch_size] on the batch's device; of `draft`, a Drafted",
    features=features,
    uses=uses,
    has_distributions=True,
    takes_noise=True,
)
