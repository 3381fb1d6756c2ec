"""The grammar contract: bitmasks of allowed tokens on logits, alone and with a grammar forked over drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fairdraw._core.batches import Batch, RequestRows, rows_of
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.failures import calling
from fairdraw._core.looks import Look, add_choice, read_lengths
from fairdraw._core.noise import SeededNoise, seeded
from fairdraw._core.validation import Answer, Validator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw._core.tensor_types import AnyLogitRows

BITS_PER_WORD = 32
"""Token ids in a word of a bitmask: id `i` is bit `i % 32` of word `i // 32`."""

Beyond = Literal["kept", "forbidden"]
"""What happens to columns of the logits for which the bitmask has no word."""


def num_words(vocab_size: int) -> int:
    """Words of a bitmask for so many tokens.

    Example:
        >>> num_words(33)
        2
    """
    return -(-vocab_size // BITS_PER_WORD)


@dataclass(frozen=True, eq=False, repr=False)
class BitmaskBatch(Batch):
    """One application of bitmasks: row `i` of the logits is masked by row `i` of the bitmask.

    Args:
        logits: They may be written in place.
        bitmask: Bit 0 forbids a token. Bits beyond the vocabulary mean nothing.
        indices: The rows that are masked, in any order; all others stay as they are. `None` masks every row. With
            indices, the bitmask may have more rows than the logits.
    """

    logits: Tensor  # [num_rows, vocab_size] float32 | bfloat16 | float16
    bitmask: Tensor  # [num_masks, num_words] int32
    indices: Tensor | None = None  # [num_indices] int64

    @property
    def batch_size(self) -> int:
        return int(self.logits.shape[0])

    @property
    def rows(self) -> Tensor:  # [num_indices] int64
        """The rows that are masked."""
        return rows_of(range(self.batch_size), self.device) if self.indices is None else self.indices


class TokenGrammar(Protocol):
    """The state of one request's grammar: what engines call a matcher."""

    @property
    def is_terminated(self) -> bool:
        """The text is complete: no token can follow."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token. `False`, and nothing changes, if the grammar does not allow it."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted."""
        ...

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        """Write the tokens that are allowed now; raises if the text is complete, as engines' matchers do."""
        ...


@dataclass(frozen=True, eq=False)
class GrammarRequest:
    """One request of a step.

    Args:
        grammar: Its state after the tokens that were emitted before; `None`: the request has no grammar.
        draft_token_ids: As the drafter proposed them; the grammar may forbid some.
    """

    grammar: TokenGrammar | None
    draft_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class GrammarBatch(RequestRows, Batch):
    """One step of requests with and without grammars.

    A request with `n` drafts owns `n + 1` consecutive rows: those that its drafts are verified with, then that of the
    bonus token. Row `i` allows what the grammar allows after the first `i` drafts. A draft that the grammar forbids,
    and one that ends the text, ends the prefix: nobody reads the rows behind it.

    Args:
        logits: They may be written in place.
    """

    logits: Tensor  # [num_rows, vocab_size] float32 | bfloat16 | float16
    requests: tuple[GrammarRequest, ...]

    @property
    def max_spec_len(self) -> int:
        return max(self.num_draft_tokens)


@runtime_checkable
class GrammarMasker(AnySampler, Protocol):
    """An implementation under the grammar contract. Any object with these attributes is one; do not subclass.

    `apply_bitmask` returns the masked logits, with the dtype of those given: -inf where a token is forbidden, and the
    very bits of the float where it is allowed, NaN and -0.0 included. A row in which nothing is allowed is -inf
    throughout. The answer may be the tensor that was given; the bitmask and the indices must not change.

    An attribute `columns_beyond` says what happens to columns for which the bitmask has no word: `kept` (they stay as
    they are, as xgrammar documents; the default) or `forbidden`.

    A masker with a method `mask_drafts` masks whole steps, too, and forks the grammars over the drafts itself
    (capability `grammar-drafts`); it leaves every grammar in the state in which it was. One with a method `emit` draws
    the tokens of such a step, `[batch_size, max_spec_len + 1]` int32 or int64, -1 behind the last: its drafts are
    one-hot, and it gets `SeededNoise`.
    """

    def apply_bitmask(self, batch: BitmaskBatch) -> Tensor: ...


def columns_beyond(masker: object) -> Beyond:
    """What `masker` says that it does with columns beyond the bitmask."""
    declared: Beyond = getattr(masker, "columns_beyond", "kept")
    return declared


BitmaskFunction = Callable[[BitmaskBatch], "Tensor"]
DraftsFunction = Callable[[GrammarBatch], "Tensor"]


@dataclass(frozen=True)
class FunctionGrammarMasker:
    """A plain function, or two, as a `GrammarMasker`; made by `grammar_masker`."""

    name: str
    function: BitmaskFunction
    drafts: DraftsFunction | None = None
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    columns_beyond: Beyond = "kept"
    contract: Literal["grammar"] = "grammar"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)

    def apply_bitmask(self, batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        return self.function(batch)

    def mask_drafts(self, batch: GrammarBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        """The masked rows of a step.

        Raises:
            TypeError: If there is no function for drafts.
        """
        if self.drafts is None:
            raise TypeError(f"mask_drafts: drafts=None, but {self.name} must have one. Use grammar_masker(drafts=...).")
        return self.drafts(batch)


def grammar_masker(
    function: BitmaskFunction,
    *,
    drafts: DraftsFunction | None = None,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    columns_beyond: Beyond = "kept",
    slow: bool = False,
) -> FunctionGrammarMasker:
    """Wrap `function(batch) -> masked logits` for the suite.

    Args:
        drafts: `function(batch) -> masked logits` of a whole step, a `GrammarBatch`; without one the capability
            `grammar-drafts` is unsupported.
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's tensors are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        columns_beyond: What happens to columns for which the bitmask has no word.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason.
    """
    combined = {} if drafts else {Capability.GRAMMAR_DRAFTS.value: "it masks rows, and forks no grammar"}
    capabilities = Capabilities.of(combined | dict(unsupported or {}), slow)
    return FunctionGrammarMasker(name or function.__name__, function, drafts, device, capabilities, columns_beyond)


def words_of(token_ids: Sequence[int], width: int) -> list[int]:
    """The words, as signed integers, in which the bits of these tokens are set.

    Example:
        >>> words_of([0, 31, 33], 2)
        [-2147483647, 2]
    """
    words = [0] * width
    for token_id in token_ids:
        words[token_id // BITS_PER_WORD] |= 1 << token_id % BITS_PER_WORD
    return [word - (word >> 31 << 32) for word in words]


# -- how the suite calls a masker: the same way everywhere, with batch and answer checked -----------------------------

_FLOATS = ("float32", "bfloat16", "float16")


def mask_rows(masker: GrammarMasker, batch: BitmaskBatch) -> AnyLogitRows:
    """Call `apply_bitmask` once; a contiguous copy of the answer on the CPU.

    Raises:
        ValueError, TypeError: If the batch breaks the contract (a fault of the caller).
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the masker raises, marked as its own.
    """
    check_bitmask_batch(batch)
    return _copied(Answer.of(masker, "apply_bitmask", batch.device, batch), batch.logits)


def mask_step(masker: Any, batch: GrammarBatch) -> AnyLogitRows:  # Any: with `mask_drafts`
    """Call `mask_drafts` once; everything else is as in `mask_rows`."""
    return _copied(Answer.of(masker, "mask_drafts", batch.device, batch), batch.logits)


def emit_step(masker: Any, batch: GrammarBatch, noise: SeededNoise) -> NDArray[np.int64]:  # Any: with `emit`
    """Call `emit` once; the tokens of each request, `[batch_size, max_spec_len + 1]`, -1 behind the last."""
    with seeded(noise, batch.device):
        answer = Answer.of(masker, "emit", batch.device, batch, noise)
    shape, hint = [batch.batch_size, batch.max_spec_len + 1], "([batch_size, max_spec_len + 1])."
    return answer.numbers("token_ids", answer.value, shape, ("int32", "int64"), hint)


def _copied(answer: Answer, logits: AnyLogitRows) -> AnyLogitRows:
    dtype = str(logits.dtype).removeprefix("torch.")
    hint = "([num_rows, vocab_size]). Return the masked logits."
    checked = answer.tensor("logits", answer.value, list(logits.shape), (dtype,), hint)
    import torch

    with calling(answer.sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
        return checked.cpu().clone(memory_format=torch.contiguous_format)


def check_bitmask_batch(batch: BitmaskBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `BitmaskBatch`.
        ValueError: If shapes, dtypes or devices disagree, or an index is no row.
    """
    validator = Validator("check_bitmask_batch")
    validator.kind("batch", batch, BitmaskBatch, "Build one.")
    for name, tensor, dimensions, dtypes in (
        ("logits", batch.logits, 2, _FLOATS),
        ("bitmask", batch.bitmask, 2, ("int32",)),
        ("rows", batch.rows, 1, ("int64",)),
    ):
        rule, remedy = f"it must have {dimensions} dimensions", "Use view."
        validator.require(tensor.ndim == dimensions, f"{name}.shape={list(tensor.shape)}", rule, remedy)
        validator.dtype(name, tensor, dtypes)
        validator.device(name, tensor, batch.device, "logits")
    most = min(batch.batch_size, len(batch.bitmask))
    is_right = (batch.rows >= 0) & (batch.rows < most)
    validator.values("rows", batch.rows, is_right, f"it must lie in [0, {most})", "Give each row of logits a bitmask.")


def bits_of(logits: AnyLogitRows) -> NDArray[np.integer]:  # [num_rows, vocab_size] int32 | int16
    """The bits of floats, so that -0.0 differs from 0.0; NaN equals NaN, whatever its payload is."""
    import numpy as np
    import torch

    as_integer = torch.int32 if logits.element_size() == torch.int32.itemsize else torch.int16
    bits = logits.contiguous().view(as_integer)
    return np.asarray(bits.masked_fill(logits.isnan(), -1).numpy())


# -- what reports say of it -------------------------------------------------------------------------------------------


def _features(found: Look, batch: BitmaskBatch | GrammarBatch, *_: object) -> None:
    """Add the features of one call."""
    if isinstance(batch, GrammarBatch):
        read_lengths(found, batch)
        words = ("grammar", "no grammar")
        found.each("requests", [words[one.grammar is None] for one in batch.requests], words)
        return
    extra = batch.bitmask.shape[1] - num_words(batch.vocab_size)
    add_choice(found, "masked rows", "all rows", "row indices", batch.indices is not None)
    add_choice(found, "bitmask", "contiguous bitmask", "strided bitmask", not batch.bitmask.is_contiguous())
    widths = ("narrow bitmask", "bitmask as wide as the logits", "wide bitmask")
    found.all_have("width", widths[1 + (extra > 0) - (extra < 0)], widths)


CONTRACT = Contract(
    "grammar",
    call="apply_bitmask(batch)",
    beside={
        "mask_drafts": (Capability.GRAMMAR_DRAFTS, "it is given bitmasks (it has no method `mask_drafts`)"),
        "emit": None,
    },
    case="fairdraw.strategies.grammar:GrammarCase",
    reference="grammar/xgrammar",
    raised="GRM100",
    answer="a tensor of logits with the shape and dtype of those given",
    features=_features,
    has_distributions=True,
)
