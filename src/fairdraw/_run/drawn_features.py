"""What a call of the sampler holds, in plain words: sizes, dtypes, noise, parameters, and pairs of them on one request.

Cheap things only: lengths, shapes, strides, dtypes, and small tensors of parameters. Logits are never read.

A *feature* is an area and a value (`("vocabulary", "65-1025")`). A *trait* is something that one request has, and every
two traits are a *pair*. `CATALOGUES` lists all of them by contract, so that a report can name what did not occur.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from fairdraw.protocols import LOGIT_FILTERS, STAGES, RowChanges, SeededNoise
from fairdraw.protocols._lifecycle import Move

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

Feature = tuple[str, str]

BATCH, DRAFTS, VOCABULARY, OFFSET = "requests per batch", "drafts per request", "vocabulary", "offset into the logits"
DTYPE, INPUTS, NOISE, TEMPERATURE, FILTERS = "dtype of the logits", "inputs", "noise", "temperature", "filters"
ALIKE = "one value in the whole batch"
CALLS, PROMPT, OUTPUT, EVENTS = "calls per case", "prompt tokens", "output tokens", "events"

_EDGES = {  # the largest size of each class
    BATCH: (1, 15, 63, 256, 1024),
    DRAFTS: (0, 1, 5, 10, 31, 128),
    VOCABULARY: (64, 1025, 32768, 131072),
    CALLS: (1, 3, 15, 63),
    PROMPT: (0, 15, 255, 1023, 4096),
    OUTPUT: (0, 15, 255, 1023, 4096),
}
_LOWEST = {DRAFTS: 0, PROMPT: 0, OUTPUT: 0}


def _class_names(area: str) -> tuple[str, ...]:
    """`1`, `2-15`, ..., `over 1024`; drafts have no more than their last class."""
    names, low = [], _LOWEST.get(area, 1)
    for high in _EDGES[area]:
        names.append(str(high) if low == high else f"{low}-{high}")
        low = high + 1
    return (*names, *([] if area == DRAFTS else [f"over {_EDGES[area][-1]}"]))


_SIZES = {area: _class_names(area) for area in _EDGES}
_OFFSETS = ("up to 2^16", "beyond 2^16", "beyond 2^31")
_DTYPES = ("float32", "bfloat16", "float16")


@lru_cache(maxsize=4096)
def size_class(area: str, size: int) -> Feature:
    """The class of a size.

    Example:
        >>> size_class("requests per batch", 40)
        ('requests per batch', '16-63')
    """
    names = _SIZES[area]
    return area, names[min(bisect_left(_EDGES[area], size), len(names) - 1)]


def class_bounds(area: str, name: str) -> tuple[int, int | None] | None:
    """Smallest and largest size of a class; no largest for the last one. `None` if the area has no sizes.

    Example:
        >>> class_bounds("requests per batch", "over 1024")
        (1025, None)
    """
    if area not in _EDGES:
        return None
    number = _SIZES[area].index(name)
    edges = _EDGES[area]
    low = _LOWEST.get(area, 1) if number == 0 else edges[number - 1] + 1
    return low, edges[number] if number < len(edges) else None


@dataclass(frozen=True)
class Catalogue:
    """Everything that calls under a contract may hold.

    Args:
        areas: Area to its values.
        traits: What one request has.
        exclusive: Pairs of traits that no request has.
    """

    areas: dict[str, tuple[str, ...]]
    traits: tuple[str, ...]
    exclusive: tuple[tuple[str, str], ...] = ()

    @property
    def pairs(self) -> tuple[str, ...]:
        """Every pair of traits that a request may have."""
        excluded = set(map(frozenset, self.exclusive))
        return tuple(" + ".join(pair) for pair in combinations(self.traits, 2) if frozenset(pair) not in excluded)


def _areas(*sizes: str, **others: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {area: _SIZES[area] for area in sizes} | {OFFSET: _OFFSETS, DTYPE: _DTYPES} | others


_BESIDE = "per-request seeds beside none"
_NOISE = ("explicit", "one seed", "per-request seeds", _BESIDE)
_TEMPERATURES = ("greedy", "1", "other than 0 and 1", "greedy beside random")
_CHANGES = ("added", "removed", "moved", "swapped", "added over another", "added and moved at once")
_REWRITES = ("output cut", "output regrown after a cut")
_WIDE = ("over 256 requests", "vocabulary over 32768")
_HALF, _STRIDED, _EXPLICIT, _REQUEST_SEED = "half precision", "strided", "explicit noise", "per-request seed"
_GREEDY, _OTHER, _WITH_DRAFTS, _PLACEHOLDER = "greedy", "temperature not 0 or 1", "drafts", "placeholder"
_LATE, _MOVED, _CUT, _LONG_PROMPT, _LONG_OUTPUT = "joined later", "moved", "output cut", "long prompt", "long output"
_NO_TRAITS, _DRAFTED, _LONG = frozenset[str](), frozenset([_WITH_DRAFTS]), frozenset([_LONG_OUTPUT])
_OF_TRACES = (_WITH_DRAFTS, _PLACEHOLDER, _LATE, _MOVED, _CUT, _LONG_PROMPT, _LONG_OUTPUT)
_PENALTIES = ("presence penalty", "frequency penalty", "repetition penalty")
_FILTERS, _EVERY = ("top-k", "top-p", "min-p"), "every parameter"
_PROCESSORS = (
    "allowed ids",
    "bad words",
    "min tokens",
    "logit bias",
    "custom",
    *_PENALTIES,
    "thinking budget",
    "temperature",
    *_FILTERS,
)

_BESIDE_MIROSTAT = ("temperature", "mirostat_v1", "mirostat_v2")
_ROWS = ("0", "1", "2-5", "over 5")
_MARKERS = ("1 token", "2-3 tokens", "4-6 tokens", "over 6 tokens")
_NUMBERS = ("none", "0", "1-5", "6-20", "over 20", "all")

CATALOGUES = {
    "rejection": Catalogue(
        {
            **_areas(BATCH, DRAFTS, VOCABULARY),
            INPUTS: ("dense drafts", "one-hot drafts", "strided", "unequal drafts", "placeholder drafts", "rates"),
            NOISE: _NOISE,
            TEMPERATURE: _TEMPERATURES,
            CALLS: _SIZES[CALLS],
        },
        (
            *(_GREEDY, _OTHER, "no drafts", "over 5 drafts", "dense drafts", "one-hot drafts", "placeholder drafts"),
            *("rates", _EXPLICIT, _REQUEST_SEED, _HALF, _STRIDED, *_WIDE),
        ),
        (
            (_GREEDY, _OTHER),
            ("no drafts", "over 5 drafts"),
            ("no drafts", "placeholder drafts"),
            ("dense drafts", "one-hot drafts"),
            (_EXPLICIT, _REQUEST_SEED),
        ),
    ),
    "sampling": Catalogue(
        {
            **_areas(BATCH, VOCABULARY),
            INPUTS: ("strided",),
            NOISE: _NOISE,
            TEMPERATURE: _TEMPERATURES,
            FILTERS: ("none", *_FILTERS, "two of them", "all of them"),
            ALIKE: (TEMPERATURE, *_FILTERS, _EVERY),
            CALLS: _SIZES[CALLS],
        },
        (_GREEDY, _OTHER, *_FILTERS, _EXPLICIT, _REQUEST_SEED, _HALF, _STRIDED, *_WIDE),
        ((_GREEDY, _OTHER), (_EXPLICIT, _REQUEST_SEED)),
    ),
    "penalties": Catalogue(
        {
            **_areas(BATCH, DRAFTS, VOCABULARY, PROMPT, OUTPUT),
            EVENTS: (*_CHANGES, *_REWRITES),
            "parameters": (*_PENALTIES, "none"),
            INPUTS: ("strided", _PLACEHOLDER),
            CALLS: _SIZES[CALLS],
        },
        (*_PENALTIES, *_OF_TRACES),
    ),
    "thinking_budget": Catalogue(
        {
            **{area: _SIZES[area] for area in (BATCH, DRAFTS, PROMPT, OUTPUT)},
            EVENTS: (*_CHANGES, *_REWRITES),
            "parameters": ("no budget", "budget 0", "budget 1-15", "budget over 15"),
            "markers": _MARKERS,
            INPUTS: (_PLACEHOLDER,),
            CALLS: _SIZES[CALLS],
        },
        ("budget", "no budget", *_OF_TRACES),
        (("budget", "no budget"),),
    ),
    "logits_plan": Catalogue(
        {
            **_areas(BATCH, DRAFTS, VOCABULARY, PROMPT, OUTPUT),
            EVENTS: (*_CHANGES, *_REWRITES),
            "processors": (*_PROCESSORS, "none"),
            INPUTS: ("strided", _PLACEHOLDER),
            TEMPERATURE: _TEMPERATURES,
            CALLS: _SIZES[CALLS],
        },
        (*_PROCESSORS, _GREEDY, _WITH_DRAFTS, _HALF),
        ((_GREEDY, "temperature"),),
    ),
    "logprobs": Catalogue(
        {
            **_areas(BATCH, VOCABULARY),
            "rows per request": _ROWS,
            "stage": STAGES,
            "log-probabilities": _NUMBERS,
            INPUTS: ("strided", "ids of 32 bits", "rows that emitted nothing"),
            CALLS: _SIZES[CALLS],
        },
        (*_NUMBERS, "several rows", _HALF, _STRIDED, _WIDE[1]),
        tuple(combinations(_NUMBERS, 2)),
    ),
    "grammar": Catalogue(
        {
            **_areas(BATCH, DRAFTS, VOCABULARY),
            INPUTS: ("strided", "row indices", "strided bitmask", "wide bitmask", "narrow bitmask"),
            "requests": ("grammar", "no grammar"),
            CALLS: _SIZES[CALLS],
        },
        ("row indices", "strided bitmask", _WITH_DRAFTS, "no grammar", _HALF, _STRIDED, *_WIDE),
        (("row indices", _WITH_DRAFTS), ("row indices", "no grammar"), ("strided bitmask", _WITH_DRAFTS)),
    ),
    "filters": Catalogue(
        {**_areas(BATCH, VOCABULARY), FILTERS: ("none", *LOGIT_FILTERS), CALLS: _SIZES[CALLS]},
        (*LOGIT_FILTERS, _WIDE[1]),
        (
            *(("temperature", "dynatemp"), ("mirostat_v1", "mirostat_v2")),
            *product(("mirostat_v1", "mirostat_v2"), [one for one in LOGIT_FILTERS if one not in _BESIDE_MIROSTAT]),
        ),
    ),
}
"""Contract to its catalogue."""


@dataclass
class Look:
    """What one call held.

    Args:
        rows: Requests of the call.
        counts: Feature, or pair of traits, to the number of requests that have it.
        ranges: Area to its smallest and largest size.
    """

    rows: int
    counts: Counter[Feature | str] = field(default_factory=Counter)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def all_have(self, *features: Feature) -> None:
        for feature in features:
            self.counts[feature] = self.rows

    def size(self, area: str, size: int) -> None:
        """The size of the whole batch."""
        self.all_have(size_class(area, size))
        self.ranges[area] = (size, size)

    def sizes(self, area: str, sizes: Sequence[int]) -> None:
        """A size per request."""
        if sizes:
            for size, count in Counter(sizes).items():
                self.counts[size_class(area, size)] += count
            self.ranges[area] = (min(sizes), max(sizes))

    def traits(self, contract: str, whole: Iterable[str], masks: Mapping[Any, int]) -> None:
        """Pairs of traits.

        Args:
            whole: Traits of all requests of the batch.
            masks: Traits of single requests (a tuple or a set) to the number of requests that have just those.
        """
        every = tuple(whole)
        for own, count in masks.items():
            for pair in _pairs_among(contract, frozenset((*every, *own))):
                self.counts[pair] += count


@lru_cache(maxsize=4096)
def _pairs_among(contract: str, traits: frozenset[str]) -> tuple[str, ...]:
    """The pairs of `traits`, as the catalogue writes them."""
    order = CATALOGUES[contract].traits
    return tuple(" + ".join(pair) for pair in combinations(sorted(traits, key=order.index), 2))


# -- a call of the rejection or the sampling contract -----------------------------------------------------------------


def signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:  # Any: those of either contract
    """Calls of one signature hold about the same: in the loops of the statistical suite only some of them are read."""
    batch, noise = arguments[0], arguments[1] if len(arguments) > 1 else None
    if noise is None or hasattr(batch, "params"):  # the grammar and filters contracts
        return batch.batch_size.bit_length(), batch.logits.dtype, type(batch)
    has_drafts = hasattr(batch, "target_logits")
    logits = batch.target_logits if has_drafts else batch.logits
    kinds = [batch.draft_probs] if has_drafts else [batch.top_k, batch.top_p, batch.min_p]
    sizes = (logits.shape[0].bit_length(), logits.shape[-1], batch.batch_size.bit_length())
    return sizes, logits.dtype, logits.stride(-1), *(one is None for one in kinds), *_noise_of(noise, batch.batch_size)


def sizes_of(arguments: tuple[Any, ...]) -> tuple[int, int, int]:  # Any: those of either contract
    """Requests, most drafts of a request, vocabulary."""
    batch = arguments[0]
    return batch.batch_size, getattr(batch, "max_spec_len", 0), batch.vocab_size


def look(contract: str, arguments: tuple[Any, ...]) -> Look:  # Any: those of either contract
    """What a call of a sampler without sessions held."""
    if contract == "logprobs":
        return _of_logprobs(arguments[0])
    if contract == "grammar":
        return _of_masking(arguments[0])
    if contract == "filters":
        return _of_filtering(arguments[0])
    return (_of_verification if contract == "rejection" else _of_sampling)(*arguments[:2])


def _noise_of(noise: Any, rows: int) -> tuple[str, ...]:  # Any: noise of either contract
    if not isinstance(noise, SeededNoise):
        return ("explicit",)
    if not noise.request_seeds:
        return ("one seed",)
    return ("per-request seeds",) if len(noise.request_seeds) >= rows else ("per-request seeds", _BESIDE)


def _of_verification(batch: Any, noise: Any) -> Look:  # Any: SpecDecodeBatch, Noise
    found = Look(batch.batch_size)
    drafts, logits = batch.num_draft_tokens, batch.target_logits
    found.sizes(DRAFTS, drafts)
    kind = "one-hot drafts" if batch.draft_probs is None else "dense drafts"
    inputs = [kind]
    inputs += ["unequal drafts"] * (len(set(drafts)) > 1)
    inputs += ["placeholder drafts"] * bool((batch.draft_token_ids < 0).any())
    inputs += ["rates"] * (batch.synthetic_rates is not None)
    found.all_have(*((INPUTS, one) for one in inputs))
    of_drafts = {"unequal drafts", "placeholder drafts"}
    whole = [one for one in inputs if one not in of_drafts] + _of_whole(found, batch, noise, logits)
    own = zip(_own_traits(found, batch, noise, 0.0), drafts, strict=True)
    placeholders = ("placeholder drafts",) if "placeholder drafts" in inputs else ()
    found.traits("rejection", whole, Counter((*t, *_long(count), *placeholders[: count or 0]) for t, count in own))
    return found


def _long(num_drafts: int) -> tuple[str, ...]:
    return ("no drafts",) if num_drafts == 0 else ("over 5 drafts",) if num_drafts > 5 else ()


def _of_sampling(batch: Any, noise: Any) -> Look:  # Any: SamplingBatch, SamplingNoise
    found = Look(batch.batch_size)
    whole = _of_whole(found, batch, noise, batch.logits)
    off = (batch.vocab_size, 1.0, 0.0)
    given = [
        [none] * found.rows if values is None else values.tolist()
        for values, none in zip((batch.top_k, batch.top_p, batch.min_p), off, strict=True)
    ]
    columns = [
        [name if value != none else None for value in values]
        for name, values, none in zip(_FILTERS, given, off, strict=True)
    ]
    filters = [tuple(name for name in row if name) for row in zip(*columns, strict=True)]
    for row, count in Counter(filters).items():
        number = ("none", "", "two of them", "all of them")[len(row)]
        for name in (*row, *([number] if number else [])):
            found.counts[FILTERS, name] += count
    found.all_have(*((ALIKE, name) for name in _alike(batch.temperature.tolist(), given, off)))
    own = zip(_own_traits(found, batch, noise, 1e-5), filters, strict=True)
    found.traits("sampling", whole, Counter((*traits, *names) for traits, names in own))
    return found


def _alike(temperatures: Sequence[float], filters: Sequence[Sequence[float]], off: Sequence[float]) -> list[str]:
    """Parameters that have one value in all of several random requests, filters if it is not the one that is off."""
    random = [row for row, temperature in enumerate(temperatures) if temperature >= 1e-5]
    values = [{column[row] for row in random} for column in (temperatures, *filters)]
    same = [len(own) == 1 for own in values]
    shown = [
        same[0],
        *(is_same and {none} != own for is_same, own, none in zip(same[1:], values[1:], off, strict=True)),
    ]
    names = [name for name, is_shown in zip((TEMPERATURE, *_FILTERS), shown, strict=True) if is_shown]
    return [*names, *[_EVERY] * all(same)] if len(random) > 1 else []


def _of_logprobs(batch: Any) -> Look:  # Any: LogprobsBatch, or the SamplingBatch of `draw`
    found = Look(batch.batch_size)
    found.size(BATCH, batch.batch_size)
    whole = _of_layout(found, batch.logits, batch.vocab_size)
    if not hasattr(batch, "num_logprobs"):
        return found
    found.all_have(("stage", batch.stage), *[(INPUTS, "ids of 32 bits")] * (batch.token_ids.element_size() == 4))
    found.all_have(*[(INPUTS, "rows that emitted nothing")] * bool((batch.token_ids < 0).any()))
    numbers = [_number_class(number) for number in batch.num_logprobs]
    for number, rows in zip(numbers, batch.num_rows, strict=True):
        found.counts["log-probabilities", number] += 1
        found.counts["rows per request", _ROWS[bisect_left((0, 1, 5), rows)]] += 1
    own = zip(numbers, batch.num_rows, strict=True)
    found.traits("logprobs", whole, Counter((n, *["several rows"] * (rows > 1)) for n, rows in own))
    return found


def _number_class(number: int | None) -> str:
    """Of what a request asks for."""
    return "none" if number is None else "all" if number < 0 else _NUMBERS[1 + bisect_left((0, 5, 20), number)]


def _of_filtering(batch: Any) -> Look:  # Any: FilterBatch
    found = Look(batch.batch_size)
    found.size(BATCH, batch.batch_size)
    whole = [one for one in _of_layout(found, batch.logits, batch.vocab_size) if one == _WIDE[1]]
    enabled = [params.enabled for params in batch.params]
    for names in enabled:
        for name in names or ("none",):
            found.counts[FILTERS, name] += 1
    found.traits("filters", whole, Counter(enabled))
    return found


def _of_masking(batch: Any) -> Look:  # Any: BitmaskBatch or GrammarBatch
    found = Look(batch.batch_size)
    found.size(BATCH, batch.batch_size)
    whole = _of_layout(found, batch.logits, batch.vocab_size) + [_WIDE[0]] * (batch.batch_size > 256)
    if hasattr(batch, "requests"):
        found.sizes(DRAFTS, batch.num_draft_tokens)
        own = [one.grammar is not None for one in batch.requests]
        for has_grammar in own:
            found.counts["requests", "grammar" if has_grammar else "no grammar"] += 1
        drafted = (count > 0 for count in batch.num_draft_tokens)
        traits = (("no grammar",) * (not a) + (_WITH_DRAFTS,) * b for a, b in zip(own, drafted, strict=True))
    else:
        extra = batch.bitmask.shape[1] - -(-batch.vocab_size // 32)
        inputs = ["row indices"] * (batch.indices is not None)
        inputs += ["strided bitmask"] * (not batch.bitmask.is_contiguous())
        whole += inputs
        inputs += ["wide bitmask"] * (extra > 0) + ["narrow bitmask"] * (extra < 0)
        found.all_have(*((INPUTS, one) for one in inputs))
        traits = (() for _ in range(found.rows))
    found.traits("grammar", whole, Counter(traits))
    return found


def _of_whole(found: Look, batch: Any, noise: Any, logits: Tensor) -> list[str]:  # Any: of either contract
    """Sizes, layout and noise; the traits that all requests have because of them."""
    found.size(BATCH, batch.batch_size)
    noises = _noise_of(noise, batch.batch_size)
    found.all_have(*((NOISE, one) for one in noises))
    traits = _of_layout(found, logits, batch.vocab_size) + [_EXPLICIT] * ("explicit" in noises)
    return traits + [_WIDE[0]] * (batch.batch_size > 256)


def _of_layout(found: Look, logits: Tensor, vocab_size: int) -> list[str]:  # [num_rows, vocab_size] float32 or half
    found.size(VOCABULARY, vocab_size)
    dtype, is_strided = str(logits.dtype).removeprefix("torch."), not logits.is_contiguous()
    last = sum((size - 1) * stride for size, stride in zip(logits.shape, logits.stride(), strict=True))
    found.all_have((DTYPE, dtype), (OFFSET, _OFFSETS[(last >= 1 << 16) + (last >= 1 << 31)]))
    if is_strided:
        found.all_have((INPUTS, "strided"))
    return [_HALF] * (dtype != "float32") + [_STRIDED] * is_strided + [_WIDE[1]] * (vocab_size > 32768)


def _own_traits(found: Look, batch: Any, noise: Any, most_greedy: float) -> list[tuple[str, ...]]:  # Any: of either
    """Per request: temperature, and a seed of its own."""
    temperatures = batch.temperature.tolist()
    kinds = ["greedy" if t <= most_greedy else "1" if t == 1 else "other than 0 and 1" for t in temperatures]
    _count_temperatures(found, kinds)
    seeds = noise.request_seeds if isinstance(noise, SeededNoise) else ()
    names = {"greedy": (_GREEDY,), "1": (), "other than 0 and 1": (_OTHER,)}
    return [(*names[kind], *((_REQUEST_SEED,) if i in seeds else ())) for i, kind in enumerate(kinds)]


def _count_temperatures(found: Look, kinds: Sequence[str]) -> None:
    counts = Counter(kinds)
    for kind, count in counts.items():
        found.counts[TEMPERATURE, kind] += count
    if 0 < counts["greedy"] < len(kinds):
        found.all_have((TEMPERATURE, "greedy beside random"))


# -- a session --------------------------------------------------------------------------------------------------------


@dataclass
class _Followed:
    """What is remembered of a request: its list is kept, so that no other gets its identity.

    Args:
        params: Those that `features` and `traits` were read from.
    """

    output: Any  # Any: the live list
    params: Any = None  # Any: RequestParams or LogitsParams
    features: tuple[Feature, ...] = ()
    traits: frozenset[str] = frozenset()
    length: int = 0
    row: int | None = None
    was_cut: bool = False


_ALL_STEPS = 6
"""Steps of a session that are all read; of later ones every fourth is, and every change of rows."""


class SessionLook:
    """Follows one session.

    Args:
        opened_with: Arguments of the call that opened it. Any: a vocabulary's size, `Markers` or `PlanSetup`.
    """

    def __init__(self, contract: str, opened_with: tuple[Any, ...]) -> None:
        self._contract, self._known = contract, frozenset(CATALOGUES[contract].traits)
        self._markers = tuple(opened_with[0]) if contract == "thinking_budget" else ()
        self._followed: dict[int, _Followed] = {}
        self._steps = self._rows = self._seen = 0
        self._last: Any = None  # Any: the batch that was looked at last

    def look(self, arguments: tuple[Any, ...]) -> Look | None:  # Any: those of the session's method
        """What a call held; `None` if it shows nothing."""
        found = None
        for argument in arguments:
            if isinstance(argument, RowChanges):
                found = Look(max(1, argument.batch_size))
                self._of_changes(found, argument)
            elif argument is not self._last and hasattr(argument, "requests"):
                self._last = argument
                self._seen += 1
                if self._seen <= _ALL_STEPS or self._seen % 4 == 0 or self._contract == "logits_plan":
                    found = self._of_batch(argument, arguments)
        return found

    def _of_batch(self, batch: Any, arguments: tuple[Any, ...]) -> Look:  # Any: LiveBatch or LogitsBatch; of the method
        requests = batch.requests
        found = Look(len(requests))
        if getattr(batch, "change", None):
            self._of_changes(found, batch.change)
        self._steps += 1
        self._rows = len(requests)
        if requests:
            found.size(BATCH, len(requests))
            found.sizes(DRAFTS, [len(one.draft_token_ids) for one in requests])
            found.sizes(PROMPT, [len(one.prompt_token_ids) for one in requests])
            lists = [output for one in requests if type(output := one.output_token_ids) is list]
            found.sizes(OUTPUT, [len(one) for one in lists])  # others than lists count how much is read of them
            found.all_have(*(("markers", _marker_class(len(one))) for one in self._markers))
            logits = getattr(batch, "logits", next((one for one in arguments if hasattr(one, "stride")), None))
            whole = [] if logits is None else _of_layout(found, logits, int(logits.shape[-1]))
            each = [self._of_request(found, row, request) for row, request in enumerate(requests)]
            found.traits(self._contract, [one for one in whole if one in self._known], Counter(each))
            if found.counts[TEMPERATURE, "greedy"] not in (0, found.rows):
                found.all_have((TEMPERATURE, "greedy beside random"))
        return found

    def _of_request(self, found: Look, row: int, request: Any) -> frozenset[str]:  # Any: LiveRequest or LogitsRequest
        """Its traits; features are counted."""
        drafts, output = request.draft_token_ids, request.output_token_ids
        kept = self._followed.get(id(output)) or self._begun(output)
        if kept.params is not request.params:
            self._read(kept, request)
        found.counts.update(kept.features)
        traits = kept.traits | _DRAFTED if drafts else kept.traits
        is_list = type(output) is list
        if is_list:
            self._of_output(found, kept, len(output))
            traits |= _LONG & self._known if kept.length > 255 else _NO_TRAITS
        if row != kept.row is not None:
            kept.traits |= {_MOVED} & self._known
        kept.row = row
        if -1 in drafts or (is_list and output[-1:] == [-1]):
            found.counts[INPUTS, _PLACEHOLDER] += 1
            traits |= {_PLACEHOLDER} & self._known
        return traits

    def _read(self, kept: _Followed, request: Any) -> None:  # Any: as above
        """What stays the same as long as a request stays in the batch."""
        kept.params, own = request.params, Look(1)
        traits = {*_OF_PARAMS[self._contract](own, request.params)}
        traits |= {_LONG_PROMPT} if len(request.prompt_token_ids) > 255 else set()
        kept.features = tuple(one for one in own.counts if not isinstance(one, str))
        kept.traits |= traits & self._known

    def _begun(self, output: Any, *, is_late: bool = False) -> _Followed:  # Any: a live list
        kept = self._followed[id(output)] = _Followed(output, length=len(output) if type(output) is list else 0)
        kept.traits = frozenset([_LATE] * is_late) & self._known
        return kept

    def _of_output(self, found: Look, kept: _Followed, length: int) -> None:
        if length < kept.length:
            found.counts[EVENTS, "output cut"] += 1
            kept.was_cut = True
            kept.traits |= {_CUT} & self._known
        elif length > kept.length and kept.was_cut:
            found.counts[EVENTS, "output regrown after a cut"] += 1
        kept.length = length

    def _of_changes(self, found: Look, changes: RowChanges) -> None:
        is_later = self._steps > 0
        swaps = sum(one.direction is Move.SWAP for one in changes.moved)
        rows = {
            "added": len(changes.added) * is_later,
            "removed": len(changes.removed),
            "moved": len(changes.moved) - swaps,
            "swapped": swaps,
            "added over another": sum(one.row < self._rows for one in changes.added),
            "added and moved at once": is_later and bool(changes.added and changes.moved),
        }
        found.counts.update({(EVENTS, name): int(count) for name, count in rows.items() if count})
        for one in changes.added:
            self._begun(one.output_token_ids, is_late=is_later)


def _marker_class(length: int) -> str:
    return _MARKERS[bisect_left((1, 3, 6), length)]


def _of_penalties(found: Look, params: Any) -> list[str]:  # Any: RequestParams
    own = [name for name, value, off in zip(_PENALTIES, params.factors, (0, 0, 1), strict=True) if value != off]
    for name in own or ["none"]:
        found.counts["parameters", name] += 1
    return own


def _of_thinking(found: Look, params: Any) -> list[str]:  # Any: RequestParams
    budget = params.thinking_token_budget
    size = None if budget is None else "0" if budget == 0 else "1-15" if budget < 16 else "over 15"
    found.counts["parameters", f"budget {size}" if size else "no budget"] += 1
    return ["budget" if size else "no budget"]


def _of_plan(found: Look, params: Any) -> list[str]:  # Any: LogitsParams
    is_greedy = params.temperature < 1e-5
    on = (
        params.allowed_token_ids is not None,
        bool(params.bad_words_token_ids),
        params.min_tokens > 0,
        bool(params.logit_bias),
        bool(params.custom),
        *(value != off for value, off in zip(params.factors, (0, 0, 1), strict=True)),
        params.thinking_token_budget is not None,
        not is_greedy and params.temperature != 1,
        params.top_k > 0,
        params.top_p < 1,
        params.min_p > 0,
    )
    own = [name for name, is_on in zip(_PROCESSORS, on, strict=True) if is_on]
    for name in own or ["none"]:
        found.counts["processors", name] += 1
    kind = "greedy" if is_greedy else "1" if params.temperature == 1 else "other than 0 and 1"
    found.counts[TEMPERATURE, kind] += 1
    return own + [_GREEDY] * is_greedy


_OF_PARAMS = {"penalties": _of_penalties, "thinking_budget": _of_thinking, "logits_plan": _of_plan}
