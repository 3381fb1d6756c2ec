"""Findings: one line per limit that was measured, and the exit code of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairdraw.perf_regression._decision import Decision, Verdict
from fairdraw.perf_regression._limits import CaseLimits, evaluate


class InconclusiveWarning(UserWarning):
    """A measurement neither keeps nor breaks a limit. Nothing fails, but a person should know."""


@dataclass(frozen=True)
class Finding:
    """A measured number beside its limit; with its interval if a clock measured it."""

    case: str
    what: str
    verdict: Verdict
    value: float | None = None
    limit: float | None = None
    reason: str = ""
    low: float | None = None
    high: float | None = None

    def cells(self) -> tuple[str, ...]:
        return self.case, self.what, _number(self.value), _number(self.limit), self.verdict.value, self.reason

    def __str__(self) -> str:
        value = "" if self.value is None else f"={self.value:.6g}"
        if self.low is not None and self.high is not None:
            value += f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.verdict.value}: {self.case}: {self.what}{value}, limit {self.limit}: {self.reason}"


def from_decision(case: str, decision: Decision, limit: float, what: str = "time of ours / reference") -> Finding:
    if decision.ratio is None:
        return Finding(case, what, decision.verdict, limit=limit, reason=decision.reason)
    found = decision.ratio
    return Finding(case, what, decision.verdict, found.middle, limit, decision.reason, found.low, found.high)


def compare_counts(row: Mapping[str, float], limits: CaseLimits, **sizes: int) -> list[Finding]:
    """Compare exact counts with every limit that the case has on them. Counts have no error rate."""
    found = []
    for what, value in row.items():
        if (limit := getattr(limits, f"{what}_max")) is None:
            continue
        most = evaluate(limit, **sizes) if isinstance(limit, str) else limit
        found.append(counted_finding(limits.name, what, value, most, "counted"))
    return found


def counted_finding(case: str, what: str, value: float, limit: float, reason: str) -> Finding:
    """Return a count beside its limit."""
    return Finding(case, what, Verdict.PASS if value <= limit else Verdict.FAIL, value, limit, reason)


def table(findings: Sequence[Finding]) -> list[str]:
    """Return aligned lines, below a line with the names of the columns."""
    rows = [("case", "what", "value", "limit", "verdict", "reason"), *(finding.cells() for finding in findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def exit_code(findings: Iterable[Finding], *, strict: bool = False) -> int:
    """Return 1 if anything fails, 3 if nothing was decided; else 0. `strict`: only PASS is green."""
    verdicts = [finding.verdict for finding in findings]
    if Verdict.FAIL in verdicts:
        return 1
    if Verdict.PASS not in verdicts or (strict and set(verdicts) != {Verdict.PASS}):
        return 3
    return 0


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(int(value)) if float(value).is_integer() and abs(value) >= 1 else f"{value:.4g}"
