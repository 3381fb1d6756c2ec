"""Run checks on a sampler, one at a time, and keep a record of each. Prints nothing.

The pytest plugin, the command line and `check_sampler` all use this module, so they agree on what passed.
"""

from __future__ import annotations

import dataclasses
import secrets
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fairdraw._core.budget import Deadline, FirstPart
from fairdraw._core.checks import PROFILES, AnyCheck, Check, Profile, Stage
from fairdraw._core.contracts import CONTRACTS, contract_name
from fairdraw._core.failures import (
    CapabilityUnsupported,
    Ended,
    FailureReport,
    Inconclusive,
    calling,
    failed,
    raised_by,
)
from fairdraw._core.foreign import make_printable
from fairdraw._core.interrupts import Interrupted
from fairdraw._core.isolation import suite_state
from fairdraw._core.pulse import NotCalled, SamplerHangs
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.coverage import Drawn, recorder
from fairdraw._run.expected import Expected, kind_of_failure, why_unseen
from fairdraw._run.failure_reports import check_failure_of, failure_report_of
from fairdraw._run.loading import SUITES, all_checks, as_sampler, known_defects
from fairdraw.contracts import AnySampler, NoAnswer

Status = Literal["passed", "failed", "error", "xfailed", "xpassed", "inconclusive", "incomplete", "skipped"]

Raised = BaseException | None
JUDGED = ("passed", "failed", "xpassed")
"""Checks that said something about all that they drew."""

CRASH_FOLDER = Path(".fairdraw/crashes")


@dataclass(frozen=True)
class Session:
    """What all checks of one run share.

    Args:
        spec: What `--sampler` was given, for the commands that reproduce a failure; `None` for a sampler object.
        reference: The sampler that differential checks compare with; `None` skips them.
        reference_spec: What `--fairdraw-reference` was given.
        words: Options of servers, for the commands that reproduce a failure.
        crash_folder: Where crash files go; `None` writes none.
        command: The command that repeats the search; made from `spec` if empty.
        ends_at: When the time budget ends, by `clock`; `None` for no budget.
        clock: `time.time`, which processes share.
        first: Of a check that makes room for the others once a part is tried; `None` for one that does not.
        expected: Failures that the user knows about.
        stored: Exception to its crash file; an exception that ends many checks is stored once.
        renew: Makes another sampler like the one under test; it returns `None` if it cannot.
        under_pytest: Commands that reproduce a failure are pytest's.
    """

    spec: str | None = None
    profile: Profile = PROFILES["ci"]
    seed: int = DEFAULT_SEED
    reference: AnySampler | None = None
    reference_spec: str | None = None
    words: tuple[str, ...] = ()
    crash_folder: Path | None = CRASH_FOLDER
    command: str = ""
    ends_at: float | None = None
    clock: Callable[[], float] = time.time
    first: FirstPart | None = None
    renew: Callable[[], AnySampler | None] = lambda: None
    under_pytest: bool = False
    expected: Expected = field(default_factory=Expected)
    stored: dict[str, str] = field(default_factory=dict)

    @property
    def out_of_time(self) -> Deadline:
        """Whether the time budget has ended; call it."""
        return Deadline(self.ends_at, self.clock, self.first)


@dataclass(frozen=True)
class CheckRecord:
    """The result of one check.

    Args:
        status: `failed`: the check failed; `error`: an exception; `xpassed`: a known defect is gone; `inconclusive`:
            too few data to decide; `incomplete`: the check did not end, because the sampler hung or its process died.
        reason: Why it was skipped or is inconclusive, which known defect this is, or why one that was not seen may
            still be there.
        cases: How many cases were tried; for statistical checks, how many draws were counted.
        failure_report: The report of the failure; also kept for a known defect.
        needs: The capabilities that the check needs.
        source: Where a known defect is declared.
        sampler: The name of the sampler under test.
        stage: The check's.
        depends_on: The check's.
        requests: Of a server: how many the check sent (`requests`), and after which troubles one was sent again.
        drawn: What the check judged; not written to files, which hold the sum of all checks.
        trace: The traceback; not written to files.
    """

    code: str
    title: str
    suite: str
    contract: str
    status: Status
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0
    failure_report: FailureReport | None = None
    needs: tuple[str, ...] = ()
    source: str = ""
    sampler: str = ""
    stage: str = Stage.PROPERTY
    depends_on: tuple[str, ...] = ()
    requests: dict[str, int] = field(default_factory=dict)
    drawn: Drawn | None = field(default=None, repr=False)
    trace: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        make_printable(self, lines=("trace",))

    @classmethod
    def of(cls, check: AnyCheck, sampler: str, status: Status, **fields: Any) -> CheckRecord:  # Any: other fields
        """The record of `check`.

        Args:
            sampler: Its name.
        """
        about = (check.code, check.title, check.suite, check.contract)
        needs = tuple(map(str, check.needs))
        return cls(
            *about, status, needs=needs, sampler=sampler, stage=check.stage, depends_on=check.depends_on, **fields
        )

    @property
    def id(self) -> str:
        return f"{self.code} {self.title}"

    @property
    def is_broken(self) -> bool:
        """Whether this record alone makes the run red."""
        return self.status in ("failed", "error", "xpassed", "inconclusive", "incomplete")

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data, without the traceback and what was drawn."""
        plain = dataclasses.asdict(dataclasses.replace(self, drawn=None))
        del plain["trace"], plain["drawn"]
        return {**plain, "seconds": round(self.seconds, 3), "stage": str(self.stage)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> CheckRecord:  # Any: JSON
        """The record that `to_json` wrote, without its traceback; `drawn` may be added to it."""
        failure_report = plain["failure_report"] and FailureReport(
            **{**plain["failure_report"], "notes": tuple(plain["failure_report"]["notes"])}
        )
        lists = {name: tuple(plain.get(name, ())) for name in ("needs", "depends_on")}
        drawn = plain.get("drawn") and Drawn(**plain["drawn"])
        return cls(**{**plain, **lists, "failure_report": failure_report, "drawn": drawn})


def parse_seed(text: str) -> int:
    """The seed that the user named: a number, or `fresh` for a random one.

    Raises:
        ValueError: If it is neither.
    """
    if text == "fresh":
        return secrets.randbelow(2**31)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no seed. Use an integer, or the word fresh.") from None


def run_check(check: AnyCheck, sampler: AnySampler, session: Session) -> CheckRecord:
    """Run one check on drawn cases; whatever happens becomes a record."""

    watched = recorder.watched(check, sampler, session.profile, session.seed)

    judging, renew = watched.check, session.renew
    if judging.plays_traces:
        judging = dataclasses.replace(judging, renew=lambda: (made := renew()) and watched.watch.wrap(made))

    def search() -> int:
        try:
            return judging.run(
                watched.sampler,
                profile=session.profile,
                seed=session.seed,
                reference=session.reference,
                out_of_time=session.out_of_time,
            )
        except Exception:
            if watched.watch.why_nothing:
                raise NotCalled(watched.watch.why_nothing) from None
            raise

    record = _recorded(check, sampler, session, search, is_search=True)
    if record.status not in JUDGED or (CONTRACTS[check.contract].is_remote and not check.seen(sampler, session.seed)):
        return record
    return dataclasses.replace(record, drawn=watched.drawn(sampler, session.profile, session.seed, record.cases))


def replay_case(check: Check, sampler: AnySampler, case: Any, session: Session) -> CheckRecord:
    """Run one check on one case: no search."""

    def once() -> int:
        check.require_support(sampler, session.reference)
        try:
            check.on_case(sampler, case, session.reference)
        except (Exception, SystemExit) as error:
            ended = failed(error, case, 1)
        else:
            return 1
        raise ended

    return _recorded(check, sampler, session, once, is_search=False)


def _recorded(
    check: AnyCheck, sampler: AnySampler, session: Session, run: Callable[[], int], *, is_search: bool
) -> CheckRecord:
    """The record of `run`, which gives the number of cases or raises what `AnyCheck.run` does."""
    started = time.perf_counter()
    error: Raised = None
    try:
        with suite_state(sampler):
            with calling(sampler):  # what every sampler has may be properties, which raise the sampler's own exceptions
                _ = sampler.name, sampler.device, sampler.capabilities
            cases = run()
    except BaseException as caught:
        if not _is_of_the_sampler(caught):
            raise
        error, cases = caught, caught.tried if isinstance(caught, Ended) else 0
    seconds, requests = time.perf_counter() - started, _requests(sampler, session.reference)
    passed = CheckRecord.of(check, _name(sampler), "passed", cases=cases, seconds=seconds, requests=requests)
    return _judged(passed, check, sampler, session, error, is_search=is_search)


def _requests(*servers: object) -> dict[str, int]:
    """Return what servers count: requests since the last check, and troubles."""
    counts = Counter[str]()
    for one in servers:
        counts.update(getattr(one, "take_counts", dict)())
    return dict(counts)


def _is_of_the_sampler(error: BaseException) -> bool:
    """Whether an exception ends one check. A signal ends the run; `pytest.skip` called by a sampler ends the check."""
    if isinstance(error, Interrupted):
        return False
    if isinstance(error, KeyboardInterrupt):  # the sampler's own only where signals go to another process
        return raised_by(error) is not None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return isinstance(error, (Exception, SystemExit, SamplerHangs)) or raised_by(error) is not None


def check_sampler(
    sampler: AnySampler,
    *,
    profile: str = "ci",
    seed: int = DEFAULT_SEED,
    only: str | None = None,
    reference: AnySampler | None = None,
) -> list[CheckRecord]:
    """Run every check that `sampler` allows; nothing is printed and no file is written.

    Args:
        profile: `smoke`, `ci` or `nightly`.
        only: One suite.
        reference: The sampler that differential checks compare with; without one they are skipped.

    Returns:
        One record per check, skipped ones included.

    Raises:
        ValueError: If `profile` or `only` is unknown.
        CannotStart: If `sampler` is not a sampler.

    Randomness:
        Cases follow from `seed` and the check's code.
    """
    for name, value, known in (("profile", profile, PROFILES), ("only", only, SUITES)):
        if value is not None and value not in known:
            words = ", ".join(known)
            raise ValueError(f"check_sampler: {name}={value!r}, but it must be a known word. Use one of: {words}.")
    session = Session(profile=PROFILES[profile], seed=seed, reference=reference, crash_folder=None)
    subject = as_sampler(sampler)
    return [run_check(check, subject, session) for check in all_checks(only, contract_name(subject))]


def _name(sampler: AnySampler) -> str:
    """Its name, or its class if its name cannot be read; the record says then what was raised."""
    try:
        return str(sampler.name)
    except Exception:
        return type(sampler).__name__


def _judged(
    passed: CheckRecord, check: AnyCheck, sampler: AnySampler, session: Session, error: Raised, *, is_search: bool
) -> CheckRecord:
    """`passed` with its real status, and a report if the check failed.

    A known failure that a search did not find is gone only if the search could have found it; on a stored case it is.
    """

    def became(status: Status, reason: object, **fields: Any) -> CheckRecord:
        return dataclasses.replace(passed, status=status, reason=str(reason), **fields)

    listed = session.expected.xfails.get(check.code)
    known = listed or (None if session.expected.nothing_declared else known_defects(sampler).get(check.code))
    frozen = session.expected.baseline.entry(check.code, session.spec)
    ours = error is None or raised_by(error) is None  # one of our exceptions means nothing if a sampler raises it
    if ours and isinstance(error, CapabilityUnsupported):
        return became("skipped", error, cases=0)
    if isinstance(error, (SamplerHangs, NoAnswer)):
        return became("incomplete", error)
    if ours and isinstance(error, Inconclusive):
        return became("inconclusive", error)
    if error is None and known is not None:
        unseen = why_unseen(known, check, sampler, session.profile, passed.cases) if is_search else ""
        source = session.expected.xfails_file if listed else "the sampler's known_defects"
        return became("passed", unseen) if unseen else became("xpassed", known.reason, source=source)
    if error is None:
        return became("passed", "" if frozen is None else session.expected.baseline.why_passed(session.profile))
    status: Status = "failed" if check_failure_of(error) else "error"

    def ended(folder: Path | None, *notes: str) -> CheckRecord:
        report = failure_report_of(check, dataclasses.replace(session, crash_folder=folder), error, sampler)
        report = dataclasses.replace(report, notes=(*report.notes, *notes))
        return became(status, "", failure_report=report, trace="".join(traceback.format_exception(error)))

    if known is None and frozen is None:
        return ended(session.crash_folder)
    found = ended(None)
    if known is not None:
        return dataclasses.replace(found, status="xfailed", reason=known.reason)
    if frozen in ("", found.failure_report and kind_of_failure(found.failure_report)):
        return dataclasses.replace(found, status="xfailed", reason=session.expected.baseline.worded(found.sampler))
    return ended(session.crash_folder, f"the baseline knows another failure of this check: {frozen}")
