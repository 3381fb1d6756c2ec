"""From an exception to a story: who raised, what it means, the crash file, and what to type to see it again."""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraw.checks import LawCase
from fairdraw.contracts import CONTRACTS
from fairdraw.crash import Crash, write_crash
from fairdraw.failures import AdapterError, CheckFailure, Story, without_numbers
from fairdraw.loading import last_line

if TYPE_CHECKING:
    from fairdraw.checks import AnyCheck
    from fairdraw.runner import Session

__all__ = ["RAISED", "broken_promise", "told"]

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


def broken_promise(error: BaseException) -> CheckFailure | None:
    """The broken promise in `error`; Hypothesis wraps it in a group if the same case did not fail again."""
    if isinstance(error, ExceptionGroup):
        return next((e for e in error.exceptions if isinstance(e, CheckFailure)), None)
    return error if isinstance(error, CheckFailure) else None


_UNSTEADY = (
    "tried again, the same example did not fail: two equal calls got two answers. The sampler keeps state between "
    "calls, or draws noise of its own; if it is meant to, decline explicit-noise and seeded-noise"
)


def told(check: AnyCheck, session: Session, error: BaseException) -> Story:
    """The failure as a story; writes its crash file on the way."""
    case = getattr(error, "case", None)
    notes = [*([_UNSTEADY] if isinstance(error, ExceptionGroup) else []), *getattr(error, "remarks", ())]
    story = _about(check, error)
    if case is None:
        return dataclasses.replace(story, command=_command(check, session, ""), notes=(*story.notes, *notes))
    crash_file, trouble = _stored(check, session, case, story.effect, is_raised=broken_promise(error) is None)
    return dataclasses.replace(
        story,
        example="" if isinstance(case, LawCase) else repr(case),
        command=_command(check, session, crash_file),
        crash_file=crash_file,
        notes=(*story.notes, *notes, *trouble),
    )


def _about(check: AnyCheck, error: BaseException) -> Story:
    """What was broken, and how much."""
    broken = broken_promise(error)
    if broken is not None:
        meaning, *usually = _paragraphs(check.meaning)
        evidence = broken.evidence or "one example decides"
        diagnosis = " ".join(usually).removeprefix("Usually ")
        return Story(check.code, check.title, meaning, broken.effect, evidence, usually=diagnosis)
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


def _paragraphs(text: str) -> list[str]:
    """One line each."""
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _stored(
    check: AnyCheck, session: Session, case: Any, effect: str, *, is_raised: bool
) -> tuple[str, tuple[str, ...]]:
    """The crash file of a failure, and what prevented it; an exception that was seen before has one already."""
    kind = without_numbers(effect)
    if is_raised and kind in session.stored:
        return session.stored[kind], ()
    path, trouble = _saved(check, session, case, effect)
    if is_raised and path:
        session.stored[kind] = path
    return path, trouble


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


_NAMED = " --sampler SPEC  (SPEC: pkg.module:factory of your sampler, as `fairdraw check` takes it)"


def _command(check: AnyCheck, session: Session, crash_file: str) -> str:
    """What to type to see the failure again."""
    search = session.command or (_search(check, session) if session.spec is not None else "")
    if not crash_file:
        return search
    replay = f"fairdraw replay {crash_file}" + ("" if session.spec else _NAMED)
    # A part of a profile, chosen for a time budget, is not what the command line would choose again.
    is_whole = session.profile.scale == 1
    return f"{replay}  (or search again: {search})" if search and is_whole else replay


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
