"""The filters contract, executable: each filter in float64, by its paper, with a margin for what float32 may decide
otherwise.

A `FilteredRow` says of every token whether it is `sure` to stay, or `possible`. What is possible and not sure lies
within rounding of a threshold, or ties with the token at which a filter cuts.

The docstring of a filter's step is its check: a title, what is required, and what a failure usually means. Examples say
what is kept of tokens with the probabilities 0.5, 0.284, 0.16, 0.056.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import LOGIT_FILTERS, FilterBatch, FilterChain, FilterParams, FilterResult, SeededNoise

Row = Any  # NDArray[np.float64], [vocab_size]
Mask = Any  # NDArray[np.bool_], [vocab_size]

_ULP = 2.0**-24
"""Half a unit in the last place of float32."""
_UNDERFLOW = -87.0
"""Log-probabilities below it may be those of 0 in float32."""
_FAR_OUT = -1e30
"""Logits below it may be -inf in float32."""


@dataclass(frozen=True, eq=False)
class FilteredRow:
    """A row on its way through the filters.

    Args:
        values: Logits of all tokens, in or out; -inf where they came so.
        error: How far float32 may be from `values`.
        kept: What the specification keeps.
        sure, possible: What every correct sampler keeps, and what one may keep.
        least, most: How many of those that are possible and not sure stay; all of them may, too.
    """

    values: Row
    error: Row
    kept: Mask
    sure: Mask
    possible: Mask
    least: int = 0
    most: int = 0

    @classmethod
    def of(cls, logits: NDArray[np.float32]) -> FilteredRow:  # [vocab_size] float32
        """Before the first filter."""
        alive = np.isfinite(logits)
        return cls(logits.astype(np.float64), np.zeros(len(logits)), alive, alive, alive)

    @property
    def maybe(self) -> Mask:
        return self.possible & ~self.sure

    @property
    def ids(self) -> NDArray[np.int64]:  # [num_kept] int64
        """What is kept, best first; of equal ones the lowest id first."""
        alive = np.flatnonzero(self.kept)
        return alive[np.argsort(-self.values[alive], kind="stable")]

    @property
    def log_probs(self) -> Row:
        """Of what is kept; -inf for the others."""
        logits = np.where(self.kept, self.values, -np.inf)
        with np.errstate(divide="ignore"):
            return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    @property
    def slack(self) -> Row:
        """How far float32 may be from `log_probs`: differences, exponentials, and a sum in any order."""
        distance = np.where(self.kept, self.values.max(where=self.kept, initial=-np.inf) - self.values, 0)
        mean_error = float((np.exp(self.log_probs) * np.where(self.kept, np.minimum(self.error, -_FAR_OUT), 0)).sum())
        return _ULP * (64 + 2 * self.kept.sum() + 4 * np.abs(distance)) + self.error + mean_error

    @property
    def entropy(self) -> float:
        log_probs = self.log_probs[self.kept]
        return float(-(np.exp(log_probs) * log_probs).sum())

    @property
    def entropy_slack(self) -> float:
        """How far float32 may be from `entropy`."""
        probs = np.exp(self.log_probs[self.kept])
        return float((probs * self.slack[self.kept]).sum() * (2 + self.entropy) + _ULP * self.kept.sum())

    def cut(self, kept: Mask, sure: Mask, possible: Mask, least: int = 0, most: int | None = None) -> FilteredRow:
        """After a filter. If one before it left something open, what it kept is sure no more."""
        if self.maybe.any():
            return dataclasses.replace(self, kept=kept & self.kept, sure=np.zeros_like(kept), least=1, most=len(kept))
        sure, possible = sure & self.kept, (possible | sure) & self.kept
        open_ids = int((possible & ~sure).sum())
        if open_ids and least >= open_ids:
            sure, open_ids = possible, 0
        least = max(least, int(not sure.any()))
        most = open_ids if most is None else min(most, open_ids)
        return dataclasses.replace(self, kept=kept & self.kept, sure=sure, possible=possible, least=least, most=most)

    def bend(self, values: Row, error: Row) -> FilteredRow:
        """With other values; what may be -inf in float32 is no longer sure."""
        far = np.isfinite(values) & (values < _FAR_OUT)
        maybe = dataclasses.replace(self, values=values, error=np.where(far, np.inf, error))
        return maybe if not (far & self.sure).any() else maybe.cut(self.kept, self.sure & ~far, self.possible)

    def best(self, fewest: int, number: int, most: int, score: Row | None = None, error: float = 0.0) -> FilteredRow:
        """Keep the `number` tokens of the lowest score (the highest value), where from `fewest` to `most` are right.

        Scores that differ by less than `error` may be ordered otherwise; which of equal ones stay is free.
        """
        by_score = score is not None
        ranked: Row = -self.values if score is None else score
        order = np.flatnonzero(self.kept)
        order = order[np.argsort(ranked[order], kind="stable")]
        first, last = ranked[order[fewest - 1]], ranked[order[most - 1]]
        sure, possible = ranked < first - error, ranked <= last + error
        kept = np.zeros_like(self.kept)
        kept[order[:number]] = True
        surely = int((sure & self.kept).sum())
        if error and by_score and len(set(self.values[possible & ~sure & self.kept])) > 1:
            return self.cut(kept, sure, possible)  # of other tokens other numbers have the mass
        return self.cut(kept, sure, possible, max(0, fewest - surely), most - surely)

    def above(self, threshold: float, slack: Row, *, keeps_ties: bool = True) -> FilteredRow:
        """Keep tokens whose log-probability is at least `threshold`, and the most probable one.

        Args:
            keeps_ties: Whether every token as probable as the most probable one stays, whatever the threshold.
        """
        log_probs, top = self.log_probs, self.values.max(where=self.kept, initial=-np.inf)
        is_top = self.kept & (self.values == top)
        sure = log_probs >= np.maximum(threshold + slack, _UNDERFLOW)
        possible = log_probs >= threshold - slack
        reach = log_probs >= threshold
        if keeps_ties:
            return self.cut(reach | is_top, sure | is_top, possible | is_top)
        if (sure & self.kept).any():
            return self.cut(reach, sure, possible)
        none_near = not (possible & self.kept).any()
        return self.cut(reach if reach.any() else is_top, sure, possible | is_top, 1, 1 if none_near else None)


@dataclass(frozen=True)
class RowContext:
    """What a filter knows of its row beside the logits.

    Args:
        tokens: Prompt and output.
        fires: Whether XTC's coin says yes.
        mu: Of mirostat.
    """

    params: FilterParams
    tokens: Sequence[int] = ()
    fires: bool = True
    mu: float = 0.0


class FiltersOracle:
    """The specification, filter by filter; a mutant overrides one."""

    def __init__(self, chain: FilterChain | None = None) -> None:
        self.chain = chain or FilterChain()

    def row(self, logits: NDArray[np.float32], context: RowContext) -> FilteredRow:  # [vocab_size] float32
        """One row through all filters that are on, in the order of the chain."""
        row = FilteredRow.of(logits)
        for name in self.order(context):
            row = getattr(self, name)(row, context) if row.kept.any() else row  # a mutant may leave nothing
        return row

    def order(self, context: RowContext) -> tuple[str, ...]:
        enabled = context.params.enabled
        return tuple(name for name in self.chain.order if name in enabled)

    # temperatures and curves

    def temperature(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Logits are divided by the temperature.

        Distances between logits are divided by the row's temperature.

        A product instead of a quotient, or another row's temperature.
        """
        return self.divide(row, context.params.temperature)

    def divide(self, row: FilteredRow, temperature: float, error: float = 0.0) -> FilteredRow:
        """By a temperature with this relative error. A constant per row is free, so distances from the top count."""
        values = row.values / temperature
        distance = np.abs(np.where(row.kept, values - values.max(where=row.kept, initial=-np.inf), 0))
        return row.bend(
            values,
            np.where(np.isfinite(values), row.error / temperature + 4 * _ULP * np.abs(values) + error * distance, 0),
        )

    def dynatemp(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """The dynamic temperature follows the entropy.

        The temperature is `low + (high - low) * share ** exponent`, where `share` is the entropy over the logarithm of
        the number of tokens that are left (kalomaze, koboldcpp 1.51, "Dynamic Temperature").

        Forbidden tokens that are counted, an exponent at the wrong place, or low and high exchanged.
        """
        low, high, power = (getattr(context.params, f"dynatemp_{name}") for name in ("low", "high", "exponent"))
        share, slack = self.normalised_entropy(row)

        def at(share: float) -> float:
            return float(low + (high - low) * min(1.0, max(0.0, share)) ** power)

        temperature = at(share)
        spread = max(abs(at(share + slack) - temperature), abs(at(share - slack) - temperature))
        return self.divide(row, temperature, spread / temperature)

    def normalised_entropy(self, row: FilteredRow) -> tuple[float, float]:
        """And how far float32 may be from it."""
        most = np.log(row.kept.sum())
        return (row.entropy / most, row.entropy_slack / most) if most else (0.0, 0.0)

    def smoothing(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Quadratic smoothing bends logits around the largest.

        A logit at distance d from the largest becomes `max - f (3 - c) / 2 d**2 + f (c - 1) / 2 d**3`, with factor f
        and curve c (kalomaze, text-generation-webui PR #5403 and #5551, "quadratic sampling").

        A maximum of the batch, or a cubic term of the wrong sign.
        """
        factor, curve = context.params.smoothing_factor, context.params.smoothing_curve
        top = row.values.max(where=row.kept, initial=-np.inf)
        distance = np.where(np.isfinite(row.values), row.values - top, 0)
        square, cube = factor * (3 - curve) / 2 * distance**2, factor * (curve - 1) / 2 * distance**3
        values = np.where(np.isfinite(row.values), top - square + cube, -np.inf)
        slope = factor * (np.abs(3 - curve) * np.abs(distance) + 1.5 * abs(curve - 1) * distance**2)
        rounding = 16 * _ULP * (np.abs(square) + np.abs(cube) + abs(top) + np.abs(distance) + slope * abs(top))
        return row.bend(values, rounding + slope * 2 * row.error)

    # thresholds

    def min_p(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Min-p keeps tokens of at least a share of the largest probability.

        Min-p keeps tokens whose probability is at least `min_p` times the largest one (Nguyen et al. 2024, arXiv
        2407.01082, eq. 2).

        Probabilities are compared with `min_p` itself, or with the maximum of the batch.

        Example:
            >>> kept(min_p=0.3)
            [0, 1, 2]
        """
        return row.above(np.log(context.params.min_p) + row.log_probs.max(), 2 * row.slack)

    def top_a(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Top-a keeps tokens above a share of the largest probability squared.

        Top-a keeps tokens whose probability is at least `top_a` times the square of the largest one (BlinkDL, RWKV-LM,
        "top-a sampling").

        A threshold without the square is min-p.

        Example:
            >>> kept(top_a=1.0)  # 0.25
            [0, 1]
        """
        return row.above(np.log(context.params.top_a) + 2 * row.log_probs.max(), 3 * row.slack + 8 * _ULP)

    def p_less(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """P-less keeps tokens of at least the sum of squared probabilities.

        P-less keeps tokens whose probability is at least that of drawing the same token twice, the sum of squared
        probabilities; one token at least (Tan et al. 2025, arXiv 2509.23234).

        Another power than the square, the largest probability alone, or a sum that rounds above every token of a flat
        row.

        Example:
            >>> kept(p_less=1)  # 0.359
            [0]
        """
        threshold, error = self.collision(row)
        return row.above(threshold, row.slack + error + 8 * _ULP, keeps_ties=False)

    def collision(self, row: FilteredRow) -> tuple[float, float]:
        """The logarithm of the sum of squared probabilities, and how far float32 may be from it."""
        squares, slack = np.exp(2 * row.log_probs[row.kept]), np.minimum(row.slack[row.kept], -_FAR_OUT)
        return float(np.log(squares.sum())), float(2 * (squares @ slack) / squares.sum()) + _ULP * (8 + len(squares))

    def epsilon(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Epsilon cutoff keeps tokens of at least that probability.

        Epsilon sampling keeps tokens of probability at least epsilon, and the most probable one if none has it (Hewitt
        et al. 2022, arXiv 2210.15191, section 3.2).

        A threshold in units of 1e-4, as some interfaces take it, or one relative to the largest probability.

        Example:
            >>> kept(epsilon=0.2)
            [0, 1]
            >>> kept(epsilon=0.9)
            [0]
        """
        return row.above(np.log(context.params.epsilon), row.slack + 8 * _ULP, keeps_ties=False)

    def eta(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Eta cutoff follows the entropy.

        Eta sampling keeps tokens of probability at least min(epsilon, sqrt(epsilon) exp(-entropy)), and the most
        probable one (Hewitt et al. 2022, arXiv 2210.15191, eq. 4).

        An entropy in bits or of the wrong sign, or the larger of the two instead of the smaller.

        Example:
            >>> kept(eta=0.2)  # entropy 1.205: min(0.2, 0.134)
            [0, 1, 2]
        """
        epsilon = np.log(context.params.eta)
        slack = row.slack + row.entropy_slack + 8 * _ULP
        return row.above(min(epsilon, epsilon / 2 - row.entropy), slack, keeps_ties=False)

    def top_n_sigma(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Top-n-sigma keeps logits within n standard deviations of the largest.

        Top-n-sigma keeps logits of at least `max - n * sigma`; sigma is that of the logits that are left. Which of n
        and n - 1 it divides by is declared (`sigma_ddof`) (Tang et al. 2024, arXiv 2411.07641, algorithm 1).

        The deviation of probabilities, of the batch, or with -inf among the logits, which makes it NaN.

        Example:
            >>> kept(top_n_sigma=1.0)  # sigma 0.942, threshold -1.635
            [0, 1]
        """
        sigma, slack = self.sigma(row)
        top, number = row.values.max(where=row.kept, initial=-np.inf), context.params.top_n_sigma
        rounding = 8 * _ULP * (abs(top) + np.where(row.kept, np.abs(row.values), 0)) + row.error
        threshold, distance = number * sigma, top - row.values
        is_top, margin = row.values == top, rounding + number * slack + row.error.max(where=row.kept, initial=0)
        sure = (distance <= threshold - margin) | is_top
        return row.cut(distance <= threshold, sure, distance <= threshold + margin)

    def sigma(self, row: FilteredRow) -> tuple[float, float]:
        """The standard deviation of the logits that are left, and how far float32 may be from it."""
        logits, ddof = row.values[row.kept], self.chain.sigma_ddof
        if len(logits) <= ddof:
            return 0.0, 0.0
        sigma, error = float(logits.std(ddof=ddof)), _ULP * len(logits) * float(np.abs(logits).max())
        error += float(row.error.max(where=row.kept, initial=0))
        return sigma, float(np.hypot(sigma, error)) - sigma + error / 8 + _ULP * (16 + len(logits)) * sigma

    # sorted tokens

    def top_k(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Top-k keeps the k most probable tokens.

        Top-k keeps the k largest logits, and all of them if there are not so many (Fan et al. 2018, arXiv 1805.04833).

        A k-th value that is looked up in the wrong row, or sorted the wrong way round.

        Example:
            >>> kept(top_k=2)
            [0, 1]
        """
        number = min(context.params.top_k, int(row.kept.sum()))
        return row.best(number, number, number, error=2 * row.error.max(where=row.kept, initial=0))

    def top_p(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Top-p keeps the fewest most probable tokens that have the mass.

        Top-p keeps the smallest set of most probable tokens whose probabilities reach `top_p` (Holtzman et al. 2020,
        arXiv 1904.09751, eq. 2).

        The token that reaches the mass is dropped, or one too many is kept: a comparison before the addition.

        Example:
            >>> kept(top_p=0.6)
            [0, 1]
        """
        return self.by_mass(row, context.params.top_p, -row.values, 2 * row.error.max(where=row.kept, initial=0))

    def typical_p(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Typical-p keeps the fewest most typical tokens that have the mass.

        Typical-p sorts tokens by how far their surprise is from the entropy, and keeps the fewest that reach the mass
        (Meister et al. 2022, arXiv 2202.00666, eq. 7).

        The token that reaches the mass is dropped, or a probability of 0 makes the entropy NaN.

        Example:
            >>> kept(typical_p=0.2)  # surprises 0.69, 1.26, 1.83, 2.88
            [1]
            >>> kept(typical_p=0.5)
            [0, 1]
        """
        with np.errstate(invalid="ignore"):
            score = np.abs(-row.log_probs - row.entropy)
        margin = 2 * (row.slack.max(where=row.kept & (score < 40), initial=0) + row.entropy_slack)
        return self.by_mass(row, context.params.typical_p, score, float(margin))

    def by_mass(self, row: FilteredRow, mass: float, score: Row, error: float) -> FilteredRow:
        """The fewest tokens of the lowest score that have probability `mass`."""
        order = row.ids[np.argsort(score[row.ids], kind="stable")]
        probs = np.exp(row.log_probs[order])
        total = probs.cumsum()
        slack = float((probs * row.slack[order]).sum()) + _ULP * (64 + len(order))
        fewest, number, most = (
            int(min(len(order), 1 + (total < one).sum())) for one in (mass - slack, mass, mass + slack)
        )
        return row.best(fewest, self.crossing(number), most, score, error)

    def crossing(self, number: int) -> int:
        """The token that reaches the mass stays."""
        return number

    def tail_free(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Tail-free sampling keeps tokens up to a share of the curvature.

        TFS sorts probabilities and keeps tokens as long as the absolute second differences have, added up, at most the
        given share of their sum; how many more is declared (`tail_free_extra`) (Phénix and Egan 2019, "Tail Free
        Sampling"). Whether tokens of probability 0 belong to the curve is open: there are implementations of both.

        First differences, no normalisation, or a sum without absolute values.

        Example:
            >>> kept(tail_free=0.9)  # second differences 0.092, 0.02; shares 0.821, 1
            [0, 1]
        """
        order, z = row.ids, context.params.tail_free
        if len(order) < 3:  # there is no curvature
            top = row.kept & (row.values == row.values[order[0]])
            return row.cut(row.kept, top & (top.sum() == 1), row.possible)
        counts = []
        for padding in (0, 2) if len(order) < len(row.values) else (0,):
            probs = np.append(np.exp(row.log_probs[order]), np.zeros(padding))
            error = np.append(probs[: len(order)] * row.slack[order], np.zeros(padding))
            bends = self.bends(probs)
            unsure = 4 * error.sum() / max(bends.sum(), 1e-300) + _ULP * len(order)
            share = bends.cumsum() / max(bends.sum(), 1e-300)
            counts += [int((share <= limit).sum()) for limit in (z, z - unsure, z + unsure)]
        number, fewest, most = (
            int(np.clip(count + self.chain.tail_free_extra, 1, len(order)))
            for count in (counts[0], min(counts), max(counts))
        )
        return row.best(fewest, number, most, error=2 * row.error.max(where=row.kept, initial=0))

    def bends(self, probs: Row) -> Row:
        """The curvature of sorted probabilities."""
        return np.abs(np.diff(np.diff(probs)))

    def xtc(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """XTC leaves the least probable token above the threshold.

        With probability 1, XTC removes all tokens that reach the threshold but the least probable of them; with one
        such token or none it does nothing (p-e-w, text-generation-webui PR #6335, "Exclude Top Choices").

        All of them are removed, the most probable one stays, or the threshold is one of the sorted places.

        Example:
            >>> kept(xtc_probability=1.0, xtc_threshold=0.1)
            [2, 3]
            >>> kept(xtc_probability=1.0, xtc_threshold=0.4)
            [0, 1, 2, 3]
        """
        if context.fires is False:
            return row
        log_probs, order, slack = row.log_probs, row.ids, row.slack + 8 * _ULP
        threshold = np.log(context.params.xtc_threshold)
        fewest, number, most = (
            max(1, int((log_probs[order] >= threshold + step * slack[order]).sum())) for step in (1, 0, -1)
        )
        values, error = row.values, 2 * row.error.max(where=row.kept, initial=0)
        low, high = values[order[most - 1]], values[order[fewest - 1]]
        kept = np.zeros_like(row.kept)
        kept[order[number - 1 :]] = True
        sure, possible = values < low - error, row.kept & (values <= high + error)
        least, greatest = (int((possible & ~sure)[order[first - 1 :]].sum()) for first in (most, fewest))
        return row.cut(kept, sure, possible, least, greatest)

    # repetitions

    def dry(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """DRY penalises what would make a repetition longer.

        A token that followed an earlier copy of the last n tokens is penalised by `multiplier * base **
        (n - allowed_length)` if n is at least `allowed_length`; the longest copy counts (p-e-w, text-generation-webui
        PR #5677, "DRY").

        Another copy than the longest, an exponent that is one off, or short repetitions that are penalised, too.
        """
        params, penalty = context.params, np.zeros(len(row.values))
        for token, length in self.repetitions(context).items():
            if length >= params.dry_allowed_length and token < len(penalty):
                exponent = min(length, self.chain.dry_longest) - params.dry_allowed_length
                penalty[token] = params.dry_multiplier * params.dry_base ** min(exponent, 500)
        error = row.error + np.where(penalty > 0, _ULP * (64 * penalty + 2 * np.abs(row.values)), 0)
        return row.bend(row.values - penalty, np.where(np.isfinite(row.values), error, 0))

    def repetitions(self, context: RowContext) -> dict[int, int]:
        """Token to the length of the longest earlier sequence that equals the end of the text and that it followed."""
        params = context.params
        tokens, breakers = list(context.tokens)[-params.dry_range or None :], set(params.dry_breakers)
        found: dict[int, int] = {}
        for end in range(len(tokens) - 1):
            if tokens[end + 1] not in breakers:
                length = 0
                while length <= end and tokens[end - length] == tokens[-1 - length] not in breakers:
                    length += 1
                found[tokens[end + 1]] = max(length, found.get(tokens[end + 1], 0))
        return {token: length for token, length in found.items() if length}

    # mirostat

    def mirostat_v1(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Mirostat keeps the k tokens of its estimate.

        In its first step, version 1 keeps k tokens, by the Zipf exponent of the most probable ones and mu = 2 tau (Basu
        et al. 2021, arXiv 2007.14966, algorithm 1).

        A logarithm to another base, an exponent of ranks that begin at 0, or a k that overflows.
        """
        number, error = self.mirostat_k(row, context.mu, len(row.values))
        size = int(row.kept.sum())
        counts = (int(np.clip(part, 1, size)) for part in (number * (1 - error), number, number * (1 + error)))
        fewest, exact, most = (min(size, count + self.chain.mirostat_extra) for count in counts)
        return row.best(fewest, exact, most, error=2 * row.error.max(where=row.kept, initial=0))

    def mirostat_k(self, row: FilteredRow, mu: float, vocab_size: int) -> tuple[float, float]:
        """k of eq. 2, and the relative error that float32 may make."""
        ids = row.ids[: self.chain.mirostat_top]
        if len(ids) < 2:
            return 1.0, 0.0
        ranks = np.arange(1, len(ids))
        steps, falls = np.log((ranks + 1) / ranks), -np.diff(row.log_probs[ids])
        exponent = float((steps * falls).sum() / (steps**2).sum())
        slack = float(np.sqrt((row.slack[ids] ** 2).sum() / (steps**2).sum())) + 1e-6

        def log_k(exponent: float) -> float:
            excess = exponent - 1 if abs(exponent - 1) > 1e-9 else 1e-9
            rate = excess / -np.expm1(-excess * np.log(vocab_size)) if vocab_size > 1 else 1.0
            return float(np.clip((np.log(rate) + mu * np.log(2)) / max(exponent, 1e-12), -50, 50))

        near = [log_k(max(1e-12, exponent + step)) for step in (-slack, 0, slack)]
        error = max(abs(near[0] - near[1]), abs(near[2] - near[1])) + 1e-4 * (1 + 1 / max(exponent, 1e-3))
        return float(np.exp(near[1])), float(np.expm1(min(error, 40)))

    def mirostat_v2(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        """Mirostat 2 keeps tokens up to a surprise.

        In its first step, version 2 keeps tokens whose surprise is at most mu = 2 tau bits, and the most probable one
        (Basu et al. 2021; github.com/basusourya/mirostat, version 2).

        Surprise in nats, or mu that begins at tau.

        Example:
            >>> kept(mirostat_v2_tau=0.95)  # surprises 1, 1.82, 2.64 bits; mu = 1.9
            [0, 1]
        """
        return row.above(-context.mu * np.log(2), row.slack + 1e-4 * (1 + abs(context.mu)), keeps_ties=False)

    def first_mu(self, params: FilterParams) -> float:
        """Twice the surprise that is aimed at."""
        return 2 * (params.mirostat_v1_tau or params.mirostat_v2_tau)

    def next_mu(self, mu: float, params: FilterParams, row: FilteredRow, before: FilteredRow, token: int) -> float:
        """[Basu et al. 2021, algorithm 1]: by the error of the surprise that was seen, in bits.

        Args:
            row, before: After the cut and before it.
        """
        source = before if self.chain.mirostat_surprise == "full" else row
        surprise = -float(source.log_probs[token]) / np.log(2)
        return float(mu - params.mirostat_eta * (surprise - (params.mirostat_v1_tau or params.mirostat_v2_tau)))

    # batches

    def rows(self, batch: FilterBatch, mus: Sequence[float] | None = None) -> Iterator[FilteredRow]:
        """Every row; XTC fires where its probability is 1.

        Args:
            mus: Of mirostat, per row; those of a first step if `None`.
        """
        for number, logits in enumerate(logits_of(batch)):
            context = self.context(batch, number)
            mu = context.mu if mus is None else mus[number]
            yield self.row(logits, dataclasses.replace(context, mu=mu))

    def context(self, batch: FilterBatch, number: int) -> RowContext:
        """What row `number` asks for, at its first step."""
        params = batch.params[number]
        tokens = (*batch.prompt_token_ids[number], *batch.output_token_ids[number])
        return RowContext(params, tokens, params.xtc_probability >= 1, self.first_mu(params))

    def filter_logits(self, batch: FilterBatch, noise: SeededNoise) -> FilterResult:
        """The specification as a sampler's filters.

        Randomness:
            XTC's coins and mirostat's tokens come from a generator in `noise.kept`.
        """
        kept: Any = noise.kept.setdefault("oracle", {"rng": self.generator(noise), "mus": {}})  # Any: its own values
        found, tokens = logits_of(batch).copy(), np.zeros(batch.batch_size, np.int64)
        for number, logits in enumerate(logits_of(batch)):
            context = self.context(batch, number)
            fires = self.coin(context.params, kept["rng"])
            context = dataclasses.replace(context, fires=fires, mu=self.mu(kept["mus"], number, context))
            if context.params.enabled:
                row = self.row(logits, context)
                with np.errstate(over="ignore"):
                    found[number] = np.where(row.kept, row.values, -np.inf)
                if context.mu:
                    tokens[number] = self.draw(row, kept["rng"])
                    before = self.row(logits, without_mirostat(context))
                    kept["mus"][number] = self.next_mu(context.mu, context.params, row, before, int(tokens[number]))
        logits, token_ids = (torch.from_numpy(one).to(batch.device) for one in (found, tokens))
        return FilterResult(logits, token_ids)

    def generator(self, noise: SeededNoise) -> np.random.Generator:
        return np.random.default_rng(derive_seed("filters", noise.seed))

    def coin(self, params: FilterParams, rng: np.random.Generator) -> bool:
        """Whether XTC fires."""
        return bool(rng.random() < params.xtc_probability)

    def mu(self, mus: dict[int, float], number: int, context: RowContext) -> float:
        """Of a row of this step."""
        return mus.get(number, context.mu)

    def draw(self, row: FilteredRow, rng: np.random.Generator) -> int:
        """A token of those that are kept."""
        probs = np.exp(row.log_probs)
        return int(rng.choice(len(probs), p=probs / probs.sum()))


def logits_of(batch: FilterBatch) -> NDArray[np.float32]:  # [num_rows, vocab_size] float32
    return np.asarray(batch.logits.detach().cpu().numpy())


def without_mirostat(context: RowContext) -> RowContext:
    """The same row, before mirostat cuts it."""
    params = dataclasses.replace(context.params, mirostat_v1_tau=0.0, mirostat_v2_tau=0.0)
    return dataclasses.replace(context, params=params)


@lru_cache
def telling_settings(name: str) -> list[dict[str, Any]]:  # Any: one type per parameter
    """Return settings with which a filter keeps 2 to 11 tokens of a row of equal steps; its usual ones if none does.

    Two of them on one row both cut, so that what the second filter looks at shows.
    """
    one = LOGIT_FILTERS[name]
    if not one.number:
        return [*one.usual]
    whole = range(max(2, int(one.low)), int(min(12, one.high + 1)))
    numbers = whole if isinstance(one.low, int) else np.geomspace(max(one.low, 1e-3), min(one.high, 64), 48).tolist()
    settings: list[dict[str, Any]] = [one.usual[0] | {one.number: number} for number in numbers]
    params, count = [FilterParams(**setting) for setting in settings], len(settings)
    steps = (torch.arange(64) * -0.375).expand(count, -1)
    kept = FiltersOracle().filter_logits(FilterBatch(steps, params, [[]] * count, [[]] * count), SeededNoise(0)).logits
    return [one for one, row in zip(settings, kept, strict=True) if 1 < row.isfinite().sum() < 12] or [*one.usual]
