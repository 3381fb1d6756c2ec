"""How a check ends without a pass, as data; and the report of a failure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from fairdraw._core.foreign import make_printable
from fairdraw._core.isolation import enter_state, leave_state, read_state
from fairdraw._core.pulse import call_begins, call_ends


def without_numbers(text: str) -> str:
    """`text` without the numbers, which differ from case to case; but the place of an exception stays.

    Example:
        >>> without_numbers("IndexError: index 5 of [5, 3] (mine.py:14 in verify)")
        'IndexError: index N of [N, N] (mine.py:14 in verify)'
    """
    return re.sub(r"\b\d+\b(?! in )", "N", text)


_CALLED = "_fairdraw_called"


class calling:  # reads as a word: `with calling(sampler):`
    """Marks every exception that leaves the block as raised by `subject`; `raised_by` reads the mark.

    The block holds calls of the user's object and nothing else, so that blame never depends on names of files or
    functions. The exception keeps its type, text and traceback. Of nested blocks the outermost counts: a sampler is
    responsible for the helpers that it calls. A class, not a generator: it adds no frames to the traceback.

    The start and the end of the call are recorded, so that a call that hangs is found (`fairdraw._core.pulse`). What
    it changes of the process stays the subject's own (`fairdraw._core.isolation`).

    Example:
        >>> try:
        ...     with calling("their sampler"):
        ...         raise ValueError("theirs")
        ... except ValueError as error:
        ...     raised_by(error)
        'their sampler'
    """

    def __init__(self, subject: object) -> None:
        self.subject = subject

    def __enter__(self) -> None:
        self.before = read_state()
        enter_state(self.subject)
        call_begins()

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            call_ends()
        finally:
            leave_state(self.subject, self.before)
        if error is not None:
            foreign = _without_meaning_to_hypothesis(error)
            vars(foreign)[_CALLED] = self.subject  # not setattr: a class of the user's may forbid it
            if foreign is not error:
                raise foreign from None


def _without_meaning_to_hypothesis(error: BaseException) -> BaseException:
    """Return `error`, or its like if Hypothesis would drop the case for it (`hypothesis.reject()`)."""
    if type(error).__module__.partition(".")[0] != "hypothesis":
        return error
    like: type[RuntimeError] = type(type(error).__name__, (RuntimeError,), {"__module__": __name__})
    return like(*error.args).with_traceback(error.__traceback__)


def raised_by(error: BaseException) -> object | None:
    """Whose code raised `error`: what `calling` was given; `None` if no such block was left by it."""
    return vars(error).get(_CALLED)


class AdapterError(TypeError):
    """A sampler returned a value that is not an output of its contract (wrong type, shape, dtype or device)."""


class CapabilityUnsupported(Exception):
    """A check needs a capability that the sampler does not support; a visible skip, not a failure."""


class Ended(Exception):
    """What `run` of a check raises if the check did not pass.

    Args:
        case: The smallest case that failed, or what it takes to draw again; `None` if there is none.
        tried: Cases tried, or draws counted, until then.
        remarks: What a reader should know beside the effect.
    """

    case: Any = None  # Any: a case of the contract
    tried: int = 0
    remarks: tuple[str, ...] = ()


class Inconclusive(Ended):
    """A check could not be decided: too little time, or too few draws to show anything. Never green."""


class CheckFailure(Ended, AssertionError):
    """A sampler failed a check.

    Args:
        effect: What was seen and what is required, in numbers.
        evidence: Of a statistical check, with its threshold; empty for properties, where one example decides.
        distance: For statistical checks, the estimated total-variation distance.
    """

    def __init__(self, effect: str, *, evidence: str = "", distance: float | None = None) -> None:
        super().__init__(effect if not evidence else f"{effect} ({evidence})")
        self.effect = effect
        self.evidence = evidence
        self.distance = distance


class CaseRaised(Ended):
    """A case ended in an exception that is no result of the check; it is the `__cause__`."""


def failed(error: BaseException, case: Any, tried: int, remarks: tuple[str, ...] = ()) -> Ended:  # Any: a case
    """`error` with the case on which it was raised: itself if a check raised it, else as the cause of a `CaseRaised`.

    A `CheckFailure` that a sampler raises is an exception like any other.
    """
    if isinstance(error, CheckFailure) and raised_by(error) is None:
        ended: Ended = error
    else:
        ended = CaseRaised(f"{type(error).__name__}: {error} on {case!r}")
        ended.__cause__ = error
    ended.case, ended.tried, ended.remarks = case, tried, remarks
    return ended


NOT_AGAIN = "the same example did not fail when it was tried again"
"""Begins a note that stands before the usual causes: it tells of state, whatever else the check is about."""


@dataclass(frozen=True)
class FailureReport:
    """The report of one failure, in the order in which it is printed.

    Args:
        meaning: What is required.
        usually: The usual cause of a failure, and where to look.
        command: Reproduces the failure: one line that can be pasted into a shell.
        search: Searches for it again, if that is another command.
    """

    code: str
    title: str
    meaning: str
    effect: str
    evidence: str = "one example decides"
    example: str = ""
    command: str = ""
    crash_file: str = ""
    notes: tuple[str, ...] = field(default=())
    usually: str = ""
    search: str = ""

    def __post_init__(self) -> None:
        make_printable(self, lines=("effect", "evidence", "example", "notes"))

    @property
    def of_state(self) -> list[str]:
        """Notes that come first."""
        return [note for note in self.notes if note.startswith(NOT_AGAIN)]

    def lines(self) -> list[str]:
        """The failure as text, one fact a line; commands stand alone on lines of their own, to be pasted."""
        rows = [
            ("", f"{self.code} {self.title}"),
            ("meaning", self.meaning),
            *(("note", note) for note in self.of_state),
            ("usually", self.usually),
            ("effect", self.effect),
            ("evidence", self.evidence),
            ("smallest example", self.example),
            ("reproduce", self.command),
            ("search again", self.search),
            ("crash file", self.crash_file),
            *(("note", note) for note in self.notes if note not in self.of_state),
        ]
        return [line for label, text in rows if text for line in _labelled(label, text)]


def _labelled(label: str, text: str) -> list[str]:
    """The text behind its label, further lines indented so that none passes for ours; a command below it."""
    if label in ("reproduce", "search again"):
        return [f"{label}:", text]
    text = text.replace("\n", "\n  ")
    return [f"{label}: {text}" if label else text]
