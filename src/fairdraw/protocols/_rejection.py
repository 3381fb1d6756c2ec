"""The rejection contract: the batch, the noise, the sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from fairdraw.protocols._batch import Batch, rows_of
from fairdraw.protocols._capabilities import Capabilities, KnownDefect
from fairdraw.protocols._switches import SizeSwitches, checked_switches

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fairdraw.protocols._lifecycle import SyncFunction

PLACEHOLDER_TOKEN_ID = -1
"""Fills the output after the last token, and is the id of a placeholder draft."""

GREEDY_TEMPERATURE = 0.0
"""A request with exactly this temperature is greedy."""


@dataclass(frozen=True, eq=False, repr=False)
class SpecDecodeBatch(Batch):
    """One verification step of speculative decoding: what the sampler is given.

    The layout is vLLM's. Draft tokens of all requests are flattened; request `i` owns the rows
    `cu_num_draft_tokens[i - 1] : cu_num_draft_tokens[i]`. Target logits are *processed*:
    temperature, penalties and filters have been applied, `softmax(target_logits)` is the target distribution.

    Args:
        num_draft_tokens: Per request; 0 is legal.
        cu_num_draft_tokens: Inclusive cumulative sum, no leading 0.
        max_spec_len: At least `max(num_draft_tokens)`; the output is one wider.
        draft_probs: The distribution that each draft token was drawn from; `None` if drafts are one-hot (n-gram).
        temperature: 0 marks a greedy request; other values are informative only (already applied).
        synthetic_rates: Acceptance probability per draft position, replacing the target/draft ratio.
        positions: Of each request's first draft token in its sequence; a sampler that brings its drafter gets them, and
            its steps advance by what was emitted; so does one that follows its rows, in serving traces. `None`
            elsewhere.
        bonus_logits: Of the token after each request's drafts, for a sampler that draws its bonus token itself; one
            that does not passes `bonus_token_ids` on. Given with `positions`.
    """

    draft_token_ids: Tensor  # [num_tokens] int32
    num_draft_tokens: list[int]  # [batch_size]
    cu_num_draft_tokens: Tensor  # [batch_size] int32
    max_spec_len: int
    draft_probs: Tensor | None  # [num_tokens, vocab_size] float32
    target_logits: Tensor  # [num_tokens, vocab_size] float32 | bfloat16 | float16
    bonus_token_ids: Tensor  # [batch_size, 1] int32
    temperature: Tensor  # [batch_size] float32
    synthetic_rates: Tensor | None = None  # [max_spec_len] float32
    positions: Tensor | None = None  # [batch_size] int64
    bonus_logits: Tensor | None = None  # [batch_size, vocab_size] float32
    _over_vocabulary: ClassVar[str] = "target_logits"

    @property
    def batch_size(self) -> int:
        return len(self.num_draft_tokens)

    @property
    def num_tokens(self) -> int:
        return int(self.draft_token_ids.shape[0])

    @property
    def is_greedy(self) -> Tensor:  # [batch_size] bool
        return self.temperature == GREEDY_TEMPERATURE

    def target_probs(self) -> Tensor:  # [num_tokens, vocab_size] float32
        """The target distribution as vLLM computes it: one float32 softmax over the processed logits."""
        import torch

        return self.target_logits.softmax(dim=-1, dtype=torch.float32).contiguous()

    def padded(self, rows: Sequence[Sequence[int]]) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        """Return the tokens that each request emits as the tensor that `verify` returns."""
        import torch

        width = self.max_spec_len + 1
        filled = [[*row, *[PLACEHOLDER_TOKEN_ID] * (width - len(row))] for row in rows]
        return torch.tensor(filled, dtype=torch.int32, device=self.device)

    def token_slice(self, request: int) -> slice:
        """Rows of `request` in every per-token tensor."""
        end = sum(self.num_draft_tokens[: request + 1])
        return slice(end - self.num_draft_tokens[request], end)

    def token_rows(self, requests: Sequence[int]) -> Tensor:  # [num_tokens of these requests] int64
        """Rows of `requests` in every per-token tensor."""
        rows = [row for i in requests for row in range(*self.token_slice(i).indices(self.num_tokens))]
        return rows_of(rows, self.device)

    def select(self, requests: Sequence[int]) -> SpecDecodeBatch:
        """The batch made of these requests, in this order (a permutation, a subset, or with repeats)."""
        import torch

        index, order = self.token_rows(requests), rows_of(requests, self.device)
        counts = [self.num_draft_tokens[i] for i in requests]
        return self.replace(
            draft_token_ids=self.draft_token_ids[index],
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(self.device),
            draft_probs=None if self.draft_probs is None else self.draft_probs[index],
            target_logits=self.target_logits[index],
            bonus_token_ids=self.bonus_token_ids[order],
            temperature=self.temperature[order],
            positions=None if self.positions is None else self.positions[order],
            bonus_logits=None if self.bonus_logits is None else self.bonus_logits[order],
        )


@dataclass(frozen=True, eq=False, repr=False)
class DraftStep(Batch):
    """One drafting step: a row of draft logits per request. A drafter is asked once per draft position of a batch.

    Requests are those of the batch that is verified next, in its order. Each is asked for as many drafts as the longest
    has, as in an engine; what a request has no use for is dropped.

    Args:
        draft_logits: The draft model's, before temperature.
        positions: Of the token to be drafted, in its request's sequence.
        temperature: As in `SpecDecodeBatch`.
        step: Number of the draft position, from 0.
    """

    draft_logits: Tensor  # [batch_size, vocab_size] float32
    positions: Tensor  # [batch_size] int64
    temperature: Tensor  # [batch_size] float32
    step: int
    _over_vocabulary: ClassVar[str] = "draft_logits"

    @property
    def batch_size(self) -> int:
        return int(self.draft_logits.shape[0])


@dataclass(frozen=True, eq=False, repr=False)
class ProposedDrafts(Batch):
    """Drafts before the target model has seen them: what `trim` decides about.

    The layout is that of `SpecDecodeBatch`. A row of `draft_probs` was computed from the tokens before it, as drafters
    do that draw one token after the other.
    """

    draft_token_ids: Tensor  # [num_tokens] int32
    num_draft_tokens: list[int]  # [batch_size]
    draft_probs: Tensor  # [num_tokens, vocab_size] float32
    temperature: Tensor  # [batch_size] float32
    _over_vocabulary: ClassVar[str] = "draft_probs"

    @property
    def batch_size(self) -> int:
        return len(self.num_draft_tokens)


@dataclass(frozen=True, eq=False)
class Drafted:
    """What a drafter returns: a token per request, and the distribution that it was drawn from.

    Args:
        draft_probs: `None` from `propose` only: drafts are one-hot, whatever they were chosen by.
    """

    token_ids: Tensor  # [batch_size] int32 | int64
    draft_probs: Tensor | None  # [batch_size, vocab_size] float32


@dataclass(frozen=True, eq=False)
class ExplicitNoise:
    """The random numbers of one call, given by the caller.

    A draft token is accepted if `target_prob / draft_prob >= uniform`; a recovered token is the
    argmax over the vocabulary of `residual / exponential` (the exponential race). A division and a product with the
    reciprocal are both right; formulas that round otherwise are, too, if `reference-rounding` is unsupported.
    """

    uniforms: Tensor  # [num_tokens] float64, in [0, 1)
    exponentials: Tensor  # [batch_size, vocab_size] float32, > 0

    def select(self, batch: SpecDecodeBatch, requests: Sequence[int]) -> ExplicitNoise:
        """The noise of `batch.select(requests)`."""
        rows = batch.token_rows(requests).to(self.uniforms.device)
        return ExplicitNoise(self.uniforms[rows], self.exponentials[rows_of(requests, self.exponentials.device)])


@dataclass(frozen=True)
class SeededNoise:
    """Seeds from which the sampler draws its own random numbers.

    The harness seeds the global generators of torch, NumPy and `random` with `seed` just before the sampler, so a
    sampler that uses these need do nothing; one with its own counters should take `seed`.

    `generators` are made once for each object, and the harness reads the states in which the sampler left them. Most
    checks make one call with an object. Those of consecutive steps make several: a request's generator then goes on
    from where the call before left it, as in a server.

    The checks of a drafter and its verifier keep one object for all of its requests' calls, and seed torch's default
    generator before the first of them only. A sampler with counters draws by a request's seed and position; what it
    gives a request without a seed when it first sees it belongs into `kept`. That is empty at first, and what a sampler
    puts there it finds again at its next call with this object.

    Args:
        seed: For everything that has no generator of its own.
        request_seeds: Request to the seed of its own generator: any integer of 64 bits, negative ones among them,
            because users write them and torch's generators and vLLM's requests take them.
    """

    seed: int
    request_seeds: Mapping[int, int] = field(default_factory=dict)
    kept: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    _live: dict[int, torch.Generator] = field(default_factory=dict, init=False, repr=False, compare=False)

    def generators(self, device: str | torch.device = "cpu") -> dict[int, torch.Generator]:
        """One generator per seeded request; the same objects at every call."""
        import torch

        for request, seed in self.request_seeds.items():
            if request not in self._live:
                self._live[request] = torch.Generator(device).manual_seed(seed)
        return self._live


Noise = ExplicitNoise | SeededNoise
"""What a rejection sampler draws from: numbers to be used as they are, or seeds."""


@runtime_checkable
class RejectionSampler(Protocol):
    """A sampler under the rejection contract. Any object with these attributes is one; do not subclass.

    `verify` returns `[batch_size, max_spec_len + 1] int32`: per request the accepted drafts, then one
    recovered or bonus token, then `PLACEHOLDER_TOKEN_ID`. It must not modify the batch. The result may have any
    strides, and may be a buffer that the next call writes again: the suite copies it at once. Optional attributes:
    `size_switches`, the sizes at which its kernels switch; a method `sync(changes)`, which gets before a call what
    happened to the rows since the call before (`RowChanges`), if something is kept by row.
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor: ...


@runtime_checkable
class DraftingSampler(RejectionSampler, Protocol):
    """A rejection sampler that brings its drafter (capability `drafter`): both are judged together.

    `propose` returns a draft token per request and the distribution that it was drawn from. It draws from the noise
    that `verify` gets afterwards: the same object.
    """

    def propose(self, step: DraftStep, noise: SeededNoise) -> Drafted: ...


VerifyFunction = Callable[[SpecDecodeBatch, Noise], "Tensor"]
"""A rejection sampler as a function: it returns output tokens, `[batch_size, max_spec_len + 1] int32`."""

ProposeFunction = Callable[[DraftStep, SeededNoise], Drafted]
"""A drafter as a function."""

TrimFunction = Callable[[ProposedDrafts], "Tensor"]
"""How many drafts of each request are verified, `[batch_size]` int32 or int64: the first ones, from 0 to all.

Whether a draft is kept may depend on the tokens before it, and on distributions up to the one that it was drawn from.
It must not depend on its own token, or on anything computed from it: the rows behind it.
"""


@dataclass(frozen=True)
class FunctionSampler:
    """A plain function as a `RejectionSampler`; made by `rejection_sampler`."""

    name: str
    function: VerifyFunction
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    contract: Literal["rejection"] = "rejection"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)
    propose: ProposeFunction | None = field(default=None, kw_only=True)
    trim: TrimFunction | None = field(default=None, kw_only=True)
    sync: SyncFunction | None = field(default=None, kw_only=True)
    size_switches: SizeSwitches = field(default_factory=dict, kw_only=True)

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return self.function(batch, noise)


def rejection_sampler(
    function: VerifyFunction,
    *,
    propose: ProposeFunction | None = None,
    trim: TrimFunction | None = None,
    sync: SyncFunction | None = None,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    size_switches: SizeSwitches | None = None,
    slow: bool = False,
) -> FunctionSampler:
    """Wrap `function(batch, noise) -> output_token_ids` for the suite.

    Args:
        propose: The drafter, `function(step, noise) -> Drafted`, if the two are to be judged together.
        trim: `function(drafts) -> num_kept`, if fewer drafts than were proposed may be verified.
        sync: `function(changes)`, if something is kept by row: what happened to the rows, before the call.
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's tensors are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        size_switches: Sizes at which kernels switch, of `vocabulary`, `rows`, `drafts`: both sides are walked.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason, or `size_switches` an unknown size.
    """
    capabilities = Capabilities.of(unsupported or {}, slow)
    switches = checked_switches("rejection_sampler", size_switches or {}, drafts=True)
    more: dict[str, Any] = {"propose": propose, "trim": trim, "sync": sync, "size_switches": switches}  # Any: fields
    return FunctionSampler(name or function.__name__, function, device, capabilities, **more)


def brings_drafter(sampler: object) -> bool:
    """Whether `sampler` has a drafter of its own."""
    return callable(getattr(sampler, "propose", None))


def trims_drafts(sampler: object) -> bool:
    """Whether `sampler` decides how many drafts are verified."""
    return callable(getattr(sampler, "trim", None))
