"""What a sampler supports, and what every sampler has, whatever its contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

KnownDefect = str | dict[str, Any]  # Any: a reason, and cases
"""A value of `known_defects`: why a sampler fails a check, or a table of `reason` and `cases`."""


class Capability(StrEnum):
    """Something that a sampler may not support. The value is the word used in adapters and reports.

    The strings below say what each means and when to declare it unsupported; `fairdraw explain WORD` and the table in
    the manual are made of them. A word without one is a filter that takes the parameter of its name.
    """

    EXPLICIT_NOISE = "explicit-noise"
    """Takes uniforms and exponentials from the caller (`ExplicitNoise`, `RaceNoise`). Declare it unsupported if your
    kernel draws inside and cannot be handed numbers."""
    REFERENCE_RACE = "reference-race"
    """With explicit noise, its tokens equal the oracle's: same acceptance test, same exponential race, by a division
    or by a product with the reciprocal. Declare it unsupported if you recover in another way, for instance from a
    cumulative sum."""
    REFERENCE_ROUNDING = "reference-rounding"
    """Computes in float32 by the oracle's formulas, so that decisions nearer than rounding fall alike, too. Declare
    it unsupported if you compute otherwise, for instance with log-probabilities, in float64, by a Gumbel-max, or
    times the reciprocal of the temperature."""
    LOWEST_ID_TIES = "lowest-id-ties"
    """Among equal largest logits, equal scores of a race, and equal log-probabilities of a list, takes the lowest id.
    Declare it unsupported if another of the equal ones may come."""
    SEEDED_NOISE = "seeded-noise"
    """Takes `SeededNoise`: the same seed gives the same tokens. Declare it unsupported if your function draws
    nothing and is always handed its numbers, or draws from a generator that no seed reaches."""
    REQUEST_SEEDS = "request-seeds"
    """Honours a generator per request; such a request does not depend on the other requests of its batch. Declare it
    unsupported if one generator serves the whole batch."""
    UPSTREAM_STREAM = "upstream-stream"
    """Draws in vLLM's order, and races by vLLM's operation: with seeded noise, tokens and final generator states
    equal vLLM's. Declare it unsupported unless you replace vLLM's own function."""
    DENSE_DRAFTS = "dense-drafts"
    """Takes `draft_probs` and heeds them. Declare it unsupported if your drafts are always one-hot (n-gram)."""
    ONE_HOT_DRAFTS = "one-hot-drafts"
    """Takes `draft_probs=None` (n-gram drafts). Declare it unsupported if your drafter always gives a distribution,
    and you cannot make a one-hot row."""
    GREEDY = "greedy"
    """Takes greedy requests, alone or mixed with random ones. Declare it unsupported if greedy requests never reach
    your function."""
    RAGGED = "ragged"
    """Takes batches whose requests have different numbers of drafts, including 0. Declare it unsupported if every
    request has as many drafts as the others."""
    PLACEHOLDER_DRAFTS = "placeholder-drafts"
    """Takes -1 in `draft_token_ids`, a placeholder draft. Declare it unsupported if your scheduler takes placeholder
    drafts out."""
    HALF_LOGITS = "half-logits"
    """Takes bfloat16 and float16 target logits. Declare it unsupported if logits are float32 by then."""
    STRIDED_INPUTS = "strided-inputs"
    """Takes non-contiguous target logits, or refuses them by name. Declare it unsupported if logits are always
    contiguous by then."""
    NAN_LOGITS = "nan-logits"
    """Gives the documented result for a row with NaN. Declare it unsupported if NaN is caught before."""
    EMPTY_ROWS = "empty-rows"
    """Gives the documented result for a row that is all -inf. Declare it unsupported if no row can be masked whole."""
    SYNTHETIC_RATES = "synthetic-rates"
    """Takes `synthetic_rates`: acceptance by given rates instead of probabilities. Declare it unsupported if you
    have no such mode; few engines do."""
    LARGE_VOCAB = "large-vocab"
    """Takes vocabularies up to 262144 in reasonable time. Declare it unsupported if yours is bounded below that, or
    such a call takes seconds."""
    TOKEN_VERIFICATION = "token-verification"
    """Accepts token by token, with probability `min(1, target / draft)`; others are tested by what they emit.
    Declare it unsupported if you verify drafts jointly, as block verification does, or accept by another lossless
    scheme."""
    DRAFTER = "drafter"
    """Brings its drafter, the method `propose`, and both are judged together. A sampler without that method lacks it
    by itself. Declare it unsupported if your drafter never draws at random."""
    TRIM = "trim"
    """Has `trim`, which decides how many drafts are verified. A sampler without that method lacks it by itself. Declare
    it unsupported if the decision is lossy on purpose."""
    LONG_DRAFTS = "long-drafts"
    """Takes up to `MAX_SPEC_LEN` drafts per request. Declare it unsupported if no request has more than 8 drafts."""
    TOP_K = "top-k"
    TOP_P = "top-p"
    MIN_P = "min-p"
    COUNTER_NOISE = "counter-noise"
    """With seeded noise, a request that has a seed draws by (seed, position) alone: no generator advances. Declare
    it unsupported if generators advance from draw to draw."""
    DRAFT_DISTRIBUTION = "draft-distribution"
    """Has `draft`, which returns tokens and the distributions that they were drawn from. Declare it unsupported if
    you return tokens alone (`token_sampler` without `drafting` does it for you)."""
    COPY_FREE = "copy-free"
    """Gives back the very logits where no processor has work, and copies them once where one has. Declare it
    unsupported if you always copy."""
    INTACT_LOGITS = "intact-logits"
    """Never writes into the logits that it is given. Declare it unsupported if you work in place."""
    CUSTOM_PROCESSORS = "custom-processors"
    """Takes logits processors of the caller's own. Declare it unsupported if your engine has none."""
    DRAFT_PROCESSORS = "draft-processors"
    """Applies logit bias, min-p and custom processors to steps with drafts, too. Declare it unsupported if steps
    with drafts skip them."""
    UNREACHED_ROWS = "unreached-rows"
    """Rows after a draft that a thinking budget or a grammar forbids are processed as if there were no budget and no
    grammar. Declare it unsupported if you force or forbid tokens in them, too: nobody reads them, since that draft is
    rejected."""
    NEW_TOKENS_ONLY = "new-tokens-only"
    """A step reads the tokens that are new, however long the outputs are. Declare it unsupported if you read the
    outputs anew at each step."""
    VISIBLE_STATE = "visible-state"
    """Its session says how many tokens each open thinking section has. Declare it unsupported if that number cannot
    be asked for."""
    NOTICES_REWRITES = "notices-rewrites"
    """A row whose list was replaced without a word, or was cut and grown again between two steps, is refused or
    recounted. Declare it unsupported if your engine never does that."""
    SEVERAL_TOKENS = "several-tokens"
    """A step may bring a request several tokens, none, or ids that come late; there may be drafts, and tokens may be
    lost. Declare it unsupported if every step brings each request exactly one known token."""
    TOP_LOGPROBS = "top-logprobs"
    """Returns the most probable tokens beside the emitted one. Declare it unsupported if you return log-probabilities
    of the emitted tokens alone. A server: returns the log-probability of each token that it emits, and such a list."""
    TOKEN_RANKS = "token-ranks"
    """Returns the rank of the emitted token. Declare it unsupported if you return none."""
    EXACT_RANKS = "exact-ranks"
    """Orders and ranks tokens by their logits. Declare it unsupported if you compare log-probabilities, which may be
    equal in float32 where logits are not."""
    LOGIT_SCORES = "logit-scores"
    """Returns logits instead of log-probabilities if the stage says so. Declare it unsupported if you have no such
    mode."""
    BATCH_INVARIANT = "batch-invariant"
    """A row has the same bits alone and beside any others. Declare it unsupported if sums are added in another order
    when the batch is another."""
    NO_ROWS = "no-rows"
    """Takes a batch in which no request has a row. Declare it unsupported if you are not called then."""
    DRAWN_TOKENS = "drawn-tokens"
    """Has `draw`, which returns tokens and the log-probabilities that they were drawn with. Declare it unsupported if
    you are given the tokens (`logprobs_sampler` without `drawing` does it for you)."""
    ROW_INDICES = "row-indices"
    """Masks the rows that are named, and no others. Declare it unsupported if you always mask every row."""
    REPEATED_INDICES = "repeated-indices"
    """A row may be named twice. Declare it unsupported if you document that rows are unique."""
    WIDE_BITMASK = "wide-bitmask"
    """Takes a bitmask with more words than the logits have columns for. Declare it unsupported if you refuse it."""
    NARROW_BITMASK = "narrow-bitmask"
    """Takes logits with more columns than the bitmask has bits, and does with the others what it says. Declare it
    unsupported if you refuse them or document nothing about them."""
    STRIDED_BITMASK = "strided-bitmask"
    """Takes a bitmask that is a part of a wider one. Declare it unsupported if bitmasks are always contiguous."""
    GRAMMAR_DRAFTS = "grammar-drafts"
    """Has `mask_drafts`, which forks each request's grammar over its drafts. Declare it unsupported if you are given
    bitmasks (`grammar_masker` without `drafts` does it for you)."""
    TOKEN_IDS = "token-ids"
    """A server: returns the id of each token, and lists ids. Declare it unsupported if it returns texts alone."""
    N_CHOICES = "n-choices"
    """A server: returns several choices of one request. Declare it unsupported if it refuses `n` above 1."""
    STREAMING = "streaming"
    """A server: answers in parts. Declare it unsupported if it answers as a whole only."""
    LOGIT_BIAS = "logit-bias"
    """A server: takes `logit_bias`. Declare it unsupported if it ignores or refuses it."""
    STOP_STRINGS = "stop-strings"
    """A server: takes `stop`. Declare it unsupported if it ignores or refuses it."""
    MIN_TOKENS = "min-tokens"
    """A server: takes `min_tokens`. Declare it unsupported if it ignores or refuses it."""
    BAD_WORDS = "bad-words"
    """A server: takes `bad_words`. Declare it unsupported if it ignores or refuses it."""
    REPETITION_PENALTY = "repetition-penalty"
    """A server: takes `repetition_penalty`. Declare it unsupported if it ignores or refuses it."""
    PENALTIES = "penalties"
    """A server: takes presence and frequency penalties. Declare it unsupported if it ignores or refuses them."""
    TEMPERATURE = "temperature"
    """Filters: divides logits by a temperature. Declare it unsupported if it does so elsewhere."""
    DYNATEMP = "dynatemp"
    """Filters: a temperature that depends on the entropy of the row. Declare it unsupported if you have none."""
    TYPICAL_P = "typical-p"
    TOP_N_SIGMA = "top-n-sigma"
    TOP_A = "top-a"
    P_LESS = "p-less"
    TAIL_FREE = "tail-free"
    ETA = "eta"
    EPSILON = "epsilon"
    SMOOTHING = "smoothing"
    """Takes `smoothing_factor` (quadratic sampling). Declare it unsupported if you do not filter by it."""
    XTC = "xtc"
    """Takes `xtc_probability` and `xtc_threshold`. Declare it unsupported if you do not filter by them."""
    DRY = "dry"
    """Takes the parameters of DRY. Declare it unsupported if you do not penalise repetitions by it."""
    MIROSTAT_V1 = "mirostat-v1"
    """Takes `mirostat_v1_tau`. Declare it unsupported if you do not have version 1 of mirostat."""
    MIROSTAT_V2 = "mirostat-v2"
    """Takes `mirostat_v2_tau`. Declare it unsupported if you do not have version 2 of mirostat."""


@dataclass(frozen=True)
class Capabilities:
    """What a sampler supports: everything that is not declared unsupported, with a reason.

    Args:
        unsupported: Capability to the reason why it is unsupported. Reasons are printed beside the skips.
        slow: Each call costs milliseconds (an interpreter, a remote device). Profiles then draw fewer examples.
    """

    unsupported: Mapping[Capability, str] = field(default_factory=dict)
    slow: bool = False

    def __post_init__(self) -> None:
        for name, reason in self.unsupported.items():
            if name not in Capability.__members__.values():
                known = ", ".join(sorted(Capability))
                raise ValueError(f"Capabilities: unsupported={name!r}, but that is no capability. Use one of: {known}.")
            if not reason.strip():
                raise ValueError(f"Capabilities: unsupported[{name!r}]={reason!r}, but it must say why. Give a reason.")
        normal = {Capability(name): reason for name, reason in self.unsupported.items()}
        object.__setattr__(self, "unsupported", normal)

    @classmethod
    def of(cls, unsupported: Mapping[str, str], slow: bool = False) -> Capabilities:
        """Capabilities by their words; unknown ones are refused."""
        return cls(unsupported, slow)  # type: ignore[arg-type]  # __post_init__ makes members of the words

    def __contains__(self, capability: Capability) -> bool:
        return capability not in self.unsupported

    def why_unsupported(self, needed: Sequence[Capability]) -> str | None:
        """The first unsupported capability among `needed`, with its reason; `None` if all are supported."""
        for capability in needed:
            if capability in self.unsupported:
                return f"{capability} is unsupported: {self.unsupported[capability]}"
        return None

    def why_all_unsupported(self, alternatives: Sequence[Capability]) -> str | None:
        """The capabilities `alternatives`, with a reason, if all are unsupported; else `None`."""
        if any(capability in self for capability in alternatives):
            return None
        return f"{' and '.join(alternatives)} are unsupported: {self.unsupported[alternatives[0]]}"


@runtime_checkable
class AnySampler(Protocol):
    """What every object under test has, whatever its contract; the contract adds a method or a few."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
