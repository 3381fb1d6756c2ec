"""What a run could have seen, by slice: each feature's levels, how finely each was judged, and what did not occur.

It adds up what the checks really drew (`CheckRecord.drawn`), whichever process ran them.

* *Properties*: with `n` cases that have a level, a fault that shows in a share `x` of such cases is seen with
  probability 95 % if `x` is at least `1 - 0.05**(1 / n)`.
* *Draws*: checks of traces see an event of chance 1/2 that is off by some bias, which falls with the root of the draws
  of a slice. Other checks were planned to see some total variation (TV), over their cells, in all rows that they judge.
  A fault of a part of these rows alone must be larger by as much.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from fairdraw._core.looks import CALLS, NONE, OFFSET, POSITION, SEVERAL, add_sizes, pair_of, words_of_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw._run.coverage import Drawn
    from fairdraw._run.runner import CheckRecord

_WIDTH = 98
_LARGEST_TV, _LARGEST_BIAS = 0.99, 0.5
"""A check that sees no smaller one sees nothing."""
_TABLE_ONLY = (CALLS, OFFSET, POSITION)
"""Features whose sizes are left to the table."""

Range = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """One level of a feature, or one pair of words.

    Args:
        area: The feature; empty for a pair.
        value: A word, or sizes: the smallest and the largest that occurred within a power of two, or a gap.
        cases: Of properties, that have it; `checks` is how many checks tried them.
        fault_rate: Share of such cases in which a fault is seen with probability 95 %; `None` without cases.
        draws: Judged by distributions.
        bias: By how much an event of chance 1/2 must be off there, so that checks of traces see it with power 0.9.
        tv: What the sharpest other check sees there with power 0.999, over its cells; `None` if nothing.
    """

    area: str
    value: str
    cases: int = 0
    checks: int = 0
    fault_rate: float | None = None
    draws: int = 0
    bias: float | None = None
    tv: float | None = None

    @property
    def by(self) -> str:
        """Who judged it: `both`, `properties`, `distributions` or `none`."""
        by_draws = self.bias is not None or self.tv is not None
        if self.cases and by_draws:
            return "both"
        return "properties" if self.cases else "distributions" if by_draws else "none"


@dataclass(frozen=True)
class Coverage:
    """What was judged of one sampler under one contract.

    Args:
        has_distributions: Whether the contract has any.
        ranges: Feature to the ranges of sizes that properties, and distributions, judged.
    """

    sampler: str
    contract: str
    has_distributions: bool
    cases: int
    draws: int
    features: list[Row]
    pairs: list[Row]
    ranges: dict[str, dict[str, list[Range]]]

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        plain = asdict(self)
        for name in ("features", "pairs"):
            plain[name] = [{**asdict(row), "by": row.by} for row in getattr(self, name)]
        return plain

    def count(self, *by: str) -> int:
        """Pairs that were judged so."""
        return sum(row.by in by for row in self.pairs)

    def lines(self) -> list[str]:
        """The short form: at most twelve lines."""
        missing = [row for row in (*self.features, *self.pairs) if row.by == "none"]
        words = [row for row in missing if row.area not in self.ranges]
        lines = ["what this run could have seen, by slice (all of it: --html, --json):"]
        for area, own in self.ranges.items():
            if area not in _TABLE_ONLY:
                lines += _fitted(f"  {area}: ", _worded_ranges(own), 1)
        pairs = f"{len(self.pairs) - self.count('none')} of {len(self.pairs)} occurred"
        by_draws = f", {self.count('both', 'distributions')} judged by draws" * self.has_distributions
        lines += [f"  pairs of words on one request: {pairs}{by_draws}", *self._seen_by_draws()]
        return lines + (_fitted("  NOT judged: ", _by_area(words), 2) if words else [])

    def _seen_by_draws(self) -> list[str]:
        """Return how finely draws judged the levels, the coarsest first, and which levels they did not judge."""
        if not self.draws:
            return []
        own = [row for row in self.features if row.area not in _TABLE_ONLY]
        judged = [(row, seen) for row in own if (seen := row.tv if row.bias is None else row.bias)]
        judged.sort(key=lambda one: -one[1])
        missed = [row for row in own if row.by == "properties"]
        coarse = [f"{_level(row)} {seen:.2g}" for row, seen in judged]
        head = "  bias (of traces, else TV) that draws see, the coarsest: "
        return _fitted(head, coarse, 2) + (_fitted("  not judged by draws: ", _by_area(missed), 1) if missed else [])

    def worded_counts(self) -> str:
        """One line, where there is no room for twelve."""
        missing = sum(row.by == "none" for row in self.features)
        pairs = f"{len(self.pairs) - self.count('none')} of {len(self.pairs)} pairs"
        return f"{len(self.features) - missing} of {len(self.features)} levels, {pairs} of words (HTML and JSON)"


def _level(row: Row) -> str:
    """Return a level in words; sizes need those of their feature."""
    if row.value[:1].isdigit():
        return f"{row.area} " + "-".join(f"{int(size):,}" for size in row.value.split("-"))
    return f"{row.area} {NONE}" if row.value == NONE else row.value


def _by_area(rows: Iterable[Row]) -> list[str]:
    """Return levels as words, a feature's sizes together."""
    found: dict[str, list[str]] = {}
    for row in rows:
        own = found.setdefault(row.area or row.value, [])
        own.append(row.value if own else _level(row))
    return [", ".join(own) for own in found.values()]


def _sizes(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _worded_ranges(ranges: dict[str, list[Range]]) -> list[str]:
    """Return `1-128; 1,024-1,025`, and what distributions judged if that is something else."""
    properties, drawn = ranges.get("properties", []), ranges.get("distributions", [])
    words = [_sizes(*one) for one in properties or drawn]
    if properties and drawn and properties != drawn:
        words[-1] += f" (draws {', '.join(_sizes(*one) for one in drawn)})"
    return words


def _fitted(head: str, items: Sequence[str], most: int) -> list[str]:
    """Return as many items as fit into so many lines, and how many more there are."""
    lines: list[str] = []
    for number in range(len(items), -1, -1):
        more = len(items) - number
        shown = [*items[:number], *([f"and {more} more"] if more else [])]
        lines = textwrap.wrap(head + "; ".join(shown), _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        if len(lines) <= most:
            break
    return lines


# -- adding up --------------------------------------------------------------------------------------------------------


def coverage_of(records: Iterable[CheckRecord]) -> list[Coverage]:
    """Return the coverage of each sampler and contract of a run; empty if nothing was judged."""
    groups: dict[tuple[str, str], list[tuple[CheckRecord, Drawn]]] = {}
    for record in records:
        if record.drawn is not None:
            groups.setdefault((record.sampler, record.contract), []).append((record, record.drawn))
    return [_coverage(sampler, contract, own) for (sampler, contract), own in groups.items()]


def _coverage(sampler: str, contract: str, own: Sequence[tuple[CheckRecord, Drawn]]) -> Coverage:
    from fairdraw._core.contracts import CONTRACTS

    properties = [drawn for record, drawn in own if record.suite == "properties"]
    workloads = _workloads((record, drawn) for record, drawn in own if record.suite != "properties")
    drawns = {"properties": properties, "distributions": [one.drawn for one in workloads]}
    every = [*properties, *drawns["distributions"]]
    words = {name: tuple(words) for one in every for name, words in one.features.items()}
    features = [_row(name, word, word, properties, workloads) for name, own in words.items() for word in own]
    names = dict.fromkeys(name for one in every for name in one.ranges)
    for name in names:
        features += _rows_of_sizes(name, properties, workloads, every)
    judged = {name: {suite: _ranges(name, some) for suite, some in drawns.items()} for name in names}
    return Coverage(
        sampler,
        contract,
        CONTRACTS[contract].has_distributions,
        sum(one.total for one in properties),
        sum(one.draws for one in workloads),
        features,
        [_row("", pair, pair, properties, workloads) for pair in sorted(_possible_pairs(words))],
        {name: {suite: found for suite, found in own.items() if found} for name, own in judged.items()},
    )


def _possible_pairs(words: dict[str, tuple[str, ...]]) -> set[str]:
    """Return the pairs of words of two features, and of one of which a request may have several."""
    known = [(name, word) for name, own in words.items() for word in words_of_pairs(name, own)]
    pairs = ((one, other) for one, other in combinations(known, 2) if one[0] != other[0] or one[0] in SEVERAL)
    return {pair_of(one[1], other[1]) for one, other in pairs}


def _rows_of_sizes(
    name: str, properties: Sequence[Drawn], workloads: Sequence[_Workload], every: Sequence[Drawn]
) -> list[Row]:
    """Return a row for each power of two in which sizes occurred, and one for each gap."""
    found, powers = [], dict[int, Range]()
    for low, high in _by_range(name, every):
        smallest, largest = powers.get(low.bit_length(), (low, high))
        powers[low.bit_length()] = min(low, smallest), max(high, largest)
    for bits, (low, high) in powers.items():
        words = f"{low}-{high}" if low < high else str(low)
        found.append((low, _row(name, words, str(bits), properties, workloads)))
    for (_, before), (after, _) in pairwise(_ranges(name, every)):
        words = f"{before + 1}-{after - 1}" if before + 2 < after else str(before + 1)
        found.append((before + 1, Row(name, words)))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def _by_range(name: str, drawns: Iterable[Drawn]) -> list[Range]:
    by_range: dict[int, Range] = {}
    add_sizes(by_range, (size for one in drawns for both in one.ranges.get(name, ()) for size in both))
    return sorted(by_range.values())


def _ranges(name: str, drawns: Iterable[Drawn]) -> list[Range]:
    """Return the ranges of sizes; where no size lies between one and half as much again, a range ends."""
    merged: list[Range] = []
    for low, high in _by_range(name, drawns):
        is_next = bool(merged) and low <= merged[-1][1] + max(1, merged[-1][1] // 2)
        merged[-1:] = [(merged[-1][0], high)] if is_next else [*merged[-1:], (low, high)]
    return merged


@dataclass(frozen=True)
class _Workload:
    """Draws that several checks judged.

    Args:
        tv: What the sharpest of them sees in all rows.
    """

    drawn: Drawn
    draws: int
    tv: float | None

    def seen(self, name: str, share: float) -> tuple[float, float]:
        """Return the bias and the TV that are seen in a share of the draws; infinite if none is."""
        bias, tv = (math.inf if one is None else one for one in (self.drawn.bias, self.tv))
        return bias / (math.sqrt(share) if name in self.drawn.sliced else share), tv / share


def _workloads(own: Iterable[tuple[CheckRecord, Drawn]]) -> list[_Workload]:
    """Return one for all checks that judged the same draws, in however many processes these were drawn."""
    groups: dict[str, list[tuple[CheckRecord, Drawn]]] = {}
    for record, drawn in own:
        groups.setdefault(drawn.by, []).append((record, drawn))
    return [
        _Workload(
            max((drawn for _, drawn in some), key=lambda drawn: drawn.total),
            max(record.cases for record, _ in some),
            min((drawn.tv for _, drawn in some if drawn.tv is not None), default=None),
        )
        for some in groups.values()
    ]


def _count(drawn: Drawn, area: str, key: str) -> int:
    """Return how many cases, or rows, have a word, a pair or a size of so many bits."""
    known = drawn.features.get(area, {}) | drawn.sizes.get(area, {}) if area else drawn.pairs
    return known.get(key, 0)


def _row(area: str, value: str, key: str, properties: Sequence[Drawn], workloads: Sequence[_Workload]) -> Row:
    cases = [count for one in properties if (count := _count(one, area, key))]
    shares = [(one, count / max(1, one.drawn.total)) for one in workloads if (count := _count(one.drawn, area, key))]
    seen = [one.seen(area, share) for one, share in shares]
    bias, tv = (min((each[number] for each in seen), default=math.inf) for number in range(2))
    return Row(
        area,
        value,
        sum(cases),
        len(cases),
        round(1 - 0.05 ** (1 / sum(cases)), 6) if cases else None,
        round(sum(one.draws * share for one, share in shares)),
        round(bias, 4) if bias < _LARGEST_BIAS else None,
        round(tv, 4) if tv < _LARGEST_TV else None,
    )
