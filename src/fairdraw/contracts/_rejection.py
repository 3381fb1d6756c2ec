"""The rejection contract: drafts are verified against the target's rows, as speculative decoding does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from fairdraw._core import looks
from fairdraw._core.batches import Batch, rows_of
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.noise import Drafted, SeededNoise, default_state, generator_states, seeded
from fairdraw._core.rows import SyncFunction, seat_others
from fairdraw._core.switches import MAX_SPEC_LEN, SizeSwitches, checked_switches
from fairdraw._core.validation import Answer, Validator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw._core.array_types import Outputs, PerRequest
    from fairdraw._core.looks import Look
    from fairdraw._core.tensor_types import OutputTokens

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

    def dense_draft_probs(self) -> Tensor:  # [num_tokens, vocab_size] float32
        """The distribution of each draft; that of a one-hot draft is spelled out, and a placeholder's is 0."""
        import torch

        if self.draft_probs is not None:
            return self.draft_probs
        return (self.draft_token_ids[:, None] == torch.arange(self.vocab_size, device=self.device)).float()

    def spread(self, rows: Tensor, width: int) -> Tensor:  # [batch_size, width, ...] as rows
        """Rows of drafts, each request's from column 0; zeros behind."""
        import torch

        counts = torch.tensor(self.num_draft_tokens, dtype=torch.int64, device=rows.device)
        spread = rows.new_zeros(self.batch_size, width, *rows.shape[1:])
        spread[torch.arange(width, device=rows.device) < counts[:, None]] = rows
        return spread

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

        rows = {"num_tokens": self.token_rows(requests), "batch_size": rows_of(requests, self.device)}
        firsts = {name: _FIELDS[name][1][0] for name in self.tensors()}
        chosen = {name: getattr(self, name)[rows[first]] for name, first in firsts.items() if first in rows}
        counts = [self.num_draft_tokens[i] for i in requests]
        ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(self.device)
        return self.replace(**{**chosen, "num_draft_tokens": counts, "cu_num_draft_tokens": ends})


class PaddedBatch(NamedTuple):
    """A batch as engines with padded tensors have it: each request from column 0, zeros behind; made by `padded`.

    Such an engine draws the bonus token itself, from the row behind the drafts. The suite has drawn it already, so the
    row is one-hot. The last column of `uniforms` is for the token behind the accepted drafts.
    """

    draft_token_ids: Tensor  # [batch_size, max_spec_len] int64
    num_draft_tokens: Tensor  # [batch_size] int64
    draft_probs: Tensor  # [batch_size, max_spec_len, vocab_size] float32
    target_probs: Tensor  # [batch_size, max_spec_len + 1, vocab_size] float32
    uniforms: Tensor  # [batch_size, max_spec_len + 1] float64, in [0, 1)


def padded(batch: SpecDecodeBatch, noise: Noise) -> PaddedBatch:
    """Return the padded tensors of a batch, with the uniforms of explicit noise, or drawn from torch's generator.

    The last uniform of a request is made of one exponential: declare `reference-race` unsupported.
    """
    import torch

    size, width = batch.batch_size, batch.max_spec_len
    counts = torch.tensor(batch.num_draft_tokens, dtype=torch.int64, device=batch.device)
    target_probs = batch.spread(batch.target_probs(), width + 1)
    target_probs[torch.arange(size), counts, batch.bonus_token_ids[:, 0].long()] = 1.0
    if isinstance(noise, SeededNoise):
        uniforms = torch.rand(size, width + 1, dtype=torch.float64, device=batch.device)
    else:
        uniforms = batch.spread(noise.uniforms, width + 1)
        uniforms[:, -1] = torch.exp(-noise.exponentials[:, 0].double()).clamp(max=1 - 2**-53)
    ids, draft_probs = batch.draft_token_ids.long(), batch.dense_draft_probs()
    return PaddedBatch(batch.spread(ids, width), counts, batch.spread(draft_probs, width), target_probs, uniforms)


@dataclass(frozen=True, eq=False, repr=False)
class DraftStep(Batch):
    """One drafting step: a row of draft logits per request. A drafter is asked once per draft position of a batch.

    Requests are those of the batch that is verified next, in its order. Each is asked for as many drafts as the longest
    has, as in an engine; what a request has no use for is dropped.

    Args:
        draft_logits: The draft model's, before temperature.
        positions: Of the token to be drafted, in its request's sequence.
        temperature: As in `SpecDecodeBatch`: 0 marks a greedy request. The drafts of those are not judged, only used.
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


Noise = ExplicitNoise | SeededNoise
"""What a rejection sampler draws from: numbers to be used as they are, or seeds."""


@runtime_checkable
class RejectionSampler(AnySampler, Protocol):
    """A sampler under the rejection contract. Any object with these attributes is one; do not subclass.

    `verify` returns `[batch_size, max_spec_len + 1] int32`: per request the accepted drafts, then one
    recovered or bonus token, then `PLACEHOLDER_TOKEN_ID`. It must not modify the batch. The result may have any
    strides, and may be a buffer that the next call writes again: the suite copies it at once. Optional attributes:
    `size_switches`, the sizes at which its kernels switch; a method `sync(changes)`, which gets before a call what
    happened to the rows since the call before (`RowChanges`), if something is kept by row.
    """

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


# -- how the suite calls a sampler: the same way everywhere, with batch, noise and output checked ---------------------


@dataclass(frozen=True)
class Emission:
    """The result of one call of a sampler.

    Args:
        tokens: A copy of the output: a sampler may use its buffer again.
        generator_states: Request to the final state of its own generator (seeded noise only).
        default_state: Final state of torch's default generator on the sampler's device.
    """

    tokens: NDArray[np.int32]  # [batch_size, max_spec_len + 1] int32
    generator_states: dict[int, bytes]
    default_state: bytes

    def emitted(self, request: int) -> list[int]:
        """The request's tokens: everything before the trailing placeholders."""
        import numpy as np

        row = self.tokens[request]
        kept = np.flatnonzero(row != PLACEHOLDER_TOKEN_ID)
        return [int(token) for token in row[: kept[-1] + 1]] if kept.size else []


def emit(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> Emission:
    """Call `sampler` once, with the batch and the output checked.

    The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If batch or noise break the contract (a fault of the caller).
        AdapterError: If the sampler's output is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).

    Randomness:
        With `SeededNoise`, the global generators (torch's, NumPy's, Python's) are seeded with `noise.seed` just before
        the call. `seeded` says when their states are put back.
    """
    check_batch(batch)
    check_noise(batch, noise)
    with seeded(noise, batch.device):
        tokens = _verified(sampler, batch, noise)
        return Emission(tokens, generator_states(noise, batch.device), default_state(batch.device))


def emit_next(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> Outputs:
    """The tokens of a call within `seeded`: torch's default generators go on from where the call before left them."""
    check_batch(batch)
    check_noise(batch, noise)
    return _verified(sampler, batch, noise)


def emit_on_device(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> OutputTokens:
    """A copy of the output of `emit`, where the batch lies. Here the batch must be right; it is not checked."""
    import torch

    check_noise(batch, noise)
    with seeded(noise, batch.device):
        output = _output(sampler, batch, noise)
        with calling(sampler):  # as in `_verified`
            copied = output.clone()
            if batch.device.type == "cuda":
                torch.cuda.synchronize(batch.device)
    return copied


def _verified(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> Outputs:
    output = _output(sampler, batch, noise)
    with calling(sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
        tokens = output.cpu()
    return tokens.numpy().copy()


def _output(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> OutputTokens:
    seat_others(sampler, batch.batch_size, noise)
    return check_output(batch, Answer.of(sampler, "verify", batch.device, batch, noise))


@dataclass(frozen=True)
class Proposal:
    """The result of one call of a drafter; copies."""

    token_ids: NDArray[np.int64]  # [batch_size] int64
    draft_probs: NDArray[np.float32] | None  # [batch_size, vocab_size] float32


def propose_next(sampler: DraftingSampler, step: DraftStep, noise: SeededNoise) -> Proposal:
    """Call the drafter once, within `seeded`.

    Raises:
        AdapterError: If the answer is not of the contract's type, or its rows are no distributions.
        Exception: Whatever the drafter raises, marked as its own.
    """
    seat_others(sampler, step.batch_size, noise)
    return check_proposal(step, Answer.of(sampler, "propose", step.device, step, noise))


def num_kept(sampler: Any, drafts: ProposedDrafts) -> PerRequest:
    """How many drafts of each request the sampler's `trim` keeps. Any: a rejection sampler with that method.

    Raises:
        AdapterError: If the answer is no tensor of such numbers.
        Exception: Whatever the sampler raises, marked as its own.
    """
    answer = Answer.of(sampler, "trim", drafts.device, drafts)
    kept: PerRequest = answer.numbers("num_kept", answer.value, [drafts.batch_size], _INTEGERS, "([batch_size]).")
    if ((kept < 0) | (kept > drafts.num_draft_tokens)).any():
        rule = "each must lie between 0 and the request's number of drafts"
        raise AdapterError(f"{answer.returned} {kept.tolist()[:8]}, but {rule}. Count the drafts that are verified.")
    return kept


# -- what passes is checked -------------------------------------------------------------------------------------------

# Rounding a row to bfloat16 moves its sum by up to 2**-9; rounding 151936 tokens to multiples of 2**-24, as float16
# does with small numbers, by up to 151936 * 2**-25 = 0.0045. A forgotten normalisation moves it by far more.
_ROW_SUM_TOLERANCE = 2.0**-7
_INTEGERS = ("int32", "int64")

_FIELDS = {
    "draft_token_ids": (("int32",), ("num_tokens",)),
    "cu_num_draft_tokens": (("int32",), ("batch_size",)),
    "draft_probs": (("float32",), ("num_tokens", "vocab_size")),
    "target_logits": (("float32", "bfloat16", "float16"), ("num_tokens", "vocab_size")),
    "bonus_token_ids": (("int32",), ("batch_size", "one")),
    "temperature": (("float32",), ("batch_size",)),
    "synthetic_rates": (("float32",), ("max_spec_len",)),
    "positions": (("int64",), ("batch_size",)),
    "bonus_logits": (("float32",), ("batch_size", "vocab_size")),
}
"""Tensors of a batch: their dtypes and their sizes."""
_OPTIONAL = ("draft_probs", "synthetic_rates", "positions", "bonus_logits")


def check_batch(batch: SpecDecodeBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If a field is not of its type (a tensor, a list of integers, an integer).
        ValueError: If shapes, dtypes, devices, ids, counts or probabilities disagree with `SpecDecodeBatch`.
    """
    validator = Validator("check_batch")
    _check_types(validator, batch)
    _check_counts(validator, batch)
    _check_shapes(validator, batch)
    for name, tensor in batch.tensors().items():
        validator.dtype(name, tensor, _FIELDS[name][0])
        validator.device(name, tensor, batch.device, "target_logits")
    _check_tokens(validator, batch)
    _check_draft_probs(validator, batch)
    _check_parameters(validator, batch)


def _check_types(validator: Validator, batch: SpecDecodeBatch) -> None:
    validator.kind("batch", batch, SpecDecodeBatch, "Build one from your tensors.")
    for name in _FIELDS:
        value, may_be_none = getattr(batch, name), name in _OPTIONAL
        if not (may_be_none and value is None):
            validator.tensor(name, value, " or None" if may_be_none else "")
    counts, remedy = batch.num_draft_tokens, "Use .tolist() on a tensor or array."
    are_ints = isinstance(counts, list) and {*map(type, counts)} <= {int}
    given = "" if are_ints else f"num_draft_tokens={counts!r}"  # thousands of numbers: written only if it is read
    validator.require(are_ints, given, "it must be a list of int", remedy, TypeError)
    given, is_int = f"max_spec_len={batch.max_spec_len!r}", type(batch.max_spec_len) is int
    validator.require(is_int, given, "it must be an int", "Use max(num_draft_tokens).", TypeError)


def _check_counts(validator: Validator, batch: SpecDecodeBatch) -> None:
    counts = batch.num_draft_tokens
    given = "" if counts and min(counts) >= 0 else f"num_draft_tokens={counts}"
    validator.require(bool(counts), given, "there must be a request", "Do not call without requests.")
    validator.require(min(counts) >= 0, given, "counts must not be negative", "Use 0 for no drafts.")
    rule = f"it must lie between max(num_draft_tokens)={max(counts)} and {MAX_SPEC_LEN}"
    fits = max(counts) <= batch.max_spec_len <= MAX_SPEC_LEN
    validator.require(fits, f"max_spec_len={batch.max_spec_len}", rule, "Use max(num_draft_tokens).")


def _check_shapes(validator: Validator, batch: SpecDecodeBatch) -> None:
    logits, num_tokens = batch.target_logits, sum(batch.num_draft_tokens)
    fits = logits.ndim == 2 and logits.shape[0] == num_tokens and logits.shape[1] >= 1
    rule = f"it must be [{num_tokens}, vocab_size] with at least one token in the vocabulary"
    remedy = "Give each draft token a row of logits."
    validator.require(fits, f"target_logits.shape={list(logits.shape)}", rule, remedy)
    sizes = {name: getattr(batch, name) for name in ("batch_size", "vocab_size", "max_spec_len")}
    sizes |= {"num_tokens": num_tokens, "one": 1}
    why = f" for {num_tokens} draft tokens of {batch.batch_size} requests"
    remedy = "Flatten drafts over requests; give each request one bonus token."
    for name, tensor in batch.tensors().items():
        validator.shape(name, tensor, [sizes[size] for size in _FIELDS[name][1]], why, remedy)


def _check_tokens(validator: Validator, batch: SpecDecodeBatch) -> None:
    import numpy as np
    import torch

    given = batch.cu_num_draft_tokens
    counts = np.fromiter(batch.num_draft_tokens, np.int64, batch.batch_size)  # of a long list the fastest
    running = torch.from_numpy(counts.cumsum()).to(given)
    rule = "it must be the inclusive cumulative sum of num_draft_tokens"
    remedy = "Use torch.tensor(num_draft_tokens).cumsum(0, dtype=torch.int32)."
    validator.values("cu_num_draft_tokens", given, given == running, rule, remedy)
    drafts, bonus, size = batch.draft_token_ids, batch.bonus_token_ids, batch.vocab_size
    is_draft = (drafts >= PLACEHOLDER_TOKEN_ID) & (drafts < size)
    rule, remedy = f"ids must lie in [0, {size}) or be {PLACEHOLDER_TOKEN_ID}", "Use -1 for a placeholder draft."
    validator.values("draft_token_ids", drafts, is_draft, rule, remedy)
    rule, remedy = f"ids must lie in [0, {size})", "Sample one bonus token per request from the target distribution."
    validator.values("bonus_token_ids", bonus, (bonus >= 0) & (bonus < size), rule, remedy)


def _check_draft_probs(validator: Validator, batch: SpecDecodeBatch) -> None:
    import torch

    if batch.draft_probs is None:
        return
    rows = batch.draft_probs
    if _are_clearly_distributions(rows):
        return
    validator.values("draft_probs", rows, rows >= 0, "probabilities must be at least 0", "Use softmax.")
    sums = rows.sum(-1, dtype=torch.float64)
    # A row of zeros is legal: "no draft distribution here", as for a placeholder draft.
    is_right = (sums - 1).abs().le(_ROW_SUM_TOLERANCE) | sums.eq(0)
    rule = f"a row must sum to 1 within {_ROW_SUM_TOLERANCE} (or be all 0)"
    validator.values("draft_probs.sum(-1)", sums, is_right, rule, "Use softmax(draft_logits, -1).")


def _are_clearly_distributions(rows: Tensor) -> bool:  # [num_tokens, vocab_size] float32
    """By sums in float32, which are a third of the work; false if they leave a doubt, or a row is 0."""
    if not rows.numel():
        return False
    return bool((rows.amin() >= 0) & ((rows.sum(-1) - 1).abs() <= _ROW_SUM_TOLERANCE / 2).all())


def _check_parameters(validator: Validator, batch: SpecDecodeBatch) -> None:
    values, rates = batch.temperature, batch.synthetic_rates
    rule, remedy = "temperatures must be finite and at least 0", "Use 0 for greedy."
    validator.values("temperature", values, (values >= 0) & values.isfinite(), rule, remedy)
    if rates is not None:
        rule, remedy = "rates must lie in [0, 1]", "Use synthetic_rates.clamp(0, 1)."
        validator.values("synthetic_rates", rates, (rates >= 0) & (rates <= 1), rule, remedy)


def check_noise(batch: SpecDecodeBatch, noise: Noise) -> None:
    """Refuse noise that does not belong to `batch`.

    Raises:
        TypeError: If it is neither explicit nor seeded.
        ValueError: If a shape, dtype or device is wrong, a uniform lies outside [0, 1), an exponential is not positive,
            or a request that the batch does not have is given a seed.
    """
    validator = Validator("check_noise")
    if validator.is_seeded(noise, ExplicitNoise, batch.batch_size):
        return
    uniforms, exponentials = noise.uniforms, noise.exponentials
    for name, tensor, shape, why, dtype in (
        ("uniforms", uniforms, [batch.num_tokens], ", one per draft token", "float64"),
        ("exponentials", exponentials, [batch.batch_size, batch.vocab_size], ", one row per request", "float32"),
    ):
        validator.tensor(name, tensor)
        validator.shape(name, tensor, shape, why, "Draw the noise for this batch.")
        validator.dtype(name, tensor, (dtype,))
        validator.device(name, tensor, batch.device, "target_logits")
    is_right = (uniforms >= 0) & (uniforms < 1)
    validator.values("uniforms", uniforms, is_right, "uniforms must lie in [0, 1)", "Use torch.rand.")
    rule, remedy = "exponentials must be positive", "Use Tensor.exponential_()."
    validator.values("exponentials", exponentials, exponentials > 0, rule, remedy)


def check_output(batch: SpecDecodeBatch, answer: Answer) -> OutputTokens:
    """The sampler's output, if it is one.

    Raises:
        AdapterError: If it is not an int32 tensor of shape `[batch_size, max_spec_len + 1]` on the batch's device.
    """
    shape = [batch.batch_size, batch.max_spec_len + 1]
    hint = f"([batch_size, max_spec_len + 1]). Fill the end of short rows with {PLACEHOLDER_TOKEN_ID}."
    return answer.tensor("output_token_ids", answer.value, shape, ("int32",), hint)


def check_proposal(step: DraftStep, answer: Answer) -> Proposal:
    """What a drafter returned, if it is a token of the vocabulary and a distribution (or none) per request.

    Raises:
        AdapterError: If it is not.
    """
    drafted, probs = answer.as_kind(Drafted, "token_ids, draft_probs"), None
    size, hint = step.batch_size, "([batch_size]). Return one token per request."
    ids = answer.numbers("token_ids", drafted.token_ids, [size], _INTEGERS, hint)
    if ((ids < 0) | (ids >= step.vocab_size)).any():
        rule = f"they must lie in [0, {step.vocab_size})"
        raise AdapterError(f"{answer.returned} ids outside the vocabulary, but {rule}.")
    if drafted.draft_probs is not None:
        shape, hint = [size, step.vocab_size], "([batch_size, vocab_size])."
        probs = answer.numbers("draft_probs", drafted.draft_probs, shape, ("float32",), hint)
        if not ((probs >= 0).all(axis=1) & (abs(probs.sum(axis=1, dtype=float) - 1) <= _ROW_SUM_TOLERANCE)).all():
            rule = "Rows must be positive and sum to 1"
            raise AdapterError(f"{answer.returned} draft_probs that are no distributions. {rule}.")
    return Proposal(ids, probs)


# -- what reports say of it -------------------------------------------------------------------------------------------


def _features(found: Look, batch: SpecDecodeBatch, noise: Noise) -> None:
    """Add the features of one call."""
    looks.add_noises(found, noise)
    looks.read_lengths(found, batch)
    looks.add_choice(found, "draft distributions", "dense drafts", "one-hot drafts", batch.draft_probs is None)
    looks.add_choice(found, looks.PLACEHOLDERS, "known drafts", looks.PLACEHOLDER, (batch.draft_token_ids < 0).any())
    looks.add_choice(found, "acceptance", "probabilities", looks.RATES, batch.synthetic_rates is not None)
    looks.read_temperatures(found, batch)
    looks.read_positions(found, batch)


CONTRACT = Contract(
    "rejection",
    call="verify(batch, noise)",
    beside={
        "propose": (Capability.DRAFTER, "it brings no drafter (a method `propose`)"),
        "trim": (Capability.TRIM, "it verifies all drafts (it has no method `trim`)"),
    },
    case="fairdraw.strategies:RejectionCase",
    mutants=(
        "fairdraw._mutants.rejection:MUTANTS",
        "fairdraw._mutants.distributions:DISTRIBUTION_MUTANTS",
        "fairdraw._mutants._dependence:REJECTION_MUTANTS",
        "fairdraw._mutants._pairs:PAIR_MUTANTS",
        "fairdraw._mutants._trimming:TRIM_MUTANTS",
    ),
    default="rejection/torch",
    raised="REJ100",
    answer="an int32 tensor [batch_size, max_spec_len + 1] on the batch's device",
    features=_features,
    has_distributions=True,
    takes_noise=True,
    one_of=("dense-drafts", "one-hot-drafts"),
)
