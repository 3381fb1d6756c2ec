"""How a failure is told: a code, its meaning, the effect, the evidence, the smallest example, a command."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairdraw._core.pulse import call_begins, call_ends

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "AdapterError",
    "CapabilityUnsupported",
    "CheckFailure",
    "FailureReport",
    "Inconclusive",
    "calling",
    "raised_by",
    "without_numbers",
]


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

    The block holds calls of somebody else's object and nothing else, so that blame never depends on the names of files
    or functions. The exception keeps its type, text and traceback. Of nested blocks the outermost counts: who calls a
    helper answers for it. A class, not a generator: it adds no frames to the traceback.

    A call of the sampler begins and ends here, too, for whoever watches for calls that hang (`fairdraw._core.pulse`).

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
        call_begins()

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        call_ends()
        if error is not None:
            vars(error)[_CALLED] = self.subject  # not setattr: a class of theirs may forbid or count it


def raised_by(error: BaseException) -> object | None:
    """Whose code raised `error`: what `calling` was given; `None` if no such block was left by it."""
    return vars(error).get(_CALLED)


class AdapterError(TypeError):
    """A sampler returned something that is not an output of its contract (wrong type, shape, dtype, device)."""


class CapabilityUnsupported(Exception):
    """A check needs a capability that the sampler does not support; a visible skip, not a failure."""


class Inconclusive(Exception):
    """A check could not be decided: too little time, or a budget that shows nothing. Never green."""


class CheckFailure(AssertionError):
    """A sampler broke a promise.

    Args:
        effect: What was seen against what is promised, in numbers.
        evidence: Of a statistical check, with its threshold; empty for properties, where one example decides.
        distance: For statistical checks, the estimated total-variation distance.
    """

    def __init__(self, effect: str, *, evidence: str = "", distance: float | None = None) -> None:
        super().__init__(effect if not evidence else f"{effect} ({evidence})")
        self.effect = effect
        self.evidence = evidence
        self.distance = distance


@dataclass(frozen=True)
class FailureReport:
    """Everything a reader needs about one failure, in the order in which it is printed.

    Args:
        meaning: What is promised.
        usually: What it usually means that the promise is broken, and where to look.
        command: What shows it again: one line that can be pasted into a shell.
        search: What searches for it anew, if that is another command.
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

    def lines(self) -> list[str]:
        """The failure as text, one fact a line; commands stand alone on lines of their own, to be pasted."""
        rows = [
            ("", f"{self.code} {self.title}"),
            ("meaning", self.meaning),
            ("usually", self.usually),
            ("effect", self.effect),
            ("evidence", self.evidence),
            ("smallest example", self.example),
            ("reproduce", self.command),
            ("search again", self.search),
            ("crash file", self.crash_file),
            *(("note", note) for note in self.notes),
        ]
        return [line for label, text in rows if text for line in _labelled(label, text)]


def _labelled(label: str, text: str) -> list[str]:
    """The text behind its label; a command below it."""
    if label in ("reproduce", "search again"):
        return [f"{label}:", text]
    return [f"{label}: {text}" if label else text]
