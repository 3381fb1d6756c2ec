"""One judge for everything that is drawn: events of known chance, counted in slices that are made by machine.

A *draw* is a token, or the acceptance of a draft. A *projection* asks one thing of it whose chance is known if the
sampler is right: is its id odd, is it in the more probable half, is it the token of the row above? A *slice* is a level
of a feature of the call, the request, the row or its neighbours (batches of 23; calls after one with a NaN), or of two
features together. A fault that nobody thought of shows in some projection of some slice.

Each projection in each slice is a bet against the sampler: a likelihood ratio of odds multiplied by some factors
(`_TILTS`). A bet is an e-value: its mean is at most 1 if the sampler is right, so is the weighted mean of all bets, and
by Markov's inequality a correct sampler reaches `1 / rate` with probability at most `rate`, however many there are
and however much they overlap [Vovk & Wang 2021, "E-values: Calibration, combination and applications", Annals of
Statistics 49(3)]. A thousand slices cost ln(1000) = 7 nats of evidence, and no power beside it.

Only the bets of slices that deviate most are computed, and the others count as 0. That makes the mean smaller, and the
error rate stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from fairdraw._core.array_types import Flags, Float32s, Float64s, Ints

_TILTS = (1 / 64, 1 / 8, 1 / 2, 0.8, 0.93, 1.07, 1.25, 2.0, 8.0, 64.0, 1024.0)
"""Factors of the odds that are bet on."""

_MOST_BETS = 400
"""Projections in slices whose bets are computed."""

_FEWEST = 4
"""Draws of a slice that is looked at."""


@dataclass(frozen=True)
class Event:
    """One projection of many draws.

    Args:
        hit: Whether it happened; of no meaning where `chance` is 0 or 1.
        chance: Its probability if the sampler is right.
    """

    hit: Flags  # [num_draws] bool
    chance: NDArray[np.floating[Any]]  # [num_draws] float32 | float64; Any: of either width


@dataclass(frozen=True)
class Found:
    """One projection in one slice.

    Args:
        slice_of: Feature to the level that all of its draws have.
        log_e_value: Of its best tilt.
        expected: Of `num_hits`.
    """

    projection: str
    slice_of: dict[str, int]
    num_draws: int
    num_hits: int
    expected: float
    log_e_value: float


@dataclass(frozen=True)
class Evidence:
    """What all slices together show.

    Args:
        log_e_value: Of their weighted mean.
        found: The most telling first.
        num_slices: How many were looked at.
        deviations: Projection to the standard deviations by which all draws together are off, and their variance.
    """

    log_e_value: float
    found: tuple[Found, ...]
    num_slices: int
    deviations: dict[str, tuple[float, float]]


class Slices:
    """Collects draws with their features, and weighs them.

    Args:
        crossed: Features whose levels are also looked at two at a time.
    """

    def __init__(self, crossed: Iterable[str] = ()) -> None:
        self._crossed = tuple(crossed)
        self._features: dict[str, list[NDArray[np.int32]]] = {}
        self._events: dict[str, list[Event]] = {}
        self.num_draws = 0

    def add(self, features: Mapping[str, Ints], events: Mapping[str, Event]) -> None:
        """Add draws; every call names the same features and projections."""
        for name, levels in features.items():
            self._features.setdefault(name, []).append(levels.astype(np.int32))
        for name, event in events.items():
            self._events.setdefault(name, []).append(Event(event.hit, event.chance.astype(np.float32)))
        self.num_draws += len(next(iter(features.values())))

    def evidence(self) -> Evidence:
        """Weigh everything that was added.

        Limits:
            Chances are kept in float32, so that each bet is off by 6e-8 relative per draw.
        """
        features = {name: np.concatenate(parts) for name, parts in self._features.items()}
        columns = {name: _joined(parts) for name, parts in self._events.items()}
        names, (excess, variance) = list(columns), _mean_and_variance(columns.values(), self.num_draws)
        families: list[tuple[str, ...]] = [(name,) for name in features]
        families += [pair for pair in combinations(self._crossed, 2) if set(pair) <= features.keys()]
        scores = [_scores(_family(features, one), excess, variance) for one in families]
        starts = np.cumsum([0, *map(len, scores)])
        every = np.concatenate(scores)
        order = np.argsort(every, axis=None)[::-1][:_MOST_BETS]
        log_values, found = [], []
        chosen: dict[int, list[tuple[int, int]]] = {}
        for place, column in zip(*np.unravel_index(order, every.shape), strict=True):
            number = int(np.searchsorted(starts, place, side="right")) - 1
            chosen.setdefault(number, []).append((int(place - starts[number]), int(column)))
        for number, slices in chosen.items():
            family = _family(features, families[number])
            weight = 1 / (len(names) * len(families) * family.num_levels)
            for level, column in slices:
                bet = _bet(names[column], columns[names[column]], family, np.flatnonzero(family.levels == level))
                log_values.append(bet.log_e_value + np.log(weight))
                found.append(bet)
        found.sort(key=lambda one: -one.log_e_value)
        total = _log_sum(log_values) if log_values else -np.inf
        sums, spread = excess.sum(axis=0, dtype=np.float64), variance.sum(axis=0, dtype=np.float64)
        deviations = {
            name: (float(off / np.sqrt(max(var, 1e-300))), float(var))
            for name, off, var in zip(names, sums, spread, strict=True)
        }
        return Evidence(total, tuple(found), len(every), deviations)


def _family(features: Mapping[str, NDArray[np.int32]], names: tuple[str, ...]) -> _Family:
    """Return the slices that one feature makes, or two together."""
    joint, width = features[names[0]].astype(np.int64), 1
    if len(names) > 1:
        width = int(features[names[1]].max()) + 1
        joint = joint * width + features[names[1]]
    values = np.flatnonzero(np.bincount(joint))
    numbers = np.zeros(int(values[-1]) + 1, dtype=np.int32)
    numbers[values] = np.arange(len(values))
    return _Family(names, width, values, numbers[joint])


def _scores(
    family: _Family,
    excess: Float32s,  # [num_draws, num_projections] float32
    variance: Float32s,  # [num_draws, num_projections] float32
) -> Float32s:  # [num_levels, num_projections] float32
    """Return by how many standard deviations each projection is off in each slice; 0 where there are few draws."""
    num_draws = len(excess)
    ones, ends = np.ones(num_draws, dtype=np.float32), np.arange(num_draws + 1)
    member = csr_matrix((ones, family.levels, ends), shape=(num_draws, family.num_levels)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.abs(member @ excess) / np.sqrt(member @ variance)
    scores[np.bincount(family.levels, minlength=family.num_levels) < _FEWEST] = 0
    return np.where(np.isfinite(scores), scores, np.float32(0))


def _joined(parts: list[Event]) -> Event:
    return Event(np.concatenate([one.hit for one in parts]), np.concatenate([one.chance for one in parts]))


def _mean_and_variance(
    columns: Iterable[Event], num_draws: int
) -> tuple[Float32s, Float32s]:  # [num_draws, num_projections] float32 each
    """Return what happened beyond its chance, and its variance."""
    excess, variance = [], []
    for event in columns:
        is_open = (event.chance > 0) & (event.chance < 1)
        excess.append(np.where(is_open, event.hit - event.chance, 0))
        variance.append(np.where(is_open, event.chance * (1 - event.chance), 0))
    return np.stack(excess, axis=1, dtype=np.float32), np.stack(variance, axis=1, dtype=np.float32)


def _log_sum(values: Any) -> float:  # Any: logarithms
    """Return the logarithm of the sum of the numbers whose logarithms these are."""
    return float(np.logaddexp.reduce(np.asarray(values, dtype=np.float64)))


def _bet(name: str, event: Event, family: _Family, inside: Ints) -> Found:
    """Return one projection's evidence in one slice, which consists of the draws `inside`."""
    hit, chance = event.hit[inside], event.chance[inside]
    is_open = (chance > 0) & (chance < 1)
    hit, chance = hit[is_open], chance[is_open].astype(np.float64)
    tilts = np.array(_TILTS)[:, None]
    ratios = np.where(hit, np.log(tilts), 0) - np.log1p(chance * (tilts - 1))
    value = _log_sum(ratios.sum(axis=1)) - np.log(len(_TILTS))
    levels = family.named(int(family.levels[inside[0]]))
    return Found(name, levels, len(hit), int(hit.sum()), float(chance.sum()), value)


@dataclass(frozen=True)
class _Family:
    """The slices of one feature or of two, which divide the draws.

    Args:
        values: Of the feature, or both features' values in one number, for each level.
    """

    names: tuple[str, ...]
    width: int
    values: Ints  # [num_levels] int64
    levels: NDArray[np.int32]  # [num_draws] int32

    @property
    def num_levels(self) -> int:
        return len(self.values)

    def named(self, level: int) -> dict[str, int]:
        """Return the level of each feature of one slice."""
        value = int(self.values[level])
        parts = (value,) if len(self.names) == 1 else divmod(value, self.width)
        return dict(zip(self.names, parts, strict=True))


# -- projections of tokens --------------------------------------------------------------------------------------------

_NUM_HASHED = 2
_NEGLIGIBLE = 1e-6
_MOST_BITS = 18
"""Bits of an id below 262,144. A vocabulary that has fewer ids has no hits in the higher ones."""


class TokenKinds:
    """Distributions over tokens, ready to be asked for the chance of every projection.

    Args:
        distributions: A row per kind, each sums to 1.
    """

    def __init__(self, distributions: Float64s) -> None:  # [num_kinds, vocab_size] float64
        self.probs = distributions
        num_kinds, size = distributions.shape
        rows = np.arange(num_kinds)[:, None]
        order = np.argsort(-distributions, axis=1, kind="stable")
        before = np.cumsum(np.take_along_axis(distributions, order, axis=1), axis=1)
        self._above = np.empty_like(distributions)
        self._above[rows, order] = before - np.take_along_axis(distributions, order, axis=1)
        self.best = order[:, 0]
        alive = distributions > 0
        self.lowest, self.highest = alive.argmax(axis=1), size - 1 - alive[:, ::-1].argmax(axis=1)
        self.classes = _classes_of_ids(size)
        chances = distributions @ np.stack(list(self.classes.values()), axis=1).astype(np.float64)
        # What is certain or impossible up to rounding is no bet.
        self._chances = np.where(chances < _NEGLIGIBLE, 0.0, np.where(chances > 1 - _NEGLIGIBLE, 1.0, chances))

    def ranks(self, kinds: Ints, tokens: Ints, rng: np.random.Generator) -> Float64s:  # [num_draws] float64
        """Return numbers that are uniform if tokens follow their distributions: by probability, the largest first.

        The place of a token in its own interval is drawn (the randomised probability integral transform).
        """
        return self._above[kinds, tokens] + rng.random(len(tokens)) * self.probs[kinds, tokens]

    def events(self, kinds: Ints, tokens: Ints, ranks: Float64s) -> dict[str, Event]:
        """Return the projections that look at one token alone."""
        found = {
            f"{name} of the ranks": Event((ranks * scale).astype(np.int64) % 2 == 1, np.full(len(tokens), 0.5))
            for name, scale in (("second half", 2), ("odd quarters", 4), ("odd eighths", 8))
        }
        for column, (name, members) in enumerate(self.classes.items()):
            found[name] = Event(members[tokens], self._chances[kinds, column])
        for name, wanted in (("the best", self.best), ("the lowest id", self.lowest), ("the highest id", self.highest)):
            found[name] = self.is_token(kinds, tokens, wanted[kinds])
        return found

    def is_token(self, kinds: Ints, tokens: Ints, wanted: Ints) -> Event:
        """Return whether each draw is the `wanted` token; -1 is none."""
        chance = np.where(wanted >= 0, self.probs[kinds, np.maximum(wanted, 0)], 0.0)
        return Event(tokens == wanted, np.where(chance > 1 - _NEGLIGIBLE, 1.0, chance))


def _classes_of_ids(size: int) -> dict[str, Flags]:  # [vocab_size] bool each
    """Return halves of the vocabulary: by each bit of the id, and hashed."""
    ids = np.arange(size)
    found = {f"ids with bit {bit}": ids >> bit & 1 == 1 for bit in range(_MOST_BITS)}
    for number in range(_NUM_HASHED):
        hashed = (ids + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15 if number == 0 else 0xC2B2AE3D27D4EB4F)
        found[f"hashed half {number}"] = (hashed >> np.uint64(37 + number)) & np.uint64(1) == 1
    return found
