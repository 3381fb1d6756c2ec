"""What a logits plan without a declared rounding may answer: intervals of logits, and tokens that may go either way.

The steps are those of `LogitsPlanOracle`, on intervals in place of numbers. A filter then knows three kinds of tokens:
those that it must keep, those that it must exclude, and *optional* ones, which rounding or a tie puts on either side of
its edge. Each row also knows how many tokens are left at least, so that a filter cannot drop all that tie.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fairdraw._core.array_types import Flags, Float64s, Row32, Row64, RowFlags
from fairdraw._oracles.intervals import UNIT_ROUNDOFF, Intervals, alike
from fairdraw._oracles.logits_plan import Edit, LogitsPlanOracle, Row
from fairdraw._oracles.penalties import PenalisedRow, PenaltyFactors, penalised_intervals
from fairdraw.contracts import CustomLogitsProcessor, LogitsBatch, PenaltyPolicy, PlanSetup, RowOfRequest

_ROUNDINGS = 4
"""Of one addition or division: the parameter, its reciprocal, the result, and one to spare."""
_IMPOSSIBLE = 104.0
"""A token whose logit is this much lower than another's has a float32 probability of 0: exp(-104) < 2**-150."""
_UNFORCEABLE = 1e8
"""The logit of a forced token need not exceed such numbers: vLLM's is 1e9, divided by a temperature."""


@dataclass(frozen=True, eq=False)
class RowBounds:
    """What one row may be.

    Args:
        may_be: Where each logit may lie.
        optional: Tokens that may also be excluded. `[vocab_size] bool`
        unruled: Tokens of a row without a distribution after a filter: nothing is required. `[vocab_size] bool`
        least: How many tokens are not excluded, at least.
        most: How many of tokens that tie at an edge are not excluded, at most, if some of them are; `None`: any number.
        forced: The only token that may be possible.
    """

    may_be: Intervals
    optional: Flags
    unruled: Flags
    least: int = 0
    most: int | None = None
    forced: int | None = None

    @staticmethod
    def given(logits: Row32) -> RowBounds:
        """A row before any processor."""
        nothing = np.zeros(len(logits), bool)
        return RowBounds(Intervals.exactly(logits), nothing, nothing)

    def hold(self, found: Row32) -> RowFlags:
        """Whether each logit is correct."""
        if self.forced is not None:
            return self._hold_forced(found, self.forced)
        is_excluded = np.isneginf(found)
        right = self.may_be.hold(found) | (self.optional & is_excluded) | self.unruled
        num_kept = int((~is_excluded).sum())
        if num_kept < self.least:
            right &= ~(self.optional & is_excluded)
        if self.most is not None and num_kept > self.most:
            right &= ~self._torn(is_excluded)
        return right

    def _torn(self, is_excluded: Flags) -> Flags:  # [vocab_size] bool, both
        """Tokens that were kept although others that tie with them were not."""
        low, high = self.may_be.low, self.may_be.high
        _, level = np.unique(np.stack([low, high], 1).view(np.complex128)[:, 0], return_inverse=True)
        is_torn_level = np.bincount(level, self.optional & is_excluded) > 0
        torn: Flags = is_torn_level[level] & ~is_excluded
        return torn

    def _hold_forced(self, found: Row32, forced: int) -> RowFlags:
        """Every other token is impossible, at least by its probability."""
        right: Flags = found <= found[forced] - np.float32(_IMPOSSIBLE)
        right |= np.isneginf(found) | (self.may_be.high >= _UNFORCEABLE) | (np.isnan(self.may_be.low) & np.isnan(found))
        right[forced] = bool(np.isfinite(found[forced]))
        return right

    def agree(self, found: Row32, other: Row32) -> RowFlags:
        """Whether two answers may both be correct, if neither is the specification."""
        if self.forced is not None:
            return (self.hold(found) & self.hold(other)) | alike(found, other)
        excluded = np.isneginf(found) | np.isneginf(other)
        agreed: Flags = alike(found, other, self.may_be.width) | (self.optional & excluded) | self.unruled
        return agreed

    # Steps of the specification.

    def edited(self, edit: Edit) -> RowBounds:
        """One that excludes, adds or divides: it is monotone, so both ends stay ends."""
        low, high = self.may_be.low.copy(), self.may_be.high.copy()
        edit(low)  # type: ignore[arg-type]  # float64 in place of float32
        edit(high)  # type: ignore[arg-type]
        return replace(self, may_be=self._rounded(low, high))

    def _rounded(self, low: Row64, high: Row64) -> Intervals:
        before = self.may_be
        is_changed = (low != before.low) | (high != before.high)
        largest = np.max(np.abs([before.low, before.high, low, high]), axis=0)
        with np.errstate(invalid="ignore"):
            error = np.where(is_changed & np.isfinite(largest), _ROUNDINGS * UNIT_ROUNDOFF * largest, 0)
        return Intervals(np.minimum(low, high), np.maximum(low, high)).widened(error)

    def penalised(self, row: Row, text: list[int], policy: PenaltyPolicy) -> RowBounds:
        penalised = PenalisedRow(row.source.prompt_token_ids, text, PenaltyFactors(*row.params.factors))
        return replace(self, may_be=penalised_intervals(self.may_be, penalised, policy))

    @property
    def is_invalid(self) -> bool:
        """Softmax gives no distribution, so filters are undefined."""
        high = self.may_be.high
        return bool(np.isnan(high).any() or np.isposinf(high).any() or np.isneginf(high).all())

    def without_rule(self) -> RowBounds:
        """After a filter, a row without a distribution may be anything, except for excluded tokens."""
        return replace(self, unruled=self.unruled | ~np.isneginf(self.may_be.high))

    def forced_and_filtered(self) -> RowBounds:
        """A filter keeps the forced token, unless another one has a logit of inf or NaN: then there is no rule."""
        high = self.may_be.high
        is_undefined = np.isposinf(high) | np.isnan(high) & (np.arange(len(high)) != self.forced)
        if not is_undefined.any():
            return self
        return replace(self, forced=None, unruled=np.ones_like(self.unruled))

    def filtered(self, kept: Flags, excluded: Flags, least: int, most: int | None = None) -> RowBounds:
        """After a filter that must keep some tokens and must exclude some; the rest may go either way."""
        low, high = (np.where(excluded, -np.inf, ends) for ends in (self.may_be.low, self.may_be.high))
        optional = (self.optional | ~kept) & ~np.isneginf(high)
        return replace(self, may_be=Intervals(low, high), optional=optional, least=least, most=most)

    @property
    def possible(self) -> RowFlags:
        """Tokens that may be left."""
        return ~np.isneginf(self.may_be.high)

    @property
    def num_left(self) -> int:
        """How many tokens are left at least."""
        return max(self.least, int((self.possible & ~self.optional).sum()))

    def over_min_p(self, min_p: float) -> RowBounds:
        """Tokens whose logit is at least the greatest one plus log(min_p)."""
        low, high = self.may_be.low, self.may_be.high
        finite = np.where(self.possible, np.abs(high), 0)
        margin = UNIT_ROUNDOFF * (16 * (1 + abs(math.log(min_p))) + 4 * np.maximum(finite, np.abs(high.max())))
        kept = (low >= high.max() + math.log(min_p) + margin) | (low >= _greatest_of_others(high))
        excluded = high < low.max() + math.log(min_p) - margin
        return self.filtered(kept, excluded, max(1, int((kept & self.possible).sum())))

    def of_top_k(self, top_k: int) -> RowBounds:
        """Tokens with fewer than `top_k` others above them; those that tie with the last one may stay."""
        certain = self.possible & ~self.optional
        ones = np.ones(len(certain))
        kept, excluded = self._before(self.possible, ones) < top_k, self._surely_before(certain, ones) >= top_k
        return self.filtered(kept, excluded, min(top_k, self.num_left), top_k)

    def of_top_p(self, top_p: float) -> RowBounds:
        """Tokens with less probability than `top_p` before them, however a sum is rounded and ties are ordered."""
        low, high = self.may_be.low, self.may_be.high
        certain = self.possible & ~self.optional
        greatest, smallest = (np.where(self.possible, np.exp(ends - high.max()), 0) for ends in (high, low))
        margin = UNIT_ROUNDOFF * (4 * len(low) + 64)
        least_total = np.sort(smallest)[::-1][: max(1, self.num_left)].sum()
        kept = self._before(self.possible, greatest) < (top_p - margin) * least_total
        excluded = self._surely_before(certain, smallest, UNIT_ROUNDOFF) >= (top_p + margin) * greatest.sum()
        enough = np.cumsum(np.sort(greatest)[::-1]) >= (top_p - margin) * least_total
        least = int(enough.argmax()) + 1 if enough.any() else 1
        surely = np.cumsum(np.sort(smallest)[::-1]) >= (top_p + margin) * greatest.sum()
        most = int(surely.argmax()) + 1 if surely.any() else self.most
        return self.filtered(kept, excluded, min(least, max(1, self.num_left)), most)

    def _before(self, those: Flags, weights: Float64s) -> Float64s:  # [vocab_size] each
        """Per token, the weight of the others among `those` that may come before it."""
        own = np.where(those, weights, 0)
        return _weight_from(self.may_be.high, own, self.may_be.low, "left") - own

    def _surely_before(self, those: Flags, weights: Float64s, apart: float = 0) -> Float64s:  # [vocab_size] each
        """Per token, the weight of those among `those` that have a greater logit.

        Logits that are no more than `apart` apart count as equal: probabilities may tie where logits do not.
        """
        return _weight_from(self.may_be.low, np.where(those, weights, 0), self.may_be.high + apart, "right")


def _weight_from(logits: Row64, weights: Row64, edges: Row64, side: Literal["left", "right"]) -> Row64:
    """Per edge, the weight of all logits at or above it (`left`), or above it (`right`)."""
    has_weight = weights != 0
    order = np.argsort(logits[has_weight])
    sums = np.append(np.cumsum(weights[has_weight][order][::-1])[::-1], 0)
    by_edge = np.argsort(edges)  # one search after the other stays in the cache
    found: Float64s = np.empty(len(edges))
    found[by_edge] = sums[np.searchsorted(logits[has_weight][order], edges[by_edge], side)]
    return found


def _greatest_of_others(high: Float64s) -> Float64s:  # [vocab_size] float64, both
    """Per token, the greatest number of another."""
    greatest, second = np.sort(high)[::-1][:2] if len(high) > 1 else (high[0], -np.inf)
    return np.where(np.arange(len(high)) == high.argmax(), second, greatest)


def logits_bounds(
    batch: LogitsBatch, setup: PlanSetup, oracle: LogitsPlanOracle, rows: Container[int] | None = None
) -> list[RowBounds]:
    """What each row may be. `batch.logits` are on the host; `oracle` may know fewer processors.

    Args:
        rows: Those that are needed; bounds of the others mean nothing. `None` for all.
    """
    logits = batch.logits.detach().to(torch.float32).numpy()
    needed = range(len(logits)) if rows is None else rows
    return _Bounding(oracle, batch, setup, [RowBounds.given(row) for row in logits], needed).bounds()


@dataclass(eq=False)
class _Bounding:
    """One step of a batch, processor by processor."""

    oracle: LogitsPlanOracle
    batch: LogitsBatch
    setup: PlanSetup
    bounds_of: list[RowBounds]
    needed: Container[int]

    def bounds(self) -> list[RowBounds]:
        rows = self.oracle.rows(self.batch, self.setup)
        steps = {
            "penalties": self.penalise,
            "thinking_budget": self.force,
            "min_p": self.cut_by_min_p,
            "top_k_top_p": self.cut_by_top_k_and_top_p,
        }
        for name in self.oracle.order:
            work = dict(self.oracle.edits(name, rows))
            for row in rows:
                if row.index in work and row.index in self.needed:
                    before, step = self.bounds_of[row.index], steps.get(name)
                    edit = work[row.index]
                    self.bounds_of[row.index] = step(before, row, edit) if step else before.edited(edit)
            for processor, seen in self.oracle.customs(name, rows, self.setup):
                self.run_custom(processor, seen)
        return self.bounds_of

    def penalise(self, before: RowBounds, row: Row, edit: Edit) -> RowBounds:
        return before.penalised(row, self.oracle.text_for_penalties(row), self.oracle.arithmetic.policy)

    def force(self, before: RowBounds, row: Row, edit: Edit) -> RowBounds:
        marks = np.zeros(row.vocab_size, np.float32)
        edit(marks)
        return replace(before, forced=int(marks.argmax()))

    def cut_by_min_p(self, before: RowBounds, row: Row, edit: Edit) -> RowBounds:
        if before.forced is not None:
            return before.forced_and_filtered()
        return before.without_rule() if before.is_invalid else before.over_min_p(row.params.min_p)

    def cut_by_top_k_and_top_p(self, before: RowBounds, row: Row, edit: Edit) -> RowBounds:
        """The batch's filters also apply to a request without filters, and keep every token with a probability."""
        uses_top_k = not row.is_greedy and 0 < row.params.top_k < row.vocab_size
        top_p = 1.0 if row.is_greedy else row.params.top_p
        if before.forced is not None:
            return before.forced_and_filtered()
        if before.is_invalid:
            return before.without_rule() if uses_top_k or top_p < 1 else before
        after = before.of_top_k(row.params.top_k) if uses_top_k else before
        return after.of_top_p(top_p) if row.batch_uses_top_p else after

    def run_custom(self, processor: CustomLogitsProcessor, seen: list[RowOfRequest]) -> None:
        """Elementwise and monotone, as the suite's own processors are."""
        low, high = (
            processor.apply(torch.from_numpy(np.stack(ends)), seen).numpy()
            for ends in zip(*((b.may_be.low, b.may_be.high) for b in self.bounds_of), strict=True)
        )
        for row in {one.row for one in seen}:
            before = self.bounds_of[row]
            self.bounds_of[row] = replace(before, may_be=before._rounded(low[row], high[row]))
