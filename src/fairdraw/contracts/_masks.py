"""The masks contract: tokens come with the sets that filters kept, over which a trainer renormalises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fairdraw._core.capabilities import AnySampler, Capabilities, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.failures import calling
from fairdraw._core.noise import seeded
from fairdraw._core.policies import Policy
from fairdraw._core.validation import check_answer, check_kind
from fairdraw.contracts import _sampling
from fairdraw.contracts._grammar import num_words
from fairdraw.contracts._sampling import FilterPolicy, SamplingBatch, SamplingNoise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw._core.looks import Look


@dataclass(frozen=True, eq=False)
class MaskRows:
    """Memory for the masks of one call. Anything may stand in it, as it is used at every step; rows may be apart.

    Args:
        words: Bit `i % 32` of word `i // 32` is 1 if the request's filters kept token `i`. Bits beyond the vocabulary
            mean nothing.
        token_ids: The kept ids in ascending order, as many as there is room for. What stands behind them means nothing.
        counts: How many tokens are kept, also if there is no room for them all.
    """

    words: Tensor  # [batch_size, num_words] int32
    token_ids: Tensor  # [batch_size, width] int32
    counts: Tensor  # [batch_size] int32


@dataclass(frozen=True, eq=False)
class MaskedTokens:
    """What is returned beside the masks.

    Args:
        logprobs: Of each token, from the distribution over its mask that it was drawn from; `None` if there are none.
    """

    token_ids: Tensor  # [batch_size] int32 | int64
    logprobs: Tensor | None = None  # [batch_size] float32


@dataclass(frozen=True)
class MaskPolicy(Policy):
    """What stands in a mask where nothing is filtered, and the order of ids.

    Args:
        greedy_mask: What is kept of a greedy request.
            * `"all"`: greedy masks of all tokens: the row as no filter has seen it (vLLM's processed logits)
            * `"token"`: greedy masks of one token: the one that was chosen, whose probability is 1 (SGLang)
        plain_mask: What is kept of a request without filters.
            * `"all"`: plain masks of all tokens: every token that is possible (vLLM, SGLang)
            * `"none"`: plain masks of no token: a count of 0 says that there is nothing to renormalise over
        ids_order: The order of the compact form.
            * `"ascending"`: ids ascend: from 0 on, and each once (vLLM)
            * `"any"`: ids in any order: each once, for instance by probability (SGLang)
    """

    greedy_mask: Literal["all", "token"] = "all"
    plain_mask: Literal["all", "none"] = "all"
    ids_order: Literal["ascending", "any"] = "ascending"


@runtime_checkable
class MaskedSampler(AnySampler, Protocol):
    """A sampler under the masks contract. Any object with these attributes is one; do not subclass.

    `sample_masked` draws a token per request, and writes the mask of each into `into`, and nothing beside it. The batch
    must not be modified. An attribute `filters` (a `FilterPolicy`) says how it filters, and `policy` (a `MaskPolicy`)
    what its masks hold; without them, as vLLM does.
    """

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens: ...


MaskedFunction = Callable[[SamplingBatch, SamplingNoise, MaskRows], "MaskedTokens | Tensor"]


@dataclass(frozen=True)
class FunctionMaskedSampler:
    """A plain function as a `MaskedSampler`; made by `masked_sampler`."""

    name: str
    function: MaskedFunction
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    filters: FilterPolicy = field(default_factory=FilterPolicy)
    policy: MaskPolicy = field(default_factory=MaskPolicy)
    contract: Literal["masks"] = "masks"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        answer = self.function(batch, noise, into)
        return answer if isinstance(answer, MaskedTokens) else MaskedTokens(answer)


def masked_sampler(
    function: MaskedFunction,
    *,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    filters: FilterPolicy | None = None,
    policy: MaskPolicy | None = None,
    slow: bool = False,
) -> FunctionMaskedSampler:
    """Wrap `function(batch, noise, into) -> token_ids`, or `-> MaskedTokens`, for the suite.

    Args:
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's tensors are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        filters: How it filters; as vLLM 0.22.0 does if `None`.
        policy: What its masks hold; as vLLM 0.33.0 has it if `None`.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason.
    """
    policies = filters or FilterPolicy(), policy or MaskPolicy()
    capabilities = Capabilities.of(unsupported or {}, slow)
    return FunctionMaskedSampler(name or function.__name__, function, device, capabilities, *policies)


# -- how the suite calls a sampler: with batch, noise and answer checked, and memory around the masks -----------------

_FILLED_OVER = (0x55555555, -1, 0)
"""What stands in the memory before a call, and around it: one of these, by the number of the call."""
_ALIGNED = 4
"""Rows begin at multiples of so many words, as in memory that an engine reserves."""


@dataclass(frozen=True)
class Masked:
    """The result of one call; copies.

    Args:
        kept: The bits of the words.
        written: Names of the tensors beside which something was written.
    """

    tokens: NDArray[np.int64]  # [batch_size] int64
    kept: NDArray[np.bool_]  # [batch_size, vocab_size] bool
    token_ids: NDArray[np.int32]  # [batch_size, width] int32
    counts: NDArray[np.int32]  # [batch_size] int32
    logprobs: NDArray[np.float32] | None  # [batch_size] float32
    written: tuple[str, ...]


class GuardedRows:
    """Memory for masks, with memory before, between and behind the rows that nobody may write."""

    def __init__(self, batch: SamplingBatch, width: int, number: int = 0) -> None:
        import torch

        def whole(*shape: int) -> Tensor:  # [...] int32
            return torch.full(shape, self.pattern, dtype=torch.int32, device=batch.device)

        def spaced(size: int) -> tuple[Tensor, Any]:  # [batch_size + 2, width] int32; Any: an index
            memory = whole(batch.batch_size + 2, _ALIGNED * (3 + size // _ALIGNED))
            return memory, (slice(1, -1), slice(_ALIGNED, _ALIGNED + size))

        self.pattern = _FILLED_OVER[number % len(_FILLED_OVER)]
        parts = {"words": spaced(num_words(batch.vocab_size)), "token_ids": spaced(width)}
        self._parts = parts | {"counts": (whole(3, batch.batch_size), (1,))}
        self.rows = MaskRows(**{name: memory[part] for name, (memory, part) in self._parts.items()})

    def written(self) -> tuple[str, ...]:
        """Return the tensors beside which something was written."""
        found = []
        for name, (memory, part) in self._parts.items():
            around = memory.clone()
            around[part] = self.pattern
            found += [name] * bool((around != self.pattern).any())
        return tuple(found)


def sample_masks(
    sampler: MaskedSampler, batch: SamplingBatch, noise: SamplingNoise, width: int, memory: GuardedRows | None = None
) -> Masked:
    """Call `sampler.sample_masked` once. The batch must already be on the sampler's device.

    Args:
        width: Room for so many ids.
        memory: Of an earlier call of such a batch, if it is used again.

    Raises:
        ValueError, TypeError: If batch or noise break the contract (a fault of the caller).
        AdapterError: If the output is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own.

    Randomness:
        As `sample_tokens` of the sampling contract.
    """
    _sampling.check_sampling_batch(batch)
    _sampling.check_sampling_noise(batch, noise)
    guarded = memory or GuardedRows(batch, width, getattr(noise, "seed", 0))
    with seeded(noise, batch.device):
        with calling(sampler):
            answer, name = sampler.sample_masked(batch, noise, guarded.rows), sampler.name
        found = check_kind("sample_masked", name, answer, MaskedTokens, "token_ids, logprobs")
        with calling(sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
            return _copied(name, batch, found, guarded)


def _copied(name: str, batch: SamplingBatch, found: MaskedTokens, guarded: GuardedRows) -> Masked:
    import numpy as np

    def checked(field_name: str, value: object, *dtypes: str) -> NDArray[np.generic]:
        shape, hint = [batch.batch_size], "([batch_size]). Return one per request."
        tensor = check_answer("sample_masked", name, field_name, value, shape, dtypes, batch.device, hint)
        return np.asarray(tensor.detach().cpu().numpy())

    rows = guarded.rows
    words, ids, counts = (one.cpu().numpy().copy() for one in (rows.words, rows.token_ids, rows.counts))
    kept = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=batch.vocab_size).astype(bool)
    tokens = checked("token_ids", found.token_ids, "int64", "int32").astype(np.int64)
    logprobs = None if found.logprobs is None else checked("logprobs", found.logprobs, "float32").astype(np.float32)
    return Masked(tokens, kept, ids, counts, logprobs, guarded.written())


# -- what reports say of it -------------------------------------------------------------------------------------------


def _features(found: Look, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> None:
    """Add the features of one call."""
    _sampling.features(found, batch, noise)
    found.all_have("room for ids", int(into.token_ids.shape[1]))


CONTRACT = Contract(
    "masks",
    method="sample_masked",
    case="fairdraw.strategies.sampling:SamplingCase",
    default="masks/oracle",
    reference="",
    raised="MSK100",
    answer="a MaskedTokens: int64 or int32 ids [batch_size], float32 log-probabilities [batch_size] or None",
    policy=MaskPolicy,
    features=_features,
    uses=_sampling.uses,
    takes_noise=True,
)
