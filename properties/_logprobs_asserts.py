"""What the log-probability checks assert with: calling a function, reading its rows, comparing two answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core import checks
from fairdraw._core.logprobs_harness import Returned, call_logprobs
from fairdraw._oracles.logprobs import exact_logits, log_softmax, tolerance
from fairdraw.properties._rejection_asserts import broken as broken
from fairdraw.protocols import NOT_EMITTED, Capability, LogprobsBatch, LogprobsSampler, RankTies, rank_ties_of
from fairdraw.strategies.logprobs import logprobs_cases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from hypothesis import strategies as st
    from numpy.typing import NDArray

    from fairdraw.protocols import Capabilities
    from fairdraw.strategies.logprobs import LogprobsCase

check = partial(checks.check, contract="logprobs")

TOP, RANKS = (Capability.TOP_LOGPROBS,), (Capability.TOKEN_RANKS,)
INVARIANT = (Capability.BATCH_INVARIANT,)
LOGPROBS = ("raw_logprobs", "processed_logprobs")
SOME = (1, 5, 20, 50, -1)
"""What requests ask for in checks of lists."""


def cases(can: Capabilities, **narrow: Any) -> st.SearchStrategy[LogprobsCase]:  # Any: of logprobs_cases
    """Small batches of every kind."""
    return logprobs_cases(can, **narrow)


@dataclass(frozen=True, eq=False)
class Row:
    """One row that is read: what was given, and what came back.

    Args:
        number: How many log-probabilities its request asks for.
        ids, values: The list behind the emitted token.
    """

    row: int
    token: int
    number: int
    wants_logits: bool
    logits: NDArray[np.float32]  # [vocab_size] float32, of the stage
    emitted_id: int
    emitted_value: np.float32
    ids: NDArray[np.int64]  # [number] int64
    values: NDArray[np.float32]  # [number] float32
    rank: int

    @cached_property
    def scores(self) -> NDArray[np.float64]:  # [vocab_size] float64
        """The exact values."""
        return self.logits.astype(np.float64) if self.wants_logits else log_softmax(self.logits[None])[0]

    @cached_property
    def slack(self) -> NDArray[np.float64]:  # [vocab_size] float64
        """How far a value may be from the exact one."""
        return np.zeros(len(self.logits)) if self.wants_logits else tolerance(self.logits[None])[0]

    @property
    def has_distribution(self) -> bool:
        return bool(np.isfinite(self.logits.max()))


def rows_of(batch: LogprobsBatch, seen: Returned) -> Iterator[Row]:
    """Every row that its request asks for and that emitted a token."""
    logits, tokens = exact_logits(batch), batch.token_ids.tolist()
    for i, number in enumerate(batch.row_logprobs):
        if number is None or tokens[i] == NOT_EMITTED:
            continue
        ids, values = seen.token_ids[i], seen.logprobs[i]
        rank = 0 if seen.ranks is None else int(seen.ranks[i])
        upto = 1 + number
        yield Row(
            i,
            tokens[i],
            number,
            batch.wants_logits,
            logits[i],
            int(ids[0]),
            values[0],
            ids[1:upto],
            values[1:upto],
            rank,
        )


def call(sampler: LogprobsSampler, case: LogprobsCase) -> tuple[LogprobsBatch, Returned]:
    """Build the case on the sampler's device and call once."""
    batch = case.batch(sampler.device)
    return batch, call_logprobs(sampler, batch)


def seen_rows(sampler: LogprobsSampler, case: LogprobsCase) -> Iterator[Row]:
    """The rows of one call."""
    return rows_of(*call(sampler, case))


def is_far(row: Row) -> NDArray[np.bool_]:  # [1 + number] bool
    """Which values, the emitted token's first, are further from the exact ones than float32 arithmetic explains."""
    ids, values = np.append(row.token, row.ids), np.append(row.emitted_value, row.values)
    known = np.clip(ids, 0, len(row.scores) - 1)
    exact, slack = row.scores[known], row.slack[known]
    with np.errstate(invalid="ignore"):
        return np.asarray((values != exact) & ~(np.abs(values - exact) <= slack))


def require_values(rows: Iterator[Row]) -> None:
    """Every value of rows with a distribution is the exact one, within the contract's tolerance."""
    for row in rows:
        far = np.flatnonzero(is_far(row) & row.has_distribution)
        if len(far):
            token = int(np.append(row.token, row.ids)[far[0]])
            value, exact = float(np.append(row.emitted_value, row.values)[far[0]]), row.scores[token]
            broken(
                f"row {row.row}: token {token} has {value:.9g}, the exact value is {exact:.9g}, and rounding explains "
                f"{row.slack[token]:.2g} ({len(far)} of {row.number + 1} values differ)"
            )


def require_best(sampler: LogprobsSampler, rows: Iterator[Row]) -> None:
    """No token that is not listed is better than one that is."""
    exact = Capability.EXACT_RANKS in sampler.capabilities
    for row in rows:
        ids = row.ids[(row.ids >= 0) & (row.ids < len(row.logits))]
        left = np.delete(np.arange(len(row.logits)), ids)
        if not (row.has_distribution and len(ids) and len(left)):
            continue
        worst, best = ids[row.logits[ids].argmin()], left[row.logits[left].argmax()]
        margin = row.slack[worst] + row.slack[best]
        is_better = row.logits[best] > row.logits[worst]
        if is_better and (exact or row.scores[best] - row.scores[worst] > margin):
            broken(
                f"row {row.row}: token {best} of {row.scores[best]:.9g} is missing from {row.number} listed ones, and "
                f"token {worst} of {row.scores[worst]:.9g} is there"
            )


def require_inside(row: Row) -> None:
    """Listed ids lie in the vocabulary."""
    outside = (row.ids < 0) | (row.ids >= len(row.logits))
    if outside.any():
        place = int(np.flatnonzero(outside)[0])
        broken(f"row {row.row} lists id {row.ids[place]} at place {place + 1}, outside of [0, {len(row.logits)})")


def require_different(row: Row) -> None:
    """No id is listed twice."""
    if len(np.unique(row.ids)) < len(row.ids):
        broken(f"row {row.row} lists {len(row.ids)} ids, of which {len(np.unique(row.ids))} differ")


def require_sorted(row: Row) -> None:
    """Values fall, or stay, where there is a distribution."""
    rising = row.values[1:] > row.values[:-1]
    if row.has_distribution and rising.any():
        place = int(np.flatnonzero(rising)[0])
        broken(f"row {row.row}: place {place + 2} has {row.values[place + 1]}, place {place + 1} {row.values[place]}")


def rank_bounds(row: Row, ties: RankTies, *, exact: bool) -> tuple[int, int]:
    """The smallest and the largest rank that is right; they differ only if ranks are those of rounded values."""
    own = row.logits[row.token]
    if exact or row.wants_logits:
        larger, as_large = int((row.logits > own).sum()), int((row.logits >= own).sum())
    else:
        spread = row.slack + row.slack[row.token]
        mine = row.scores[row.token]
        larger = int((row.scores > mine + spread).sum())
        as_large = int((row.scores >= mine - spread).sum())
        return 1 + larger, as_large
    return (as_large, as_large) if ties is RankTies.LAST else (1 + larger, 1 + larger)


def require_rank(sampler: LogprobsSampler, row: Row, *, masked: bool = False) -> None:
    """The rank of a token that is possible, or of one that is not."""
    if (
        (row.logits[row.token] == -np.inf) != masked
        or not row.has_distribution
        or Capability.TOKEN_RANKS not in sampler.capabilities
    ):
        return
    exact = Capability.EXACT_RANKS in sampler.capabilities
    low, high = rank_bounds(row, rank_ties_of(sampler), exact=exact)
    if not low <= row.rank <= high:
        wanted = str(low) if low == high else f"one of {low} to {high}"
        broken(f"row {row.row}: token {row.token} has rank {row.rank} of {len(row.logits)} instead of {wanted}")


def same_rows(
    sampler: LogprobsSampler,
    expected: Sequence[Row],
    seen: Sequence[Row],
    why: str,
) -> None:
    """Two answers about the same rows have the same bits, as far as both are asked."""
    for one, other in zip(expected, seen, strict=True):
        upto = min(one.number, other.number)
        if _bits(one.emitted_value) != _bits(other.emitted_value):
            broken(f"{why}: token {one.token} has {other.emitted_value!s} instead of {one.emitted_value!s}")
        if one.rank != other.rank:
            broken(f"{why}: token {one.token} has rank {other.rank} instead of {one.rank}")
        if _bits(one.values[:upto]) != _bits(other.values[:upto]):
            broken(f"{why}: values {_short(other.values[:upto])} instead of {_short(one.values[:upto])}")
        settled = _is_settled(sampler, one, upto) & (one.ids[:upto] != other.ids[:upto])
        if settled.any():
            broken(f"{why}: ids {_short(other.ids[:upto])} instead of {_short(one.ids[:upto])}")


def _is_settled(sampler: LogprobsSampler, row: Row, upto: int) -> NDArray[np.bool_]:  # [upto] bool
    """Which ids of the list have no tie, unless ties are specified."""
    listed = row.values[:upto]
    if Capability.LOWEST_ID_TIES in sampler.capabilities:
        return np.full(upto, row.has_distribution)
    exact = row.scores[np.clip(row.ids[:upto], 0, len(row.scores) - 1)]
    with np.errstate(invalid="ignore"):
        near = np.abs(row.scores[None] - exact[:, None]) <= 2 * row.slack.max()
        return np.asarray(np.isfinite(listed) & (near.sum(axis=1) == 1))


def _bits(values: Any) -> bytes:  # Any: a float32 or an array of them
    """Their bits; one NaN is as good as another."""
    return np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32).tobytes()


def _short(values: NDArray[Any]) -> str:  # Any: ids or values
    return str(values[:6].tolist()) + ("..." if len(values) > 6 else "")
