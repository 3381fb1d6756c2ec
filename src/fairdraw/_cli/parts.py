"""What the commands share: refusing wrong usage, colours, and showing progress."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from fairdraw import __version__
from fairdraw._core.checks import AnyCheck
from fairdraw._core.foreign import one_line, printable
from fairdraw._core.spelling import did_you_mean
from fairdraw._report.summary import wrapped
from fairdraw._run.loading import CannotStart, all_checks, left_out
from fairdraw._run.pace import worded_seconds

T = TypeVar("T")

EXIT_CODES = """\b
Exit codes:
    0  green: properties and distributions were judged and passed (or fail as known); the verdict names what was left
       out on request (--only, -k), and a contract that has no distributions
    1  red: a check failed, the sampler raised, a known failure is gone, a mutant was missed, or a check is undecided
    2  usage: unknown sampler, check or option; a file that cannot be read, is something else, or cannot be written
    3  nothing was measured
   10  green, but distributions (or properties) were not judged: every one of these checks was skipped as unsupported
   11  incomplete: a check hung or its process died, a server cannot be reached or stopped to answer, or the time budget
       ended with checks undecided
  130  incomplete: interrupted by a signal
"""


class Refused(click.ClickException):
    """Wrong usage: one sentence, exit code 2."""

    exit_code = 2

    def format_message(self) -> str:
        return printable(self.message)


def or_refuse(action: Callable[[], T]) -> T:
    """The result of `action`; its refusal ends the program."""
    try:
        return action()
    except CannotStart as error:
        raise Refused(str(error)) from None


def echo(text: str = "", *, err: bool = False) -> None:
    """Print what may hold text of a sampler or a file; with `err` to stderr."""
    click.echo(printable(text), err=err)


def say_loading(what: str, *, err: bool = False) -> None:
    """Print a command's first line, before it imports anything: torch alone takes a second."""
    echo(f"fairdraw {__version__}: loading {what} ...", err=err)


def find_check(code: str, known: Iterable[AnyCheck] | None = None, words: Iterable[str] = ()) -> AnyCheck:
    """Return the check of that code, or another question of `known`; a refusal may also suggest one of `words`."""
    found = {one.code: one for one in known or all_checks()}
    if code.upper() in found:
        return found[code.upper()]
    near = did_you_mean(code.lower(), words) or did_you_mean(code.upper(), found)
    raise Refused(f"code={code!r} is no check of fairdraw {__version__}. {left_out() or near or 'See: fairdraw list'}")


def wants_colour() -> bool | None:
    """Whether to colour, by the environment: `NO_COLOR`, else `FORCE_COLOR`, whatever their values unless empty.

    `None` if neither is set: then a terminal gets colours, and nothing else does.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _set_colour(context: click.Context, _: click.Parameter, value: str) -> None:
    context.color = {"auto": wants_colour(), "always": True, "never": False}[value]


colour_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    is_eager=True,
    expose_value=False,
    callback=_set_colour,
    help="Choose colours; auto: on a terminal, unless NO_COLOR or FORCE_COLOR is set.",
)


Command = Any
"""A command of click's, before or after an option was added to it."""


def with_options(options: Iterable[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Return what adds the options to a command, in their order."""
    return lambda command: reduce(lambda before, option: option(before), reversed(list(options)), command)


class Number(click.FloatRange):
    """A number in a range, at most 1e9. NaN lies in none, though no comparison says so."""

    def __init__(self, least: float = 0.0, most: float = 1e9, *, min_open: bool = False) -> None:
        super().__init__(least, most, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # Any: click's
        """The number, or a refusal."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


POSITIVE = Number(min_open=True)
FILE, FOLDER = click.Path(dir_okay=False, path_type=Path), click.Path(file_okay=False, path_type=Path)
"""Types of options."""

_REST = Column(ratio=1, no_wrap=True, overflow="ellipsis")

HEARTBEAT_SECONDS, _MOST_SECONDS = 30.0, 300.0
"""Where output is no terminal, a line says that the run is alive: first after 30 s, then after twice as long each time,
at least every five minutes."""


class Display:
    """Shows what a run does: bars on a terminal, lines elsewhere, nothing of it if quiet. Use it as a context manager.

    Args:
        quiet: Show no progress; `say` prints nothing.
        clock: In seconds.

    Attributes:
        trouble: Why standard output cannot be written; empty while it can. The run goes on, because it writes files.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble = "" if sys.stdout is not None else "there is none"
        self.is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._quiet, self._clock = quiet, clock
        self._last_line = clock()
        self._beats: dict[str, tuple[float, float]] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars: Progress | None = None
        if self.is_terminal and not quiet:
            context = click.get_current_context(silent=True)
            no_colour = context is not None and context.color is False
            # FORCE_COLOR requests colours, not a bar that moves in a file.
            console = Console(highlight=False, markup=False, force_terminal=True, no_color=no_colour or None)
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=14, complete_style="cyan", finished_style="cyan"),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rest]}", markup=False, table_column=_REST),
                console=console,
                transient=True,
                expand=True,
            )

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str, *, colour: str | None = None, always: bool = False) -> None:
        """Print a permanent line, above the bars; wrapped at words on a terminal.

        Args:
            always: Even if quiet.
        """
        if self._quiet and not always:
            return
        self._last_line, text = self._clock(), printable(text)
        if self.is_terminal:
            text = wrapped(text, min(shutil.get_terminal_size().columns, 100))
        if self._bars is None or not self._bars.live.is_started:
            self._print(text, colour)
            return
        self._bars.console.print(Text(text, style=f"bold {colour}" if colour else ""), soft_wrap=True)

    def show(
        self, name: str, done: int, total: int, running: Mapping[str, float], since: float, expected: float = 0.0
    ) -> None:
        """Show how far a sampler is.

        Args:
            name: The sampler, and whether checks or controls are run.
            running: What runs now, and since when.
            since: When the sampler's run began.
            expected: Seconds that the whole run is expected to take; 0 if unknown.
        """
        now, name = self._clock(), one_line(name)
        running = {one_line(what): begun for what, begun in running.items()}
        about = f" of about {worded_seconds(expected)}" if expected else ""
        if self._bars is not None:
            rest = f"{worded_seconds(now - since)}{about}  {'; '.join(running)}"
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=total, rest=rest)
            self._bars.update(self._tasks[name], completed=done, rest=rest)
            return
        beat, gap = self._beats.get(name, (0.0, HEARTBEAT_SECONDS))
        if not self._quiet and now - max(self._last_line, beat) >= gap:
            self._beats[name] = now, min(_MOST_SECONDS, 2 * gap)
            current = "; ".join(f"{what} ({worded_seconds(now - begun)})" for what, begun in running.items())
            self._print(f"... {name}: {done} of {total} after {worded_seconds(now - since)}{about}; now: {current}")

    def _print(self, text: str, colour: str | None = None) -> None:
        """Print a line, unless a line before could not be printed: the reader left, or a disk is full."""
        if self.trouble:
            return
        try:
            click.secho(text, fg=colour, bold=colour is not None)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.stdout.flush()  # what is buffered would fail again at the end, and Python would exit with 120

    def drop(self, name: str) -> None:
        """Remove the bar of what is done."""
        if self._bars is not None and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
            self._bars.refresh()  # else the next line would be printed above a bar that is gone
