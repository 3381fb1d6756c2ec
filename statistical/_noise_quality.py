"""How fine is the noise? Events that numbers of few bits bring too often, too seldom or never.

* Rare tokens (N1). One token has most of the probability. Thousands share the rest evenly: each has less than a number
  of few bits can say, and together they are drawn often. An inverse CDF over a grid reaches only some of them, which
  the tables by place and by residue show; a race with exponentials on a grid loses them all, or takes the lowest ids
  among ties. Others have 2**-50 together: one of them wins if its exponential was 0, and never otherwise. A third
  kind has 2**-28 each: they win if an epsilon was added to an exponential of 0, or if it was clamped there. A fast
  sampler has all kinds in one row. A slow one draws from a large vocabulary of the third kind besides: four or eight
  rows at each checkpoint, and 280 more if these took little time (those of JAX do, an interpreter's do not).
* Fine odds (N3). Millions of draws from two short rows. In one, a token of 0.1 beside one of 0.88 wins less often if
  exponentials end at 4, and tokens of 0.01 at both ends lose by uniforms that never come near 0 or 1. In the other,
  probabilities lie halfway between numbers of 8 bits: half of them grow if they are rounded to bfloat16, the others
  shrink. Not for a slow sampler, whose few draws would show nothing.

What is resolved, of numbers that are multiples of 2**-bits:
    Inverse CDF: up to 15 bits at `smoke`, 18 at `ci` and `nightly` (12 for a slow sampler, less for a small
    vocabulary). Race: 18 bits at `ci`; finer ones decide otherwise in less than one of 2**18 draws, and pass.
    Exponentials that may be 0: up to 20 bits at `smoke`, 23 at `ci`. Exponentials with 1e-9 or less added, or clamped
    there: 23 bits at `ci`, also of a slow sampler that draws from 131072 tokens in 25 ms; one of 8 million is 0 then,
    and it takes a dozen. That end at some number: at 3 or below at `smoke`, at 4 or below at `ci` (at 5 they change no
    probability by more than 0.05 %). Uniforms of an inverse CDF that stay 0.001 away from 0 or 1: at `ci`. Rounded
    probabilities: 8 bits at `ci`. Numbers of 23 and 24 bits, as `torch.rand` gives them, are right for practical
    purposes and pass; the number of rows is bounded so that they always do.

Null, exactly:
    Draws are independent, with cell probabilities from the stored logits in float64. A token of the 2**-50 is counted
    as impossible; over the most rows that a run draws, that adds 2e-12 to the rate of false failures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, SpecDecodeBatch
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.statistical._configurations import repeated
from fairdraw.statistical._count_tables import NO_CELL, Counts, Table, count_codes, sum_counts
from fairdraw.statistical._dependence_workloads import plain_batch, plain_noise
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._explained import ExplainedPlan
from fairdraw.statistical._noise import draw_rows
from fairdraw.statistical._pooling import MIN_EXPECTED
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

# -- rare tokens ------------------------------------------------------------------------------------------------------

_VOCAB_SIZE, _SMALLER_VOCAB_SIZE, _SMALLEST_VOCAB_SIZE = 131072, 16384, 1024
"""For a slow sampler the smaller one, and the smallest for one that does not support large ones."""

_ROWS_PER_CALL, _MOST_ROWS, _DRAWS_PER_ROW = 8, 1024, 390
_MANY_DRAWS, _VANISHING, _HARDLY = 5_000_000, 2.0**-50, 2.0**-28


@dataclass(frozen=True, eq=False)
class RareTokens:
    """A row: one token of each group shares `mass`, one token has the rest, and all others have next to nothing.

    The first group has half of a share and the last one that half besides, so that multiples of a power of two, which a
    grid consists of, fall into the middle of a group and not on its edge.

    Args:
        every: Tokens of a group: the one with the share, one that never comes, and others.
        seldom: The probability of these others; 0: they never come either.
        num_places: Groups are counted by so many places, and by so many residues.
    """

    vocab_size: int
    mass: float
    every: int = 2
    seldom: float = 0.0
    num_places: int = 8

    @property
    def head(self) -> int:
        """The frequent token, in the middle of the vocabulary."""
        return self.vocab_size // 2 + 1

    @cached_property
    def kinds(self) -> NDArray[np.int64]:  # [vocab_size] int64
        """0: shares, 1: never comes, 2 and more: hardly ever."""
        return np.arange(self.vocab_size) % self.every

    def logits(self) -> NDArray[np.float32]:  # [vocab_size] float32
        """Token 1 is impossible: a draft of it is always rejected."""
        probs = np.where(self.kinds > 1, self.seldom, _VANISHING / self.vocab_size)
        group = self.mass * self.every / self.vocab_size
        shares = np.full(self.vocab_size // self.every, group)
        shares[0], shares[-1] = group / 2, 1.5 * group
        probs[:: self.every] = shares - (self.every - 2) * self.seldom
        probs[1], probs[self.head] = 0.0, 1 - self.mass
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(probs), dtype=np.float32)

    @cached_property
    def cells(self) -> dict[str, NDArray[np.int64]]:  # [vocab_size] int64
        """The cell of each token, by table: the head is the last, tokens that never come have none."""
        ids, other = np.arange(self.vocab_size), np.where(self.kinds > 1, self.num_places, NO_CELL)
        named = {
            "N1 rare tokens by place": ids * self.num_places // self.vocab_size,
            "N1 rare tokens by residue": ids // self.every % self.num_places,
        }
        found = {name: np.where(self.kinds == 0, cell, other) for name, cell in named.items()}
        if self.seldom:
            found[_SELDOM] = np.where(self.kinds == 1, NO_CELL, np.where(self.kinds > 1, 0, self.num_places))
        for cell in found.values():
            cell[self.head] = self.num_places
        return found

    def tables(self, num_draws: int) -> dict[str, Table]:
        """Their null, from the stored logits."""
        probs = softmax_probs(self.logits()[None])[0]
        found = {}
        for name, cell in self.cells.items():
            mass = np.bincount(cell[cell >= 0], weights=probs[cell >= 0], minlength=self.num_places + 1)
            few, label = 0.0 if name == _SELDOM else MIN_EXPECTED, self._label(name)
            found[name] = Table(mass / mass.sum(), label=label, num_draws=num_draws, outside=_OUTSIDE, min_expected=few)
        return found

    def _label(self, name: str) -> Callable[[int], str]:
        """Names of cells."""
        if name == _SELDOM:
            return lambda cell: "all others" if cell == self.num_places else "tokens that hardly ever come"
        word = name.rpartition(" ")[2]
        return lambda cell: "the frequent token" if cell == self.num_places else f"rare tokens, {word} {cell}"

    def count(self, tokens: NDArray[np.integer]) -> Counts:
        """The tables of drawn tokens."""
        ids = np.where((tokens >= 0) & (tokens < self.vocab_size), tokens, 1)
        return {name: count_codes(cell[ids], self.num_places + 1) for name, cell in self.cells.items()}


_SELDOM, _OUTSIDE = "N1 tokens that hardly ever come", "a token whose probability is 1e-15 with all its like"


@cache
def _rare_row(vocab_size: int, *, is_finest: bool, has_many_draws: bool) -> RareTokens:
    """One row for all runs: its cells are made once."""
    if is_finest:
        return RareTokens(vocab_size, 1 / 64, every=8, seldom=_HARDLY, num_places=4)
    return RareTokens(vocab_size, 1 / 16 if has_many_draws else 1 / 2)


def _rare_tokens(setting: Setting) -> RareTokens:
    """The finest row that the draws can judge: about 40 rare tokens must come."""
    # An interpreter needs a tenth of a second for a row of the large vocabulary.
    large = _SMALLER_VOCAB_SIZE if setting.num_draws < 10_000 else _VOCAB_SIZE
    size = large if Capability.LARGE_VOCAB in setting.supported else _SMALLEST_VOCAB_SIZE
    return _rare_row(size, is_finest=_is_finest(setting), has_many_draws=_num_rows(setting) >= 640)


def _is_finest(setting: Setting) -> bool:
    """Whether so many numbers are drawn that exponentials of 23 bits reach 0 a dozen times."""
    return setting.num_draws >= _MOST_ROWS * _DRAWS_PER_ROW and Capability.LARGE_VOCAB in setting.supported


def _num_rows(setting: Setting) -> int:
    """Rows that are drawn; an interpreter's are cheap, as they are short, and few."""
    rows = min(_MOST_ROWS, max(64, setting.num_draws // _DRAWS_PER_ROW))
    if not _is_finest(setting):
        return rows
    return 8 * rows if setting.num_draws >= _MANY_DRAWS else 5 * rows // 2


_FORMS = (Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS)

_Call = Callable[["RareTokens | _Odds", Any, int, int], NDArray[np.integer]]
"""From a row, a sampler of either contract (Any), how often the row is drawn from, and a seed to tokens."""


def _plan(setting: Setting, call: _Call, wide_rows_per_call: int) -> SamplingPlan:
    """Eight checkpoints of calls of eight rows, and of fewer wide rows for a slow sampler."""
    rare, num_calls = _rare_tokens(setting), max(1, _num_rows(setting) // (8 * _ROWS_PER_CALL))
    # For a slow sampler at `ci` and above: the plan's own rows are too few for the third kind of tokens.
    is_large = Capability.LARGE_VOCAB in setting.supported and not _is_finest(setting)
    has_wide_rows = setting.slow and is_large and setting.num_draws >= 3000

    def count(sampler: Any, seed: int) -> Counts:  # Any: of either contract
        seeds = (derive_seed("rare", seed, number) for number in range(num_calls))
        counts = sum_counts(rare.count(call(rare, sampler, _ROWS_PER_CALL, one)) for one in seeds)
        return {**counts, **(_count_wide(call, sampler, wide_rows_per_call, seed) if has_wide_rows else {})}

    num_draws = num_calls * _ROWS_PER_CALL
    tables = rare.tables(num_draws) | ({_SELDOM: _wide().table(wide_rows_per_call)} if has_wide_rows else {})
    return ExplainedPlan(tables, count, 8 if setting.num_draws >= 1000 else 0, num_draws, _explain_rare)


_WIDE_ROWS, _SECONDS_PER_ROW = 288, 0.025
"""Rows of a checkpoint, if the first of them took less CPU time than this (an interpreter takes 45 ms). With 1e-9 added
one in 90 draws a token of the third kind; one in 2000 should. The first checkpoint of JAX compiles, and stops."""


def _count_wide(call: _Call, sampler: Any, size: int, seed: int) -> Counts:  # Any: of either contract
    """One call, and the others if it was fast enough. That does not depend on what it drew."""
    seeds, row, begin = (derive_seed("wide", seed, i) for i in range(_WIDE_ROWS // size)), _wide(), process_time()
    counts = row.count(call(row, sampler, size, next(seeds)))
    if process_time() - begin > _SECONDS_PER_ROW * size:
        return counts
    return sum_counts([counts, *(row.count(call(row, sampler, size, one)) for one in seeds)])


def _explain_rare(counts: Sequence[Counts], name: str) -> str:
    """What the counts of rare tokens say about the noise."""
    total = np.sum([one[name] for one in counts], axis=0)
    if name == _SELDOM:
        return "tokens that hardly ever come do: exponentials that are 0, behind an epsilon that is added or a clamp"
    if total[-1]:
        return "tokens came that are too rare for it: noise that reaches 0, or ends too early"
    drawn = total[:-2]
    if not drawn.any():
        return "rare tokens never come: the noise has too few bits, or is cut off"
    if (drawn == 0).any():
        return f"{int((drawn == 0).sum())} of {len(drawn)} groups of rare tokens never come: the noise has too few bits"
    return "rare tokens come too often, too seldom or at some places only: the noise has too few bits, or ties"


@Workload.of("sampling: rare tokens", "rare tokens", 1.0, 1.0, Capability.LARGE_VOCAB)
def sampling_rare_tokens(setting: Setting) -> SamplingPlan:
    """N1 of the sampling contract."""
    return _plan(setting, partial(_sampled, setting), 8)


def _sampled(setting: Setting, row: RareTokens | _Odds, sampler: Any, size: int, seed: int) -> NDArray[np.integer]:
    """Tokens of one call of a token sampler."""
    batch = plain_batch(np.tile(_stored(row), (size, 1)), seed % 1000, setting.device)
    return sample_tokens(sampler, batch, plain_noise(sampler, batch, seed)).tokens


@cache
def _stored(row: RareTokens | _Odds) -> NDArray[np.float32]:
    """The logits of a row, made once."""
    return row.logits()


@Workload.of("rejection: rare tokens", "rare tokens", 1.0, 1.0, Capability.LARGE_VOCAB, *_FORMS)
def rejection_rare_tokens(setting: Setting) -> SamplingPlan:
    """N1 of the rejection contract: drafts that are always rejected, so that every row recovers a token."""
    return _plan(setting, partial(_recovered, setting), 4)  # with as many bonus tokens


def _recovered(setting: Setting, row: RareTokens | _Odds, sampler: Any, size: int, seed: int) -> NDArray[np.integer]:
    """Tokens of one call of a rejection sampler: the first of each request, which is recovered."""
    forms = [form for form in _FORMS if form in setting.supported]
    dense = forms[seed % len(forms)] is Capability.DENSE_DRAFTS
    return draw_rows(sampler, _rejected(_stored(row), size, setting.device, dense=dense), seed)[:, 0]


def _rejected(logits: NDArray[np.float32], size: int, device: str, *, dense: bool) -> SpecDecodeBatch:
    """One draft per request, the impossible token 1; all have the same logits, [vocab_size] float32."""
    probs, origin = np.eye(1, len(logits), 1, np.float32), f"<{size} rejected drafts, vocab_size={len(logits)}>"
    return repeated(np.array([1]), size, logits[None], probs if dense else None, origin).to(device)


# -- fine odds --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Odds:
    """A row, and the cell of each token; token 1 is impossible and has none."""

    name: str
    probs: Sequence[float] | NDArray[np.float64]
    cells: Sequence[int] | NDArray[np.int64]
    labels: tuple[str, ...] = ("more", "less", "rest")
    min_expected: float = MIN_EXPECTED

    def logits(self) -> NDArray[np.float32]:  # [vocab_size] float32
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.probs), dtype=np.float32)

    def table(self, num_draws: int) -> Table:
        """Its null, from the stored logits."""
        probs, cells = softmax_probs(self.logits()[None])[0], np.array(self.cells)
        mass = np.bincount(cells[cells >= 0], weights=probs[cells >= 0])
        label, few = self.labels.__getitem__, self.min_expected
        return Table(mass / mass.sum(), label=label, num_draws=num_draws, min_expected=few)

    def count(self, tokens: NDArray[np.integer]) -> Counts:
        known = np.where((tokens >= 0) & (tokens < len(self.probs)), tokens, 1)
        return {self.name: count_codes(np.array(self.cells)[known], max(self.cells) + 1)}


_HALFWAY, _BIT = 1 + 2.0**-8, 1e-4
_UP, _DOWN = (_HALFWAY + _BIT) / 8, (_HALFWAY - _BIT) / 8
_ODDS = (
    # Rarer ones at both ends: an inverse CDF whose uniforms never come near 0 or 1 loses a tenth of one.
    _Odds("N3 a rare token beside a frequent one", (0.01, 0, 0.1, 0.88, 0.01), (2, NO_CELL, 1, 0, 2)),
    _Odds(
        "N3 tokens halfway between numbers of 8 bits",
        (_UP, 0, _DOWN, _DOWN, _UP, 1 - 4 * _UP - 3 * _DOWN, _UP, _DOWN, _UP),
        (0, NO_CELL, 1, 1, 0, 2, 0, 1, 0),
    ),
)
_ROWS_OF_ODDS, _MOST_ODDS, _CHECKPOINTS_OF_ODDS = 16384, 1 << 24, 16


_ODDS_SHARE = 26
"""A draw from three or nine tokens costs next to nothing, but for an interpreter."""


@cache
def _wide() -> _Odds:
    """A frequent token, and the impossible one; all others are of the third kind."""
    probs, cells = np.full(_VOCAB_SIZE, _HARDLY), np.zeros(_VOCAB_SIZE, np.int64)
    probs[1], cells[1], probs[_VOCAB_SIZE // 2 + 1], cells[_VOCAB_SIZE // 2 + 1] = 0, NO_CELL, 1, 1
    probs[_VOCAB_SIZE // 2 + 1] -= probs.sum() - 1
    return _Odds(_SELDOM, probs, cells, ("tokens that hardly ever come", "the frequent token"), 0.0)


def _plan_odds(setting: Setting, call: _Call) -> SamplingPlan:
    """Both rows in turn, in calls of as many rows as a cache holds."""
    per_row = min(setting.num_draws, _MOST_ODDS) // (len(_ODDS) * _CHECKPOINTS_OF_ODDS)
    size = min(_ROWS_OF_ODDS, per_row)
    num_calls = per_row // size if size else 0

    def count(sampler: Any, seed: int) -> Counts:  # Any: of either contract
        calls = ((odds, derive_seed("odds", seed, odds.name, i)) for odds in _ODDS for i in range(num_calls))
        return sum_counts(odds.count(call(odds, sampler, size, one)) for odds, one in calls)

    num_draws = num_calls * size
    tables = {odds.name: odds.table(num_draws) for odds in _ODDS}
    return ExplainedPlan(tables, count, _CHECKPOINTS_OF_ODDS if size else 0, len(_ODDS) * num_draws, _explain_odds)


def _explain_odds(counts: Sequence[Counts], name: str) -> str:
    """Which row shows it."""
    return (
        "draws give a rare token beside a frequent one a wrong rate: exponentials that end too early, or begin too late"
        if name == _ODDS[0].name
        else "probabilities come as if they were rounded: bfloat16 on the way to the race"
    )


@Workload.of("sampling: fine odds", "fine odds", _ODDS_SHARE, _ODDS_SHARE)
def sampling_fine_odds(setting: Setting) -> SamplingPlan:
    """N3 of the sampling contract."""
    return _plan_odds(setting, partial(_sampled, setting))


@Workload.of("rejection: fine odds", "fine odds", _ODDS_SHARE, _ODDS_SHARE, *_FORMS)
def rejection_fine_odds(setting: Setting) -> SamplingPlan:
    """N3 of the rejection contract, by recovered tokens."""
    return _plan_odds(setting, partial(_recovered, setting))
