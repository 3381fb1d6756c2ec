"""What the log-probability checks assert with: the rows of a call as arrays, what may be wrong with them, and bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core import checks
from fairdraw._core.array_types import Flags, Float32s, Float64s, Ints
from fairdraw._oracles.logprobs import exact_logits, exact_scores, tolerance
from fairdraw.contracts import NOT_EMITTED, Capability, LogprobsBatch, LogprobsSampler, RankTies, rank_ties_of
from fairdraw.contracts._logprobs import Returned, call_logprobs
from fairdraw.properties._rejection_asserts import broken

check = partial(checks.check, contract="logprobs")


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one call that are read, and what came back for them."""

    batch: LogprobsBatch
    seen: Returned

    @classmethod
    def of(cls, sampler: LogprobsSampler, batch: LogprobsBatch) -> Rows:
        """Call once."""
        return cls(batch, call_logprobs(sampler, batch))

    @cached_property
    def places(self) -> Ints:  # [num_read] int64
        """Rows that are read: of requests that ask, and with a token."""
        asked = np.array([number is not None for number in self.batch.row_logprobs], dtype=bool)
        return np.flatnonzero(asked & (self.batch.token_ids.cpu().numpy() != NOT_EMITTED))

    @cached_property
    def tokens(self) -> Ints:  # [num_read] int64
        return np.asarray(self.batch.token_ids.cpu().numpy()[self.places].astype(np.int64))

    @cached_property
    def is_listed(self) -> Flags:  # [num_read, 1 + N] bool
        """Which columns the request asks for; the first holds the emitted token."""
        numbers = self.batch.row_logprobs
        wanted = np.array([numbers[place] or 0 for place in self.places.tolist()], dtype=np.int64)
        return np.asarray(np.arange(self.ids.shape[1]) <= wanted[:, None])

    @cached_property
    def logits(self) -> Float32s:  # [num_read, vocab_size] float32
        return exact_logits(self.batch)[self.places]

    @cached_property
    def scores(self) -> Float64s:  # [num_read, vocab_size] float64
        return exact_scores(self.batch)[self.places]

    @cached_property
    def slack(self) -> Float64s:  # [num_read, vocab_size] float64
        with np.errstate(invalid="ignore"):  # rows without a distribution
            return np.zeros_like(self.scores) if self.batch.wants_logits else tolerance(self.logits)

    @cached_property
    def ids(self) -> Ints:  # [num_read, 1 + N] int64
        return np.asarray(self.seen.token_ids[self.places])

    @cached_property
    def values(self) -> Float32s:  # [num_read, 1 + N] float32
        return np.asarray(self.seen.logprobs[self.places])

    @cached_property
    def is_distribution(self) -> Flags:  # [num_read] bool
        return np.asarray(np.isfinite(self.logits.max(axis=1, initial=-np.inf)))

    @cached_property
    def ranks(self) -> Ints | None:  # [num_read] int64
        return None if self.seen.ranks is None else self.seen.ranks[self.places]

    def at(self, numbers: NDArray[Any]) -> NDArray[Any]:  # [num_read, vocab_size] any -> [num_read, 1 + N] any
        """Return the numbers of the listed tokens."""
        return np.asarray(np.take_along_axis(numbers, np.clip(self.ids, 0, numbers.shape[1] - 1), axis=1))


Fault = tuple["Flags", Callable[[int], str]]
"""Which rows are wrong, `[num_read] bool`, and from the number of one to what was seen."""


def faults(rows: Rows, sampler: LogprobsSampler) -> Iterator[Fault]:
    """Yield what may be wrong, the plainest first."""
    listed, own, size = rows.is_listed, rows.is_distribution, rows.logits.shape[1]
    yield another_first(rows)
    yield (
        (listed & ((rows.ids < 0) | (rows.ids >= size))).any(axis=1),
        lambda row: f"an id lies outside of [0, {size}): {rows.ids[row].min()} to {rows.ids[row].max()} are listed",
    )
    ordered = np.sort(np.where(listed, rows.ids, -2 - np.arange(listed.shape[1]))[:, 1:], axis=1)
    yield (ordered[:, 1:] == ordered[:, :-1]).any(axis=1), lambda row: "an id is listed twice"
    yield far_values(rows)
    has_nan = np.asarray(np.isnan(rows.logits).any(axis=1))
    odd = ~np.isnan(rows.values) & ~(np.isneginf(rows.values) & ~has_nan[:, None])
    is_score = not rows.batch.wants_logits
    yield ~own & is_score & (odd & listed).any(axis=1), lambda row: "there is no distribution, and a value is a number"
    twice = listed[:, 1:] & (rows.ids[:, 1:] == rows.tokens[:, None]) & (rows.values[:, 1:] != rows.values[:, :1])
    yield own & twice.any(axis=1), lambda row: f"token {rows.tokens[row]} has another value in the list"
    with np.errstate(invalid="ignore"):
        rising = np.diff(rows.values[:, 1:], axis=1) > 0
    yield own & (rising & listed[:, 2:]).any(axis=1), lambda row: "the list is not sorted"
    yield own & _is_better_missing(rows, sampler), lambda row: "a token that is not listed is better than one that is"
    yield from _wrong_ties(rows, sampler)
    if rows.ranks is not None:
        yield wrong_ranks(rows, sampler)


def another_first(rows: Rows) -> Fault:
    """Return rows in whose first column another token stands than the emitted one."""
    words = "token {} was emitted, and token {} stands in the first column".format
    return rows.ids[:, 0] != rows.tokens, lambda row: words(rows.tokens[row], rows.ids[row, 0])


def far_values(rows: Rows) -> Fault:
    """Return rows with a value that is further from the exact one than float32 arithmetic explains."""
    exact, slack = rows.at(rows.scores), rows.at(rows.slack)
    with np.errstate(invalid="ignore"):
        far = rows.is_listed & (rows.values != exact) & ~(np.abs(rows.values - exact) <= slack)

    def words(row: int) -> str:
        place = int(far[row].argmax())
        return (
            f"token {rows.ids[row, place]} has {rows.values[row, place]:.9g}, the exact value is "
            f"{exact[row, place]:.9g}, and rounding explains {slack[row, place]:.2g}"
        )

    return rows.is_distribution & far.any(axis=1), words


def _wrong_ties(rows: Rows, sampler: LogprobsSampler) -> Iterator[Fault]:
    """Rows that list equal tokens otherwise than the lowest ids first, if the function says that it does."""
    if all(one in sampler.capabilities for one in (Capability.LOWEST_ID_TIES, Capability.EXACT_RANKS)):
        expected = np.argsort(-rows.logits, axis=1, kind="stable")[:, : rows.ids.shape[1] - 1]
        differs = rows.is_listed[:, 1:] & (rows.ids[:, 1:] != expected)
        yield (
            rows.is_distribution & differs.any(axis=1),
            lambda row: f"of equal tokens the lowest id does not come first, at place {1 + differs[row].argmax()}",
        )


def wrong_ranks(rows: Rows, sampler: LogprobsSampler) -> Fault:
    """Return rows whose token has another rank than its logit says."""
    assert rows.ranks is not None, "the function returns ranks"
    (low, high), ranks, size = _rank_bounds(rows, sampler), rows.ranks, rows.logits.shape[1]

    def words(row: int) -> str:
        wanted = str(low[row]) if low[row] == high[row] else f"one of {low[row]} to {high[row]}"
        return f"token {rows.tokens[row]} has rank {ranks[row]} of {size} instead of {wanted}"

    return rows.is_distribution & ~((low <= ranks) & (ranks <= high)), words


def require(rows: Rows, fault: Fault) -> None:
    """Fail the check with the first of these rows."""
    is_wrong, words = fault
    if is_wrong.any():
        row = int(is_wrong.argmax())
        broken(f"row {rows.places[row]}: {words(row)} ({int(is_wrong.sum())} of {len(is_wrong)} rows)")


def _is_better_missing(rows: Rows, sampler: LogprobsSampler) -> Flags:  # [num_read] bool
    """Return which rows leave out a token that is better than a listed one."""
    is_in, columns = np.zeros(rows.logits.shape, dtype=bool), rows.is_listed[:, 1:]
    row, column = np.nonzero(columns)
    is_in[row, np.clip(rows.ids[row, column + 1], 0, rows.logits.shape[1] - 1)] = True
    kept, left = np.where(is_in, rows.logits, np.inf), np.where(is_in, -np.inf, rows.logits)
    best, worst = left.argmax(axis=1)[:, None], kept.argmin(axis=1)[:, None]
    score, slack = (
        [np.take_along_axis(one, place, axis=1)[:, 0] for place in (best, worst)] for one in (rows.scores, rows.slack)
    )
    with np.errstate(invalid="ignore"):
        is_clear = score[0] - score[1] > slack[0] + slack[1]
    may_differ = is_clear | (Capability.EXACT_RANKS in sampler.capabilities)
    return np.asarray(columns.any(axis=1) & (left.max(axis=1) > kept.min(axis=1)) & may_differ)


def _rank_bounds(rows: Rows, sampler: LogprobsSampler) -> tuple[Ints, Ints]:  # each [num_read] int64
    """Return the smallest and the largest right rank; they differ only if ranks are those of rounded values."""
    token = rows.tokens[:, None]
    if Capability.EXACT_RANKS in sampler.capabilities or rows.batch.wants_logits:
        mine = np.take_along_axis(rows.logits, token, axis=1)
        larger, as_large = (rows.logits > mine).sum(axis=1), (rows.logits >= mine).sum(axis=1)
        rank = as_large if rank_ties_of(sampler) is RankTies.LAST else 1 + larger
        return rank, rank
    score, slack = (np.take_along_axis(one, token, axis=1) for one in (rows.scores, rows.slack))
    spread = slack + rows.slack
    return 1 + (rows.scores > score + spread).sum(axis=1), (rows.scores >= score - spread).sum(axis=1)


def require_same(sampler: LogprobsSampler, expected: Rows, row: int, seen: Rows, other: int, why: str) -> None:
    """Row `other` of `seen` has the bits of row `row` of `expected`, as far as both are asked."""
    both = min(int(expected.is_listed[row].sum()), int(seen.is_listed[other].sum()))
    (ids, values), (new_ids, new_values) = (
        (one.ids[place, :both], one.values[place, :both]) for one, place in ((expected, row), (seen, other))
    )
    differs = np.append(_bits(values) != _bits(new_values), False)
    differs[1:both] |= _is_settled(sampler, expected, row)[:both][1:] & (ids != new_ids)[1:]
    if differs.any():
        place = int(differs.argmax())
        pair, before = ((int(i[place]), float(v[place])) for i, v in ((new_ids, new_values), (ids, values)))
        broken(f"{why}: column {place} of row {expected.places[row]} holds {pair} instead of {before}")
    if expected.ranks is not None and seen.ranks is not None and expected.ranks[row] != seen.ranks[other]:
        token, ranks = expected.tokens[row], (seen.ranks[other], expected.ranks[row])
        broken(f"{why}: token {token} has rank {ranks[0]} instead of {ranks[1]}")


def _is_settled(sampler: LogprobsSampler, rows: Rows, row: int) -> Flags:  # [1 + N] bool
    """Return which ids of a list have no tie, unless ties are specified."""
    if Capability.LOWEST_ID_TIES in sampler.capabilities:
        return np.full(rows.ids.shape[1], rows.is_distribution[row])
    exact = rows.at(rows.scores)[row]
    with np.errstate(invalid="ignore"):
        near = np.abs(rows.scores[row] - exact[:, None]) <= 2 * rows.slack[row].max()
    return np.asarray(np.isfinite(rows.values[row]) & (near.sum(axis=1) == 1))


def _bits(values: Float32s) -> NDArray[np.uint32]:  # both [n]
    """Return their bits; one NaN is as good as another."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)
