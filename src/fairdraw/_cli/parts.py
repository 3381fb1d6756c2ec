"""What the commands share: refusing a caller's mistake, and showing progress."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairdraw import __version__
from fairdraw._run.loading import CannotStart, all_checks, all_questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairdraw._core.checks import AnyCheck, Question

__all__ = ["EXIT_CODES", "Refused", "find_check", "find_question", "or_refuse", "wants_colour", "with_progress"]

T = TypeVar("T")
Q = TypeVar("Q", bound="AnyCheck | Question")

EXIT_CODES = """\b
Exit codes:
    0  green: properties and distributions were judged and passed (or fail as known); the verdict names what was left
       out on request (--only, -k), and a contract that has no distributions
    1  red: a check failed, the sampler raised, a known failure is gone, a mutant was missed, or a check is undecided
    2  usage: unknown sampler, check or option; a file that cannot be read, is something else, or cannot be written
    3  nothing was measured
   10  green, but distributions (or properties) were not judged: every one of these checks was skipped as unsupported
   11  incomplete: a check hung or its process died, or the time budget ended with checks undecided
  130  incomplete: interrupted by a signal
"""


class Refused(click.ClickException):
    """A caller's mistake: one sentence, exit code 2."""

    exit_code = 2


def or_refuse(action: Callable[[], T]) -> T:
    """What `action` gives; its refusal ends the program."""
    try:
        return action()
    except CannotStart as error:
        raise Refused(str(error)) from None


def find_check(code: str) -> AnyCheck:
    """The check of that code."""
    return _of_code(code, all_checks())


def find_question(code: str) -> Question:
    """The question of that code: a check, or what is asked beside them."""
    return _of_code(code, all_questions())


def _of_code(code: str, known: Iterable[Q]) -> Q:
    for one in known:
        if one.code == code.upper():
            return one
    raise Refused(f"code={code!r} is no check of fairdraw {__version__}. See: fairdraw list")


def wants_colour() -> bool | None:
    """Whether to colour, by the environment: `NO_COLOR`, else `FORCE_COLOR`, whatever their values unless empty.

    `None` if neither does: then a terminal gets colours, and nothing else.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def with_progress(
    what: str, total: int, results: Iterable[T], line: Callable[[T], str | None], into: list[T]
) -> list[T]:
    """Put `results` into a list: under a bar on a terminal, a line each elsewhere.

    Args:
        into: What was found stands there even if an exception ends the collecting.
    """
    # FORCE_COLOR asks for colours, not for a bar that moves in a file.
    console = Console(highlight=False, markup=False, soft_wrap=True, force_terminal=sys.stdout.isatty())
    if not console.is_terminal:
        for result in results:
            into.append(result)
            text = line(result)
            if text is not None:
                click.echo(text)
        return into
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        for result in results:
            bar.advance(task)
            into.append(result)
    return into
