"""Ask a sampler to keep its promises, one check at a time, and keep a record of each. Prints nothing.

The pytest plugin, the command line and `check_sampler` all come through here, so they agree on what passed.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairdraw.checks import PROFILES, AnyCheck, Check, Profile
from fairdraw.contracts import CONTRACTS, contract_name
from fairdraw.crash import Crash, write_crash
from fairdraw.expected import Expected
from fairdraw.failures import AdapterError, CapabilityClosed, CheckFailure, Inconclusive, Story
from fairdraw.loading import LENSES, all_checks, as_sampler, known_defects, last_line
from fairdraw.seeds import DEFAULT_SEED

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from fairdraw.protocols import Subject

__all__ = [
    "CRASH_FOLDER",
    "DEFAULT_SEED",
    "IN_BASELINE",
    "RAISED",
    "STALE",
    "CheckRecord",
    "Session",
    "Status",
    "check_sampler",
    "one_torch_thread",
    "parse_seed",
    "replay_case",
    "run_check",
]

Status = Literal["passed", "failed", "error", "xfailed", "xpassed", "inconclusive", "skipped"]

CRASH_FOLDER = Path(".fairdraw/crashes")

IN_BASELINE = "in the baseline"
STALE = "stale: in the baseline, and it passes"

RAISED = {
    "sampler raised an exception": (
        "A sampler answers every batch of its contract. If it was never meant to take this one, decline the capability "
        "with a reason: the checks that need it are then skipped and counted."
    ),
    "sampler returned something that is not an output": (
        "An output is an int32 tensor [batch_size, max_spec_len + 1] on the batch's device."
    ),
    "check raised an exception": (
        "The check could make no sense of the answer. Look at the other failures first: the answer probably breaks a "
        "promise that one of them names. If there is none, it is a fault of fairdraw."
    ),
}
"""What ends a check without a broken promise, and what it means; all of it is told as `REJ100` (or `SAM100` ...)."""


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
        under_pytest: Commands that reproduce a failure are pytest's.
    """

    spec: str | None = None
    profile: Profile = PROFILES["ci"]
    seed: int = DEFAULT_SEED
    reference: Subject | None = None
    reference_spec: str | None = None
    crash_folder: Path | None = CRASH_FOLDER
    command: str = ""
    ends_at: float | None = None
    under_pytest: bool = False
    expected: Expected = field(default_factory=Expected)

    def out_of_time(self) -> bool:
        """Whether the time budget has ended."""
        return self.ends_at is not None and time.time() >= self.ends_at


@dataclass(frozen=True)
class CheckRecord:
    """What became of one check.

    Args:
        status: `failed` is a broken promise, `error` an exception, `xpassed` a known defect that is gone,
            `inconclusive` too little to decide on.
        reason: Why it was skipped or is inconclusive, or which known defect this is.
        cases: How many cases were tried; for statistical checks, how many draws were judged.
        story: How the failure is told; also kept for a known defect.
        trace: The traceback, for those who ask for it.
    """

    code: str
    title: str
    lens: str
    contract: str
    status: Status
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0
    story: Story | None = None
    trace: str = field(default="", repr=False)

    @property
    def id(self) -> str:
        return f"{self.code} {self.title}"

    @property
    def is_broken(self) -> bool:
        """Whether this record alone makes the run red."""
        return self.status in ("failed", "error", "xpassed", "inconclusive")

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data; the traceback stays here."""
        plain = dataclasses.asdict(self)
        del plain["trace"]
        return {**plain, "seconds": round(self.seconds, 3)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> CheckRecord:  # Any: JSON
        """The record that `to_json` wrote, without its traceback."""
        story = plain["story"]
        return cls(**{**plain, "story": story and Story(**{**story, "notes": tuple(story["notes"])})})


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


def run_check(check: AnyCheck, sampler: Subject, session: Session) -> CheckRecord:
    """Try one promise on drawn cases; whatever happens becomes a record."""
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        with one_torch_thread(), quiet_interpreter():
            cases = check.run(
                sampler,
                profile=session.profile,
                seed=session.seed,
                reference=session.reference,
                out_of_time=session.out_of_time,
            )
    except (Exception, SystemExit) as caught:  # a sampler that leaves the program has not kept its promise
        error, cases = caught, getattr(caught, "tried", 0)
    blank = _blank(check, cases, time.perf_counter() - started)
    return _judged(blank, check, sampler, session, error)


def replay_case(check: Check, sampler: Subject, case: Any, session: Session) -> CheckRecord:
    """Ask for one promise on one case: no search."""
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        reason = check.why_not(sampler, session.reference)
        if reason is not None:
            raise CapabilityClosed(reason)
        with one_torch_thread(), quiet_interpreter():
            check.on_case(sampler, case, session.reference)
    except (Exception, SystemExit) as caught:
        error = caught
        error.case = case  # type: ignore[union-attr]  # as Check.run does
    blank = _blank(check, 1, time.perf_counter() - started)
    return _judged(blank, check, sampler, session, error)


def check_sampler(
    sampler: Subject,
    *,
    profile: str = "ci",
    seed: int = DEFAULT_SEED,
    only: str | None = None,
    reference: Subject | None = None,
) -> list[CheckRecord]:
    """Run every check that `sampler` allows; nothing is printed and no file is written.

    Args:
        profile: `smoke`, `ci` or `nightly`.
        only: One lens.
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
    _require_known("only", only, (None, *LENSES))
    session = Session(profile=PROFILES[profile], seed=seed, reference=reference, crash_folder=None)
    subject = as_sampler(sampler)
    return [run_check(check, subject, session) for check in all_checks(only, contract_name(subject))]


def _require_known(name: str, value: str | None, known: Container[str | None]) -> None:
    if value not in known:
        words = ", ".join(PROFILES if name == "profile" else LENSES)
        raise ValueError(f"check_sampler: {name}={value!r}, but it must be a known word. Use one of: {words}.")


def _blank(check: AnyCheck, cases: int, seconds: float) -> CheckRecord:
    return CheckRecord(check.code, check.title, check.lens, check.contract, "passed", cases=cases, seconds=seconds)


def _judged(
    blank: CheckRecord, check: AnyCheck, sampler: Subject, session: Session, error: BaseException | None
) -> CheckRecord:
    """`blank` with its status, and the story if there is one to tell."""
    defect = session.expected.xfails.get(check.code) or known_defects(sampler).get(check.code)
    frozen = check.code in session.expected.baseline
    if isinstance(error, CapabilityClosed):
        return dataclasses.replace(blank, status="skipped", reason=str(error), cases=0)
    if isinstance(error, Inconclusive):
        return dataclasses.replace(blank, status="inconclusive", reason=str(error))
    if error is None and defect is not None:
        return dataclasses.replace(blank, status="xpassed", reason=defect)
    if error is None:
        return dataclasses.replace(blank, reason=STALE if frozen else "")
    defect = defect or (IN_BASELINE if frozen else None)
    folder = session.crash_folder if defect is None else None
    story = _told(check, dataclasses.replace(session, crash_folder=folder), error)
    status: Status = "failed" if _broken_promise(error) else "error"
    return dataclasses.replace(
        blank,
        status=status if defect is None else "xfailed",
        reason=defect or "",
        story=story,
        trace="".join(traceback.format_exception(error)),
    )


def _broken_promise(error: BaseException) -> CheckFailure | None:
    """The broken promise in `error`; Hypothesis wraps it in a group if the same case did not fail again."""
    if isinstance(error, ExceptionGroup):
        return next((e for e in error.exceptions if isinstance(e, CheckFailure)), None)
    return error if isinstance(error, CheckFailure) else None


_UNSTEADY = (
    "tried again, the same example did not fail: two equal calls got two answers. The sampler keeps state between "
    "calls, or draws noise of its own; if it is meant to, decline explicit-noise and seeded-noise"
)


def _told(check: AnyCheck, session: Session, error: BaseException) -> Story:
    """The failure as a story; writes its crash file on the way."""
    case = getattr(error, "case", None)
    notes = [_UNSTEADY] if isinstance(error, ExceptionGroup) else []
    story = _about(check, error)
    if case is None:
        return dataclasses.replace(story, command=_command(check, session, ""), notes=(*story.notes, *notes))
    crash_file, trouble = _saved(check, session, case, story.effect)
    return dataclasses.replace(
        story,
        example=repr(case),
        command=_command(check, session, crash_file),
        crash_file=crash_file,
        notes=(*story.notes, *notes, *trouble),
    )


def _about(check: AnyCheck, error: BaseException) -> Story:
    """What was broken, and how much."""
    broken = _broken_promise(error)
    if broken is not None:
        evidence = broken.evidence or "one example decides"
        return Story(check.code, check.title, _first_paragraph(check.meaning), broken.effect, evidence)
    title = _raised_title(error)
    code = CONTRACTS[check.contract].raised
    return Story(
        code,
        f"{title} while asked {check.code}",
        RAISED[title],
        str(error) if isinstance(error, AdapterError) else last_line(error),
        notes=(f"seen while checking {check.id}",),
    )


def _raised_title(error: BaseException) -> str:
    """Who raised: the adapter's border, the sampler (called by `emit`, and not refused there), or the check."""
    if isinstance(error, AdapterError):
        return "sampler returned something that is not an output"
    files = [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]
    called = any("harness" in file for file in files[:-1])
    in_sampler = called and not any("_validation" in file for file in files)
    return "sampler raised an exception" if in_sampler else "check raised an exception"


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _saved(check: AnyCheck, session: Session, case: Any, effect: str) -> tuple[str, tuple[str, ...]]:
    """Write a crash file: its path, and what prevented it. A folder that cannot be written never fails a run."""
    if session.crash_folder is None:
        return "", ()
    crash = Crash(
        sampler=session.spec,
        reference=session.reference_spec,
        check=check.code,
        contract=check.contract,
        case=case.to_json(),
        seed=session.seed,
        effect=effect,
    )
    try:
        return str(write_crash(session.crash_folder, crash)), ()
    except OSError as error:
        return "", (f"no crash file was written: {error}",)


def _command(check: AnyCheck, session: Session, crash_file: str) -> str:
    """What to type to see the failure again."""
    search = session.command or (_search(check, session) if session.spec is not None else "")
    if not crash_file:
        return search
    replay = f"fairdraw replay {crash_file}" + ("" if session.spec else " --sampler SPEC")
    return f"{replay}  (or search again: {search})" if search else replay


def _search(check: AnyCheck, session: Session) -> str:
    """The search again, for this check alone, by the program that was started."""
    profile, seed = session.profile.name, session.seed
    compared = check.differential and session.reference_spec
    if not session.under_pytest:
        command = f"fairdraw check {session.spec} -k {check.code} --profile {profile} --seed {seed}"
        return command + (f" --reference {session.reference_spec}" if compared else "")
    command = f"pytest --pyargs fairdraw --sampler {session.spec} -k {check.code}"
    command += f" --fairdraw-profile {profile} --fairdraw-seed {seed}"
    return command + (f" --fairdraw-reference {session.reference_spec}" if compared else "")
