"""The filters contract: what cuts or bends a row of logits before a token is drawn from it, filter after filter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_type_hints, runtime_checkable

from fairdraw._core.batches import Batch, rows_of
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability, KnownDefect
from fairdraw._core.contracts import Contract
from fairdraw._core.looks import FILTERS, Look
from fairdraw._core.noise import SeededNoise, seeded
from fairdraw._core.seeds import derive_seed
from fairdraw._core.validation import INTEGERS, Answer, Validator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class LogitFilter:
    """What is said once of a filter.

    Its capability has its name, with dashes. Its rule is the step of its name in the specification
    (`_oracles/filters.py`), whose docstring is its check.

    Args:
        code: Of its check.
        usual: Parameters that people use, the plain ones first. The first of them switches the filter on, by any value
            other than its default.
        number: The parameter that traces try at any value from `low` to `high`; empty for none.
    """

    code: str
    usual: tuple[dict[str, Any], ...]  # Any: one type per parameter
    number: str = ""
    low: float = 0.0
    high: float = 0.0

    @property
    def switch(self) -> str:
        return next(iter(self.usual[0]))


FIRST, LAST = 2.0**-126, 1 - 2.0**-24
"""The smallest normal number of float32, and the largest one below 1."""


def _by(number: str, code: str, *usual: float, low: float = FIRST, high: float = LAST, **beside: float) -> LogitFilter:
    """A filter that one number decides, with other parameters beside it."""
    return LogitFilter(code, tuple({**beside, number: value} for value in usual), number, low, high)


def _of(code: str, names: tuple[str, ...], *usual: tuple[Any, ...]) -> LogitFilter:  # Any: as above
    """A filter of several parameters; of the last ones the values may be missing."""
    return LogitFilter(code, tuple(dict(zip(names, values, strict=False)) for values in usual))


_DYNATEMP = ("dynatemp_high", "dynatemp_low", "dynatemp_exponent")
_DRY = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "dry_breakers")
LOGIT_FILTERS = {
    "temperature": _by("temperature", "FIL111", 0.5, 1.7, 0.9, low=1e-3, high=1e6),
    "dynatemp": _of("FIL112", _DYNATEMP, (1.5, 0.5), (3.0, 0.25, 2.0)),
    "top_k": _by("top_k", "FIL101", 3, 1, 40, low=1, high=1 << 30),
    "top_p": _by("top_p", "FIL102", 0.5, 0.9, 0.1, 0.99),
    "min_p": _by("min_p", "FIL103", 0.1, 0.5, 0.01, high=1.0),
    "typical_p": _by("typical_p", "FIL104", 0.5, 0.9, 0.2, 0.99),
    "top_n_sigma": _by("top_n_sigma", "FIL105", 1.0, 2.0, 0.25, high=1e30),
    "top_a": _by("top_a", "FIL106", 0.2, 0.05, 0.8, high=1.0),
    "p_less": _by("p_less", "FIL117", 1, low=1, high=1),
    "tail_free": _by("tail_free", "FIL107", 0.5, 0.95, 0.2),
    "eta": _by("eta", "FIL108", 0.01, 3e-4, 0.3),
    "epsilon": _by("epsilon", "FIL109", 0.01, 3e-4, 0.3),
    "smoothing": _of("FIL113", ("smoothing_factor", "smoothing_curve"), (0.3,), (1.0, 2.0), (0.05, 3.0)),
    "xtc": _by("xtc_threshold", "FIL110", 0.1, 0.02, 0.3, high=0.5, xtc_probability=1.0),
    "dry": _of("FIL114", _DRY, (0.75,), (2.0, 1.25, 1), (0.5, 1.75, 4, 0, (1,)), (1.0, 1.75, 1, 12)),
    "mirostat_v1": _by("mirostat_v1_tau", "FIL115", 3.0, 5.0, 1.0, low=1.0, high=5.0),
    "mirostat_v2": _by("mirostat_v2_tau", "FIL116", 3.0, 5.0, 0.5, high=100.0),
}
"""Every filter, in the order in which the specification applies them."""

Share = Annotated[float, (0.0, 1.0)]
"""A number in this range."""


@dataclass(frozen=True)
class FilterParams:
    """What one row asks for. Every default is off. Beside its type stands the range of a parameter; others must not be
    negative.

    Args:
        temperature: Logits are divided by it; positive.
        dynatemp_low: The lowest dynamic temperature.
        dynatemp_high: The highest one. The temperature lies between them, by the entropy of the row over the largest
            possible one, to the power of `dynatemp_exponent`.
        dynatemp_exponent: That power.
        top_k: 0 is off, and so is the vocabulary and more.
        p_less: 1 is on; it has no number.
        tail_free: Tail-free sampling (TFS); 1 is off.
        eta: A probability, not a multiple of 1e-4.
        epsilon: A probability likewise.
        smoothing_factor: Quadratic sampling.
        smoothing_curve: Its cubic term; 1 has none.
        dry_range: How many of the last tokens are looked at; 0 for all.
        dry_breakers: Ids over which no repetition extends.
        mirostat_v1_tau: The surprise that mirostat's first version aims at, in bits; 0 is off. A row with either
            version has no other filter but a temperature.
        mirostat_v2_tau: The same for the second version.
        mirostat_eta: Its learning rate.
    """

    temperature: Annotated[float, (1e-3, 1e6)] = 1.0
    dynatemp_low: float = 0.0
    dynatemp_high: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    top_p: Share = 1.0
    min_p: Share = 0.0
    typical_p: Share = 1.0
    top_n_sigma: float = 0.0
    top_a: Share = 0.0
    p_less: Annotated[int, (0, 1)] = 0
    tail_free: Share = 1.0
    eta: Share = 0.0
    epsilon: Share = 0.0
    smoothing_factor: float = 0.0
    smoothing_curve: float = 1.0
    xtc_probability: Share = 0.0
    xtc_threshold: Share = 0.1
    dry_multiplier: float = 0.0
    dry_base: Annotated[float, (1.0, 1e6)] = 1.75
    dry_allowed_length: Annotated[int, (1, 1 << 30)] = 2
    dry_range: int = 0
    dry_breakers: tuple[int, ...] = ()
    mirostat_v1_tau: float = 0.0
    mirostat_v2_tau: float = 0.0
    mirostat_eta: float = 0.1

    @property
    def enabled(self) -> tuple[str, ...]:
        """The filters that are on, in the order of `LOGIT_FILTERS`."""
        return tuple(name for name, one in LOGIT_FILTERS.items() if getattr(self, one.switch) != _OFF[one.switch])

    def __repr__(self) -> str:
        shown = (f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return f"FilterParams({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


_OFF = {f.name: f.default for f in dataclasses.fields(FilterParams)}
_PARAMETERS = {
    name: kind for name, kind in get_type_hints(FilterParams, None, None, True).items() if name != "dry_breakers"
}


@dataclass(frozen=True)
class FilterChain:
    """Which filters a sampler has, in the order of their application, and where engines differ and are all correct.

    Args:
        order: Names of `LOGIT_FILTERS`; what is missing is unsupported.
        sigma_ddof: Of the standard deviation of top-n-sigma: 0 divides by n, 1 by n - 1.
        tail_free_extra: Tail-free sampling keeps so many tokens more than have a cumulative curvature up to its
            parameter; 1 in the first implementations, which pair the curvature of a token with the one behind it.
        mirostat_surprise: Of the drawn token, from its probability before the cut (`full`) or after it (`kept`).
        mirostat_top: So many of the most probable tokens estimate the Zipf exponent (version 1).
        mirostat_extra: Version 1 keeps the integer part of k, and so many tokens more.
        mirostat_one_hot: Mirostat gives back the drawn token alone.
        dry_longest: Longer repetitions count as long as this.

    Raises:
        ValueError: If `order` names an unknown filter, or one twice.
    """

    order: tuple[str, ...] = tuple(LOGIT_FILTERS)
    sigma_ddof: int = 0
    tail_free_extra: int = 1
    mirostat_surprise: Literal["full", "kept"] = "full"
    mirostat_top: int = 100
    mirostat_extra: int = 0
    mirostat_one_hot: bool = False
    dry_longest: int = 1 << 30

    def __post_init__(self) -> None:
        wrong = [name for name in self.order if name not in LOGIT_FILTERS or self.order.count(name) > 1]
        if wrong:
            rule = f"each must be one of {', '.join(LOGIT_FILTERS)}, and stand there once"
            raise ValueError(f"FilterChain: order names {wrong[0]!r}, but {rule}. Correct the name.")

    def unsupported(self) -> dict[str, str]:
        """The capabilities of the filters that it does not have, with a reason."""
        return {name.replace("_", "-"): "it has no such filter" for name in LOGIT_FILTERS if name not in self.order}


@dataclass(frozen=True, eq=False, repr=False)
class FilterBatch(Batch):
    """Rows of logits, and what is to be done with each.

    Args:
        logits: As the model gave them; -inf for what is forbidden. One is finite at least.
        prompt_token_ids: Per row.
        output_token_ids: Per row; DRY looks at the prompt, then at these.
    """

    logits: Tensor  # [num_rows, vocab_size] float32
    params: list[FilterParams]
    prompt_token_ids: list[list[int]]
    output_token_ids: list[list[int]]

    @property
    def batch_size(self) -> int:
        return len(self.params)

    def select(self, rows: Sequence[int]) -> FilterBatch:
        """The batch of these rows, in this order."""
        lists = ("params", "prompt_token_ids", "output_token_ids")
        chosen = {name: [getattr(self, name)[row] for row in rows] for name in lists}
        return self.replace(logits=self.logits[rows_of(rows, self.device)], **chosen)


@dataclass(frozen=True, eq=False)
class FilterResult:
    """What is left of a batch.

    Args:
        logits: -inf for what is out. The others may be shifted by one constant per row.
        token_ids: The token that was drawn in each row with mirostat, which needs it for its next step; others mean
            nothing. `None` if there is no mirostat.
    """

    logits: Tensor  # [num_rows, vocab_size] float32
    token_ids: Tensor | None = None  # [num_rows] int32 | int64


@runtime_checkable
class LogitsFilterer(AnySampler, Protocol):
    """A sampler's filters under test. Any object with these attributes is one; do not subclass.

    `chain` declares order and conventions. The batch may be written: it is made for one call. XTC draws from `noise`,
    once per row. Steps of one text are calls with the same noise object: what mirostat has to remember belongs into
    `noise.kept`. A row without filters comes back bit for bit.
    """

    @property
    def chain(self) -> FilterChain: ...
    def filter_logits(self, batch: FilterBatch, noise: SeededNoise) -> FilterResult: ...


FilterFunction = Callable[[FilterBatch, SeededNoise], "FilterResult | Tensor"]


@dataclass(frozen=True)
class FunctionLogitsFilterer:
    """A plain function as a `LogitsFilterer`; made by `logits_filterer`."""

    name: str
    function: FilterFunction
    chain: FilterChain
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    contract: Literal["filters"] = "filters"
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)

    def filter_logits(self, batch: FilterBatch, noise: SeededNoise) -> FilterResult:
        answer = self.function(batch, noise)
        return answer if isinstance(answer, FilterResult) else FilterResult(answer)


def logits_filterer(
    function: FilterFunction,
    *,
    chain: FilterChain | None = None,
    name: str | None = None,
    device: str = "cpu",
    unsupported: Mapping[str, str] | None = None,
    slow: bool = False,
) -> FunctionLogitsFilterer:
    """Wrap `function(batch, noise) -> logits`, or `-> FilterResult`, for the suite.

    Args:
        chain: Which filters it has, in which order; all of them if `None`.
        name: Shown in reports; the function's name if `None`.
        device: Where the batch's logits are put before each call.
        unsupported: Capability to the reason why it is unsupported, beside those of filters that `chain` lacks.
        slow: Draw fewer examples.

    Raises:
        ValueError: If `unsupported` names an unknown capability or gives no reason.
    """
    chosen = chain or FilterChain()
    capabilities = Capabilities.of(chosen.unsupported() | dict(unsupported or {}), slow)
    return FunctionLogitsFilterer(name or function.__name__, function, chosen, device, capabilities)


def capability_of(filter_name: str) -> Capability:
    """The capability of a filter.

    Example:
        >>> capability_of("typical_p").value
        'typical-p'
    """
    return Capability(filter_name.replace("_", "-"))


# -- how the suite calls a filterer: the same way everywhere, with batch and answer checked ---------------------------

_STEPS = "fairdraw: steps"
"""In `SeededNoise.kept`: the number of the last step."""


@dataclass(frozen=True)
class Filtered:
    """The result of one call; copies."""

    logits: NDArray[np.float32]  # [num_rows, vocab_size] float32
    token_ids: NDArray[np.int64] | None  # [num_rows] int64


def call_filters(filterer: LogitsFilterer, batch: FilterBatch, noise: SeededNoise) -> Filtered:
    """Call `filter_logits` once, with a copy of the batch.

    Raises:
        ValueError, TypeError: If the batch breaks the contract (a fault of the caller).
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the filterer raises, marked as its own.

    Randomness:
        The global generators are seeded just before the call: with `noise.seed` for the first step with this noise
        object, and otherwise for each later one. `seeded` says when their states are put back.
    """
    check_filter_batch(batch)
    step = noise.kept[_STEPS] = int(str(noise.kept.get(_STEPS, -1))) + 1
    own = SeededNoise(derive_seed("step", noise.seed, step) if step else noise.seed)
    with seeded(own, batch.device):
        answer = Answer.of(filterer, "filter_logits", batch.device, batch.clone(), noise)
        found = answer.as_kind(FilterResult, "logits")
        hint = "([num_rows, vocab_size]). Return the filtered logits."
        logits = answer.numbers("logits", found.logits, list(batch.logits.shape), ("float32",), hint)
        tokens, shape = found.token_ids, [batch.batch_size]
        ids = None if tokens is None else answer.numbers("token_ids", tokens, shape, INTEGERS, "([num_rows]).")
        return Filtered(logits, ids)


def check_filter_batch(batch: FilterBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `FilterBatch`.
        ValueError: If shapes, lengths, logits or parameters are out of range.
    """
    import torch

    validator = Validator("check_filter_batch")
    validator.kind("batch", batch, FilterBatch, "Build one.")
    shape = list(batch.logits.shape)
    rule = f"it must be [{batch.batch_size}, vocab_size] with at least one row and one token"
    fits = len(shape) == 2 and shape[0] == batch.batch_size >= 1 and shape[1] >= 1
    validator.require(fits, f"logits.shape={shape}", rule, "Give each row its parameters.")
    validator.dtype("logits", batch.logits, ("float32",))
    valid = ~batch.logits.isnan() & (batch.logits != torch.inf)
    validator.values("logits", batch.logits, valid, "it must be finite or -inf", "Mask with -inf.")
    alive = batch.logits.isfinite().any(dim=1)
    validator.require(bool(alive.all()), "a row is all -inf", "a token must be possible", "Leave the row out.")
    for name in ("prompt_token_ids", "output_token_ids"):
        rows = getattr(batch, name)
        given, rule = f"{name} has {len(rows)} lists", f"it must have one for each of {batch.batch_size} rows"
        validator.require(len(rows) == batch.batch_size, given, rule, "Use [] for none.")
        inside = all(0 <= token < batch.vocab_size for row in rows for token in row)
        validator.require(inside, f"{name} has other ids", "they must be of the vocabulary", "Leave them out.")
    for params in batch.params:
        _check_params(validator, params)


def _check_params(validator: Validator, params: FilterParams) -> None:
    for name, hint in _PARAMETERS.items():
        value, (low, high) = getattr(params, name), getattr(hint, "__metadata__", [(0, 1e30)])[0]
        fits = low <= value <= high and (isinstance(_OFF[name], float) or value % 1 == 0)
        rule = f"it must {'lie' if isinstance(_OFF[name], float) else 'be a whole number'} in [{low}, {high}]"
        validator.require(fits, f"{name}={value!r}", rule, "Use a value in range.")
    cuts = set(params.enabled) - {"temperature", "mirostat_v1", "mirostat_v2"}
    alone = not (params.mirostat_v1_tau or params.mirostat_v2_tau) or not cuts
    given, rule = f"params={params!r}", "a row with mirostat has no other filter but a temperature"
    validator.require(alone, given, rule, "Switch the others off.")


# -- what reports say of it -------------------------------------------------------------------------------------------


def _features(found: Look, batch: FilterBatch, _: SeededNoise) -> None:
    """Add the features of one call."""
    found.each(FILTERS, [params.enabled for params in batch.params], tuple(LOGIT_FILTERS))


def _uses(batch: FilterBatch) -> Iterator[Capability]:
    """Yield the filters that a batch has."""
    return (capability_of(name) for params in batch.params for name in params.enabled)


CONTRACT = Contract(
    "filters",
    call="filter_logits(batch, noise)",
    case="fairdraw.strategies.filters:FilterCase",
    default="filters/oracle",
    reference="",
    raised="FIL100",
    answer="a FilterResult: float32 logits [num_rows, vocab_size], and token ids [num_rows]",
    features=_features,
    uses=_uses,
    has_distributions=True,
    draws_with="xtc",
)
