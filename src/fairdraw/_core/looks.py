"""What a call of the sampler holds: features, and the level of each in the whole call or in each of its rows.

A level is a size, a word, or several words. Words speak for themselves (`strided`), so that two of them on one request
are a *pair*; the first word of a feature is the usual one, and no part of pairs. Whoever reads a feature says which
words it may have: the report need not know them to name those that did not occur.

Cheap things only: lengths, shapes, strides, dtypes, small tensors of parameters. Logits are never read but for the
capabilities of a failing case.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from fairdraw._core.noise import SeededNoise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

Level = int | str | tuple[int | str, ...] | None

BATCH, DRAFTS, VOCABULARY, OFFSET = "requests per batch", "drafts per request", "vocabulary", "offset into the logits"
DTYPE, LAYOUT, NOISE, TEMPERATURE = "dtype of the logits", "layout", "noise", "temperature"
CALLS, POSITION, PROMPT, OUTPUT = "calls per case", "position", "prompt tokens", "output tokens"
PLACEHOLDERS, PARAMETERS, CHANGES = "placeholders", "parameters", "changes of rows"
EVENTS, FILTERS = "events of a request", "filters of a request"
NONE = "none"
"""The level of a request that has none of several words."""
SEVERAL = frozenset((FILTERS, PARAMETERS, CHANGES, EVENTS))
"""Features of which a request may have several words."""

HALVES, STRIDED, REQUEST_SEED, GREEDY = ("bfloat16", "float16"), "strided", "per-request seed", "greedy"
UNEQUAL, PLACEHOLDER, RATES, NO_TOKENS = "unequal drafts", "placeholder drafts", "rates", "rows that emitted nothing"
TEMPERATURES = ("temperature 1", GREEDY, "temperature other than 0 and 1")
NOISES = ("one seed", "explicit noise", REQUEST_SEED)


def sub_range(size: int) -> int:
    """Return the number of a size's sub-range; below 16 each size has its own, above there are eight in a power of two.

    Example:
        >>> sub_range(15), sub_range(32768) == sub_range(32769), sub_range(32769) == sub_range(36864)
        (15, True, False)
    """
    shift = max(0, size.bit_length() - 4)
    return (shift << 4) + (size >> shift)


@dataclass
class Look:
    """What one call held.

    Args:
        rows: Requests of the call.
        counts: Feature and word, feature and power of two of a size, or pair of words to the number of requests.
        ranges: Feature to the smallest and the largest size of each sub-range.
        words: Feature to all words that it may have.
    """

    rows: int
    counts: Counter[Any] = field(default_factory=Counter)  # Any: as above
    ranges: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _columns: list[Sequence[Level]] = field(default_factory=list)

    def all_have(self, name: str, level: Level, words: Sequence[str] = ()) -> None:
        """Add a feature of the whole call."""
        self.each(name, [level] * self.rows, words)

    def each(self, name: str, levels: Sequence[Level], words: Sequence[str] = ()) -> None:
        """Add a feature that each row has, or does not have (`None`)."""
        if words:
            self.words[name] = (*words, *[NONE] * (name in SEVERAL))
            if paired := words_of_pairs(name, self.words[name]):
                self._columns.append([one if isinstance(one, tuple) or one in paired else None for one in levels])
        for level, count in Counter(levels).items():
            for one in level or (NONE,) if isinstance(level, tuple) else (level,):
                if isinstance(one, int):
                    add_sizes(self.ranges.setdefault(name, {}), (one,))
                    self.counts[name, one.bit_length()] += count
                elif one is not None:
                    self.counts[name, one] += count

    def add_pairs(self) -> Look:
        """Count the pairs of words, once all features are there."""
        for levels, count in Counter(zip(*self._columns, strict=True)).items():
            for pair in _pairs_among(levels):
                self.counts[pair] += count
        return self


def add_sizes(by_range: dict[int, tuple[int, int]], sizes: Iterable[int]) -> None:
    """Widen the smallest and the largest size of each sub-range, or begin it."""
    for size in sizes:
        number = sub_range(size)
        low, high = by_range.get(number, (size, size))
        by_range[number] = min(low, size), max(high, size)


def words_of_pairs(name: str, words: Sequence[str]) -> Sequence[str]:
    """Return the words of a feature that pairs are made of; changes are those of a batch, and of no request."""
    return () if name == CHANGES else [word for word in words[name not in SEVERAL :] if word != NONE]


def pair_of(one: str, other: str) -> str:
    """Return two words as a pair."""
    return " + ".join(sorted((one, other)))


@lru_cache(maxsize=4096)
def _pairs_among(levels: tuple[Level, ...]) -> tuple[str, ...]:
    several = (level if isinstance(level, tuple) else (level,) for level in levels)
    words = [word for level in several for word in level if isinstance(word, str)]
    return tuple(pair_of(*pair) for pair in combinations(words, 2))


# -- a call of a sampler without sessions -----------------------------------------------------------------------------


def signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:  # Any: those of the method
    """Calls of one signature hold about the same: in the loops of the statistical suite only some of them are read."""
    batch, noise = arguments[0], arguments[1] if len(arguments) > 1 else None
    logits = logits_of(batch)
    options = (getattr(batch, name, 0) is None for name in ("draft_probs", "top_k", "top_p", "min_p"))
    seeds = len(getattr(noise, "request_seeds", None) or ())
    kind = (logits.shape, batch.batch_size, logits.dtype, logits.stride(-1), type(batch))
    return *kind, type(noise), 0 < seeds < batch.batch_size, bool(seeds), *options


def sizes_of(arguments: tuple[Any, ...]) -> tuple[int, int, int]:  # Any: as above
    """Requests, most drafts of a request, vocabulary."""
    batch = arguments[0]
    return batch.batch_size, getattr(batch, "max_spec_len", 0), batch.vocab_size


def look(features: Callable[..., None], arguments: tuple[Any, ...]) -> Look:  # Any: as above
    """Return what a call of a sampler without sessions held; `features` adds what its contract has."""
    batch = arguments[0]
    found = Look(batch.batch_size)
    found.all_have(BATCH, found.rows)
    add_layout(found, logits_of(batch), batch.vocab_size)
    features(found, *arguments)
    return found.add_pairs()


def logits_of(batch: Any) -> Tensor:  # [num_rows, vocab_size]; Any: of any contract without sessions
    """Return the rows that a call is about."""
    logits: Tensor = batch.target_logits if hasattr(batch, "target_logits") else batch.logits
    return logits


def add_layout(found: Look, logits: Tensor, vocab_size: int) -> None:  # [num_rows, vocab_size] float32 or half
    """Add the vocabulary, the dtype and the layout of rows."""
    found.all_have(VOCABULARY, vocab_size)
    found.all_have(OFFSET, sum((size - 1) * step for size, step in zip(logits.shape, logits.stride(), strict=True)))
    found.all_have(DTYPE, str(logits.dtype).removeprefix("torch."), ("float32", *HALVES))
    add_choice(found, LAYOUT, "contiguous", STRIDED, not logits.is_contiguous())


def add_choice(found: Look, name: str, off: str, on: str, is_on: object) -> None:
    """Add a feature of the whole call that has two words."""
    found.all_have(name, on if is_on else off, (off, on))


def add_noises(found: Look, noise: object) -> None:
    """Add what each request draws from."""
    seeds = noise.request_seeds if isinstance(noise, SeededNoise) else None
    levels = [NOISES[1 if seeds is None else 2 * (row in seeds)] for row in range(found.rows)]
    found.each(NOISE, levels, NOISES)


def read_lengths(found: Look, batch: Any) -> None:  # Any: with `num_draft_tokens`
    """Add the number of drafts of each request."""
    found.each(DRAFTS, batch.num_draft_tokens)
    add_choice(found, "lengths", "equal drafts", UNEQUAL, len(set(batch.num_draft_tokens)) > 1)


def read_temperatures(found: Look, batch: Any) -> None:  # Any: with `temperature` and `is_greedy`
    """Add the temperature of each request."""
    add_temperatures(found, batch.is_greedy.tolist(), batch.temperature.tolist())


def add_temperatures(found: Look, are_greedy: Iterable[bool], values: Iterable[float]) -> None:
    """Add the temperature of each request."""
    pairs = zip(are_greedy, values, strict=True)
    found.each(TEMPERATURE, [TEMPERATURES[1 if greedy else 2 * (t != 1)] for greedy, t in pairs], TEMPERATURES)


def read_positions(found: Look, batch: Any) -> None:  # Any: with `positions`
    """Add the position of each request in its text, if it is known."""
    if batch.positions is not None:
        found.each(POSITION, batch.positions.tolist())
