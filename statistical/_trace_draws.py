"""What the draws of every contract's traces have in common: their features, and the draws that came before them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairdraw._core.array_types import Flags, Float64s, Ints, PerRequest
from fairdraw.statistical._slices import Event
from fairdraw.strategies._serving import ServedRows

LAGS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Distances of rows whose draws must be independent."""

EIGHTHS = 8


def eighths_of(ranks: Float64s, is_judged: Flags) -> Ints:  # [num_draws] int64
    """Return in which eighth of its distribution each draw lies; -1 if it is not judged."""
    return np.where(is_judged, np.minimum((ranks * EIGHTHS).astype(np.int64), EIGHTHS - 1), -1)


def same_eighth(eighths: Ints, other: Ints) -> Event:
    """Return whether two draws lie in the same eighth, which independent ones do once in eight times."""
    return Event(eighths == other, np.where((other >= 0) & (eighths >= 0), 1 / EIGHTHS, 0.0))


def above(values: Any, by: int, fill: int = -1) -> Ints:  # [n] int64; Any: an array
    """Return the value `by` rows above, or below if `by` is negative; `fill` where there is none."""
    found = np.full(len(values), fill, dtype=np.int64)
    if by > 0:
        found[by:] = values[:-by]
    else:
        found[:by] = values[-by:]
    return found


class Past:
    """What the calls of a trace drew so far: by row, and by request. Names say what was drawn."""

    def __init__(self) -> None:
        self._in_row: dict[str, Ints] = {}
        self._of_request: dict[str, dict[int, int]] = {}
        self.setting: Mapping[str, Any] = {}
        self.size = 0

    def of_row(self, name: str, size: int) -> Ints:  # [size] int64
        """Return what each row drew in the call before; -1 where that is nothing."""
        found, earlier = np.full(size, -1, dtype=np.int64), self._in_row.get(name, np.empty(0, np.int64))[:size]
        found[: len(earlier)] = earlier
        return found

    def of_request(self, name: str, requests: Ints) -> PerRequest:
        """Return what each request drew when it was drawn for last; -1 if it was not."""
        known = self._of_request.get(name, {})
        return np.array([known.get(request, -1) for request in requests.tolist()], dtype=np.int64)

    def remember(self, setting: Mapping[str, Any], requests: Ints, drawn: Mapping[str, Ints]) -> None:
        """Take a call into account, `[batch_size]` of each draw."""
        self.setting, self.size, self._in_row = setting, len(requests), dict(drawn)
        for name, values in drawn.items():
            self._of_request.setdefault(name, {}).update(zip(requests.tolist(), values.tolist(), strict=True))


# -- features ---------------------------------------------------------------------------------------------------------

_WORDS: dict[tuple[str, Any], int] = {}
"""Words of settings to numbers, in the order in which they came; the report turns them back."""


def level(name: str, word: Any) -> int:
    """Return the number of a feature's word."""
    return _WORDS.setdefault((name, word), sum(known == name for known, _ in _WORDS))


def word(name: str, number: int) -> str:
    """Return a level as a person says it: a setting's word, a band of numbers, or the number."""
    if name in BANDS.values():
        return f"{1 << number >> 1} to {(1 << number) - 1}"
    return next((str(one) for (known, one), value in _WORDS.items() if known == name and value == number), str(number))


BANDS = {
    name: f"band of {name}"
    for name in (
        "place",
        "number of drafts",
        "draft tokens of the call",
        "batch size",
        "row",
        "row from the end",
        "call",
    )
}
"""Features whose numbers also count together, from each power of two to the next: a limit shows beyond it."""


def with_bands(features: dict[str, Ints]) -> dict[str, Ints]:
    """Return features with the bands of those that have some."""
    return features | {BANDS[name]: np.frexp(features[name])[1] for name in BANDS if name in features}


_NAMES = {"greedy": "greedy requests", "odd row": "a row without distribution"}
"""Settings whose names say too little."""


def features_of_rows(
    call: Any,  # of a trace: `number`, `setting`, `rows`, `noise`, `batch`
    past: Past,
    *,
    is_odd: Flags,  # [batch_size] bool
) -> dict[str, Ints]:
    """Return the level of every feature of each row; none depends on what this call drew."""
    rows: ServedRows = call.rows
    size = len(rows.request)
    place, whole = np.arange(size), np.ones(size, dtype=np.int64)
    greedy = call.batch.is_greedy.cpu().numpy()
    seeded = np.zeros(size, dtype=np.int64)
    seeded[list(getattr(call.noise, "request_seeds", ()))] = 1
    found = {}
    setting: Mapping[str, Any] = call.setting
    for key, value in setting.items():
        name = _NAMES.get(key, key)
        found[name] = whole * level(name, value)
        before = f"{name}, call before"
        found[before] = whole * level(before, past.setting.get(key, "none"))
    found |= {
        "vocabulary": whole * call.batch.vocab_size.bit_length(),
        "batch size": whole * size,
        "batch size modulo 8": whole * (size % 8),
        "batch size modulo 32": whole * (size % 32),
        "size beside the call before": whole * (1 + np.sign(size - past.size)),
        "call": whole * min(call.number, 999),
        "call modulo 8": whole * (call.number % 8),
        "row": np.minimum(place, 1100),
        "row modulo 8": place % 8,
        "row modulo 32": place % 32,
        "row modulo 128": place % 128,
        "row from the end": np.minimum(size - 1 - place, 64),
        "seeded": seeded,
        "age": np.minimum(rows.age, 20),
        "new request": rows.is_new,
        "moved request": rows.has_moved,
        "resumed request": rows.is_resumed,
        "row was free before": (rows.owner_before < 0).astype(np.int64),
        "greedy row above": above(greedy, 1, 0),
        "greedy row below": above(greedy, -1, 0),
        "odd row above": above(is_odd, 1, 0),
        "seeded row above": above(seeded, 1, 0),
    }
    return with_bands({name: np.asarray(levels, dtype=np.int64) for name, levels in found.items()})
