"""What a sampler can be asked, and what every sampler has, whatever its contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Capabilities", "Capability", "Subject"]


class Capability(StrEnum):
    """Something a sampler may decline. The value is the word used in adapters and reports."""

    EXPLICIT_NOISE = "explicit-noise"
    """Takes uniforms and exponentials from the caller (`ExplicitNoise`)."""
    REFERENCE_RACE = "reference-race"
    """With explicit noise, its tokens equal the oracle's bit for bit: same acceptance test, same exponential race."""
    SEEDED_NOISE = "seeded-noise"
    """Takes `SeededNoise`: the same seed gives the same tokens."""
    REQUEST_SEEDS = "request-seeds"
    """Honours a generator per request; such a request does not depend on its batch mates."""
    UPSTREAM_STREAM = "upstream-stream"
    """Draws in vLLM's order: with seeded noise, tokens and final generator states equal vLLM's."""
    DENSE_DRAFTS = "dense-drafts"
    """Takes `draft_probs`."""
    ONE_HOT_DRAFTS = "one-hot-drafts"
    """Takes `draft_probs=None` (n-gram drafts)."""
    GREEDY = "greedy"
    """Takes greedy requests, alone or mixed with random ones."""
    RAGGED = "ragged"
    """Takes batches whose requests have different numbers of drafts, including 0."""
    PADDED_DRAFTS = "padded-drafts"
    """Takes -1 in `draft_token_ids`."""
    HALF_LOGITS = "half-logits"
    """Takes bfloat16 and float16 target logits."""
    STRIDED_INPUTS = "strided-inputs"
    """Takes non-contiguous target logits, or refuses them by name."""
    NAN_LOGITS = "nan-logits"
    """Gives the documented result for a row with NaN."""
    EMPTY_ROWS = "empty-rows"
    """Gives the documented result for a row that is all -inf."""
    SYNTHETIC_RATES = "synthetic-rates"
    """Takes `synthetic_rates`: acceptance by given rates instead of probabilities."""
    LARGE_VOCAB = "large-vocab"
    """Takes vocabularies up to 151936 in reasonable time."""
    TOKEN_VERIFICATION = "token-verification"
    """Accepts token by token, with probability `min(1, target / draft)`; others are judged by what they emit."""
    LONG_DRAFTS = "long-drafts"
    """Takes up to `MAX_SPEC_LEN` drafts per request."""
    TOP_K = "top-k"
    """Takes `top_k`."""
    TOP_P = "top-p"
    """Takes `top_p`."""
    MIN_P = "min-p"
    """Takes `min_p`."""
    COUNTER_NOISE = "counter-noise"
    """With seeded noise, a request that has a seed draws by (seed, position) alone: no generator advances."""
    DRAFT_LAW = "draft-law"
    """Has `draft`, which returns tokens and the laws that they were drawn from."""
    COPY_FREE = "copy-free"
    """Gives back the very logits where no processor has work, and copies them once where one has."""
    INTACT_LOGITS = "intact-logits"
    """Never writes into the logits that it is given."""
    CUSTOM_PROCESSORS = "custom-processors"
    """Takes logits processors of the caller's own."""
    DRAFT_PROCESSORS = "draft-processors"
    """Applies logit bias, min-p and custom processors to steps with drafts, too."""
    NEW_TOKENS_ONLY = "new-tokens-only"
    """A step reads the tokens that are new, however long the outputs are."""
    VISIBLE_STATE = "visible-state"
    """Its session says how many tokens each open thinking section has."""
    NOTICES_REWRITES = "notices-rewrites"
    """A row whose list was replaced without a word is refused or recounted."""


@dataclass(frozen=True)
class Capabilities:
    """What a sampler can be asked; everything is open unless declined with a reason.

    Args:
        closed: Capability to the reason why it is declined. Reasons are printed beside the skips.
        slow: Each call costs milliseconds (an interpreter, a remote device). Profiles then draw fewer examples.
    """

    closed: Mapping[Capability, str] = field(default_factory=dict)
    slow: bool = False

    def __post_init__(self) -> None:
        for name, reason in self.closed.items():
            if name not in Capability.__members__.values():
                known = ", ".join(sorted(Capability))
                raise ValueError(f"Capabilities: closed={name!r}, but it must be a capability. Use one of: {known}.")
            if not reason.strip():
                raise ValueError(f"Capabilities: closed[{name!r}]={reason!r}, but it must say why. Give a reason.")
        normal = {Capability(name): reason for name, reason in self.closed.items()}
        object.__setattr__(self, "closed", normal)

    def __contains__(self, capability: Capability) -> bool:
        return capability not in self.closed

    def why_closed(self, needed: Sequence[Capability]) -> str | None:
        """The first declined capability among `needed`, with its reason; `None` if all are open."""
        for capability in needed:
            if capability in self.closed:
                return f"{capability} is closed: {self.closed[capability]}"
        return None


@runtime_checkable
class Subject(Protocol):
    """What every object under test has, whatever its contract; the contract adds a method or a few."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
