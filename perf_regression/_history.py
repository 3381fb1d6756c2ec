"""Drift: a JSON line for everything that was timed, and where its level changed. A report, not a gate.

    pytest perf_regression -m timing --perf-history perf.jsonl        every nightly run
    fairdraw bench mypkg:make --history perf.jsonl
    python -m fairdraw.perf_regression._history perf.jsonl             what changed, and since which commit

A gate detects a change that crosses its limit, but not five changes of one per cent. The history shows those.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from fairdraw._core.foreign import read_json
from fairdraw.perf_regression._records import provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw.perf_regression._findings import Finding


Line = dict[str, Any]  # Any: JSON

WINDOW = 8
P_VALUE = 1e-3
LEAST_CHANGE = 0.02
"""Of a ratio. Processes that run the same code differ by as much on a busy machine (`samples_processes.json`)."""


def append_history(path: Path, findings: Iterable[Finding], commit: str = "") -> int:
    """Add a line for each finding that has an interval; returns their number."""
    origin = provenance(commit)
    lines = [{**_line(finding), **origin} for finding in findings if finding.low is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return len(lines)


def _line(finding: Finding) -> Line:
    interval = {"value": finding.value, "low": finding.low, "high": finding.high, "limit": finding.limit}
    return {"case": finding.case, "what": finding.what, **interval, "verdict": finding.verdict.value}


@dataclass(frozen=True)
class Change:
    """A level that changed from `before` to `after`; `first` is the first line of the new level."""

    case: str
    what: str
    before: float
    after: float
    first: Line

    def __str__(self) -> str:
        commit, date = str(self.first["commit"])[:12], self.first["date"]
        return f"{self.case}: {self.what}: {self.before:.4g} -> {self.after:.4g} since {date}, commit {commit}"


def change_points(lines: Sequence[Line]) -> list[Change]:
    """Where the level of a number changed. Numbers of different machines are never compared.

    At every place of a series, the `WINDOW` runs before it are compared with the `WINDOW` runs from it on, by the exact
    Mann-Whitney test and by their medians. Of neighbouring places the one with the smallest p counts.

    Error rates:
        Each comparison errs with probability `P_VALUE` if runs are exchangeable. A history of many runs and cases makes
        many comparisons, so a false report in a thousand of them is expected. It fails nothing.
    """
    series: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        series[line["case"], line["what"], line["machine"]["processor"]].append(line)
    return [change for (case, what, _), runs in series.items() for change in _changes(case, what, runs)]


def _changes(case: str, what: str, runs: Sequence[Line]) -> list[Change]:
    values = [run["value"] for run in runs]
    candidates = []
    for place in range(WINDOW, len(values) - WINDOW + 1):
        earlier, later = values[place - WINDOW : place], values[place : place + WINDOW]
        levels = median(earlier), median(later)
        if abs(levels[1] - levels[0]) > LEAST_CHANGE * abs(levels[0]):
            candidates.append((_p_value(earlier, later), place, levels))
    found: list[tuple[int, Change]] = []
    for p_value, place, (before, after) in sorted(candidates):
        if p_value <= P_VALUE and all(abs(place - other) >= WINDOW for other, _ in found):
            found.append((place, Change(case, what, before, after, runs[place])))
    return [change for _, change in sorted(found, key=lambda pair: pair[0])]


def _p_value(earlier: Sequence[float], later: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(earlier, later, method="exact").pvalue)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Change points of a history that the gate has written.")
    parser.add_argument("file", type=Path)
    path = parser.parse_args(argv).file
    try:
        lines = [read_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
        changes = change_points(lines)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        parser.error(f"{path} is no history of the gate ({error}). Name the file that --history wrote.")
    print("\n".join(map(str, changes)) or f"no change in {len(lines)} measurements")


if __name__ == "__main__":
    main()
