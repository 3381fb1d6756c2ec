"""Strategies of the filters contract: rows of logits, the filters that are on, and the text so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw import contracts
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.filters import telling_settings
from fairdraw.contracts import LOGIT_FILTERS, Capabilities, Capability, FilterBatch, FilterParams, capability_of
from fairdraw.contracts._filters import LAST
from fairdraw.strategies._arguments import check_interval, check_kinds, one_of
from fairdraw.strategies._cases import _argument, strided_like
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._narrowing import Narrowing
from fairdraw.strategies._recipe import LAYOUTS, PrintsAsCode, Recipe
from fairdraw.strategies._row_traces import RowCall, RowTrace
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies.rows import TARGET_KINDS, bulk_rng, bulk_seeds, target_row

__all__ = [
    "EXTREMES", "LOGIT_KINDS", "SETTINGS", "TEXT_KINDS", "FilterCase", "FilterRow", "FilterTrace", "filter_batches",
    "filter_cases",
]  # fmt: skip


def _ladder(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Steps of equal height, in any order: no two are equal, and decisions are clear."""
    return (rng.permutation(size) * -0.375).astype(np.float32)


def _grid(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Multiples of 1/64 up to 8: shifts and differences are exact."""
    return (rng.integers(-512, 513, size) / 64).astype(np.float32)


_OWN_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {"ladder": _ladder, "grid": _grid}
LOGIT_KINDS: tuple[str, ...] = ("ladder", "grid", *TARGET_KINDS)
"""Rows of logits: equal steps, multiples of 1/64, `TARGET_KINDS`."""

_ALPHABET = 4
_PHRASE = 30
"""Tokens that a text begins and ends with, at most."""


def _far(number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A phrase of the lower half of the ids, then other ids, and all of the phrase but its last three tokens again."""
    text = rng.integers(size // 2, size, number)
    phrase = rng.integers(0, max(1, size // 2), min(_PHRASE, number // 3))
    text[: len(phrase)] = phrase
    if len(phrase) > 3:
        text[number - len(phrase) + 3 :] = phrase[:-3]
    return text


_TEXTS: dict[str, Callable[[int, int, np.random.Generator], NDArray[np.int64]]] = {
    "one": lambda number, size, rng: np.zeros(number, np.int64),
    "loop": lambda number, size, rng: np.arange(number) % min(3, size),
    "any": lambda number, size, rng: rng.integers(0, min(_ALPHABET, size), number),
    "echo": lambda number, size, rng: np.resize(rng.integers(0, min(_ALPHABET, size), max(1, number * 2 // 3)), number),
    "far": _far,
}
TEXT_KINDS: tuple[str, ...] = tuple(_TEXTS)
"""Tokens so far: one token again and again, a loop of three, any of four tokens, such a text that begins again, and one
that only repeats at its end how it began."""

SETTINGS = {name: one.usual for name, one in LOGIT_FILTERS.items()}
"""Filter to parameters that people use, the plain ones first."""


def _at(one: contracts.LogitFilter, value: float) -> dict[str, Any]:  # Any: as SETTINGS
    """Return the parameters with which a filter has this number."""
    return one.usual[0] | {one.number: value}


EXTREMES = {name: (_at(one, one.low), _at(one, one.high)) if one.number else () for name, one in LOGIT_FILTERS.items()}
"""Filter to parameters at the ends of their ranges."""


@dataclass(frozen=True, repr=False)
class FilterRow(Recipe):
    """One row.

    Args:
        logits: Its shape (`LOGIT_KINDS`).
        text: Tokens so far (`TEXT_KINDS`), `num_tokens` of them, of which the first `num_prompt` are the prompt.

    Raises:
        ValueError: If a kind is unknown.
    """

    logits: str = "ladder"
    params: FilterParams = FilterParams()  # noqa: RUF009  frozen
    text: str = "one"
    num_tokens: int = 0
    num_prompt: int = 0

    def __post_init__(self) -> None:
        self._require_words(logits=LOGIT_KINDS, text=_TEXTS)


class _DrawnFilterBatch(PrintsAsCode, FilterBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False)
class FilterCase(Recipe):
    """A batch of the filters contract, as data.

    Args:
        seed: For every bulk number.

    Raises:
        ValueError: If there is no row or no vocabulary.

    Example:
        >>> FilterCase(vocab_size=3, rows=(FilterRow("flat"),)).batch().logits.tolist()
        [[0.0, 0.0, 0.0]]
    """

    vocab_size: int
    rows: tuple[FilterRow, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        self._index_integers()
        if self.vocab_size < 1 or not self.rows:
            raise ValueError(
                f"FilterCase: vocab_size={self.vocab_size} and {len(self.rows)} rows, but there must be one of each. "
                "Use (FilterRow(),)."
            )

    def batch(self, device: str = "cpu") -> FilterBatch:
        """Build new tensors."""
        logits = np.stack([self._logits(number) for number in range(len(self.rows))])
        texts = [self._text(number) for number in range(len(self.rows))]
        counts = [row.num_prompt for row in self.rows]
        return _DrawnFilterBatch(
            logits=torch.from_numpy(logits).to(device),
            params=[row.params for row in self.rows],
            prompt_token_ids=[text[:count] for text, count in zip(texts, counts, strict=True)],
            output_token_ids=[text[count:] for text, count in zip(texts, counts, strict=True)],
            origin=f"{self!r}.batch({_argument(device)})",
        )

    def _logits(self, number: int) -> NDArray[np.float32]:  # [vocab_size] float32
        row = self.rows[number]
        seed, own = derive_seed("row", self.seed, number), _OWN_KINDS.get(row.logits)
        if own is not None:
            return own(self.vocab_size, bulk_rng("filters", seed))
        return target_row(row.logits, self.vocab_size, seed)

    def _text(self, number: int) -> list[int]:
        row, rng = self.rows[number], bulk_rng("text", self.seed, number)
        return [int(token) for token in _TEXTS[row.text](row.num_tokens, self.vocab_size, rng)]

    def build(self) -> None:
        """Build everything once; raises what a damaged recipe raises."""
        self.batch()

    @property
    def requests(self) -> tuple[FilterRow, ...]:
        """The rows; each is a request."""
        return self.rows


def filters_of(can: Capabilities, filters: Sequence[str] | None = None) -> list[str]:
    """Those of `filters`, or of all, that are supported."""
    return [name for name in (LOGIT_FILTERS if filters is None else filters) if capability_of(name) in can]


ALONE = ("mirostat_v1", "mirostat_v2")
"""Filters that share a row with a temperature at most."""


@st.composite
def filter_cases(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    min_vocab_size: int = 2,
    max_vocab_size: int = 1025,
    max_rows: int = 3,
    filters: Sequence[str] | None = None,
    logits: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    max_tokens: int = 24,
    settings: str = "usual",
) -> FilterCase:
    """Whole batches, as recipes.

    Draws only what `capabilities` support.

    Args:
        filters: Of which one is on in each row; all that are supported if `None`, no filter if empty.
        logits: Kinds of rows.
        texts: Kinds of the tokens so far.
        settings: `usual` values (`SETTINGS`), or `any` (`EXTREMES` as well).

    Raises:
        TypeError, ValueError: If a bound or kind is invalid; when the first case is drawn.
    """
    check_interval("filter_cases", "max_rows", 1, "max_rows", max_rows, at_least=1)
    one_of("filter_cases", "settings", settings, ("usual", "any"))
    known, kinds = filters_of(capabilities, filters), check_kinds("filter_cases", "logits", logits, LOGIT_KINDS)
    spoken = check_kinds("filter_cases", "texts", texts, TEXT_KINDS)
    rows = []
    for _ in range(draw(st.integers(1, max_rows))):
        name = draw(st.sampled_from(known)) if known else ""
        values = (*SETTINGS.get(name, ({},)), *(EXTREMES.get(name, ()) if settings == "any" else ()))
        params = FilterParams(**draw(st.sampled_from(values)))
        num_tokens = draw(st.integers(0, max_tokens)) if params.dry_multiplier else 0
        rows.append(
            FilterRow(
                logits=draw(st.sampled_from(kinds)),
                params=params,
                text=draw(st.sampled_from(spoken)) if num_tokens else TEXT_KINDS[0],
                num_tokens=num_tokens,
                num_prompt=draw(st.integers(0, num_tokens)),
            )
        )
    bounds = Narrowing("filter_cases", capabilities).vocab_sizes(min_vocab_size, max_vocab_size)
    return FilterCase(draw(vocab_sizes(*bounds)), tuple(rows), draw(bulk_seeds()))


_DEGENERATE = ("flat", "one-hot", "tied", "last-only")
_KINDS = ("ladder", "normal", "zipf", "half", "peaked", "grid", *_DEGENERATE)
_PLAIN = tuple(FilterRow(kind) for kind in _KINDS)


def _settings(name: str, rng: np.random.Generator, most: int) -> list[dict[str, Any]]:  # Any: as SETTINGS
    """Return all settings of a filter: usual ones, those at the ends, and three numbers of any magnitude between.

    Args:
        most: Of a number of tokens.
    """
    one = LOGIT_FILTERS[name]
    found = [*one.usual, *EXTREMES[name]]
    if one.number and one.low < one.high:
        high = one.high if isinstance(one.low, float) else max(2, min(one.high, most))
        between = np.exp(rng.uniform(np.log(one.low), np.log(high) - 1e-3, 3))
        near_one = 1 - 10.0 ** -rng.uniform(0, 7, 3)
        values = np.where((rng.random(3) < 0.5) & (one.high == LAST), np.minimum(near_one, LAST), between)
        found += [_at(one, type(one.low)(value)) for value in values.astype(np.float32)]
    return found


def _any(settings: Sequence[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:  # Any: as SETTINGS
    return settings[int(rng.integers(len(settings)))]


class FilterTrace(RowTrace):
    """Calls of one filterer: rows with every two settings of two filters, with each setting alone, and without."""

    def library(self) -> FilterCase:
        """Return all rows, the plain ones first."""
        rng = bulk_rng("filters of a trace", self.seed)
        known = [name for name in LOGIT_FILTERS if str(capability_of(name)) not in self.without]
        settings = {name: _settings(name, rng, self.vocab_size) for name in known}
        telling = {name: telling_settings(name) for name in known if name not in ALONE}
        alone = [one for name in known for one in settings[name]]
        among = [(one, two, of) for one, two in combinations(telling, 2) for of in (*[telling] * 3, settings)]
        pairs = [_any(of[one], rng) | _any(of[two], rng) for one, two, of in among]
        warm = {"temperature": 1.5} if "temperature" in known else {}
        sets = [*alone, *alone, *(_any(settings[name], rng) | warm for name in ALONE if name in known)]
        wide = {name: [{}, _any(settings[name], rng), _any(settings[name], rng)] for name in telling}
        for one in covering_settings(wide, seed=self.seed % 64) if len(wide) > 1 else ():
            sets.append({key: value for setting in one.values() for key, value in setting.items()})
        rows = [*_PLAIN, *(self._row(one, rng) for one in sets), *(self._row(one, rng, _KINDS[:6]) for one in pairs)]
        rows += [self._row(one, rng).replace(logits=_DEGENERATE[n % 4]) for n, one in enumerate(alone)]
        return FilterCase(self.vocab_size, self.chosen(rows, len(_PLAIN)), self.seed)

    def _row(self, setting: dict[str, Any], rng: np.random.Generator, kinds: tuple[str, ...] = _KINDS) -> FilterRow:
        """Return a row of any kind with these parameters; of two temperatures it has one."""
        if "temperature" in setting and "dynatemp_high" in setting:
            setting = {key: value for key, value in setting.items() if key != "temperature"}
        kind, text = (among[rng.integers(len(among))] for among in (kinds, TEXT_KINDS))
        return FilterRow(kind, FilterParams(**setting), text, 16, 5)

    def batches(self, library: FilterBatch) -> Iterator[tuple[RowCall, FilterBatch]]:
        """Yield the calls, each with its batch of rows of the library, in memory of any layout."""
        layouts = LAYOUTS if str(Capability.STRIDED_INPUTS) not in self.without else LAYOUTS[:1]
        values = [{name: getattr(one, LOGIT_FILTERS[name].switch) for name in one.enabled} for one in library.params]
        for one in self.rows_played(values, len(_PLAIN)):
            batch = library.select(one.places.tolist())
            yield one, batch.replace(logits=strided_like(batch.logits, layouts[one.number % len(layouts)]))


FilterCase.others = (FilterTrace,)


@st.composite
def filter_batches(draw: st.DrawFn, /, *, device: str = "cpu", **choices: Any) -> FilterBatch:  # Any: of `filter_cases`
    """Batches ready for a function that filters; each prints as the code that builds it. Arguments as for
    `filter_cases`.

    Raises:
        TypeError, ValueError: If an argument is unknown or invalid; when the first batch is drawn.
    """
    return draw(filter_cases(**{"settings": "any", **choices})).batch(device)
