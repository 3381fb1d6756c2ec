"""Tokens of a serving trace as draws with features: what `_slices` weighs, for the sampling contract."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw._core.checks import Stage
from fairdraw._core.sampling_harness import sample_tokens
from fairdraw.protocols import RaceNoise, SeededNoise
from fairdraw.statistical._slice_check import SliceCheck
from fairdraw.statistical._slices import Event, Slices, TokenKinds
from fairdraw.strategies._sampling_traces import trace_for
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fairdraw.strategies._sampling_traces import SamplingCall, SamplingTrace

    Ints = NDArray[np.int64]

CROSSED = (
    "dtype", "layout", "noise", "filters", "greedy requests", "rows", "a row of NaN", "seeded", "new request",
    "moved request", "parameters", "logits", "row modulo 8", "batch size modulo 8", "first position",
)  # fmt: skip
"""Features whose levels are looked at two at a time."""

LAGS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Distances of rows whose draws must be independent."""

_EIGHTHS = 8


def collect(
    sampler: Any,  # under the sampling contract
    trace: SamplingTrace,
    slices: Slices,
    out_of_time: Callable[[], bool] = lambda: False,
) -> int:
    """Play a trace, and add what its random rows drew to `slices`; returns the number of calls made."""
    rng, past, made = bulk_rng("ranks", trace.seed), _Past(), 0
    for call in trace.played(sampler.device):
        if out_of_time():
            break
        made += 1
        if isinstance(call.noise, RaceNoise):
            continue  # handed in: the properties compare its tokens exactly
        tokens = sample_tokens(sampler, call.batch, call.noise).tokens
        features, events = drawn(call, tokens, past, rng)
        slices.add(features, events)
    return made


class _Past:
    """What earlier calls drew: by row, and by request."""

    def __init__(self) -> None:
        self.tokens = np.full(0, -1, dtype=np.int64)
        self.eighths = np.full(0, -1, dtype=np.int64)
        self.of_request: dict[int, tuple[int, int]] = {}
        self.setting: dict[str, Any] = {}
        self.size = 0


def drawn(
    call: SamplingCall,
    tokens: Ints,  # [batch_size] int64
    past: _Past,
    rng: np.random.Generator,
) -> tuple[dict[str, Ints], dict[str, Event]]:
    """Return features and projections of the rows that are drawn from a known distribution."""
    size = call.batch.vocab_size
    judged = call.is_random & call.support.is_settled & (tokens >= 0) & (tokens < size)
    different, first, kinds = np.unique(call.kinds, return_index=True, return_inverse=True)
    probs = np.where(call.support.allowed[first], call.support.probs[first], 0.0)
    table = TokenKinds(probs / np.maximum(probs.sum(axis=1, keepdims=True), 1e-300))
    known = np.clip(tokens, 0, size - 1)
    ranks = table.ranks(kinds, known, rng)
    eighths = np.where(judged, np.minimum((ranks * _EIGHTHS).astype(np.int64), _EIGHTHS - 1), -1)
    events = table.events(kinds, known, ranks)
    shown = np.where(judged, tokens, -1)
    for name, other in _others(call, shown, past).items():
        events[f"the token of {name}"] = table.is_token(kinds, known, other)
    for name, other in _others(call, eighths, past, of_tokens=False).items():
        events[f"the eighth of {name}"] = Event(eighths == other, np.where(other >= 0, 1 / _EIGHTHS, 0.0))
    features = _features(call, past)
    past.tokens, past.eighths, past.setting, past.size = shown, eighths, call.setting, len(tokens)
    past.of_request |= dict(
        zip(call.rows.request.tolist(), zip(shown.tolist(), eighths.tolist(), strict=True), strict=True)
    )
    return (
        {name: levels[judged] for name, levels in features.items()},
        {name: Event(event.hit[judged], event.chance[judged]) for name, event in events.items()},
    )


def _others(call: SamplingCall, own: Ints, past: _Past, *, of_tokens: bool = True) -> dict[str, Ints]:
    """Return what other draws gave, for each row; -1 where there is none."""
    found = {}
    for lag in LAGS[:1] if of_tokens else LAGS:
        above = np.full_like(own, -1)
        above[lag:] = own[:-lag]
        found[f"the row {lag} above"] = above
    if of_tokens:
        found["row 0"] = np.where(np.arange(len(own)) > 0, own[0], -1)
    before = np.full_like(own, -1)
    earlier = (past.tokens if of_tokens else past.eighths)[: len(own)]
    before[: len(earlier)] = earlier
    found["this row in the call before"] = before
    own_past = [past.of_request.get(request, (-1, -1))[not of_tokens] for request in call.rows.request.tolist()]
    found["this request before"] = np.array(own_past, dtype=np.int64)
    return found


_WORDS: dict[tuple[str, Any], int] = {}
"""Words of settings to numbers, in the order in which they came; the report turns them back."""


def level(name: str, word: Any) -> int:
    """Return the number of a feature's word."""
    return _WORDS.setdefault((name, word), sum(known == name for known, _ in _WORDS))


def word(name: str, number: int) -> str:
    """Return a level as a person says it: a setting's word, or the number."""
    return next((str(one) for (known, one), value in _WORDS.items() if known == name and value == number), str(number))


_CALL = {"dtype": "dtype", "layout": "layout", "noise": "noise", "filters": "filters", "greedy": "greedy requests",
         "rows": "rows", "nan": "a row of NaN"}  # fmt: skip
"""Settings of a call to the names of their features."""


def _features(call: SamplingCall, past: _Past) -> dict[str, Ints]:
    """Return the level of every feature of each row; none depends on what this call drew."""
    size, rows = call.batch.batch_size, call.rows
    place, whole = np.arange(size), np.ones(size, dtype=np.int64)
    greedy = call.batch.is_greedy.cpu().numpy()
    seeded = np.zeros(size, dtype=np.int64)
    if isinstance(call.noise, SeededNoise):
        seeded[list(call.noise.request_seeds)] = 1
    found = {name: whole * level(name, call.setting[key]) for key, name in _CALL.items()}
    if past.setting:
        found |= {f"{name}, call before": whole * level(name, past.setting[key]) for key, name in _CALL.items()}
    else:
        found |= {f"{name}, call before": whole * level(name, "no call") for name in _CALL.values()}
    positions = call.batch.positions.cpu().numpy()
    found |= {
        "vocabulary": whole * call.batch.vocab_size.bit_length(),
        "batch size": whole * size,
        "batch size modulo 8": whole * (size % 8),
        "batch size modulo 32": whole * (size % 32),
        "than the call before": whole * (1 + np.sign(size - past.size)),
        "call": whole * min(call.number, 999),
        "call modulo 8": whole * (call.number % 8),
        "row": place,
        "row modulo 8": place % 8,
        "row modulo 32": place % 32,
        "row modulo 128": place % 128,
        "row from the end": np.minimum(size - 1 - place, 64),
        "seeded": seeded,
        "parameters": call.parameters,
        "logits": call.logit_rows,
        "age": np.minimum(rows.age, 20),
        "new request": rows.is_new,
        "moved request": rows.has_moved,
        "resumed request": rows.is_resumed,
        "row was free before": (rows.owner_before < 0).astype(np.int64),
        "first position": np.array([int(one).bit_length() for one in positions.tolist()]),
        "position modulo 8": positions % 8,
        "greedy row above": _shifted(greedy, 1),
        "greedy row below": _shifted(greedy, -1),
        "NaN above": _shifted(call.is_nan, 1),
        "seeded row above": _shifted(seeded == 1, 1),
        "same parameters as above": _shifted(call.parameters, 1, fill=-1) == call.parameters,
    }
    return {name: np.asarray(levels, dtype=np.int64) for name, levels in found.items()}


def _shifted(values: Any, by: int, fill: int = 0) -> Ints:  # [batch_size] int64
    """Return the value of the row above (1) or below (-1); `fill` where there is none."""
    found = np.full(len(values), fill, dtype=np.int64)
    if by > 0:
        found[by:] = values[:-by]
    else:
        found[:by] = values[-by:]
    return found


SLICES = SliceCheck(
    "DIST791",
    "tokens of serving traces follow their distributions in every slice",
    inspect.cleandoc(
        """Every token that hundreds of calls draw is looked at in many ways: its rank, each bit of its id, whether it
        is the best one, the token of a neighbour, of the call before or of its request before. Each is counted in
        slices: by batch size, row, dtype, strides, parameters, position, what stood in the call before, and pairs.

        The report names the slice and what is too frequent or too rare there. Look for what is different in just that
        slice: a tile, a size at which the kernel changes, a buffer that an earlier call filled.
        """
    ),
    "sampling",
    "statistical",
    (),
    trace=trace_for,
    collect=collect,
    word=word,
    crossed=CROSSED,
    stage=Stage.INDEPENDENCE,
)
