"""What a call of the sampler holds: features, and the level of each in the whole call or in each of its rows.

A level is a size, a word, or several words. Words speak for themselves (`strided`), so that two of them on one request
are a *pair*; the first word of a feature is the usual one, and no part of pairs. Whoever reads a feature says which
words it may have: the report need not know them to name those that did not occur.

Cheap things only: lengths, shapes, strides, dtypes, small tensors of parameters. Logits are never read but for the
capabilities of a failing case.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from fairdraw.protocols import LOGIT_FILTERS, STAGES, Capability, RowChanges, SeededNoise, capability_of
from fairdraw.protocols._lifecycle import Markers, Move

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

Level = int | str | tuple[int | str, ...] | None

BATCH, DRAFTS, VOCABULARY, OFFSET = "requests per batch", "drafts per request", "vocabulary", "offset into the logits"
DTYPE, LAYOUT, NOISE, TEMPERATURE, FILTERS = "dtype of the logits", "layout", "noise", "temperature", "filters"
CALLS, POSITION, PROMPT, OUTPUT = "calls per case", "position", "prompt tokens", "output tokens"
PLACEHOLDERS, PARAMETERS, CHANGES, EVENTS = "placeholders", "parameters", "changes of rows", "events of a request"
NONE = "none"
"""The level of a request that has none of several words."""
SEVERAL = frozenset((FILTERS, PARAMETERS, CHANGES, EVENTS))
"""Features of which a request may have several words."""

HALVES, STRIDED, REQUEST_SEED, GREEDY = ("bfloat16", "float16"), "strided", "per-request seed", "greedy"
UNEQUAL, PLACEHOLDER, RATES, NO_TOKENS = "unequal drafts", "placeholder drafts", "rates", "rows that emitted nothing"
_TEMPERATURES = ("temperature 1", GREEDY, "temperature other than 0 and 1")
_NOISES = ("one seed", "explicit noise", REQUEST_SEED)
_CHANGES = ("added", "removed", "moved", "swapped", "added over another", "added and moved at once")
_LATE, _MOVED, _CUT, _REGROWN = "joined later", "changed its row", "output cut", "output regrown after a cut"


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
            paired = words_of_pairs(name, self.words[name])
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
    words = [word for level in several for word in level if isinstance(word, str) and word not in _CHANGES]
    return tuple(pair_of(*pair) for pair in combinations(words, 2))


# -- a call of a sampler without sessions -----------------------------------------------------------------------------


def signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:  # Any: those of the method
    """Calls of one signature hold about the same: in the loops of the statistical suite only some of them are read."""
    batch, noise = arguments[0], arguments[1] if len(arguments) > 1 else None
    logits = _logits_of(batch)
    options = (getattr(batch, name, 0) is None for name in ("draft_probs", "top_k", "top_p", "min_p"))
    seeds = len(getattr(noise, "request_seeds", None) or ())
    kind = (logits.shape, batch.batch_size, logits.dtype, logits.stride(-1), type(batch))
    return *kind, type(noise), 0 < seeds < batch.batch_size, bool(seeds), *options


def sizes_of(arguments: tuple[Any, ...]) -> tuple[int, int, int]:  # Any: as above
    """Requests, most drafts of a request, vocabulary."""
    batch = arguments[0]
    return batch.batch_size, getattr(batch, "max_spec_len", 0), batch.vocab_size


def look(arguments: tuple[Any, ...]) -> Look:  # Any: as above
    """Return what a call of a sampler without sessions held."""
    batch = arguments[0]
    found = Look(batch.batch_size)
    found.all_have(BATCH, found.rows)
    _add_layout(found, _logits_of(batch), batch.vocab_size)
    if hasattr(batch, "temperature"):
        found.each(NOISE, _noises(arguments[1], found.rows), _NOISES)
    for name, read in _READERS.items():
        if hasattr(batch, name):
            read(found, batch)
    return found.add_pairs()


def _logits_of(batch: Any) -> Tensor:  # [num_rows, vocab_size]; Any: of any contract without sessions
    logits: Tensor = batch.target_logits if hasattr(batch, "target_logits") else batch.logits
    return logits


def _add_layout(found: Look, logits: Tensor, vocab_size: int) -> None:  # [num_rows, vocab_size] float32 or half
    found.all_have(VOCABULARY, vocab_size)
    found.all_have(OFFSET, sum((size - 1) * step for size, step in zip(logits.shape, logits.stride(), strict=True)))
    found.all_have(DTYPE, str(logits.dtype).removeprefix("torch."), ("float32", *HALVES))
    _add_choice(found, LAYOUT, "contiguous", STRIDED, not logits.is_contiguous())


def _add_choice(found: Look, name: str, off: str, on: str, is_on: object) -> None:
    """Add a feature of the whole call that has two words."""
    found.all_have(name, on if is_on else off, (off, on))


def _noises(noise: Any, rows: int) -> list[Level]:  # Any: noise of any contract
    if not isinstance(noise, SeededNoise):
        return [_NOISES[1]] * rows
    return [_NOISES[2 * (row in noise.request_seeds)] for row in range(rows)]


def _read_lengths(found: Look, batch: Any) -> None:  # Any: SpecDecodeBatch or GrammarBatch
    found.each(DRAFTS, batch.num_draft_tokens)
    _add_choice(found, "lengths", "equal drafts", UNEQUAL, len(set(batch.num_draft_tokens)) > 1)


def _read_drafts(found: Look, batch: Any) -> None:  # Any: SpecDecodeBatch
    _add_choice(found, "draft distributions", "dense drafts", "one-hot drafts", batch.draft_probs is None)
    _add_choice(found, PLACEHOLDERS, "known drafts", PLACEHOLDER, (batch.draft_token_ids < 0).any())
    _add_choice(found, "acceptance", "probabilities", RATES, batch.synthetic_rates is not None)


def _read_temperatures(found: Look, batch: Any) -> None:  # Any: SpecDecodeBatch or SamplingBatch
    pairs = zip(batch.is_greedy.tolist(), batch.temperature.tolist(), strict=True)
    found.each(TEMPERATURE, [_TEMPERATURES[1 if greedy else 2 * (t != 1)] for greedy, t in pairs], _TEMPERATURES)


def _read_positions(found: Look, batch: Any) -> None:  # Any: SpecDecodeBatch or SamplingBatch
    if batch.positions is not None:
        found.each(POSITION, batch.positions.tolist())


def _read_filters(found: Look, batch: Any) -> None:  # Any: SamplingBatch
    columns = []
    for name, off in (("top_k", batch.vocab_size), ("top_p", 1.0), ("min_p", 0.0)):
        values = getattr(batch, name)
        word = name.replace("_", "-")
        columns.append([None] * found.rows if values is None else [word if v != off else None for v in values.tolist()])
    rows = [tuple(word for word in row if word) for row in zip(*columns, strict=True)]
    found.each(FILTERS, rows, ("top-k", "top-p", "min-p"))


def _read_params(found: Look, batch: Any) -> None:  # Any: FilterBatch
    found.each(FILTERS, [params.enabled for params in batch.params], tuple(LOGIT_FILTERS))


def _read_logprobs(found: Look, batch: Any) -> None:  # Any: LogprobsBatch
    words = ("no log-probabilities", "all log-probabilities")
    levels = [words[0] if number is None else words[1] if number < 0 else number for number in batch.num_logprobs]
    found.each("log-probabilities", levels, words)
    found.each("rows per request", batch.num_rows)
    found.all_have("stage", batch.stage, STAGES)
    _add_choice(found, "ids", "ids of 64 bits", "ids of 32 bits", batch.token_ids.element_size() == 4)
    _add_choice(found, "emitted", "rows that emitted a token", NO_TOKENS, (batch.token_ids < 0).any())


def _read_bitmask(found: Look, batch: Any) -> None:  # Any: BitmaskBatch
    extra = batch.bitmask.shape[1] - -(-batch.vocab_size // 32)
    _add_choice(found, "masked rows", "all rows", "row indices", batch.indices is not None)
    _add_choice(found, "bitmask", "contiguous bitmask", "strided bitmask", not batch.bitmask.is_contiguous())
    widths = ("narrow bitmask", "bitmask as wide as the logits", "wide bitmask")
    found.all_have("width", widths[1 + (extra > 0) - (extra < 0)], widths)


def _read_grammars(found: Look, batch: Any) -> None:  # Any: GrammarBatch
    words = ("grammar", "no grammar")
    found.each("requests", [words[one.grammar is None] for one in batch.requests], words)


_READERS = {
    "num_draft_tokens": _read_lengths,
    "synthetic_rates": _read_drafts,
    "temperature": _read_temperatures,
    "positions": _read_positions,
    "top_k": _read_filters,
    "params": _read_params,
    "num_logprobs": _read_logprobs,
    "bitmask": _read_bitmask,
    "requests": _read_grammars,
}
"""Attribute of a batch to what reads the features of batches that have it."""

# -- a session --------------------------------------------------------------------------------------------------------


@dataclass
class _Followed:
    """What is remembered of a request: its list is kept, so that no other gets its identity."""

    output: Any  # Any: the live list
    events: tuple[str, ...] = ()
    length: int = 0
    row: int | None = None

    def add(self, event: str) -> None:
        if event not in self.events:
            self.events = (*self.events, event)


_ALL_STEPS = 6
"""Steps of a session that are all read; of later ones every fourth is, and every change of rows."""

_FIELDS = {
    int: ("presence_penalty", "frequency_penalty", "repetition_penalty"),
    Markers: ("thinking_token_budget",),
}
"""Parameters that a session looks at, by what it is opened with. A plan looks at all."""

_NO_FIELDS = ("temperature", "all_stop_token_ids")
"""Fields of parameters that are no parameters of their own."""


class SessionLook:
    """Follows one session.

    Args:
        opened_with: Arguments of the call that opened it. Any: a vocabulary's size, `Markers` or `PlanSetup`.
    """

    def __init__(self, opened_with: tuple[Any, ...]) -> None:
        self._fields: tuple[str, ...] | None = _FIELDS.get(type(opened_with[0]))
        self._markers = tuple(map(len, opened_with[0])) if isinstance(opened_with[0], Markers) else ()
        self._followed: dict[int, _Followed] = {}
        self._steps = self._rows = self._seen = 0
        self._last: Any = None  # Any: the batch that was looked at last

    def look(self, arguments: tuple[Any, ...]) -> Look | None:  # Any: those of the session's method
        """Return what a call held; `None` if it shows nothing."""
        found = None
        for argument in arguments:
            if isinstance(argument, RowChanges):
                found = Look(max(1, argument.batch_size))
                self._add_changes(found, argument)
            elif argument is not self._last and hasattr(argument, "requests"):
                self._last = argument
                self._seen += 1
                if self._seen <= _ALL_STEPS or self._seen % 4 == 0 or self._fields is None:
                    found = self._of_batch(argument, arguments)
        return found

    def _of_batch(self, batch: Any, arguments: tuple[Any, ...]) -> Look:  # Any: LiveBatch or LogitsBatch; of the method
        requests = batch.requests
        found = Look(len(requests))
        if hasattr(batch, "change"):
            self._add_changes(found, batch.change or RowChanges(len(requests)))
        self._steps += 1
        self._rows = len(requests)
        if not requests:
            return found
        logits = getattr(batch, "logits", next((one for one in arguments if hasattr(one, "stride")), None))
        if logits is not None:
            _add_layout(found, logits, int(logits.shape[-1]))
        found.all_have(BATCH, len(requests))
        found.all_have("marker tokens", self._markers or None)
        found.each(DRAFTS, [len(one.draft_token_ids) for one in requests])
        found.each(PROMPT, [len(one.prompt_token_ids) for one in requests])
        outputs = [one.output_token_ids for one in requests]
        # Others than lists count how much is read of them.
        lengths = [len(output) if type(output) is list else None for output in outputs]
        found.each(OUTPUT, lengths)
        each = (self._events(row, *own) for row, own in enumerate(zip(outputs, lengths, strict=True)))
        found.each(EVENTS, list(each), (_LATE, _MOVED, _CUT, _REGROWN))
        ends = [type(output) is list and output[-1:] == [-1] for output in outputs]
        late = (is_end or -1 in one.draft_token_ids for one, is_end in zip(requests, ends, strict=True))
        found.each(PLACEHOLDERS, [("known drafts", PLACEHOLDER)[one] for one in late], ("known drafts", PLACEHOLDER))
        self._add_params(found, [one.params for one in requests])
        return found.add_pairs()

    def _add_params(self, found: Look, every: Sequence[Any]) -> None:  # Any: RequestParams or LogitsParams
        fields = self._fields or [one.name for one in dataclasses.fields(every[0]) if one.name not in _NO_FIELDS]
        words = tuple(name.replace("_", " ") for name in fields)
        found.each(PARAMETERS, [_enabled(params, fields) for params in every], words)
        if "thinking_token_budget" in fields:
            found.each("thinking budget", [params.thinking_token_budget for params in every])
        if self._fields is None:
            heats = [params.temperature for params in every]
            found.each(TEMPERATURE, [_TEMPERATURES[1 if t < 1e-5 else 2 * (t != 1)] for t in heats], _TEMPERATURES)

    def _events(self, row: int, output: Any, length: int | None) -> tuple[str, ...]:  # Any: a live list
        """Return what happened to a request until now."""
        kept = self._followed.get(id(output)) or self._begun(output)
        if row != kept.row is not None:
            kept.add(_MOVED)
        if length is not None and length < kept.length:
            kept.add(_CUT)
        elif length is not None and length > kept.length and _CUT in kept.events:
            kept.add(_REGROWN)
        kept.row, kept.length = row, length or 0
        return kept.events

    def _begun(self, output: Any, *, is_late: bool = False) -> _Followed:  # Any: a live list
        length = len(output) if type(output) is list else 0
        kept = self._followed[id(output)] = _Followed(output, (_LATE,) * is_late, length)
        return kept

    def _add_changes(self, found: Look, changes: RowChanges) -> None:
        is_later = self._steps > 0
        swaps = sum(one.direction is Move.SWAP for one in changes.moved)
        happened = (
            is_later and changes.added,
            changes.removed,
            len(changes.moved) > swaps,
            swaps,
            any(one.row < self._rows for one in changes.added),
            is_later and changes.added and changes.moved,
        )
        words = tuple(word for word, is_so in zip(_CHANGES, happened, strict=True) if is_so)
        found.all_have(CHANGES, words, _CHANGES)
        for one in changes.added:
            self._begun(one.output_token_ids, is_late=is_later)


def _enabled(params: Any, fields: Iterable[str]) -> tuple[str, ...]:  # Any: RequestParams or LogitsParams
    """Return the parameters that are not off; a class of parameters holds their defaults."""
    off = type(params)
    on = (name for name in fields if getattr(params, name) not in (getattr(off, name), [], {}, -1))
    return tuple(name.replace("_", " ") for name in on)


# -- capabilities that a failing case uses ----------------------------------------------------------------------------

_OF_WORDS = {
    **dict.fromkeys(HALVES, Capability.HALF_LOGITS),
    STRIDED: Capability.STRIDED_INPUTS,
    REQUEST_SEED: Capability.REQUEST_SEEDS,
    GREEDY: Capability.GREEDY,
    UNEQUAL: Capability.RAGGED,
    PLACEHOLDER: Capability.PLACEHOLDER_DRAFTS,
    RATES: Capability.SYNTHETIC_RATES,
}
_FEW_DRAFTS, _SMALL_VOCAB = 8, 1025
"""Samplers without `long-drafts` are given no more drafts per request, those without `large-vocab` no more tokens."""

_ABOUT_ANSWERS = frozenset(
    {
        Capability.REFERENCE_RACE,
        Capability.TOKEN_VERIFICATION,
        Capability.UPSTREAM_STREAM,
        Capability.COUNTER_NOISE,
        Capability.COPY_FREE,
        Capability.INTACT_LOGITS,
        Capability.NEW_TOKENS_ONLY,
    }
)
"""What a sampler answers, not what it is given: no exception comes of it."""


def asked_for(case: Any, needs: Sequence[Capability]) -> tuple[Capability, ...]:  # Any: a case of any contract, or none
    """Return what an exception on `case` may be about, in the order of `Capability`: the rarer, the likelier.

    What the example holds and a correct sampler may well not take (NaN, half precision, ragged drafts ...); if there is
    nothing of the kind, what the check needs. A case that is drawn without the capability in any case is no reason.

    Args:
        needs: Of the check that failed.
    """
    found: set[Capability] = set()
    if hasattr(case, "batches"):
        found.update(one for batch in case.batches() for one in _of_live_batch(batch))
    elif hasattr(case, "played") or hasattr(case, "batch"):
        call = list(case.played())[-1] if hasattr(case, "played") else None
        batch = call.batch if call else case.batch()
        noise = getattr(call, "noise", None) if call else getattr(case, "noise", lambda: None)()
        found.update(_of_batch(batch, noise))
    chosen = found or set(needs) - _ABOUT_ANSWERS
    return tuple(capability for capability in Capability if capability in chosen)


def _of_batch(batch: Any, noise: Any) -> Iterator[Capability]:  # Any: of any contract without sessions
    logits = _logits_of(batch)
    yield from _of_words(look((batch, noise)))
    given = (name for name in ("top_k", "top_p", "min_p") if getattr(batch, name, None) is not None)
    enabled = (name for params in getattr(batch, "params", ()) for name in params.enabled)
    yield from map(capability_of, (*given, *enabled))
    numbers = {
        Capability.NAN_LOGITS: logits.isnan().any(),
        Capability.EMPTY_ROWS: (logits == -float("inf")).all(dim=-1).any(),
        Capability.LARGE_VOCAB: batch.vocab_size > _SMALL_VOCAB,
        Capability.LONG_DRAFTS: getattr(batch, "max_spec_len", 0) > _FEW_DRAFTS,
    }
    if hasattr(batch, "num_logprobs"):
        numbers |= {
            Capability.TOP_LOGPROBS: batch.most_logprobs > 0,
            Capability.LOGIT_SCORES: batch.wants_logits,
            Capability.NO_ROWS: not len(batch.token_ids),
            Capability.RAGGED: len(set(batch.num_rows)) > 1,
        }
    yield from (capability for capability, is_so in numbers.items() if is_so)


def _of_words(found: Look) -> Iterator[Capability]:
    return (_OF_WORDS[one[1]] for one in found.counts if isinstance(one, tuple) and one[1] in _OF_WORDS)


def _of_live_batch(batch: Any) -> Iterator[Capability]:  # Any: a LogitsBatch
    found, requests = Look(1), batch.requests
    _add_layout(found, batch.logits, 1)
    yield from _of_words(found)
    if any(-1 in request.draft_token_ids for request in requests):
        yield Capability.PLACEHOLDER_DRAFTS
    own = [request for request in requests if request.params.custom]
    if own:
        yield Capability.CUSTOM_PROCESSORS
    bent = [*own, *(r for r in requests if r.params.logit_bias or r.params.min_p)]
    if any(request.draft_token_ids for request in bent):
        yield Capability.DRAFT_PROCESSORS
