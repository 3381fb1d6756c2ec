"""The text of a run: header, failure reports and summary. It reads records and knows neither pytest nor click."""

from __future__ import annotations

import ast
import dataclasses
import platform
import re
import subprocess
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any, get_args

from fairdraw import __version__
from fairdraw._core.budget import budget_report, undecided_by_budget
from fairdraw._core.checks import AnyCheck, Profile
from fairdraw._core.contracts import CONTRACTS, contract_name, declared_policy
from fairdraw._core.foreign import make_printable
from fairdraw._report.causes import Cause, find_causes, has_a_lone_property
from fairdraw._report.coverage import Coverage, coverage_of
from fairdraw._report.verdict import Scope, Verdict, verdict_of
from fairdraw._run.controls import Control, Untried, controls_lines, controls_to_json
from fairdraw._run.expected import STALE, UNSEEN
from fairdraw._run.runner import CheckRecord, Status
from fairdraw.contracts import switch_sides

_PACKAGES = ("torch", "triton", "numpy", "hypothesis")

NO_STATISTICS = "no statistical checks in this run"


def installed_versions() -> dict[str, str]:
    """Versions of the packages that the result depends on. None of them is imported."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def start_of_run() -> tuple[str, str]:
    """Date of a run that starts now, and the commit of the repository in which it starts; empty if there is none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        commit = ""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), commit


@dataclass(frozen=True)
class Header:
    """What a reader must know to interpret the verdict.

    Args:
        sampler: As it was named by the user.
        reference: The sampler that differential checks compare with, or why there is none.
        fairness: Alpha of the run and the power of its checks; of a server also the TV that it detects.
        duration: How long the run is expected to take; empty if the sampler was not timed.
        started: Date of the run.
        commit: Of the repository in which the run was started; empty if there is none.
        about: More about the object under test, a line each.
        old_answers: How many answers of a server are those of an earlier run; empty if there are none.
        adapter: `file:line` of the factory that made the sampler; empty if it came by another name.
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
    started: str = ""
    commit: str = ""
    about: tuple[str, ...] = ()
    old_answers: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        make_printable(self)

    @classmethod
    def unloaded(cls, sampler: str, profile: str, seed: int) -> Header:
        """The header of a run that was interrupted before a sampler was loaded."""
        return cls(sampler, "unknown", profile, seed, "not loaded when the run ended", {})

    def lines(self) -> list[str]:
        """The header as text."""
        number = ", ".join(f"{suite} {count}" for suite, count in self.checks.items())
        versions = ", ".join(map(" ".join, self.versions.items()))
        return [
            f"fairdraw {self.suite_version}: sampler {self.sampler} on {self.device}",
            *(f"  {line}" for line in self.about),
            f"  versions: {versions}",
            f"  checks: {number or 'none'}; profile {self.profile}; seed {self.seed}",
            f"  reference: {self.reference}",
            f"  error rates: {self.fairness}",
            *([f"  {self.duration}"] if self.duration else []),
        ]


def about_sampler(sampler: Any) -> tuple[str, ...]:  # Any: of any contract
    """What a sampler says about itself: where its kernels switch, and its policy where several ways are right."""
    contract = contract_name(sampler) or ""
    policy = declared_policy(sampler, contract)
    about = tuple(getattr(sampler, "about", tuple)())
    if words := switch_sides(sampler)[1]:
        about = (*about, f"size switches: {'; '.join(words)}")
    return about if policy is None else (*about, f"{contract.replace('_', ' ')}: {policy}")


def count_checks(checks: Iterable[AnyCheck]) -> dict[str, int]:
    """Suite to the number of its checks."""
    return dict(sorted(Counter(check.suite for check in checks).items()))


def worded_fairness(checks: Sequence[AnyCheck], sampler: Any, profile: Profile, seed: int) -> str:
    """Error rates of the run, before anything is drawn; what it could have seen is known at its end (`Coverage`).

    The sampler is `Any`: of the checks' contract.
    """
    if not any(check.suite == "statistical" for check in checks):
        return NO_STATISTICS
    if any(CONTRACTS[check.contract].is_remote for check in checks):
        from fairdraw.statistical._server_check import server_fairness

        return server_fairness(checks, sampler, profile, seed)
    from fairdraw.statistical._distribution_check import fairness

    return fairness(checks, sampler, profile, seed)


@dataclass(frozen=True)
class Summary:
    """The results of a run.

    Args:
        seconds: Of the whole run, on the wall clock.
    """

    records: Sequence[CheckRecord]
    controls: Sequence[Control] = ()
    scope: Scope = dataclasses.field(default_factory=Scope)
    seconds: float = 0.0

    def count(self, *statuses: str) -> int:
        return sum(record.status in statuses for record in self.records)

    @cached_property
    def causes(self) -> list[Cause]:
        """The causes of the failures, the first to be read first."""
        return find_causes(self.records)

    @property
    def missed(self) -> list[Control]:
        """Mutants that show a blind check, without those that only this run's numbers are too small to detect."""
        return [control for control in self.controls if control.is_blind]

    @cached_property
    def judgement(self) -> Verdict:
        """The verdict: its line and its exit code."""
        num_lost = sum(control.untried == Untried.LOST for control in self.controls)
        found = verdict_of(self.records, len(self.missed), dataclasses.replace(self.scope, num_lost=num_lost))
        old = self.scope.old_answers
        return dataclasses.replace(found, text=f"{found.text}; {old}") if old else found

    @property
    def exit_code(self) -> int:
        return self.judgement.exit_code

    @property
    def verdict(self) -> str:
        return self.judgement.text

    def lines(self) -> list[str]:
        """The summary as text. In a green run lines of one kind are fewer if all others would not fit into a log."""
        most = (4, 3, 2, 1) if self.verdict.startswith("GREEN") else (4,)
        return next((lines for one in most if len(lines := self._lines(one)) <= _MOST_LINES), self._lines(most[-1]))

    def _lines(self, most: int) -> list[str]:
        heading, *controls = controls_lines(self.controls)
        return [
            self._counts(),
            *self.skips(most),
            *self._open("inconclusive", "undecided"),
            *(f"  {line}" for line in budget_report(self.records)),
            *self._open("incomplete", "incomplete"),
            *_few((f"  xfailed {one.id}: {one.reason}" for one in self.records if one.status == "xfailed"), most),
            *(f"  xpassed {record.id}: {record.reason}" for record in self.records if record.status == "xpassed"),
            *_few((f"  {one.id}: {one.reason}" for one in self.records if one.reason == STALE), most),
            *self._unseen(most),
            *self._asked_again(),
            heading,
            *(controls if self.missed else _few(controls, most)),
            f"{self._used()} in {sum(record.seconds for record in self.records):.1f} s of checks",
            *self.to_declare(),
            *self._covered(),
            *self._where_to_start(),
            self.verdict,
        ]

    @cached_property
    def covered(self) -> list[Coverage]:
        """What the checks judged, by sampler and contract."""
        return coverage_of(self.records)

    def _covered(self) -> list[str]:
        """The short form of that; with several samplers, a line each."""
        if len(self.covered) > 1:
            return [f"judged, {one.sampler}: {one.worded_counts()}" for one in self.covered]
        return [line for one in self.covered for line in one.lines()]

    @property
    def coverage(self) -> str:
        """How many of the checks were run."""
        num_skipped, num_not_run = self.count("skipped"), self.scope.not_run
        total = len(self.records) + num_not_run
        not_run = f", not run {num_not_run}" if num_not_run else ""
        return f"run {len(self.records) - num_skipped} of {total} checks, skipped {num_skipped}{not_run}"

    def _counts(self) -> str:
        """How many checks were run, and their results."""
        counts = [f"{self.count(status)} {status}" for status in ("passed", "failed", "xfailed")]
        rare = ("error", "xpassed", "inconclusive", "incomplete")
        counts += [f"{self.count(status)} {status}" for status in rare if self.count(status)]
        return f"{self.coverage}: {', '.join(counts)}"

    def skips(self, most: int = 4) -> list[str]:
        """How many checks each unsupported capability costs, and a line per reason. A check may need several."""
        skipped = [record for record in self.records if record.status == "skipped"]
        found = [match for record in skipped if (match := _UNSUPPORTED.match(record.reason))]
        words = {word for match in found for word in re.split(r", | and ", match[1])}
        costs = Counter(word for record in skipped for word in words if word in record.needs)
        each = ", ".join(f"{word}: {cost}" for word, cost in costs.most_common())
        lines = [f"{len(found)} of {len(self.records)} checks skipped as unsupported ({each})"] if costs else []
        reasons = Counter(record.reason for record in skipped)
        return lines + _few((f"  {count} skipped: {reason}" for reason, count in reasons.most_common()), most)

    def _open(self, status: str, word: str) -> list[str]:
        """Checks of that status, grouped by reason, without those that the time budget left undecided."""
        groups: dict[str, list[str]] = {}
        for record in self.records:
            if record.status == status and not undecided_by_budget(record):
                groups.setdefault(record.reason, []).append(record.code)
        return [f"  {word} {len(codes)}: {reason}: {', '.join(codes)}" for reason, codes in groups.items()]

    def _unseen(self, most: int) -> list[str]:
        """Known failures that did not occur in a run too small to call them gone, counted and named."""
        unseen = [f"  {record.id}: {record.reason}" for record in self.records if record.reason.startswith(UNSEEN)]
        return [f"known failures not seen, and not called gone: {len(unseen)}", *_few(unseen, most)] if unseen else []

    def _asked_again(self) -> list[str]:
        """Return how many requests to a server were sent again, and what that may hide, as faults break answers."""
        counts = sum((Counter(record.requests) for record in self.records), Counter[str]())
        sent = counts.pop("requests", 0)
        broken = counts.total() - counts["HTTP 429"] - counts["HTTP 503"]
        worded = ", ".join(f"{kind}: {count}" for kind, count in counts.most_common() if count)
        hidden = f"; the answers that broke may hide a TV of {broken / sent:.2g}" if broken else ""
        return [f"  requests sent again: {counts.total()} of {sent} ({worded}){hidden}"] if counts.total() else []

    def _where_to_start(self) -> list[str]:
        """The failure to read first: one fault breaks many checks. A lone property failure may be another fault."""
        report = self.causes[0].reported.failure_report if self.causes else None
        if report is None:
            return []
        apart = next((cause.reported.code for cause in self.causes[1:] if cause.is_a_property), "")
        beside = f"; probably another fault: {apart}" if apart and has_a_lone_property(self.causes) else ""
        return [f"start with {report.code} {report.title}: fairdraw explain {report.code}{beside}"]

    def to_declare(self) -> list[str]:
        """The capabilities that the sampler probably lacks, as the lines that declare them; empty if there are none."""
        lines = [
            f'    "{cause.missing}": "say why",  # failed: {", ".join(record.code for record in cause.records)}; '
            f"checks that this skips: {cause.num_needing}"
            for cause in self.causes
            if cause.missing
        ]
        return ["Possibly unsupported. To skip these checks, declare:", *lines] if lines else []

    def _used(self) -> str:
        """Cases run and draws counted. Statistical checks of one workload count the same draws."""
        draws = sum(record.cases for record in self.records if record.suite == "statistical")
        cases = sum(record.cases for record in self.records if record.suite != "statistical")
        return f"cases used: {cases}" + (f"; draws judged: {draws}" if draws else "")

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "not_run": self.scope.not_run,
            "signal": self.scope.signal,
            "seconds": round(self.seconds, 1),
            **{status: self.count(status) for status in get_args(Status)},
            "cases": sum(record.cases for record in self.records),
            "controls": controls_to_json(self.controls),
            "missed_controls": [control.name for control in self.missed],
            "coverage": [one.to_json() for one in self.covered],
        }


_MOST_LINES = 19
"""Lines of a green summary: a log has 30 in all, and progress takes some."""


def _few(lines: Iterable[str], most: int) -> list[str]:
    """The first lines of one kind, and how many more there are."""
    listed = list(lines)
    if len(listed) <= most:
        return listed
    return [*listed[: most - 1], f"  and {len(listed) - most + 1} more lines like these (--html, --json)"]


_UNSUPPORTED = re.compile(r"(.+?) (?:is|are) unsupported: ")


def progress_line(record: CheckRecord) -> str:
    """One finished check as one line; of a failure also the effect."""
    if record.is_broken and record.failure_report is not None:
        return f"{record.status:12} {record.id}\n  {record.failure_report.effect}"
    used = f"{record.cases} {'draws' if record.suite == 'statistical' else 'cases'}, {record.seconds:.1f} s"
    detail = record.reason if record.status in ("skipped", "inconclusive", "incomplete") else used
    return f"{record.status:12} {record.id} ({detail})"


def failure_text(record: CheckRecord) -> str:
    """The report of a record that is not green: its failure, or that a known failure is gone."""
    if record.failure_report is not None:
        return "\n".join(record.failure_report.lines())
    if record.status in ("inconclusive", "incomplete"):
        return f"{record.id}\nmeaning: {record.status.upper()}, which is never green\neffect: {record.reason}"
    return (
        f"{record.id}\n"
        f"meaning: a known failure did not occur in {record.cases} cases; known failures are strict\n"
        f"effect: expected to fail because: {record.reason}\n"
        f"reproduce: if it is fixed, remove {record.code} from {record.source}"
    )


def broken_texts(causes: Iterable[Cause]) -> list[str]:
    """One failure report per cause, with the codes of the other checks that it breaks."""
    return ["\n".join([failure_text(cause.reported), *advice(cause)]) for cause in causes]


def advice(cause: Cause) -> list[str]:
    """What only the run as a whole shows, a line each: which checks fail in the same way, and the likely reason."""
    lines = []
    others = [record.code for record in cause.records[1:]]
    if cause.missing:
        more = f"; also failed: {', '.join(others)}" if others else ""
        lines.append(f"note: needs {cause.missing}, which the sampler possibly does not support{more}")
    elif others:
        lines.append(f"note: {len(others)} more checks fail in the same way: {', '.join(others)}")
    if cause.rests_on:
        lines.append(
            f"note: also failed: {', '.join(cause.rests_on)}. What it reports breaks this check, too: look there first"
        )
    return lines


_COMMAND_LABELS = ("reproduce:", "search again:")


def wrapped(text: str, width: int) -> str:
    """`text` with long lines wrapped at words. What is to be pasted stays whole: commands, and code.

    Example:
        >>> print(wrapped("effect: request 0 emitted 8\\nreproduce:\\nfairdraw replay a.json", 20))
        effect: request 0
          emitted 8
        reproduce:
        fairdraw replay a.json
    """
    lines, before = [], ""
    for line in text.split("\n"):
        lines += [line] if before in _COMMAND_LABELS else _wrapped_line(line, width)
        before = line
    return "\n".join(lines)


def _wrapped_line(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())] + "  "
    found = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    label, _, code = line.partition("smallest example: ")
    if not label and code and not _is_same_code(code, "\n".join(found)):
        return [line]
    return found or [line]


def _is_same_code(code: str, broken: str) -> bool:
    """Whether wrapped code still means the same: a break within a string would change it."""
    try:
        return ast.dump(ast.parse(code)) == ast.dump(ast.parse(broken.partition("example: ")[2]))
    except SyntaxError:
        return False
