"""The coverage of a run: what its properties and its distributions judged, how finely, and what neither did.

It adds up what the checks really drew (`CheckRecord.drawn`), whichever process ran them.

* *Properties*: with `n` cases that have a feature, a fault that shows in a share `x` of such cases is seen with
  probability 95 % if `x` is at least `1 - 0.05**(1 / n)`.
* *Distributions*: a check was planned to see some total variation (TV) in all rows that it judges. If a feature is in a
  share of those rows only, a fault of just these rows must be larger by as much.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fairdraw._run.coverage import add_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw._run.coverage import Drawn
    from fairdraw._run.runner import CheckRecord

_WIDTH = 98
_LARGEST_TV = 0.99
"""A plan that sees no smaller distance sees nothing."""


@dataclass(frozen=True)
class Row:
    """One feature, or one pair of traits.

    Args:
        area: Empty for a pair.
        cases: Of properties, that have it; `checks` is how many checks tried them.
        fault_rate: Share of such cases in which a fault is seen with probability 95 %; `None` without cases.
        draws: Judged by distributions.
        tv: What the sharpest check sees in them; `tv_all` is what every check of some workload sees; `None` if nothing.
    """

    area: str
    value: str
    cases: int
    checks: int
    fault_rate: float | None
    draws: int
    tv: float | None
    tv_all: float | None

    @property
    def by(self) -> str:
        """Who judged it: `both`, `properties`, `distributions` or `none`."""
        if self.cases and self.tv is not None:
            return "both"
        return "properties" if self.cases else "none" if self.tv is None else "distributions"


@dataclass(frozen=True)
class Coverage:
    """What was judged of one sampler under one contract.

    Args:
        has_distributions: Whether the contract has any.
        ranges: Area to the ranges of sizes that properties, and distributions, judged. Where no size of a power of two
            was, a range ends.
    """

    sampler: str
    contract: str
    has_distributions: bool
    cases: int
    draws: int
    features: list[Row]
    pairs: list[Row]
    ranges: dict[str, dict[str, list[tuple[int, int]]]]

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        plain = asdict(self)
        for name in ("features", "pairs"):
            plain[name] = [{**asdict(row), "by": row.by} for row in getattr(self, name)]
        return plain

    @property
    def by_area(self) -> dict[str, list[Row]]:
        """Area to its rows."""
        found: dict[str, list[Row]] = {}
        for row in self.features:
            found.setdefault(row.area, []).append(row)
        return found

    @cached_property
    def traits(self) -> list[str]:
        """What the rows and columns of the table of pairs are."""
        from fairdraw._run.drawn_features import CATALOGUES

        return list(CATALOGUES[self.contract].traits)

    def matrix(self) -> list[tuple[str, list[Row | None]]]:
        """Trait to its pairs with the traits before it; `None` where no request has both."""
        known = {row.value: row for row in self.pairs}
        return [
            (trait, [known.get(f"{before} + {trait}") for before in self.traits[:number]])
            for number, trait in enumerate(self.traits)
        ]

    def count(self, *by: str) -> int:
        """Pairs that were judged so."""
        return sum(row.by in by for row in self.pairs)

    def lines(self) -> list[str]:
        """The short form: at most six lines."""
        seen = [row for row in self.features if row.area not in self.ranges and row.by != "none"]
        sizes = [f"{_SHORT.get(area, area)} {_ranges(ranges)}" for area, ranges in self.ranges.items()]
        missing = _by_area(row for row in self.features if row.by == "none")
        missing += [row.value for row in self.pairs if row.by == "none"]
        one_sided = _by_area(row for row in self.features if row.by == "properties" and row.area != "calls per case")
        lines = [*_fitted("judged: ", [*sizes, *_by_area(seen)], 2), self._pair_line()]
        lines += _fitted("NOT judged: ", missing, 2 if self.has_distributions else 3) if missing else []
        is_half = self.has_distributions and self.draws and one_sided
        return lines + (_fitted("  not by distributions: ", one_sided, 1) if is_half else [])

    def worded_counts(self) -> str:
        """One line, where there is no room for six."""
        missing = sum(row.by == "none" for row in self.features)
        pairs = f"{len(self.pairs) - self.count('none')} of {len(self.pairs)} pairs"
        return f"{len(self.features) - missing} of {len(self.features)} features, {pairs} of parameters (HTML and JSON)"

    def _pair_line(self) -> str:
        num_judged = len(self.pairs) - self.count("none")
        counts = f"{num_judged} of {len(self.pairs)} judged"
        counts += f", {self.count('both', 'distributions')} by distributions" * self.has_distributions
        return f"  pairs of parameters on one request: {counts}"


def _ranges(ranges: dict[str, list[tuple[int, int]]]) -> str:
    """`1-128, 1024-1025`, and what distributions judged if that is something else."""
    words = [", ".join(str(a) if a == b else f"{a}-{b}" for a, b in some) for some in ranges.values()]
    both = len(words) == 2 and words[0] != words[1]
    return f"{words[0]} (distributions {words[1]})" if both else words[0]


_SHORT = {
    "requests per batch": "batch",
    "drafts per request": "drafts",
    "prompt tokens": "prompt",
    "output tokens": "output",
    "offset into the logits": "offset",
}
_PLAIN = ("dtype of the logits", "inputs", "events", "processors", "filters", "parameters")
"""Areas whose values need no more words."""


def _by_area(rows: Iterable[Row]) -> list[str]:
    """Features as words, an area at a time."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.area, []).append(row.value)
    return [
        ("" if area in _PLAIN else f"{_SHORT.get(area, area)} ") + ", ".join(_merged(area, own))
        for area, own in found.items()
    ]


def _merged(area: str, values: Sequence[str]) -> list[str]:
    """Size classes that follow each other as one: `16-63`, `64-256`, `over 256` as `over 15`."""
    from fairdraw._run.drawn_features import class_bounds

    merged: list[tuple[int, int | None]] = []
    for value in values:
        bounds = class_bounds(area, value)
        if bounds is None:
            return list(values)
        is_next = merged and merged[-1][1] == bounds[0] - 1
        merged[-1:] = [(merged[-1][0], bounds[1])] if is_next else [*merged[-1:], bounds]
    words = (
        f"over {low - 1}" if high is None else str(low) if low == high else f"{low}-{high}" for low, high in merged
    )
    return list(words)


def _fitted(head: str, items: Sequence[str], most: int) -> list[str]:
    """As many items as fit into so many lines, and how many more there are."""
    lines: list[str] = []
    for number in range(len(items), -1, -1):
        more = len(items) - number
        shown = [*items[:number], *([f"and {more} more"] if more else [])]
        lines = textwrap.wrap(head + "; ".join(shown), _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        if len(lines) <= most:
            break
    return lines


def coverage_of(records: Iterable[CheckRecord]) -> list[Coverage]:
    """The coverage of each sampler and contract of a run; empty if nothing was judged."""
    groups: dict[tuple[str, str], list[tuple[CheckRecord, Drawn]]] = {}
    for record in records:
        if record.drawn is not None:
            groups.setdefault((record.sampler, record.contract), []).append((record, record.drawn))
    return [_coverage(sampler, contract, own) for (sampler, contract), own in groups.items()]


def _coverage(sampler: str, contract: str, own: Sequence[tuple[CheckRecord, Drawn]]) -> Coverage:
    from fairdraw._core.contracts import CONTRACTS
    from fairdraw._run.drawn_features import CATALOGUES

    catalogue = CATALOGUES[contract]
    properties = [drawn for record, drawn in own if record.suite == "properties"]
    workloads = _workloads((record, drawn) for record, drawn in own if record.suite != "properties")
    drawns = {"properties": properties, "distributions": [one.drawn for one in workloads]}
    return Coverage(
        sampler,
        contract,
        CONTRACTS[contract].has_distributions,
        sum(one.total for one in properties),
        sum(one.draws for one in workloads),
        [_row(area, value, properties, workloads) for area, values in catalogue.areas.items() for value in values],
        [_row("", pair, properties, workloads) for pair in catalogue.pairs],
        {
            area: ranges
            for area in catalogue.areas
            if (ranges := {suite: found for suite, some in drawns.items() if (found := _range(area, some))})
        },
    )


def _range(area: str, drawns: Iterable[Drawn]) -> list[tuple[int, int]]:
    """Return the ranges of sizes, without a gap of a whole power of two."""
    by_power: dict[int, tuple[int, int]] = {}
    add_sizes(by_power, (size for one in drawns for both in one.ranges.get(area, ()) for size in both))
    merged: list[tuple[int, int]] = []
    for power in sorted(by_power):
        low, high = by_power[power]
        is_next = bool(merged) and merged[-1][1].bit_length() == power - 1
        merged[-1:] = [(merged[-1][0], high)] if is_next else [*merged[-1:], (low, high)]
    return merged


@dataclass(frozen=True)
class _Workload:
    """Draws that several checks judged.

    Args:
        tvs: What each check sees in all rows.
    """

    drawn: Drawn
    draws: int
    tvs: list[float]

    def share(self, area: str, value: str) -> float:
        """Of the rows, those that have a feature or a pair."""
        return _count(self.drawn, area, value) / max(1, self.drawn.total)


def _workloads(own: Iterable[tuple[CheckRecord, Drawn]]) -> list[_Workload]:
    """One for all checks that judged the same draws, in however many processes these were drawn."""
    groups: dict[str, list[tuple[CheckRecord, Drawn]]] = {}
    for record, drawn in own:
        groups.setdefault(drawn.by, []).append((record, drawn))
    return [
        _Workload(
            max((drawn for _, drawn in some), key=lambda drawn: drawn.total),
            max(record.cases for record, _ in some),
            [drawn.tv for _, drawn in some if drawn.tv is not None],
        )
        for some in groups.values()
    ]


def _count(drawn: Drawn, area: str, value: str) -> int:
    return drawn.features.get(area, {}).get(value, 0) if area else drawn.pairs.get(value, 0)


def _row(area: str, value: str, properties: Sequence[Drawn], workloads: Sequence[_Workload]) -> Row:
    cases = [count for one in properties if (count := _count(one, area, value))]
    having = [(one, share) for one in workloads if (share := one.share(area, value)) and one.tvs]
    tv, tv_all = (min((pick(one.tvs) / share for one, share in having), default=1.0) for pick in (min, max))
    return Row(
        area,
        value,
        sum(cases),
        len(cases),
        round(1 - 0.05 ** (1 / sum(cases)), 6) if cases else None,
        round(sum(one.draws * one.share(area, value) for one in workloads)),
        round(tv, 4) if tv < _LARGEST_TV else None,
        round(tv_all, 4) if tv_all < _LARGEST_TV else None,
    )
