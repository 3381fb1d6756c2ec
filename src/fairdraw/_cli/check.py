"""The command `fairdraw check`: run the checks of a sampler's contract, and say what they amount to.

The sampler lives in worker processes (`workers`). This one prints and writes; a signal ends the workers, and what was
found until then is kept and reported.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fairdraw._cli.job import Job
from fairdraw._cli.parts import EXIT_CODES, Refused, or_refuse, with_progress
from fairdraw._cli.workers import open_crew
from fairdraw._core.checks import PROFILES
from fairdraw._core.pulse import DEFAULT_CALL_TIMEOUT
from fairdraw._report.files import RunFiles, require_writable
from fairdraw._report.html import shown_from
from fairdraw._report.summary import Header, Summary, broken_texts, progress_line
from fairdraw._report.verdict import NOTHING_RUN, Scope
from fairdraw._run import expected
from fairdraw._run.loading import SUITES, CannotStart, require_extra
from fairdraw._run.runner import DEFAULT_SEED, parse_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from fairdraw._cli.job import Plan
    from fairdraw._cli.workers import Crew
    from fairdraw._report.html import Shown
    from fairdraw._run.controls import Control
    from fairdraw._run.runner import CheckRecord

__all__ = ["check_command"]


@dataclass(frozen=True)
class _Asked:
    """The command line, as it was written; the options say what each field is."""

    spec: str
    profile: str
    only: str | None
    seed: int
    reference: str | None
    keywords: tuple[str, ...]
    workers: int
    call_timeout: float
    time_budget: float | None
    json_file: Path | None
    html_file: Path | None
    xfails: Path | None
    baseline: Path | None
    write_baseline: Path | None
    pictures: Path | None
    ledger: Path | None

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.json_file, self.html_file)

    @property
    def job(self) -> Job:
        """What workers need to know."""
        return Job(
            self.spec,
            self.profile,
            self.only,
            self.seed,
            self.reference,
            self.keywords,
            ends_at=None if self.time_budget is None else time.time() + self.time_budget,
            xfails=self.xfails,
            baseline=self.baseline,
            ledger=self.ledger,
        )

    def refuse_early(self) -> None:
        """Refuse what would lose its result after a long run."""
        self.files.require_writable()
        require_writable("--pictures", self.pictures)
        if self.pictures is not None:
            require_extra("--pictures", "matplotlib")
        require_writable("--ledger", self.ledger)
        if self.write_baseline is not None:
            expected.require_new(self.write_baseline)
            require_writable("--write-baseline", self.write_baseline)


def _seed(text: str | int) -> int:
    try:
        return parse_seed(str(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("check", epilog=EXIT_CODES)
@click.argument("spec")
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", help="How much is tried; ci if omitted.")
@click.option("--only", type=click.Choice(list(SUITES)), help="One suite.")
@click.option(
    "--seed", type=_seed, default=DEFAULT_SEED, metavar="N|fresh", help=f"Of the cases; {DEFAULT_SEED} in this release."
)
@click.option("--reference", metavar="SPEC|none", help="Compare with this sampler; vllm if it can be imported.")
@click.option("-k", "keywords", metavar="TEXT", multiple=True, help="Checks whose code or title has TEXT; repeatable.")
@click.option(
    "-n",
    "workers",
    type=click.IntRange(0),
    envvar="FAIRDRAW_WORKERS",
    default=1,
    show_default=True,
    show_envvar=True,
    help="Worker processes; 0 runs everything in this one, for a debugger.",
)
@click.option(
    "--call-timeout",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_CALL_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="A call of the sampler that takes longer hangs.",
)
@click.option(
    "--time-budget", type=click.FloatRange(0), metavar="SECONDS", help="What is not decided by then is inconclusive."
)
@click.option("--json", "json_file", type=_FILE, help="Write the run as JSON lines; see: fairdraw schema.")
@click.option("--html", "html_file", type=_FILE, help="Write the run as a page.")
@click.option("--xfails", type=click.Path(path_type=Path), help="TOML: code = reason. Known failures; strict.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Only failures that are not in it are red.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Freeze what fails in this run.")
@click.option("--pictures", type=_FOLDER, help="A picture per statistic, here.")
@click.option("--ledger", type=_FILE, help="Adds up nights; with --seed fresh.")
def check_command(**options: Any) -> None:  # Any: click's, by the fields of _Asked
    """Ask the sampler SPEC to keep its promises.

    SPEC is a built-in name (triton, sampling, penalties ...), a registered one, or pkg.module:factory; its method says
    which contract it is under. Cases that break a promise are shrunk and stored under .fairdraw/crashes. Mutants (known
    wrong samplers) are tried in the same run, which says how many it catches; a check that is blind makes it red.
    """
    asked = _Asked(**options)
    or_refuse(asked.refuse_early)
    run = _Run(asked)
    crew = open_crew(asked.job, asked.workers, asked.call_timeout)
    try:
        with _signals_interrupt():
            run.conduct(crew)
    except KeyboardInterrupt as interrupt:
        run.signal = str(interrupt) or "SIGINT"
    except CannotStart as refusal:
        run.refusal = str(refusal)
    finally:
        crew.close()
    if run.refusal and run.plan is None:
        raise Refused(run.refusal)
    with _signals_ignored():
        exit_code = run.report()
    if run.refusal:  # after the checks: what they found is not lost
        raise Refused(run.refusal)
    sys.exit(exit_code)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: what was found is reported."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        names = []
    before = {name: signal.signal(getattr(signal, name), _interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """A second signal does not cut the report of the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), signal.SIG_IGN) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


@dataclass
class _Run:
    """One run: what it found so far, whatever ends it."""

    asked: _Asked
    plan: Plan | None = None
    records: list[CheckRecord] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    signal: str = ""
    refusal: str = ""

    def conduct(self, crew: Crew) -> None:
        """Do everything that was asked for."""
        self.plan = plan = crew.plan()
        if plan.nothing:
            click.echo(f"NOTHING MEASURED: {plan.nothing}")
            self.asked.files.write(plan.header, Summary([]))  # no older file may pass for this run's
            sys.exit(NOTHING_RUN)
        click.echo("\n".join(plan.header.lines()))
        self.asked.files.start(plan.header, len(plan.pieces))
        with_progress("checks", len(plan.pieces), crew.records(plan.pieces), self._line, self.records)
        tried = crew.controls(plan.controls)
        with_progress("controls", len(plan.controls), tried, _control_line, self.controls)
        if self.asked.pictures is not None:
            written = crew.draw_pictures(self.asked.pictures)
            click.echo(f"{len(written)} pictures in {self.asked.pictures}")
            self.shown = shown_from(written)

    def _line(self, record: CheckRecord) -> str:
        self.asked.files.add(record)
        return progress_line(record)

    def report(self) -> int:
        """Print failures, summary and verdict, write the files, and give the exit code."""
        summary = Summary(sorted(self.records, key=lambda record: record.code), self.controls, self._scope())
        _print(summary)
        _write(self.asked, self._header(), summary, self.shown)
        return summary.exit_code

    def _scope(self) -> Scope:
        planned = len(self.plan.pieces) if self.plan else 0
        return Scope(planned - len(self.records), self.asked.job.narrowed, self.signal)

    def _header(self) -> Header:
        """The plan's; of a run that was interrupted before there was one, what the command line says."""
        asked = self.asked
        unknown = "not loaded when the run ended"
        return self.plan.header if self.plan else Header(asked.spec, "unknown", asked.profile, asked.seed, unknown, {})


def _control_line(control: Control) -> str | None:
    """Mutants that were caught are only counted; so are those that the summary names as not tried."""
    return f"missed   {control.name} (not caught by {control.code})" if control.is_missed else None


_MOST_STORIES = 10
"""One fault breaks dozens of promises; nobody reads the eleventh failure_report. Files and crash files have all of
them.
"""


def _print(summary: Summary) -> None:
    """Print failure reports, summary and verdict."""
    texts = broken_texts(summary.causes)
    for text in texts[:_MOST_STORIES]:
        click.echo(f"\n{text}")
    if texts[_MOST_STORIES:]:
        click.echo("\nbroken, too (-k CODE tells one; --json and --html tell all):")
        click.echo("\n".join(f"  {text.splitlines()[0]}" for text in texts[_MOST_STORIES:]))
    *lines, verdict = summary.lines()
    click.echo("\n" + "\n".join(lines))
    click.secho(verdict, fg=summary.judgement.colour, bold=True)


def _write(asked: _Asked, header: Header, summary: Summary, shown: list[Shown]) -> None:
    """Write the files; the verdict has been printed, whatever becomes of them."""
    frozen = asked.write_baseline
    if frozen is not None and not summary.scope.signal:
        failed = [record.code for record in summary.records if record.status in ("failed", "error")]
        or_refuse(lambda: expected.write_baseline(frozen, asked.spec, failed))
    or_refuse(lambda: asked.files.write(header, summary, shown))
