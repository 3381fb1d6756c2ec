"""Strategies of the sampling contract: requests with their own parameters, and whole decoding steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, SamplingBatch
from fairdraw.strategies._arguments import check_kinds
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._sampling_cases import FILTER_NEEDS, FILTERS, SampledRequest, SamplingCase
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies.noise import EXPONENTIAL_KINDS
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_seeds

__all__ = ["FILTERS", "SampledRequest", "SamplingCase", "sampling_batches", "sampling_cases"]

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
