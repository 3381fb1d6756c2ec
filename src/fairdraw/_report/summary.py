"""Say what happened: header, failure_reports, summary. Reads records, knows neither pytest nor click."""

from __future__ import annotations

import dataclasses
import platform
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, get_args

from fairdraw import __version__
from fairdraw._core.budget import budget_report, undecided_by_budget
from fairdraw._report.causes import Cause, find_causes, has_a_lone_property
from fairdraw._report.verdict import Scope, Verdict, verdict_of
from fairdraw._run.controls import Untried, controls_lines, controls_to_json
from fairdraw._run.expected import UNSEEN
from fairdraw._run.runner import STALE, CheckRecord, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw._core.checks import AnyCheck, Profile
    from fairdraw._run.controls import Control

__all__ = [
    "NO_STATISTICS",
    "Header",
    "Summary",
    "advice",
    "broken_texts",
    "failure_text",
    "progress_line",
    "worded_fairness",
]

_PACKAGES = ("torch", "triton", "numpy", "hypothesis")

NO_STATISTICS = "no statistical checks in this run"


def installed_versions() -> dict[str, str]:
    """Versions of what the result depends on, without importing any of it."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@dataclass(frozen=True)
class Header:
    """What a reader must know before a verdict means anything.

    Args:
        sampler: As it was asked for.
        reference: Whom differential checks compare with, or why there is nobody.
        fairness: Alpha of the run, the TV that it can see and at what power.
        duration: How long the run is expected to take; empty if the sampler was not timed.
    """

    sampler: str
    device: str
    profile: str
    seed: int
    reference: str
    checks: dict[str, int]
    fairness: str = NO_STATISTICS
    suite_version: str = __version__
    versions: dict[str, str] = dataclasses.field(default_factory=installed_versions)
    duration: str = ""

    def lines(self) -> list[str]:
        """The header as text."""
        number = ", ".join(f"{suite} {count}" for suite, count in self.checks.items())
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            f"fairdraw {self.suite_version}: sampler {self.sampler} on {self.device}",
            f"  versions: {versions}",
            f"  checks: {number or 'none'}; profile {self.profile}; seed {self.seed}",
            f"  reference: {self.reference}",
            f"  alpha, TV and power: {self.fairness}",
            *([f"  {self.duration}"] if self.duration else []),
        ]


def count_checks(checks: Iterable[AnyCheck]) -> dict[str, int]:
    """Suite to the number of its checks."""
    return dict(sorted(Counter(check.suite for check in checks).items()))


def worded_fairness(checks: Iterable[AnyCheck], sampler: Any, profile: Profile, seed: int) -> str:
    """Alpha of the run, the TV that it can see and at what power; from the plans, before anything is drawn.

    The sampler is `Any`: of the contract that the checks are about.
    """
    if not any(check.suite == "statistical" for check in checks):
        return NO_STATISTICS
    from fairdraw.statistical._distribution_check import fairness

    return fairness(checks, sampler, profile, seed)


@dataclass(frozen=True)
class Summary:
    """What a run amounts to."""

    records: Sequence[CheckRecord]
    controls: Sequence[Control] = ()
    scope: Scope = dataclasses.field(default_factory=Scope)

    def count(self, *statuses: str) -> int:
        return sum(record.status in statuses for record in self.records)

    @cached_property
    def causes(self) -> list[Cause]:
        """What makes the run red, the first to be read first."""
        return find_causes(self.records)

    @property
    def missed(self) -> list[Control]:
        """Mutants that show a blind check; one that only this run is too weak to see is not among them."""
        return [control for control in self.controls if control.is_blind]

    @cached_property
    def judgement(self) -> Verdict:
        """The verdict: its line and its exit code."""
        num_lost = sum(control.untried == Untried.LOST for control in self.controls)
        return verdict_of(self.records, len(self.missed), dataclasses.replace(self.scope, num_lost=num_lost))

    @property
    def exit_code(self) -> int:
        return self.judgement.exit_code

    @property
    def verdict(self) -> str:
        return self.judgement.text

    def lines(self) -> list[str]:
        """The summary as text."""
        return [
            self._counts(),
            *self._reasons("skipped"),
            *self._unsupported(),
            *self._undecided(),
            *(f"  {line}" for line in budget_report(self.records)),
            *(f"  incomplete {record.id}: {record.reason}" for record in self.records if record.status == "incomplete"),
            *(f"  xfailed {record.id}: {record.reason}" for record in self.records if record.status == "xfailed"),
            *(f"  xpassed {record.id}: {record.reason}" for record in self.records if record.status == "xpassed"),
            *(f"  {record.id}: {record.reason}" for record in self.records if record.reason == STALE),
            *self._unseen(),
            *controls_lines(self.controls),
            f"{self._used()} in {sum(record.seconds for record in self.records):.1f} s of checks",
            *self.to_declare(),
            *self._where_to_start(),
            self.verdict,
        ]

    def _counts(self) -> str:
        """How many checks were run, and what became of them."""
        run = len(self.records) - self.count("skipped")
        counts = [f"{self.count(status)} {status}" for status in ("passed", "failed", "xfailed", "skipped")]
        rare = ("error", "xpassed", "inconclusive", "incomplete")
        counts += [f"{self.count(status)} {status}" for status in rare if self.count(status)]
        not_run = f"; not run: {self.scope.not_run}" if self.scope.not_run else ""
        return f"{run} run: {', '.join(counts)}{not_run}"

    def _undecided(self) -> list[str]:
        """Checks without a decision, grouped by reason; those that time left undecided have a report of their own."""
        codes: dict[str, list[str]] = {}
        for record in self.records:
            if record.status == "inconclusive" and not undecided_by_budget(record):
                codes.setdefault(record.reason, []).append(record.code)
        return [f"  undecided {len(own)}: {reason}: {', '.join(own)}" for reason, own in codes.items()]

    def _unseen(self) -> list[str]:
        """Known failures that did not show in a run too small to call them gone, counted and named."""
        unseen = [record for record in self.records if record.reason.startswith(UNSEEN)]
        if not unseen:
            return []
        return [f"known failures not seen, and not called gone: {len(unseen)}"] + [
            f"  {record.id}: {record.reason}" for record in unseen
        ]

    def _where_to_start(self) -> list[str]:
        """One fault breaks many promises; the first failure_report is the one to read, and one apart may be another
        fault.
        """
        failure_report = self.causes[0].told.failure_report if self.causes else None
        if failure_report is None:
            return []
        apart = next((cause.told.code for cause in self.causes[1:] if cause.is_a_property), "")
        beside = f"; apart from it: {apart}" if apart and has_a_lone_property(self.causes) else ""
        return [
            f"start with {failure_report.code} {failure_report.title}: fairdraw explain {failure_report.code}{beside}"
        ]

    def _unsupported(self) -> list[str]:
        """What each unsupported capability costs; a check may need several of them."""
        skipped = [record for record in self.records if record.status == "skipped"]
        words = {
            word
            for record in skipped
            for word, unsupported, _ in [record.reason.partition(" is unsupported: ")]
            if unsupported
        }
        costs = Counter(word for record in skipped for word in words if word in record.needs)
        if not costs:
            return []
        told = ", ".join(f"{word} unsupported: {cost}" for word, cost in costs.most_common())
        return [f"not asked: {len(skipped)} of {len(self.records)} checks; {told}"]

    def to_declare(self) -> list[str]:
        """The capabilities that the sampler probably lacks, as the lines that decline them; empty if there are none."""
        lacking = [cause for cause in self.causes if cause.missing]
        lines = [
            f'    "{cause.missing}": "say why",  # broken: {", ".join(record.code for record in cause.records)}; '
            f"then not asked: {cause.num_needing}"
            for cause in lacking
        ]
        return (
            ["never promised? What the adapter does not support, with its reason, is not asked:", *lines]
            if lines
            else []
        )

    def _used(self) -> str:
        """Cases tried and draws judged; statistical checks of one subject judge the same draws."""
        draws = sum(record.cases for record in self.records if record.suite == "statistical")
        cases = sum(record.cases for record in self.records if record.suite != "statistical")
        return f"cases used: {cases}" + (f"; draws judged: {draws}" if draws else "")

    def _reasons(self, status: str) -> list[str]:
        """Reasons, grouped, the most frequent first."""
        reasons = Counter(record.reason for record in self.records if record.status == status)
        return [f"  {status} {count}: {reason}" for reason, count in reasons.most_common()]

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "not_run": self.scope.not_run,
            "signal": self.scope.signal,
            **{status: self.count(status) for status in get_args(Status)},
            "cases": sum(record.cases for record in self.records),
            "controls": controls_to_json(self.controls),
            "missed_controls": [control.name for control in self.missed],
        }


def progress_line(record: CheckRecord) -> str:
    """One finished check as one line."""
    used = f"{record.cases} {'draws' if record.suite == 'statistical' else 'cases'}, {record.seconds:.1f} s"
    detail = record.reason if record.status in ("skipped", "inconclusive", "incomplete") else used
    return f"{record.status:12} {record.id} ({detail})"


def failure_text(record: CheckRecord) -> str:
    """How a broken record is told: its failure_report, or that a known defect is gone."""
    if record.failure_report is not None:
        return "\n".join(record.failure_report.lines())
    if record.status in ("inconclusive", "incomplete"):
        return f"{record.id}\nmeaning: {record.status.upper()}, which is never green\neffect: {record.reason}"
    return (
        f"{record.id}\n"
        f"meaning: a known defect was not seen in {record.cases} cases; known defects are strict\n"
        f"effect: expected to fail because: {record.reason}\n"
        f"reproduce: if it is fixed, remove {record.code} from {record.source}"
    )


def broken_texts(causes: Iterable[Cause]) -> list[str]:
    """How what is broken is told: one failure_report per cause, with the codes of the others."""
    return ["\n".join([failure_text(cause.told), *advice(cause)]) for cause in causes]


def advice(cause: Cause) -> list[str]:
    """What only the run as a whole shows, a line each: who else is broken so, and what may be behind it."""
    lines = []
    others = [record.code for record in cause.records[1:]]
    if cause.missing:
        more = f"; broken, too: {', '.join(others)}" if others else ""
        lines.append(f"note: needs {cause.missing}, which the sampler may never have promised{more}")
    elif others:
        lines.append(f"note: the same in {len(others)} more checks: {', '.join(others)}")
    if cause.rests_on:
        lines.append(
            f"note: broken, too: {', '.join(cause.rests_on)}. A wrong distribution of single rows breaks this promise as well: "
            "look there first"
        )
    return lines
