"""Ask a sampler to keep its promises, one check at a time, and keep a record of each. Prints nothing.

The pytest plugin, the command line and `check_sampler` all come through here, so they agree on what passed.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairdraw._core.budget import Deadline
from fairdraw._core.checks import PROFILES, AnyCheck, Check, Profile
from fairdraw._core.contracts import contract_name
from fairdraw._core.failures import CapabilityUnsupported, FailureReport, Inconclusive, calling, raised_by
from fairdraw._core.pulse import SamplerHangs
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.expected import Expected, why_unseen
from fairdraw._run.failure_reports import broken_promise, told
from fairdraw._run.loading import SUITES, all_checks, as_sampler, known_defects

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from fairdraw.protocols import AnySampler

__all__ = [
    "CRASH_FOLDER",
    "DEFAULT_SEED",
    "IN_BASELINE",
    "STALE",
    "CheckRecord",
    "Session",
    "Status",
    "check_sampler",
    "one_torch_thread",
    "parse_seed",
    "replay_case",
    "run_check",
    "unfinished",
]

Status = Literal["passed", "failed", "error", "xfailed", "xpassed", "inconclusive", "incomplete", "skipped"]

CRASH_FOLDER = Path(".fairdraw/crashes")

IN_BASELINE = "in the baseline"
STALE = "stale: in the baseline, and it passes"


@dataclass(frozen=True)
class Session:
    """What all checks of one run share.

    Args:
        spec: What `--sampler` was given, for the commands that reproduce a failure; `None` for a sampler object.
        reference: Whom differential checks compare with; `None` skips them.
        reference_spec: What `--fairdraw-reference` was given.
        crash_folder: Where crash files go; `None` writes none.
        command: What repeats the search; made from `spec` if empty.
        ends_at: When the time budget ends, by `time.time()`, which processes share; `None` for no budget.
        expected: Failures that the user knows about.
        stored: Exception to the crash file that was written for it; one that ends many checks is stored once.
        under_pytest: Commands that reproduce a failure are pytest's.
    """

    spec: str | None = None
    profile: Profile = PROFILES["ci"]
    seed: int = DEFAULT_SEED
    reference: AnySampler | None = None
    reference_spec: str | None = None
    crash_folder: Path | None = CRASH_FOLDER
    command: str = ""
    ends_at: float | None = None
    under_pytest: bool = False
    expected: Expected = field(default_factory=Expected)
    stored: dict[str, str] = field(default_factory=dict)

    def out_of_time(self) -> bool:
        """Whether the time budget has ended."""
        return self.ends_at is not None and time.time() >= self.ends_at


@dataclass(frozen=True)
class CheckRecord:
    """What became of one check.

    Args:
        status: `failed` is a broken promise, `error` an exception, `xpassed` a known defect that is gone,
            `inconclusive` too little to decide on, `incomplete` a check that could not end: the sampler hung, or its
            process died.
        reason: Why it was skipped or is inconclusive, which known defect this is, or why one that was not seen may
            still be there.
        cases: How many cases were tried; for statistical checks, how many draws were judged.
        failure_report: How the failure is told; also kept for a known defect.
        needs: The capabilities that the check needs.
        source: Where a known defect is declared.
        sampler: The name of the sampler under test.
        trace: The traceback, for those who ask for it.
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
    trace: str = field(default="", repr=False)

    @property
    def id(self) -> str:
        return f"{self.code} {self.title}"

    @property
    def is_broken(self) -> bool:
        """Whether this record alone makes the run red."""
        return self.status in ("failed", "error", "xpassed", "inconclusive", "incomplete")

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data; the traceback stays here."""
        plain = dataclasses.asdict(self)
        del plain["trace"]
        return {**plain, "seconds": round(self.seconds, 3)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> CheckRecord:  # Any: JSON
        """The record that `to_json` wrote, without its traceback."""
        failure_report = plain["failure_report"]
        told = failure_report and FailureReport(**{**failure_report, "notes": tuple(failure_report["notes"])})
        return cls(**{**plain, "failure_report": told, "needs": tuple(plain["needs"])})


def parse_seed(text: str) -> int:
    """The seed that a person asked for: a number, or `fresh` for one of chance.

    Raises:
        ValueError: If it is neither.
    """
    if text == "fresh":
        return secrets.randbelow(2**31)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no seed. Use an integer, or the word fresh.") from None


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Batches are small, and waking threads costs more than they do.

    Measured for 900 cases of the oracle, on 2 cores shared with others: 6.6 s of CPU time with one thread, 20.8 s with
    two.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Triton's interpreter computes in NumPy, which warns where a GPU silently gives inf or NaN; verdicts see those."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
        yield


def run_check(check: AnyCheck, sampler: AnySampler, session: Session) -> CheckRecord:
    """Try one promise on drawn cases; whatever happens becomes a record."""
    started = time.perf_counter()
    error: BaseException | None = None
    folder = Path.cwd()
    try:
        _ask_attributes(sampler)
        with one_torch_thread(), quiet_interpreter():
            cases = check.run(
                sampler,
                profile=session.profile,
                seed=session.seed,
                reference=session.reference,
                out_of_time=Deadline(session.ends_at),
            )
    except BaseException as caught:
        if not _is_of_the_sampler(caught):
            raise
        error, cases = caught, getattr(caught, "tried", 0)
    finally:
        os.chdir(folder)  # a sampler that went elsewhere must not take the crash files along
    blank = _blank(check, sampler, cases, time.perf_counter() - started)
    return _judged(blank, check, sampler, session, error)


def _is_of_the_sampler(error: BaseException) -> bool:
    """Whether an exception ends one check. Ctrl-C ends the run; `pytest.skip` called by a sampler ends neither well."""
    if isinstance(error, KeyboardInterrupt):  # nobody's but the sampler's where signals go to another process
        return raised_by(error) is not None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return isinstance(error, (Exception, SystemExit, SamplerHangs)) or raised_by(error) is not None


def _ask_attributes(sampler: AnySampler) -> None:
    """Read what every sampler has, which may be properties: what they raise is the sampler's own exception."""
    with calling(sampler):
        _ = sampler.name, sampler.device, sampler.capabilities


def replay_case(check: Check, sampler: AnySampler, case: Any, session: Session) -> CheckRecord:
    """Ask for one promise on one case: no search."""
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        _ask_attributes(sampler)
        reason = check.why_not(sampler, session.reference)
        if reason is not None:
            raise CapabilityUnsupported(reason)
        with one_torch_thread(), quiet_interpreter():
            check.on_case(sampler, case, session.reference)
    except (Exception, SystemExit, SamplerHangs) as caught:
        vars(caught)["case"] = case  # as Check.run does
        error = caught
    blank = _blank(check, sampler, 1, time.perf_counter() - started)
    return _judged(blank, check, sampler, session, error, is_search=False)


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
        reference: Whom differential checks compare with; without one they are skipped, as their records say.

    Returns:
        One record per check, skipped ones included.

    Raises:
        ValueError: If `profile` or `only` is unknown.
        CannotStart: If `sampler` is not a sampler.

    Randomness:
        Cases follow from `seed` and the check's code.
    """
    _require_known("profile", profile, PROFILES)
    _require_known("only", only, (None, *SUITES))
    session = Session(profile=PROFILES[profile], seed=seed, reference=reference, crash_folder=None)
    subject = as_sampler(sampler)
    return [run_check(check, subject, session) for check in all_checks(only, contract_name(subject))]


def _require_known(name: str, value: str | None, known: Container[str | None]) -> None:
    if value not in known:
        words = ", ".join(PROFILES if name == "profile" else SUITES)
        raise ValueError(f"check_sampler: {name}={value!r}, but it must be a known word. Use one of: {words}.")


def _blank(check: AnyCheck, sampler: AnySampler, cases: int, seconds: float) -> CheckRecord:
    return CheckRecord(
        check.code,
        check.title,
        check.suite,
        check.contract,
        "passed",
        cases=cases,
        seconds=seconds,
        needs=tuple(map(str, check.needs)),
        sampler=_name(sampler),
    )


def _name(sampler: AnySampler) -> str:
    """Its name, or its class if its name cannot be read; the record says then what was raised."""
    try:
        return str(sampler.name)
    except Exception:
        return type(sampler).__name__


def unfinished(check: AnyCheck, sampler: str, reason: str) -> CheckRecord:
    """The record of a check that began and did not end.

    Args:
        sampler: Its name.
        reason: What happened: the process died, the sampler hung.
    """
    return CheckRecord(
        check.code, check.title, check.suite, check.contract, "incomplete", reason=reason, sampler=sampler
    )


def _judged(
    blank: CheckRecord,
    check: AnyCheck,
    sampler: AnySampler,
    session: Session,
    error: BaseException | None,
    *,
    is_search: bool = True,
) -> CheckRecord:
    """`blank` with its status, and the failure_report if there is one to tell.

    A known failure that a search did not see is gone only if the search could have seen it; on a stored case it is.
    """
    listed = session.expected.xfails.get(check.code)
    known = listed or known_defects(sampler).get(check.code)
    frozen = check.code in session.expected.baseline
    ours = error is None or raised_by(error) is None  # a sampler that raises a word of ours says nothing by it
    if ours and isinstance(error, CapabilityUnsupported):
        return dataclasses.replace(blank, status="skipped", reason=str(error), cases=0)
    if isinstance(error, SamplerHangs):
        return dataclasses.replace(blank, status="incomplete", reason=str(error))
    if ours and isinstance(error, Inconclusive):
        return dataclasses.replace(blank, status="inconclusive", reason=str(error))
    if error is None and known is not None:
        unseen = why_unseen(known, check, sampler, session.profile, blank.cases) if is_search else ""
        if unseen:
            return dataclasses.replace(blank, reason=unseen)
        source = session.expected.xfails_file if listed else "the sampler's known_defects"
        return dataclasses.replace(blank, status="xpassed", reason=known.reason, source=source)
    if error is None:
        return dataclasses.replace(blank, reason=STALE if frozen else "")
    defect = known.reason if known is not None else None
    defect = defect or (IN_BASELINE if frozen else None)
    folder = session.crash_folder if defect is None else None
    failure_report = told(check, dataclasses.replace(session, crash_folder=folder), error, sampler)
    status: Status = "failed" if broken_promise(error) else "error"
    return dataclasses.replace(
        blank,
        status=status if defect is None else "xfailed",
        reason=defect or "",
        failure_report=failure_report,
        trace="".join(traceback.format_exception(error)),
    )
