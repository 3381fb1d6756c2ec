"""From an exception to a report: who raised it, what it means, the crash file, and how to reproduce it."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import AnyCheck, Check, DistributionCase
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.failures import (
    NOT_AGAIN,
    AdapterError,
    CaseRaised,
    CheckFailure,
    Ended,
    FailureReport,
    raised_by,
    without_numbers,
)
from fairdraw._core.isolation import suite_state
from fairdraw._core.pulse import SamplerHangs
from fairdraw._core.wrapping import unwrapped
from fairdraw._run.asked import asked_for
from fairdraw._run.crash import NUM_REPEATS, Crash, write_crash
from fairdraw._run.loading import NO_REFERENCE, is_catalogued, last_line

if TYPE_CHECKING:
    from hypothesis.errors import FlakyFailure
    from typing_extensions import TypeIs

    from fairdraw._run.runner import Session
    from fairdraw.contracts import AnySampler

RAISED = {
    "sampler raised an exception": (
        "A sampler must take every batch of its contract, except for what it declares unsupported, with a reason."
    ),
    "sampler returned something that is not an output": "{output}",
    "reference raised an exception": (
        "The check compares with a reference sampler, which could not take this batch. Name another one with "
        "--reference, or use --reference none."
    ),
    "device reported an error": (
        "A device reports an error at a later call than the one that caused it: look at the sampler's last kernels "
        "first. After an illegal access every call fails until the process ends. Run this check alone, with "
        "CUDA_LAUNCH_BLOCKING=1."
    ),
    "check raised an exception": (
        "The check could not read the sampler's output. Look at the other failures first: one of them probably names "
        "what is wrong with it. If there is none, this is a bug in fairdraw."
    ),
}
"""What ends a check other than its own result, and what it means; all are reported as `REJ100` (or `SAM100` ...)."""


def raised_meanings(contract: str) -> dict[str, str]:
    """Title to meaning of everything that is reported under the contract's code of exceptions."""
    output = f"An output is {CONTRACTS[contract].answer}."
    return {title: meaning.format(output=output) for title, meaning in RAISED.items()}


def check_failure_of(error: BaseException) -> CheckFailure | None:
    """The result of the check in `error`; `None` if it ended in another exception.

    Hypothesis wraps it in a group if the same case did not fail again. A `CheckFailure` that the sampler raises itself
    is an exception like any other.
    """
    return next((e for e in _raised(error) if isinstance(e, CheckFailure) and raised_by(e) is None), None)


def _raised(error: BaseException) -> tuple[BaseException, ...]:
    """What was raised on the case: `error` itself, its cause, or what Hypothesis put into a group."""
    cause = error.__cause__ if isinstance(error, CaseRaised) else None
    return cause.exceptions if _is_flaky(cause) else (cause or error,)


def _is_flaky(error: BaseException | None) -> TypeIs[FlakyFailure]:
    """Whether Hypothesis reports that a case did not fail again."""
    from hypothesis import errors

    return isinstance(error, errors.FlakyFailure)


_UNSTEADY = f"{NOT_AGAIN}: two equal calls gave two outputs. What is judged keeps state between calls"
_OR_DRAWS = ", or draws noise of its own; if that is intended, declare explicit-noise and seeded-noise unsupported"


def failure_report_of(check: AnyCheck, session: Session, error: BaseException, sampler: AnySampler) -> FailureReport:
    """The report of a failure of `sampler`; also writes its crash file."""
    raised, ended = _raised(error), error if isinstance(error, Ended) else Ended()
    case, broken = ended.case, check_failure_of(error)
    first = broken or next((e for e in raised if raised_by(e) is not None), raised[0])
    unsteady = _UNSTEADY + _OR_DRAWS * CONTRACTS[check.contract].takes_noise
    notes = [unsteady] * _is_flaky(error.__cause__) + list(ended.remarks)
    if broken is None and any(unwrapped(raised_by(e)) is sampler for e in raised):
        notes += _to_declare(check, case)
    failure_report = _about(check, session, first, sampler)
    if case is None:
        return replace(failure_report, command=_search(check, session), notes=(*failure_report.notes, *notes))
    crash_file, trouble = _stored(check, session, sampler, case, failure_report.effect, is_raised=broken is None)
    return replace(
        failure_report,
        example="" if isinstance(case, DistributionCase) else repr(case),
        crash_file=crash_file,
        notes=(*failure_report.notes, *notes, *trouble, *_by_hand(session, crash_file)),
        **_commands(check, session, crash_file),
    )


def _to_declare(check: AnyCheck, case: Any) -> list[str]:  # Any: a case of the contract, or none
    """What to declare if the sampler does not support the example; nothing if no capability can be named."""
    try:
        words = asked_for(case, check.needs, check.contract)
    except Exception:  # the case cannot be built again here; then nothing can be said about it
        return []
    lines = " or ".join(f'unsupported={{"{word}": "why"}}' for word in words)
    return [f"if the sampler does not support this input, declare it in the adapter: {lines}"] * bool(lines)


def _about(check: AnyCheck, session: Session, error: BaseException, sampler: AnySampler) -> FailureReport:
    """What failed, and by how much."""
    if isinstance(error, CheckFailure) and raised_by(error) is None:
        meaning, *usually = (" ".join(paragraph.split()) for paragraph in check.meaning.split("\n\n"))
        evidence = error.evidence or "one example decides"
        cause = " ".join(usually).removeprefix("Usually ")
        usual = cause[:1].upper() + cause[1:]
        return FailureReport(check.code, check.title, meaning, error.effect, evidence, usually=usual)
    title = _raised_title(error, sampler, session.reference)
    return FailureReport(
        CONTRACTS[check.contract].raised,
        f"{title} during {check.code}",
        raised_meanings(check.contract)[title],
        str(error) if isinstance(error, AdapterError) else last_line(error),
        notes=(f"raised during {check.id}",),
    )


def _raised_title(error: BaseException, sampler: AnySampler, reference: AnySampler | None) -> str:
    """Who raised, by the mark that `calling` leaves: the sampler, its reference, or fairdraw.

    A mark of another object is that of the specification, which is called as samplers are and belongs to fairdraw.
    """
    blamed = unwrapped(raised_by(error))
    if (blamed is not None and blamed is sampler) or _left_a_property_of(sampler, error):
        return "sampler raised an exception"
    if blamed is not None and blamed is reference:
        return "reference raised an exception"
    if isinstance(error, AdapterError):
        return "sampler returned something that is not an output"
    return "device reported an error" if _is_of_device(error) else "check raised an exception"


def _left_a_property_of(sampler: AnySampler, error: BaseException) -> bool:
    """Whether the code of one of its properties is among the frames: properties are read outside of `calling`, too."""
    members = (member for kind in type(sampler).__mro__ for member in vars(kind).values())
    codes = {member.fget.__code__ for member in members if isinstance(member, property) and member.fget}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_of_device(error: BaseException) -> bool:
    """Whether torch reports that the accelerator failed."""
    kind = getattr(sys.modules.get("torch"), "AcceleratorError", None)
    return kind is not None and isinstance(error, kind)


def _stored(
    check: AnyCheck, session: Session, sampler: AnySampler, case: Any, effect: str, *, is_raised: bool
) -> tuple[str, tuple[str, ...]]:
    """The crash file of a failure, and what prevented it; an exception that was seen before already has one."""
    kind = without_numbers(effect)
    if is_raised and kind in session.stored:
        return session.stored[kind], ()
    path, trouble = _saved(check, session, sampler, case, effect)
    if is_raised and path:
        session.stored[kind] = path
    return path, trouble


_REPEATING_SECONDS = 2.0


def _repeats(check: AnyCheck, session: Session, sampler: AnySampler, case: Any) -> list[int] | None:
    """Return how many of some more tries of `case` fail, and their number; `None` if all do.

    A failure that depends on chance takes many tries before a replay may call it fixed. A trace is tried on new
    samplers, as a replay does: its fault may be in their first calls.
    """
    failed = tried = 0
    ends_at = time.monotonic() + _REPEATING_SECONDS
    with suite_state(sampler), suppress(SamplerHangs):
        while isinstance(check, Check) and tried < NUM_REPEATS and time.monotonic() < ends_at:
            tried += 1
            failed += _fails(check, session, session.renew() or sampler if check.plays_traces else sampler, case)
    return None if failed == tried else [failed, tried]


def _fails(check: Any, session: Session, sampler: AnySampler, case: Any) -> bool:
    try:
        check.on_case(sampler, case, session.reference)
    except (Exception, SystemExit):
        return True
    return False


def _saved(
    check: AnyCheck, session: Session, sampler: AnySampler, case: Any, effect: str
) -> tuple[str, tuple[str, ...]]:
    """Write a crash file: its path, and what a reader should know. A run never fails because it cannot be written."""
    if session.crash_folder is None:
        return "", ()
    repeats = _repeats(check, session, sampler, case)
    chance = () if repeats is None else (f"this example failed in {repeats[0]} of {repeats[1]} more tries",)
    if repeats is None and check.plays_traces and (new := session.renew()) is not None:
        _fails(check, session, new, case)
        if not _fails(check, session, new, case):
            chance = ("a new sampler fails, one that was called before does not: look at what a first call sets up",)
    crash = Crash(
        sampler=session.spec,
        reference=session.reference_spec,
        check=check.code,
        contract=check.contract,
        case=case.to_json(),
        seed=session.seed,
        effect=effect,
        repeats=repeats,
    )
    try:
        return str(write_crash(session.crash_folder, crash)), chance
    except OSError as error:
        return "", (*chance, f"no crash file was written: {error}")


def _commands(check: AnyCheck, session: Session, crash_file: str) -> dict[str, str]:
    """The commands that reproduce the failure, as fields of the report: each can be pasted as it is."""
    search = _search(check, session)
    if not crash_file or session.spec is None:  # an object of a test: only the user knows where it is (`_by_hand`)
        return {"command": search}
    named = [session.spec, *filter(None, [session.reference_spec])]
    is_code = not all(map(is_catalogued, {*named} - {NO_REFERENCE}))
    replay = shlex.join(["fairdraw", "replay", crash_file, *["-y"] * is_code, *session.words])
    # The command line would not choose the same part of a profile again: it depends on the time budget.
    return {"command": replay, "search": search if session.profile.scale == 1 else ""}


def _by_hand(session: Session, crash_file: str) -> tuple[str, ...]:
    """How to replay the case of a sampler that has no name on the command line."""
    if not crash_file or session.spec is not None:
        return ()
    replay = shlex.join(["fairdraw", "replay", crash_file])
    return (f"to replay this case alone: {replay} --sampler SPEC, where SPEC is pkg.module:factory of your sampler",)


def _search(check: AnyCheck, session: Session) -> str:
    """The command that repeats the search for this check alone; empty if the sampler has no name."""
    if session.command or session.spec is None:
        return session.command
    options = check.again(session.profile.name, session.seed)
    if check.differential and session.reference_spec:
        options["--reference"] = session.reference_spec
    if not session.under_pytest:
        return shlex.join(["fairdraw", "check", session.spec, *chain(*options.items()), *session.words])
    ours = {option.replace("--", "--fairdraw-"): value for option, value in options.items()}
    return shlex.join(["pytest", "--pyargs", "fairdraw", "--sampler", session.spec, *chain(*ours.items())])
