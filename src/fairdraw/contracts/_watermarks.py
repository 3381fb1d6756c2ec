"""The watermarks contract: tokens that a key and the text before them decide, and what finds the key in a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from fairdraw._core.capabilities import AnySampler, Capabilities, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.failures import AdapterError, CapabilityUnsupported
from fairdraw._core.policies import Policy, policy_of
from fairdraw._core.validation import Answer as Returned  # `Answer` is the name of what servers give
from fairdraw._core.validation import Validator
from fairdraw.contracts import _sampling
from fairdraw.contracts._sampling import FilterPolicy, SamplingBatch, SamplingNoise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw._core.looks import Look

Context = tuple[int, ...]
"""The last tokens before the one that is drawn, the latest at the end; fewer at the beginning of a text."""


@dataclass(frozen=True)
class WatermarkSetup:
    """What a server is started with.

    Args:
        keys: One, or two where the sampler has two (`keys` of its policy), each below 2**64. What has one key of its
            own, and derives two from it, takes the first.
        context_width: Tokens of a context.
        share: With two keys, the share of tokens that the first decides.
        bias: With green lists, what is added to the logits of the green tokens.
    """

    keys: tuple[int, ...]
    context_width: int = 4
    share: float = 0.5
    bias: float = 2.0


@dataclass(frozen=True)
class WatermarkedRequest:
    """The text of one request.

    Args:
        request_id: Its number; it stays while the text grows, and no other request has it.
        is_marked: Whether the request wants the watermark.
    """

    request_id: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    is_marked: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class WatermarkBatch(SamplingBatch):
    """One decoding step of the sampling contract, with the texts of its requests.

    Args:
        requests: One for each row of logits.
    """

    setup: WatermarkSetup
    requests: tuple[WatermarkedRequest, ...]

    def select(self, requests: Sequence[int]) -> Self:
        """The batch made of these requests, in this order."""
        return super().select(requests).replace(requests=tuple(self.requests[i] for i in requests))


@dataclass(frozen=True)
class WatermarkPolicy(Policy):
    """How a text is marked.

    Args:
        scheme: What the keyed numbers do.
            * `"gumbel"`: keyed Gumbel race: the token is the argmax of `prob / -log(number)` (vLLM, SGLang)
            * `"green_list"`: green lists: numbers are 0 or 1, and `bias` is added to logits where they are 1
              (transformers)
            * `"tournament"`: tournaments: numbers are 0 or 1, and each layer multiplies a probability by 1, plus its
              number, minus the mean of all numbers (SynthID-Text)
        context: What a context is made of.
            * `"output"`: contexts of the output: tokens of the prompt are in none (vLLM)
            * `"text"`: contexts of the whole text: the first tokens follow the prompt's last (SGLang, transformers)
        short_context: What is done while the text is shorter than a context.
            * `"marked"`: short contexts mark: they are contexts like all others (vLLM)
            * `"unless_empty"`: empty contexts do not mark: of any tokens there are, they do (SGLang)
            * `"plain"`: short contexts do not mark: an ordinary token is drawn (transformers)
        repeated: What is done where the text has had the context before.
            * `"plain"`: repeated contexts do not mark: an ordinary token is drawn (vLLM, SGLang)
            * `"marked"`: repeated contexts mark: the same numbers again (green lists)
        keys: Which key decides.
            * `"one"`: one key: it decides every marked token (vLLM's gumbel)
            * `"drawn"`: the key is drawn: by chance, for each token (vLLM's dual_key_gumbel)
            * `"by_context"`: the key follows from the context: the same one wherever it stands (SGLang)
    """

    scheme: Literal["gumbel", "green_list", "tournament"] = "gumbel"
    context: Literal["output", "text"] = "output"
    short_context: Literal["marked", "unless_empty", "plain"] = "marked"
    repeated: Literal["plain", "marked"] = "plain"
    keys: Literal["one", "drawn", "by_context"] = "one"

    @property
    def is_race(self) -> bool:
        """Whether numbers of a key decide a marked token."""
        return self.scheme == "gumbel"

    @property
    def is_decided(self) -> bool:
        """Whether key and context alone decide a marked token."""
        return self.is_race and self.keys != "drawn"

    @property
    def has_two_keys(self) -> bool:
        """Whether there is a share of a key that can be counted."""
        return self.is_race and self.keys != "one"


NumbersFunction = Callable[[WatermarkSetup, Sequence[Context], int], "Tensor"]
DetectFunction = Callable[[WatermarkSetup, Sequence[int], Sequence[int]], float]
WatermarkFunction = Callable[[WatermarkBatch, SamplingNoise], "Tensor"]


@runtime_checkable
class Watermarker(AnySampler, Protocol):
    """A sampler under the watermarks contract. Any object with these attributes is one; do not subclass.

    `sample_watermarked` draws a token per request: a marked one if the request wants it, its policy marks the context,
    and its temperature is that of a random request; otherwise an ordinary one. An attribute `policy` (a
    `WatermarkPolicy`) says which, and `filters` (a `FilterPolicy`) how rows are filtered before. Two more are judged
    where they are, and may be `None`:

    `watermark_numbers(setup, contexts, vocab_size)` returns the keyed numbers, `[num_keys, num_layers, num_contexts,
    vocab_size]` in float32 or float64: two keys where the key is drawn, otherwise the one that decides; several layers
    in tournaments. `detect(setup, prompt_token_ids, output_token_ids)` returns the p-value of an output.
    """

    def sample_watermarked(self, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor: ...


@dataclass(frozen=True)
class FunctionWatermarker:
    """A plain function as a `Watermarker`; made by `watermarker`."""

    name: str
    function: WatermarkFunction
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    filters: FilterPolicy = field(default_factory=FilterPolicy)
    policy: WatermarkPolicy = field(default_factory=WatermarkPolicy)
    watermark_numbers: NumbersFunction | None = None
    detect: DetectFunction | None = None
    contract: Literal["watermarks"] = "watermarks"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)

    def sample_watermarked(self, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int
        return self.function(batch, noise)


def watermarker(
    function: WatermarkFunction,
    *,
    numbers: NumbersFunction | None = None,
    detect: DetectFunction | None = None,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    filters: FilterPolicy | None = None,
    policy: WatermarkPolicy | None = None,
    slow: bool = False,
) -> FunctionWatermarker:
    """Wrap `function(batch, noise) -> token_ids` for the suite.

    Args:
        numbers: `function(setup, contexts, vocab_size)`, the keyed numbers; without it tokens are compared with each
            other only.
        detect: `function(setup, prompt_token_ids, output_token_ids)`, a p-value.
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's tensors are put before each call.
        unsupported: Capability to the reason why it is unsupported.
        filters: How it filters; as vLLM 0.22.0 does if `None`.
        policy: How it marks; as vLLM 0.33.0 does if `None`.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason.
    """
    policies = filters or FilterPolicy(), policy or WatermarkPolicy()
    capabilities = Capabilities.of(unsupported or {}, slow)
    return FunctionWatermarker(
        name or function.__name__, function, device, capabilities, *policies, watermark_numbers=numbers, detect=detect
    )


# -- how the suite calls a sampler: with batch, noise and answer checked ----------------------------------------------


def sample_marked(sampler: Watermarker, batch: WatermarkBatch, noise: SamplingNoise) -> NDArray[np.int64]:
    """Return the tokens of one call, `[batch_size]`. The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If batch or noise break the contract (a fault of the caller).
        AdapterError: If the output is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own.

    Randomness:
        As `sample_tokens` of the sampling contract.
    """
    given, rule = f"requests={len(batch.requests)}", f"there must be {batch.batch_size}, one per row"
    Validator("sample_marked").require(len(batch.requests) == batch.batch_size, given, rule, "Give one text to each.")
    return _sampling.call_sampler(sampler, "sample_watermarked", batch, noise).tokens


def numbers_of_contexts(
    sampler: FunctionWatermarker, setup: WatermarkSetup, contexts: Sequence[Context], vocab_size: int
) -> NDArray[np.float64]:
    """Return the keyed numbers of a sampler that shows them, `[num_keys, num_layers, num_contexts, vocab_size]`.

    Raises:
        AdapterError: If the answer is not of the contract's type.
    """
    import numpy as np
    import torch

    answer = Returned.of(sampler, "watermark_numbers", torch.device("cpu"), setup, contexts, vocab_size)
    answer = replace(answer, device=getattr(answer.value, "device", answer.device))  # numbers may lie anywhere
    num_layers = max((1, *getattr(answer.value, "shape", ())[1:2]))
    wanted = [2 if sampler.policy.keys == "drawn" else 1, num_layers, len(contexts), vocab_size]
    hint, dtypes = "([num_keys, num_layers, num_contexts, vocab_size]).", ("float32", "float64")
    return answer.numbers("numbers", answer.value, wanted, dtypes, hint).astype(np.float64)


def p_value_of(
    sampler: FunctionWatermarker, setup: WatermarkSetup, prompt: Sequence[int], output: Sequence[int]
) -> float:
    """Return the p-value of an output.

    Raises:
        AdapterError: If it is no number from 0 to 1.
    """
    import torch

    answer = Returned.of(sampler, "detect", torch.device("cpu"), setup, prompt, output)
    p_value = answer.as_kind(float, "p_value")
    if not 0 <= p_value <= 1:
        raise AdapterError(f"{answer.returned} {p_value}, but a p-value must lie in [0, 1]. Return a probability.")
    return p_value


_LACKS = {
    "is_race": "its keys do not decide tokens",
    "is_decided": "its key and context do not decide a token alone",
    "has_two_keys": "it has one key",
}


def require_parts(sampler: object, names: Sequence[str]) -> None:
    """Refuse a sampler that lacks one of these attributes, or whose policy says no to one.

    Raises:
        CapabilityUnsupported: If so: a check means nothing for it.
    """
    policy = policy_of(sampler, WatermarkPolicy)
    for name in names:
        if not (getattr(policy, name) if name in _LACKS else getattr(sampler, name, None)):
            raise CapabilityUnsupported(_LACKS.get(name, f"it has no `{name}`"))


# -- what reports say of it -------------------------------------------------------------------------------------------


def _features(found: Look, batch: WatermarkBatch, noise: SamplingNoise) -> None:
    """Add the features of one call."""
    _sampling.features(found, batch, noise)
    found.all_have("context width", batch.setup.context_width)
    marked = ["marked" if one.is_marked else "unmarked" for one in batch.requests]
    found.each("watermark", marked, ("marked", "unmarked"))
    found.each("tokens of the output", [len(one.output_token_ids) for one in batch.requests])


CONTRACT = Contract(
    "watermarks",
    call="sample_watermarked(batch, noise)",
    case="fairdraw.strategies.watermarks:WatermarkCase",
    default="watermarks/oracle",
    reference="",
    raised="WMK100",
    answer="an int64 or int32 tensor [batch_size] on the batch's device",
    policy=WatermarkPolicy,
    features=_features,
    uses=_sampling.uses,
    has_distributions=True,
    takes_noise=True,
)
