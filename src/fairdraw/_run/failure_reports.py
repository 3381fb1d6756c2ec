"""From an exception to a failure_report: who raised, what it means, the crash file, and what to type to see it
again.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import traceback
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairdraw._core.budget import unwrapped
from fairdraw._core.checks import DistributionCase
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.failures import AdapterError, CheckFailure, FailureReport, raised_by, without_numbers
from fairdraw._run.case_features import asked_for
from fairdraw._run.crash import Crash, write_crash
from fairdraw._run.loading import last_line

if TYPE_CHECKING:
    from fairdraw._core.checks import AnyCheck
    from fairdraw._run.runner import Session
    from fairdraw.protocols import AnySampler

__all__ = ["RAISED", "broken_promise", "raised_meanings", "told"]

RAISED = {
    "sampler raised an exception": (
        "A sampler answers every batch of its contract, but for what it declares unsupported, with a reason."
    ),
    "sampler returned something that is not an output": "{output}",
    "reference raised an exception": (
        "The check compares with a reference sampler, and that one could not take this batch. Name another with "
        "--reference, or none."
    ),
    "device reported an error": (
        "A device reports an error at whichever call comes next, so this place says little: the sampler's last kernels "
        "are the first suspects. After an illegal access every call fails until the process ends. Run this check "
        "alone, with CUDA_LAUNCH_BLOCKING=1."
    ),
    "check raised an exception": (
        "The check could make no sense of the answer. Look at the other failures first: the answer probably breaks a "
        "promise that one of them names. If there is none, it is a fault of fairdraw."
    ),
}
"""What ends a check without a broken promise, and what it means; all of it is told as `REJ100` (or `SAM100` ...)."""

_OUTPUTS = {
    "rejection": "An output is an int32 tensor [batch_size, max_spec_len + 1] on the batch's device.",
    "sampling": "An output is an int64 or int32 tensor [batch_size] on the batch's device; of `draft`, a Drafted.",
    "logits_plan": "An output is a tensor of logits with the shape of those given.",
    "penalties": "An output is a float32 tensor with the shape of the logits given.",
    "thinking_budget": "An output is a dict: row to pairs of (position, token id).",
}


def raised_meanings(contract: str) -> dict[str, str]:
    """Title to meaning of everything that is told under the contract's code of exceptions."""
    return {title: meaning.format(output=_OUTPUTS[contract]) for title, meaning in RAISED.items()}


def broken_promise(error: BaseException) -> CheckFailure | None:
    """The broken promise in `error`; Hypothesis wraps it in a group if the same case did not fail again.

    One that the sampler raises itself is an exception like any other.
    """
    return next((e for e in _grouped(error) if isinstance(e, CheckFailure) and raised_by(e) is None), None)


def _grouped(error: BaseException) -> tuple[BaseException, ...]:
    """What Hypothesis has put into a group; `error` itself if it is none of its groups."""
    from hypothesis.errors import FlakyFailure

    return error.exceptions if isinstance(error, FlakyFailure) else (error,)


_UNSTEADY = (
    "tried again, the same example did not fail: two equal calls got two answers. The sampler keeps state between "
    "calls, or draws noise of its own; if it is meant to, decline explicit-noise and seeded-noise"
)


def told(check: AnyCheck, session: Session, error: BaseException, sampler: AnySampler) -> FailureReport:
    """The failure of `sampler` as a failure_report; writes its crash file on the way."""
    case = vars(error).get("case")
    notes = [*([_UNSTEADY] if _grouped(error) != (error,) else []), *vars(error).get("remarks", ())]
    failure_report = _about(check, session, error, sampler)
    notes += _to_declare(check, case, error, sampler)
    if case is None:
        search = _search(check, session)
        return dataclasses.replace(failure_report, command=search, notes=(*failure_report.notes, *notes))
    crash_file, trouble = _stored(check, session, case, failure_report.effect, is_raised=broken_promise(error) is None)
    return dataclasses.replace(
        failure_report,
        example="" if isinstance(case, DistributionCase) else repr(case),
        crash_file=crash_file,
        notes=(*failure_report.notes, *notes, *trouble, *_by_hand(session, crash_file)),
        **_commands(check, session, crash_file),
    )


def _to_declare(check: AnyCheck, case: Any, error: BaseException, sampler: AnySampler) -> list[str]:
    """What to declare if the sampler was never meant to take the example; nothing if no capability can be named."""
    if broken_promise(error) is not None or not any(raised_by(e) is sampler for e in _grouped(error)):
        return []
    try:
        words = asked_for(case, check.needs)
    except Exception:  # the case cannot be built again here; then nothing can be said about it
        return []
    lines = [f'unsupported={{"{word}": "why"}}' for word in words]
    return [f"only if it was never meant to take this: declare in the adapter {' or '.join(lines)}"] if lines else []


def _about(check: AnyCheck, session: Session, error: BaseException, sampler: AnySampler) -> FailureReport:
    """What was broken, and how much."""
    broken = broken_promise(error)
    if broken is not None:
        meaning, *usually = _paragraphs(check.meaning)
        evidence = broken.evidence or "one example decides"
        diagnosis = " ".join(usually).removeprefix("Usually ")
        return FailureReport(check.code, check.title, meaning, broken.effect, evidence, usually=diagnosis)
    first = next((e for e in _grouped(error) if raised_by(e) is not None), error)
    title = _raised_title(first, sampler, session.reference)
    code = CONTRACTS[check.contract].raised
    return FailureReport(
        code,
        f"{title} while asked {check.code}",
        raised_meanings(check.contract)[title],
        str(first) if isinstance(first, AdapterError) else last_line(first),
        notes=(f"seen while checking {check.id}",),
    )


def _raised_title(error: BaseException, sampler: AnySampler, reference: AnySampler | None) -> str:
    """Who raised, by the mark that `calling` leaves: the sampler, whom it is compared with, or fairdraw.

    A mark of somebody else's is that of the specification, which is called as samplers are, and is ours.
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
    """Whether the code of one of its properties is among the frames: they are read in many places."""
    members = (member for kind in type(sampler).__mro__ for member in vars(kind).values())
    codes = {member.fget.__code__ for member in members if isinstance(member, property) and member.fget}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_of_device(error: BaseException) -> bool:
    """Whether torch says that the accelerator failed."""
    kind = getattr(sys.modules.get("torch"), "AcceleratorError", None)
    return kind is not None and isinstance(error, kind)


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


def _commands(check: AnyCheck, session: Session, crash_file: str) -> dict[str, str]:
    """What to type to see the failure again, as fields of the failure_report: each can be pasted as it is."""
    search = _search(check, session)
    if not crash_file:
        return {"command": search}
    replay = shlex.join(["fairdraw", "replay", crash_file])
    if session.spec is None:  # an object of a test: a person has to say where it comes from (`_by_hand`)
        return {"command": search}
    # A part of a profile, chosen for a time budget, is not what the command line would choose again.
    return {"command": replay, "search": search if session.profile.scale == 1 else ""}


def _by_hand(session: Session, crash_file: str) -> tuple[str, ...]:
    """How to replay the case of a sampler that has no name on the command line."""
    if not crash_file or session.spec is not None:
        return ()
    replay = shlex.join(["fairdraw", "replay", crash_file])
    return (f"this case alone: {replay} --sampler SPEC, with pkg.module:factory of your sampler as SPEC",)


def _search(check: AnyCheck, session: Session) -> str:
    """The search again, for this check alone, by the program that was started; empty if nothing can be named."""
    if session.command or session.spec is None:
        return session.command
    options = check.again(session.profile.name, session.seed)
    if check.differential and session.reference_spec:
        options["--reference"] = session.reference_spec
    if not session.under_pytest:
        return shlex.join(["fairdraw", "check", session.spec, *chain(*options.items())])
    ours = {option.replace("--", "--fairdraw-"): value for option, value in options.items()}
    return shlex.join(["pytest", "--pyargs", "fairdraw", "--sampler", session.spec, *chain(*ours.items())])
