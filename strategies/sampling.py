"""Strategies of the sampling contract: requests with their own parameters, and whole decoding steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import GREEDY_BELOW, Capabilities, Capability, RaceNoise, SamplingBatch, SamplingNoise
from fairdraw.strategies._arguments import check_kinds
from fairdraw.strategies._cases import _argument, laid_out
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._recipe import BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies.noise import EXPONENTIAL_KINDS, _exponentials, hashed_seeds
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_rng, bulk_seeds, target_row

__all__ = ["FILTERS", "SampledRequest", "SamplingCase", "sampling_batches", "sampling_cases"]

FILTER_NEEDS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}
FILTERS: tuple[str, ...] = tuple(FILTER_NEEDS)
"""Names of the filters; each is a field of `SampledRequest`."""


@dataclass(frozen=True, repr=False)
class SampledRequest(Recipe):
    """One request: its row of logits and its parameters.

    Args:
        logits: Shape of the row (`TARGET_KINDS`, `INVALID_KINDS`).
        temperature: Below 1e-5 it is greedy.
        top_k: A larger number means the whole vocabulary; `None` filters nothing, also for `top_p` and `min_p`.
        exponentials: Its row of the race (`EXPONENTIAL_KINDS`; explicit noise only).
        request_seed: It has a per-request seed (seeded noise only).

    Raises:
        ValueError: If a kind is unknown or a parameter out of range.
    """

    logits: str = "flat"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    exponentials: str = "random"
    request_seed: bool = False

    def __post_init__(self) -> None:
        self._require_words(logits={**TARGET_KINDS, **INVALID_KINDS}, exponentials=EXPONENTIAL_KINDS)
        rules = {
            "temperature": (self.temperature >= 0, "at least 0. Use 0 for greedy."),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1. Use None for no filter."),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]. Use None for no filter."),
            "min_p": (self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]. Use None for no filter."),
        }
        for name, (is_valid, rule) in rules.items():
            if not is_valid:
                raise ValueError(f"SampledRequest: {name}={getattr(self, name)}, but it must be {rule}")

    @property
    def greedy(self) -> bool:
        return bool(np.float32(self.temperature) < np.float32(GREEDY_BELOW))


class _DrawnSamplingBatch(PrintsAsCode, SamplingBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False, eq=False)
class _DrawnRace(PrintsAsCode, RaceNoise):
    """Explicit noise that prints as the code that makes it."""

    origin: str = ""

    def __repr__(self) -> str:
        return self.origin


@dataclass(frozen=True, repr=False)
class SamplingCase(BatchRecipe):
    """A batch of the sampling contract and its noise, as data.

    Args:
        explicit: Noise is handed in (`RaceNoise`); otherwise seeded (`SeededNoise`).
        seed: For every bulk number.
        num_rows: Requests of the batch: `requests` are taken in turn, each time with other bulk numbers. 0: once each.

    Raises:
        ValueError: If there is no request or no vocabulary, a word is unknown, or `num_rows` is negative.

    Example:
        >>> SamplingCase(vocab_size=3, requests=(SampledRequest(),)).batch().logits.tolist()
        [[0.0, 0.0, 0.0]]
    """

    vocab_size: int
    requests: tuple[SampledRequest, ...]
    explicit: bool = True
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0
    num_rows: int = 0

    def __post_init__(self) -> None:
        self._check("SampledRequest()")
        if self.num_rows < 0:
            raise ValueError(f"SamplingCase: num_rows={self.num_rows}, but it must be at least 0. Use 0 for once each.")

    @property
    def rows(self) -> tuple[SampledRequest, ...]:
        """The request of each row of the batch."""
        size = self.num_rows or len(self.requests)
        return (self.requests * (1 + size // len(self.requests)))[:size]

    def batch(self, device: str = "cpu") -> SamplingBatch:
        """Build new tensors."""
        rows = [target_row(r.logits, self.vocab_size, derive_seed(self.seed, i)) for i, r in enumerate(self.rows)]
        logits = torch.from_numpy(np.stack(rows)).to(getattr(torch, self.dtype))
        positions = bulk_rng("positions", self.seed).integers(4096, size=len(rows))
        batch = _DrawnSamplingBatch(
            logits=logits.to(device),
            temperature=torch.tensor([r.temperature for r in self.rows], dtype=torch.float32, device=device),
            top_k=self._filter("top_k", self.vocab_size, torch.int32, device, lambda k: min(k, self.vocab_size)),
            top_p=self._filter("top_p", 1.0, torch.float32, device),
            min_p=self._filter("min_p", 0.0, torch.float32, device),
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            origin=f"{self!r}.batch({_argument(device)})",
        )
        return laid_out(batch, self.layout)

    def noise(self, device: str = "cpu") -> SamplingNoise:
        """Build fresh noise: exponentials, or seeds with generators in their initial state."""
        if not self.explicit:
            return hashed_seeds(self.seed, (i for i, request in enumerate(self.rows) if request.request_seed))
        rows = [
            _exponentials(request.exponentials, self.vocab_size, bulk_rng("exponential", self.seed, i))
            for i, request in enumerate(self.rows)
        ]
        origin = f"{self!r}.noise({_argument(device)})"
        return _DrawnRace(torch.from_numpy(np.stack(rows)).to(device), origin)

    def _filter(
        self,
        name: str,
        off: float,
        dtype: torch.dtype,
        device: str,
        change: Callable[[Any], Any] = lambda value: value,  # Any: an int or a float
    ) -> torch.Tensor | None:  # [batch_size] any
        """One parameter of all requests; `None` if no request uses it."""
        given = [getattr(request, name) for request in self.rows]
        if all(value is None for value in given):
            return None
        return torch.tensor([off if v is None else change(v) for v in given], dtype=dtype, device=device)


TEMPERATURES: tuple[float, ...] = (1.0, 0.5, 2.0, 0.1, 0.7, 1.3, 30.0, 1.0001e-5, 1000.0)
"""Temperatures of random requests, down to the edge of greedy ones."""

_GREEDY_TEMPERATURES = (0.0, 9.999e-6)
"""The second is just below the edge."""

_ONE_ULP = 2.0**-24
_TOP_KS = (1, 2, 3, 7, 40, 10**6)
_TOP_PS = (0.5, 0.9, 0.1, 0.99, 1.0, 1 - _ONE_ULP, 1e-7, 2.0**-149)
_MIN_PS = (0.1, 0.5, 1.0, 0.01, 0.0, 1 - _ONE_ULP, 1e-6, 2.0**-149)

_ALIKE: tuple[tuple[str, ...], ...] = (
    *((),) * 24,
    *(("temperature",), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p")),
    *(("temperature", *FILTERS),) * 3,
)
"""Parameters that are one value for the whole batch, in a quarter of the cases. Servers mostly see such batches, and
choose other paths for them: a number in place of a tensor, one sort for all."""


@dataclass(frozen=True)
class _Choices:
    """The values of each parameter that requests are made of."""

    logits: tuple[str, ...]
    temperatures: tuple[float, ...]
    filters: tuple[str, ...]
    exponentials: tuple[str, ...]
    request_seed: tuple[bool, ...]
    top_ks: tuple[int, ...] = _TOP_KS

    def values(self) -> dict[str, tuple[Any, ...]]:  # Any: whatever the parameter takes
        """The values of each field of a request."""
        given = {"top_k": self.top_ks, "top_p": _TOP_PS, "min_p": _MIN_PS}
        filters = {name: (None, *values) if name in self.filters else (None,) for name, values in given.items()}
        return {
            "logits": self.logits,
            "temperature": self.temperatures,
            **filters,
            "exponentials": self.exponentials,
            "request_seed": self.request_seed,
        }


@lru_cache(maxsize=256)
def _requests(choices: _Choices) -> st.SearchStrategy[SampledRequest]:
    return st.builds(SampledRequest, **{name: st.sampled_from(values) for name, values in choices.values().items()})


def _temperatures(greedy: tuple[bool, ...], given: Sequence[float]) -> tuple[float, ...]:
    """Two requests in eleven are greedy if both kinds are possible."""
    random = tuple(given) if False in greedy else ()
    return (*random, *(_GREEDY_TEMPERATURES if True in greedy else ()))


def _filters(function: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """`()` means no filter."""
    return () if given is not None and not given else check_kinds(function, "filters", given, FILTERS)


@st.composite
def sampling_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    min_vocab_size: int = 1,
    max_vocab_size: int = 1025,
    min_requests: int = 1,
    max_requests: int = 4,
    greedy: bool | None = None,
    explicit: bool | None = None,
    request_seed: bool | None = None,
    logits: Sequence[str] | None = None,
    temperatures: Sequence[float] = TEMPERATURES,
    filters: Sequence[str] | None = None,
    exponentials: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    layouts: Sequence[str] = ("contiguous",),
) -> SamplingCase:
    """Whole decoding steps, as recipes: requests with different parameters, and their noise.

    In a quarter of the cases all random requests have one temperature, one filter or all of these in common.

    Draws only what `capabilities` support. Upper bounds, sequences of kinds and choices left to the draw (`None`) are
    narrowed silently; what cannot be narrowed is an error.

    Args:
        greedy: Temperature 0.
        explicit: Exponentials handed in (also adversarial ones), or seeded noise.
        request_seed: Requests have per-request seeds; `True` implies seeded noise.
        logits: Kinds of rows (`TARGET_KINDS`, all of them if `None`; `INVALID_KINDS` only if named).
        temperatures: Of random requests.
        filters: Names of the filters that may be on (`FILTERS`); `()` for none.
        exponentials: Kinds of the race's exponentials (`EXPONENTIAL_KINDS`; explicit noise only).
        dtypes: Of the logits (`DTYPES`).
        layouts: Strides of the logits (`LAYOUTS`).

    Raises:
        TypeError, ValueError: If a bound or kind is invalid, options contradict each other, or a requirement is
            unsupported; when the first case is drawn.

    Example:
        >>> from hypothesis import given
        >>> @given(sampling_cases(max_requests=2))
        ... def test_mine(case):
        ...     batch, noise = case.batch(), case.noise()
    """
    name, open_to = "sampling_cases", Narrowing("sampling_cases", capabilities)
    kinds = check_kinds(name, "logits", logits, tuple(TARGET_KINDS), also=tuple(INVALID_KINDS))
    low, high = open_to.vocab_sizes(min_vocab_size, max_vocab_size)
    vocab_size = draw(vocab_sizes(low, high))
    is_explicit = draw(st.sampled_from(open_to.explicit(explicit, request_seed)))
    seeds = open_to.flags("request_seed", request_seed, true=Capability.REQUEST_SEEDS)
    choices = _Choices(
        open_to.rows("logits", kinds),
        _temperatures(open_to.flags("greedy", greedy, true=Capability.GREEDY), temperatures),
        tuple(f for f in _filters(name, filters) if FILTER_NEEDS[f] in capabilities),
        check_kinds(name, "exponentials", exponentials, EXPONENTIAL_KINDS) if is_explicit else ("random",),
        (False,) if is_explicit else seeds,
        (*_TOP_KS, max(1, vocab_size - 1)),
    )
    fewest, most = open_to.num_requests(min_requests, max_requests)
    requests = draw(st.lists(_requests(choices), min_size=fewest, max_size=most).map(tuple))
    return SamplingCase(
        vocab_size=vocab_size,
        requests=_made_alike(requests, draw(st.sampled_from(_ALIKE)), greedy_too=draw(st.booleans())),
        explicit=is_explicit,
        dtype=draw(st.sampled_from(open_to.dtypes(dtypes))),
        layout=draw(st.sampled_from(open_to.layouts(layouts))),
        seed=draw(bulk_seeds()),
    )


def _made_alike(
    requests: tuple[SampledRequest, ...], names: Sequence[str], *, greedy_too: bool
) -> tuple[SampledRequest, ...]:
    """The requests with the first random one's values of these parameters.

    Args:
        greedy_too: Greedy requests get its filters, too. Their temperature stays theirs.
    """
    first = next((request for request in requests if not request.greedy), None)
    if first is None or not names:
        return requests
    same: dict[str, Any] = {name: getattr(first, name) for name in names}  # Any: one type each
    of_greedy = {name: same[name] for name in same if name != "temperature"} if greedy_too else {}
    return tuple(replace(request, **(of_greedy if request.greedy else same)) for request in requests)


@st.composite
def sampling_batches(draw: st.DrawFn, /, *, device: str = "cpu", **choices: Any) -> SamplingBatch:  # Any: of a case
    """Batches ready for a token sampler; each prints as the code that builds it. Arguments as for `sampling_cases`, but
    for those of noise.

    Raises:
        TypeError, ValueError: If an argument is unknown or invalid; when the first batch is drawn.
    """
    return draw(sampling_cases(explicit=True, exponentials=("random",), **choices)).batch(device)
