"""The verdict of a run, as one line and one exit code. It says what was tested, and nothing more.

GREEN means that properties *and* distributions were tested. A run that tested less says so in the same line:

    GREEN: 28 property checks and 12 distribution checks passed
    GREEN: 6 property checks and 3 distribution checks passed; 9 of 40 checks: -k vocabular
    GREEN, distributions not judged: --only properties (28 property checks passed; 28 of 40 checks)
    GREEN, distributions not judged: all 46 checks were skipped: ... (24 property checks passed)
    INCOMPLETE: interrupted by SIGINT after 10 of 64 checks; failed until then: REJ101
    RED: checks failed: 3; known failures gone: 1

Terminal, HTML, JSON, JUnit and the exit code all come from `verdict_of`, so they cannot disagree. `combined` adds one
line for several samplers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairdraw._core.budget import LEFT_OUT, undecided_by_budget
from fairdraw._core.contracts import CONTRACTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairdraw._run.runner import CheckRecord

GREEN, RED, NOTHING_RUN, NOT_JUDGED, INCOMPLETE, INTERRUPTED = 0, 1, 3, 10, 11, 130
"""Exit codes of a run. 2 is a usage error, which has no run. Pytest uses its own code for NOTHING_RUN, which is 5."""

_MOST_CODES = 8
"""Codes that a verdict names. The summary above it names all of them."""


@dataclass(frozen=True)
class Scope:
    """What a run left out, and how it ended. The records do not contain this.

    Args:
        not_run: Planned checks without a record, because the run ended before them.
        narrowed: What the user left out by name (`--only properties`, `-k REJ1`); empty if nothing.
        signal: The signal that interrupted the run (`SIGINT`); empty if none did.
        left: How the sampler ended the process that reports (`os._exit(0)`); empty if it did not.
        outside: Why the run is not green, whatever its checks say (`pytest ended with TESTS_FAILED`).
        totals: Contract to the number of its checks, whether they were selected or not; empty if unknown.
        num_lost: Mutation controls whose process was lost.
        scale: The part of the profile that was tried of checks that take long; below 1 if the time was short.
        is_begun: The run has just begun. A file that still says so belongs to a run that was killed.
        nothing: Why there was nothing to do; empty if there was something.
        is_silent: The reason is that a server does not answer.
        old_answers: How many answers of a server are those of an earlier run; empty if none are.
        without_controls: The option that left mutation controls out; empty if they were planned.
    """

    not_run: int = 0
    narrowed: str = ""
    signal: str = ""
    left: str = ""
    outside: str = ""
    totals: Mapping[str, int] = field(default_factory=dict)
    num_lost: int = 0
    scale: float = 1.0
    is_begun: bool = False
    nothing: str = ""
    is_silent: bool = False
    old_answers: str = ""
    without_controls: str = ""


@dataclass(frozen=True)
class Verdict:
    """One line and one exit code."""

    exit_code: int
    text: str

    @property
    def colour(self) -> Literal["green", "yellow", "red"]:
        """The colour of the line on a terminal and on the page."""
        if self.exit_code == GREEN:
            return "green"
        return "yellow" if self.exit_code in (NOT_JUDGED, NOTHING_RUN) else "red"


def verdict_of(records: Sequence[CheckRecord], num_missed: int = 0, scope: Scope | None = None) -> Verdict:
    """The verdict of a run.

    Args:
        num_missed: Mutants that this run had to catch and did not.
    """
    ended = scope or Scope()
    if ended.is_begun:
        return Verdict(INCOMPLETE, "INCOMPLETE: written when the run began; it has not ended")
    if ended.left:
        why = f"the sampler ended the process by {ended.left} after {_done(records, ended)}"
        return Verdict(INCOMPLETE, _incomplete(why, records))
    if ended.is_silent:
        return Verdict(INCOMPLETE, f"INCOMPLETE: {ended.nothing}")
    if ended.signal:
        why = f"interrupted by {ended.signal} after {_done(records, ended)}"
        return Verdict(INTERRUPTED, _incomplete(why, records))
    if unfinished := [record for record in records if record.status == "incomplete"]:
        return Verdict(INCOMPLETE, _incomplete(_unfinished(unfinished, records, ended), records))
    if red := _red_reasons(records, num_missed):
        left_out = sum(record.reason == LEFT_OUT for record in records)
        not_run = {"checks not run": ended.not_run, "checks left out for want of time": left_out}
        return Verdict(RED, "RED: " + "; ".join(f"{what}: {n}" for what, n in (red | not_run).items() if n))
    if ended.not_run:
        return Verdict(INCOMPLETE, _incomplete(f"the run ended after {_done(records, ended)}", records))
    if late := sum(map(undecided_by_budget, records)):
        why = f"the time budget ended with {late} of {len(records)} checks undecided"
        return Verdict(INCOMPLETE, _incomplete(why, records))
    if ended.num_lost:
        why = f"the process was lost in {ended.num_lost} mutation controls, which show that checks can fail here"
        return Verdict(INCOMPLETE, _incomplete(why, records))
    if ended.outside:
        return Verdict(RED, f"NOT GREEN: {ended.outside}")
    if not any(_is_judged(record) for record in records):
        why = "every check was skipped" if records else ended.nothing or "no check was run"
        why += ", or is known to raise" * bool(_count(records, "xfailed"))
        return Verdict(NOTHING_RUN, f"NOTHING MEASURED: {why}")
    return _green(records, ended)


_WORDS = {
    INTERRUPTED: "INTERRUPTED",
    RED: "RED",
    INCOMPLETE: "INCOMPLETE",
    NOTHING_RUN: "NOTHING MEASURED",
    NOT_JUDGED: "GREEN IN PART",
    GREEN: "GREEN",
}
"""Exit code to word for several samplers, the worst first."""


def combined(verdicts: Mapping[str, Verdict], num_named: int) -> Verdict:
    """One line and one exit code for several samplers: the worst one decides.

    Args:
        verdicts: Sampler to its verdict.
        num_named: Samplers on the command line. Those without a verdict were not run.

    Example:
        >>> combined({"torch": Verdict(GREEN, "GREEN: ..."), "mine": Verdict(RED, "RED: ...")}, 2).text
        'RED: 1 of 2 samplers (mine); GREEN: 1 of 2 samplers (torch)'
    """
    names = {code: [name for name, one in verdicts.items() if one.exit_code == code] for code in _WORDS}
    missing, all_of_them = num_named - len(verdicts), f"of {num_named} samplers"
    parts = [f"{_WORDS[code]}: {len(own)} {all_of_them} ({', '.join(own)})" for code, own in names.items() if own]
    parts += [f"not run: {missing} {all_of_them}"] if missing else []
    worst = next((code for code, own in names.items() if own), INCOMPLETE)
    is_short = missing and worst in (NOTHING_RUN, NOT_JUDGED, GREEN)
    return Verdict(INCOMPLETE if is_short else worst, ("INCOMPLETE; " if is_short else "") + "; ".join(parts))


# -- not green ------------------------------------------------------------------------------------------------------


def _count(records: Iterable[CheckRecord], *statuses: str) -> int:
    return sum(record.status in statuses for record in records)


def _undecided(records: Iterable[CheckRecord]) -> int:
    return sum(record.status == "inconclusive" and not undecided_by_budget(record) for record in records)


def _is_judged(record: CheckRecord) -> bool:
    """Whether the check came to a result. A known exception is not a result."""
    raised = CONTRACTS[record.contract].raised
    return record.status == "passed" or (
        record.status == "xfailed" and (record.failure_report is None or record.failure_report.code != raised)
    )


def _red_reasons(records: Sequence[CheckRecord], num_missed: int) -> dict[str, int]:
    found = {
        "checks failed": _count(records, "failed"),
        "checks that ended in an exception": _count(records, "error"),
        "known failures gone": _count(records, "xpassed"),
        "checks undecided": _undecided(records),
        "mutants missed, so that the checks cannot be trusted here": num_missed,
    }
    return found if any(found.values()) else {}


def _done(records: Sequence[CheckRecord], ended: Scope) -> str:
    return f"{len(records) - _count(records, 'incomplete')} of {len(records) + ended.not_run} checks"


def _unfinished(unfinished: Sequence[CheckRecord], records: Sequence[CheckRecord], ended: Scope) -> str:
    total = len(records) + ended.not_run
    silent = {record.reason for record in unfinished if CONTRACTS[record.contract].is_remote}
    why = f" ({min(silent, key=len)})" if silent else ""  # a server that does not answer ends all of them
    return f"{len(unfinished) + ended.not_run} of {total} checks did not finish: {_codes(unfinished)}{why}"


def _incomplete(why: str, records: Sequence[CheckRecord]) -> str:
    failed = [record for record in records if record.status in ("failed", "error")]
    others = {"known failures gone": _count(records, "xpassed"), "undecided": _undecided(records)}
    found = [f"failed until then: {_codes(failed)}"] if failed else []
    found += [f"{what}: {count}" for what, count in others.items() if count]
    return f"INCOMPLETE: {why}; " + ("; ".join(found) or "nothing else failed")


def _codes(records: Sequence[CheckRecord]) -> str:
    shown = ", ".join(record.code for record in records[:_MOST_CODES])
    return shown + (f" and {len(records) - _MOST_CODES} more" if records[_MOST_CODES:] else "")


# -- green ----------------------------------------------------------------------------------------------------------

_SUITES = {"properties": ("properties", "property"), "statistical": ("distributions", "distribution")}
"""Suite to what it tests, and the word for one of its checks."""


@dataclass(frozen=True)
class _Gap:
    """Something that a green run did not test.

    Args:
        what: `distributions` or `properties`.
        why: The reason.
        is_missing: The contract has such checks and the user did not leave them out: the run tested less than expected.
        has_none: The contract has no such checks.
    """

    what: str
    why: str
    is_missing: bool = False
    has_none: bool = False


def _green(records: Sequence[CheckRecord], ended: Scope) -> Verdict:
    """GREEN, and what it covers. Each sampler of the run is considered separately."""
    groups: dict[tuple[str, str], list[CheckRecord]] = {}
    for record in records:
        groups.setdefault((record.sampler, record.contract), []).append(record)
    of_one_each = len({contract for _, contract in groups}) == len(groups)
    gaps = [
        (contract if of_one_each else f"{sampler} ({contract})", gap)
        for (sampler, contract), own in groups.items()
        for gap in _gaps(own, contract, ended.narrowed)
    ]
    exit_code = NOT_JUDGED if any(gap.is_missing for _, gap in gaps) else GREEN
    passed = _passed(records) + _left_out(records, groups, ended, is_said=any(g.why == ended.narrowed for _, g in gaps))
    why = ended.without_controls
    untried = f"; whether the checks can fail was not tried: {why}" if why else ""
    return Verdict(exit_code, _green_text(gaps, len(groups), passed) + _short(records, ended.scale) + untried)


def _short(records: Sequence[CheckRecord], scale: float) -> str:
    """What was left out, or tried in part, because the time was short."""
    part = f"; long ones tried up to {scale:.0%} of the profile, as time was short" if scale < 1 else ""
    left_out = [record for record in records if record.reason == LEFT_OUT]
    return part + (f"; left out for want of time: {_codes(left_out)}" if left_out else "")


def _left_out(records: Sequence[CheckRecord], groups: Iterable[tuple[str, str]], ended: Scope, *, is_said: bool) -> str:
    """How many of the contracts' checks the run had, if not all, whoever left the others out.

    Args:
        groups: Samplers and contracts of the run.
        is_said: What the user left out by name stands in the verdict already.
    """
    number = len({(record.sampler, record.code) for record in records})
    total = sum(ended.totals.get(contract, 0) for _, contract in groups)
    why = ended.narrowed if not is_said else ""
    if number < total:
        return f"; {number} of {total} checks" + f": {why}" * bool(why)
    return f", of those selected: {why}" * bool(why)


def _gaps(own: Sequence[CheckRecord], contract: str, narrowed: str) -> list[_Gap]:
    """What was not tested of one sampler under one contract."""
    found = []
    for suite, (what, _) in _SUITES.items():
        checks = [record for record in own if record.suite == suite]
        if any(_is_judged(record) for record in checks):
            continue
        if not checks and suite == "statistical" and not CONTRACTS[contract].has_distributions:
            found.append(_Gap(what, f"the {contract} contract has none", has_none=True))
        elif not checks:
            found.append(_Gap(what, narrowed or f"no {_SUITES[suite][1]} check was selected"))
        else:
            reason, _ = Counter(record.reason for record in checks).most_common(1)[0]
            draws = CONTRACTS[contract].draws_with
            if draws and reason.startswith(f"{draws} is unsupported"):
                found.append(_Gap(what, reason, has_none=True))
                continue
            became = "skipped" if all(record.status == "skipped" for record in checks) else "skipped or known to raise"
            found.append(_Gap(what, f"all {len(checks)} checks were {became}: {reason}", is_missing=True))
    return found


def _passed(records: Sequence[CheckRecord]) -> str:
    """`28 property checks and 12 distribution checks passed; known failures: 2`."""
    counted = []
    for suite, (_, word) in _SUITES.items():
        own = [record for record in records if record.suite == suite]
        count, left_out = _count(own, "passed"), sum(record.reason == LEFT_OUT for record in own)
        part = f"of {count + left_out} " if left_out else ""
        counted += [f"{count} {part}{word} check{'s' * (count + left_out > 1)}"] * bool(count)
    known = _count(records, "xfailed")
    passed = [f"{' and '.join(counted)} passed"] if counted else []
    return "; ".join([*passed, *([f"known failures: {known}"] if known else [])])


def _green_text(gaps: list[tuple[str, _Gap]], num_groups: int, passed: str) -> str:
    """`GREEN`, and in the same line what was not tested and why."""
    if not gaps:
        return f"GREEN: {passed}"
    open_gaps = [(name, gap) for name, gap in gaps if not gap.has_none]
    if not open_gaps and len(gaps) < num_groups:
        return f"GREEN: {passed} (no distributions to judge: {', '.join(name for name, _ in gaps)})"
    by_reason: dict[str, list[str]] = {}
    for name, gap in open_gaps or gaps:
        by_reason.setdefault(gap.why, []).append(name)
    reasons = [why if num_groups == 1 else f"{', '.join(names)}: {why}" for why, names in by_reason.items()]
    what = " and ".join(dict.fromkeys(gap.what for _, gap in open_gaps or gaps))
    return f"GREEN, {what} not judged: {'; '.join(reasons)} ({passed})"
