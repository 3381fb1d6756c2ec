"""The sampling contract: one token per request; a drafter also returns the distributions that it drew from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from fairdraw.protocols._batch import Batch, rows_of
from fairdraw.protocols._capabilities import Capabilities, Capability, KnownDefect
from fairdraw.protocols._rejection import Drafted, SeededNoise
from fairdraw.protocols._switches import SizeSwitches, checked_switches

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols._lifecycle import SyncFunction

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

    def select(self, requests: Sequence[int]) -> SamplingBatch:
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
            raise ValueError(
                f"FilterPolicy: order={self.order}, but it must name min_p, top_k and top_p once each. Reorder them."
            )
        words = {"temperature": ("first", "last"), "top_k_ties": ("all", "some"), "top_p_ties": ("all", "some")}
        for name, known in words.items():
            if getattr(self, name) not in known:
                rule = " or ".join(known)
                raise ValueError(
                    f"FilterPolicy: {name}={getattr(self, name)!r}, but it must be {rule}. Correct the word."
                )


@runtime_checkable
class TokenSampler(Protocol):
    """A sampler under the sampling contract. Any object with these attributes is one; do not subclass.

    `sample` returns one token id per request, `[batch_size]` int32 or int64, with any strides; it may be a buffer that
    the next call writes again, because the suite copies it at once. It must not modify the batch. An attribute
    `filters` (a `FilterPolicy`) says how it filters; without one, as vLLM 0.22.0 does. Also optional: an attribute
    `size_switches`, the sizes at which its kernels switch; a method `sync(changes)`, which gets before a call what
    happened to the rows since the call before (`RowChanges`), if something is kept by row.
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
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
