"""Serving traces of the sampling contract: some hundred calls of one sampler, as arrays.

Requests keep their parameters, seeds and rows while they come, move, wait and go (`_serving`). Each call has a setting
of its own: dtype, strides, noise, which filters are given, how many requests are greedy; every pair of settings occurs.
What a row may draw is in a table of supports, which is computed once for each kind of row that a trace has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw import contracts
from fairdraw._core.array_types import Flags, Float32s, Float64s, Ints, Row32
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import Parameters, Support, log_error, softmax_of_rows, supports_of_rows
from fairdraw.contracts import Capability, FilterPolicy, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise
from fairdraw.strategies._cases import laid_out
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._serving import ServedRows, greedy_requests, settings_of_calls
from fairdraw.strategies._serving_traces import SETTINGS, Player, ServingTrace, needs_of, noise_of_rows
from fairdraw.strategies.rows import bulk_rng, target_row
from fairdraw.strategies.sampling import FILTER_NEEDS, SamplingCase

OfRows = TypeVar("OfRows", Support, Parameters)

_KINDS = ("flat", "normal", "zipf", "peaked", "tied", "twins", "wide", "half")
_MASKS = ("none", "residue", "few", "low", "high", "sorted")
"""What is left of a row: all of it, one residue class of the ids, the ends, the lower or the upper half; or all of it,
with the best tokens side by side at one end, as frequent tokens of a vocabulary stand."""

TEMPERATURES = (1.0, 2.0, 9.0, 1.0, 2e-5, 1e-4, 0.999, 1.001, 100.0)
_TOP_PS = (0.9, 0.1, 0.99, 1e-7, 1e-4, 0.997, 1 - 2.0**-24, 1e-3)
_MIN_PS = (0.05, 1.0, 1e-6, 1e-4, 0.999)
_TELLING: dict[str, tuple[float, ...]] = {"temperature": (0.7, 1.5, 1.0), "top_p": (0.5, 0.9), "min_p": (0.05, 0.3)}
_NUM_TELLING = 12
"""Values that leave a few tokens each, so that another order of the filters leaves others; and sets made of them."""

_FIRST_AIMED, _NUM_AIMED = 1 + _NUM_TELLING, 12
"""Sets of which one filter is aimed at its row: a probable token is the last that is kept, or the first that is not."""
_NEAREST, _FARTHEST, _FIRST, _MOST_AIMED = 4e-5, 2e-3, 8, 512
"""How far beside an edge top-p (absolute) and min-p (relative) are, mostly so that the next token just goes; how many
edges; and the largest top-k. Rounding moves an edge by 1e-5. Sums in half precision, few steps of a bisection and too
few candidates move it further."""

_SETTINGS = SETTINGS | {
    "noise": ("call", "some seeds", "all seeds", "explicit"),
    "filters": ("all", "none", *FILTER_NEEDS, *map(" ".join, combinations(FILTER_NEEDS, 2))),
    "alike": ("nothing", "nothing", "rows and parameters", "parameters", "rows"),
}


@dataclass(frozen=True)
class SamplingCall:
    """One call of a trace.

    Args:
        number: Of the call within its trace, from 0.
        setting: The call's own features, a word or flag each.
        rows: Who stands where.
        support: What each random row may draw; rows of greedy requests and of NaN mean nothing there.
        kinds: Number of each row's distribution: rows of one number have one.
        logit_rows: Number of each row's logits among those of the trace.
        is_odd: Rows that hold a NaN, or no token at all.
    """

    number: int
    setting: dict[str, Any]
    batch: SamplingBatch
    noise: SamplingNoise
    rows: ServedRows
    support: Support
    kinds: Ints  # [batch_size] int64
    logit_rows: Ints  # [batch_size] int64
    parameters: Ints  # [batch_size] int64
    is_odd: Flags  # [batch_size] bool

    @property
    def is_random(self) -> Flags:  # [batch_size] bool
        """Whether the row's token is drawn from a distribution."""
        greedy = self.batch.is_greedy.cpu().numpy()
        return np.asarray(~greedy & ~self.is_odd & self.support.is_distribution)

    def are_illegal(self, tokens: Ints) -> Flags:  # [batch_size] each
        """Return which random rows got a token that their filters or logits rule out."""
        known = np.clip(tokens, 0, self.batch.vocab_size - 1)
        return np.asarray(self.is_random & ~self.support.allowed[np.arange(len(tokens)), known])

    def select(self, rows: Sequence[int]) -> SamplingCall:
        """Return the call with these rows alone."""
        index, noise = np.array(rows), noise_of_rows(self.noise, rows)
        parts = {name: getattr(self, name)[index] for name in ("kinds", "logit_rows", "parameters", "is_odd")}
        support = _rows_of(self.support, index)
        batch, taken = self.batch.select(rows), self.rows.taken(index)
        return replace(self, batch=batch, noise=noise, rows=taken, support=support, **parts)


@dataclass(frozen=True, repr=False)
class SamplingTrace(ServingTrace):
    """Calls of one token sampler.

    Args:
        filters: The sampler's policy.
    """

    filters: FilterPolicy = field(default_factory=FilterPolicy)

    def played(self, device: str = "cpu") -> Iterator[SamplingCall]:
        """Yield the calls; each is built when it is asked for."""
        yield from _Player(self, device).calls()


SamplingCase.others = (SamplingTrace,)


def trace_for(sampler: Any, *fields: Any, flat: bool = False) -> SamplingTrace:  # Any: a token sampler; a trace's
    """Return a trace for `sampler`: under its policy, with seeds that stay if it draws by (seed, position)."""
    by_position = Capability.COUNTER_NOISE in sampler.capabilities
    followed, policy = contracts.follows_rows(sampler), contracts.filter_policy(sampler)
    return replace(SamplingTrace(*fields), flat=flat, followed=followed, by_position=by_position, filters=policy)


# -- rows and parameters of a trace -----------------------------------------------------------------------------------


def _mask(number: int) -> str:
    return _MASKS[(number // 2 + number // 8) % len(_MASKS)]


def _row(number: int, size: int, seed: int) -> Row32:
    """Return one of a trace's rows: a kind of logits, and a mask that tells it from its neighbours."""
    kind, mask = _KINDS[number % len(_KINDS)], _mask(number)
    row = target_row(kind, size, derive_seed("trace row", seed, number)).copy()
    if kind == "twins" and number >= len(_KINDS):  # two that half precision takes for equal
        row[np.argmax(row)] = np.nextafter(row.max(), np.float32(np.inf))
    if mask == "sorted":  # no two alike, so that it is known which ones top-k leaves
        row = (np.sort(row) + np.linspace(0, 1, size, dtype=np.float32))[:: 1 if number % 2 else -1]
    ids = np.arange(size)
    keep = {
        "sorted": ids >= 0,
        "none": ids >= 0,
        "residue": ids % (2 + number % 5) == number % (2 + number % 5) % size,
        "few": np.isin(ids, (0, size - 1, size // 2 + number % 3)),
        "low": ids < (size + 1) // 2,
        "high": ids >= size // 2,
    }[mask]
    masked = np.where(keep, row, -np.inf)
    return np.asarray(masked if np.isfinite(masked).any() else row, dtype=np.float32)


NUM_ROWS = 24
_SORTED = np.array([number for number in range(NUM_ROWS) if _mask(number) == "sorted"])


@lru_cache(maxsize=4)
def rows_of_dtypes(size: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the rows of a trace as each dtype holds them, `[24, vocab_size]`."""
    exact = torch.from_numpy(np.stack([_row(number, size, seed) for number in range(NUM_ROWS)]))
    return {name: exact.to(getattr(torch, name)) for name in ("float32", "bfloat16", "float16")}


def spoil(row: torch.Tensor, place: int, how: str) -> None:  # row: [vocab_size] float, written
    """Leave a row of logits without a distribution: one `NaN`, or `empty`."""
    if how == "empty":
        row.fill_(-torch.inf)
    else:
        row[place % row.numel()] = torch.nan


def _parameter_sets(size: int, seed: int, without: Sequence[str]) -> dict[str, NDArray[Any]]:  # [num_sets] each
    """Return the sets of parameters that requests have: none, those of `_TELLING`, room for aimed ones, and every pair.

    Some values are drawn, one for each set and part of their range: a fault may have a part of its own.
    """
    off = {"temperature": 1, "top_k": size, "top_p": 1, "min_p": 0}
    ranges = {"temperature": (0.02, 2), "top_k": (1, min(size, 128) + 1), "top_p": (0.01, 1), "min_p": (0, 1)}
    rng, drawn = bulk_rng("parameters", seed), (None, None)
    values: dict[str, tuple[Any, ...]] = {  # Any: numbers, or None for one that is drawn
        "temperature": (*TEMPERATURES, *drawn, None),
        "top_k": (*(min(k, size) for k in (1, 2, 5, max(1, size // 2), max(1, size - 1), 50, size, size)), None),
        "top_p": (*_TOP_PS, *drawn, 1, 1),
        "min_p": (*_MIN_PS, *drawn, 0, 0),
    }
    telling = _TELLING | {"top_k": (min(5, size), max(1, size // 4))}
    for name, need in FILTER_NEEDS.items():
        if str(need) in without:
            values[name] = telling[name] = (off[name],)
    aimed = [off | {"temperature": (0.5, 0.7, 1, 1.5)[number // 3]} for number in range(_NUM_AIMED)]
    few = covering_settings(telling, 3, seed % 8)[:_NUM_TELLING]
    sets = [off, *few, *aimed, *covering_settings(values, 2, seed % 8)]
    for name, (low, high) in ranges.items():
        open_ones = [one for one in sets if one[name] is None]
        parts = rng.permutation(len(open_ones)) + rng.random(len(open_ones))
        for one, part in zip(open_ones, parts, strict=True):
            one[name] = low + (high - low) * part / len(open_ones)
    return {
        name: np.array([one[name] for one in sets], dtype=np.int64 if name == "top_k" else np.float32) for name in off
    }


# -- playing ----------------------------------------------------------------------------------------------------------


class _Player(Player):
    """Builds the calls of one trace."""

    def __init__(self, trace: SamplingTrace, device: str) -> None:
        super().__init__(trace, device)
        self.rows = rows_of_dtypes(trace.vocab_size, trace.seed)
        self.sets = _parameter_sets(trace.vocab_size, trace.seed, trace.without)
        self.num_sets = len(self.sets["temperature"])
        self.settings = settings_of_calls(self.choices(_SETTINGS), needs_of(), trace.without, trace.seed)
        self.table = _Supports(self)

    def call(self, number: int, rows: ServedRows) -> SamplingCall:
        setting, request = self.settings[number % len(self.settings)], rows.request
        row, parameters = self.of(1, request, NUM_ROWS), self.of(2, request, self.num_sets)
        telling, aimed = 1 + parameters % _NUM_TELLING, _FIRST_AIMED + parameters % _NUM_AIMED
        parameters = np.choose(self.of(7, request, 4), (telling, telling, aimed, parameters))
        if "rows" in setting["alike"]:
            row[:] = number % 3
        if "parameters" in setting["alike"]:
            parameters[:] = number % self.num_sets if number % 2 else 1 + number % _NUM_TELLING
            if number % 3 and setting["greedy"] != "all":
                setting = setting | {"greedy": "none"}  # a temperature of 0 is another parameter
        if self.trace.flat:
            row[:] = parameters[:] = 0
            if number % 2:  # filters that keep few tokens too many, or too few, show as rarely
                row = _SORTED[2 * (number // 8 % 2) + self.of(9, request, 2)]
                parameters = _FIRST_AIMED + 3 * (number // 2 % 4) + self.of(10, request, 3)
                setting = setting | {"filters": "all", "greedy": "none"}
        given = setting["filters"].split() if setting["filters"] != "all" else list(FILTER_NEEDS)
        given = [name for name in given if name in FILTER_NEEDS and str(FILTER_NEEDS[name]) not in self.trace.without]
        is_greedy = greedy_requests(setting["greedy"], self.of(3, request, 4) == 0)
        is_odd = np.zeros(len(request), dtype=bool)
        is_odd[number % len(request)] = setting["odd row"] != "none" and len(request) > 1
        kinds, support, asked = self.table.of(setting["dtype"], row, parameters, given)
        logits = self.rows[setting["dtype"]][torch.from_numpy(row)]
        for place in np.flatnonzero(is_odd):
            spoil(logits[place], int(place), setting["odd row"])
        asked = replace(asked, temperature=np.where(is_greedy, np.float32(0), asked.temperature))
        batch = laid_out(self._batch(rows, logits, asked, given), setting["layout"]).to(self.device)
        noise = self._noise(setting["noise"], number, rows, support)
        return SamplingCall(number, setting, batch, noise, rows, support, kinds, row, parameters, is_odd)

    def _batch(self, rows: ServedRows, logits: Tensor, asked: Parameters, given: Sequence[str]) -> SamplingBatch:
        types = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
        filters: dict[str, Any] = {  # Any: a tensor or None
            name: torch.from_numpy(getattr(asked, name)).to(dtype) if name in given else None
            for name, dtype in types.items()
        }
        temperature = torch.from_numpy(asked.temperature)
        return SamplingBatch(logits, temperature, positions=self.positions(rows), **filters)

    def _noise(self, how: str, number: int, rows: ServedRows, support: Support) -> SamplingNoise:
        if how == "explicit":
            rng = bulk_rng("exponentials", self.trace.seed, number)
            drawn = self.exponentials(rng, len(rows.request))
            _aim(drawn, support, rng)
            return RaceNoise(torch.from_numpy(drawn).to(self.device))
        own = self.seeds_of_rows(how, rows, number)
        return SeededNoise(derive_seed("call", self.trace.seed, number), own)


_AIMED = np.float32(2.0**-100)
"""An exponential with which a token wins its race, however small its probability is."""
_FAST, _BEHIND = 2.0**-30, 1e-3
"""Of two tokens that outrun all others: an exponential over a probability, and how far behind the second is."""


def _aim(
    exponentials: Float32s,  # [batch_size, vocab_size] float32, written
    support: Support,
    rng: np.random.Generator,
) -> None:
    """Aim half of the rows at the edges of their supports, and a third at a near tie, which half precision gets wrong.

    Edges are the least token that is kept, the best that is not, and any. Where one of several must stay, all win.
    """
    least = np.argmin(np.where(support.required, support.probs, np.inf), axis=1)
    best_outside = np.argmax(np.where(support.allowed, -1.0, support.probs), axis=1)
    any_token = rng.integers(exponentials.shape[1], size=len(exponentials))
    aim = rng.integers(6, size=len(exponentials))
    for which, tokens in enumerate((least, best_outside, any_token)):
        exponentials[aim == which, tokens[aim == which]] = _AIMED
    for row in np.flatnonzero((aim > 3) & support.required.any(axis=1)):
        pair = rng.choice(np.flatnonzero(support.required[row]), 2)
        exponentials[row, pair] = np.maximum(_FAST * support.probs[row, pair] * (1, 1 + _BEHIND), _AIMED)
    exponentials[support.is_short[:, None] & support.allowed & ~support.required] = _AIMED


class _Supports:
    """What the rows of a trace may draw: computed once for each (dtype, row, parameters, filters given)."""

    def __init__(self, player: _Player) -> None:
        self._player = player
        self._places: dict[int, int] = {}
        self._whole: tuple[Support, Parameters] | None = None
        self._edges = bulk_rng("edges", player.trace.seed).random((NUM_ROWS, _NUM_AIMED))

    def of(self, dtype: str, row: Ints, parameters: Ints, given: Sequence[str]) -> tuple[Ints, Support, Parameters]:
        """Return the number of each row's kind, its support and its parameters, in the order of the rows."""
        mask = sum(1 << place for place, name in enumerate(FILTER_NEEDS) if name in given)
        half = ("float32", "bfloat16", "float16").index(dtype)
        keys = ((half * 8 + mask) * NUM_ROWS + row) * self._player.num_sets + parameters
        different, first, places = np.unique(keys, return_index=True, return_inverse=True)
        missing = [place for place, key in enumerate(different.tolist()) if key not in self._places]
        if missing:
            self._compute(dtype, row[first[missing]], parameters[first[missing]], given, different[missing].tolist())
        kinds = np.array([self._places[key] for key in different.tolist()])[places]
        assert self._whole is not None, "there is a row"
        support, asked = self._whole
        return kinds, _rows_of(support, kinds), _rows_of(asked, kinds)

    def _compute(self, dtype: str, row: Ints, parameters: Ints, given: Sequence[str], keys: list[int]) -> None:
        player, size = self._player, self._player.trace.vocab_size
        off: dict[str, Any] = {"top_k": np.int64(size), "top_p": np.float64(1), "min_p": np.float64(0)}  # Any: numbers
        filters = (
            player.sets[name][parameters].astype(type(value)) if name in given else np.full(len(row), value)
            for name, value in off.items()
        )
        asked = Parameters(player.sets["temperature"][parameters], *filters)
        logits = player.rows[dtype][torch.from_numpy(row)].float().numpy()
        self._aim(logits, row, parameters - _FIRST_AIMED, asked, given)
        block = supports_of_rows(logits, asked, player.trace.filters, _slack(player.trace, logits, asked))
        self._places |= {key: len(self._places) + place for place, key in enumerate(keys)}
        self._whole = (
            (block, asked) if self._whole is None else (_joined(self._whole[0], block), _joined(self._whole[1], asked))
        )

    def _aim(self, logits: Float32s, row: Ints, number: Ints, asked: Parameters, given: Sequence[str]) -> None:
        """Set the one filter of each aimed set beside an edge of its row; those not given are left off."""
        aims = [name for name in FILTER_NEEDS if str(FILTER_NEEDS[name]) not in self._player.trace.without]
        for place in np.flatnonzero((number >= 0) & (number < _NUM_AIMED) & bool(aims)):
            name, part = aims[number[place] % len(aims)], number[place] // len(aims) * len(aims) / _NUM_AIMED
            if name in given:
                probs = np.sort(softmax_of_rows(logits[place].astype(np.float64) / asked.temperature[place]))[::-1]
                getattr(asked, name)[place] = _beside(name, probs, float(self._edges[row[place], number[place]]), part)


def _beside(name: str, probs: Float64s, edge: float, part: float) -> float:  # probs: [vocab_size] float64, descending
    """Return a filter's value: beside the edge of one of the first tokens, or a top-k up to `_MOST_AIMED`.

    Args:
        edge: Chooses the token and the side, from 0 to 1.
        part: Chooses the distance, from 0 to 1.
    """
    if name == "top_k":
        return int(min(_MOST_AIMED, probs.size) ** min(1, part + edge / 4))
    token = min(int(_FIRST**edge) - 1, probs.size - 1)
    by = _NEAREST * (_FARTHEST / _NEAREST) ** part * (1 if edge * 1e4 % 4 < 1 else -1)
    value = probs[: token + 1].sum() + by if name == "top_p" else probs[token] / probs[0] * (1 - by)
    return float(np.float32(np.clip(value, 1e-6, 1)))


def _slack(trace: SamplingTrace, logits: Float32s, asked: Parameters) -> Any:  # 0.0, or [num_rows, 1]
    """Return how far a sampler with formulas of its own may move each row's probabilities, relative."""
    if str(Capability.REFERENCE_ROUNDING) not in trace.without:
        return np.zeros((len(logits), 1))
    largest = np.abs(np.where(np.isfinite(logits), logits, 0)).max(axis=1) / np.minimum(1, asked.temperature)
    slack: Float64s = log_error(largest.astype(np.float64))[:, None]
    return slack


def _joined(one: OfRows, other: OfRows) -> OfRows:
    return type(one)(*map(np.concatenate, zip(vars(one).values(), vars(other).values(), strict=True)))


def _rows_of(whole: OfRows, rows: Any) -> OfRows:  # Any: an index
    return type(whole)(*(part[rows] for part in vars(whole).values()))
