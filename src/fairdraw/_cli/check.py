"""The command `fairdraw check`: run the checks of each sampler's contract, and report the results.

Samplers run in worker processes (`workers`). This process prints and writes. A signal ends the workers; what was found
until then is kept and reported.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from fairdraw import __version__
from fairdraw._cli import parts
from fairdraw._cli.job import Job, Plan
from fairdraw._cli.parts import EXIT_CODES, FILE, FOLDER, POSITIVE, Display, Number, Refused, or_refuse, with_options
from fairdraw._cli.project import from_project
from fairdraw._cli.server import finish_journal, named, server_options, settings_of
from fairdraw._cli.workers import Crew, Steps, open_crew, wait_for
from fairdraw._core.checks import PROFILES
from fairdraw._core.interrupts import Interrupts
from fairdraw._core.last_words import last_words
from fairdraw._core.pulse import DEFAULT_CALL_TIMEOUT
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._report.files import FORMS, RunFiles, require_apart, require_writable
from fairdraw._report.html import Shown, shown_from
from fairdraw._report.summary import Header, Summary, broken_texts, progress_line, start_of_run
from fairdraw._report.verdict import INTERRUPTED, Scope, Verdict, combined
from fairdraw._run import expected
from fairdraw._run.controls import Control, blindness
from fairdraw._run.loading import SUITES, CannotStart, is_address, require_extra
from fairdraw._run.runner import CheckRecord, parse_seed
from fairdraw.contracts import ServerSettings

T = TypeVar("T")


_OUTPUTS = (*FORMS, "write_baseline", "pictures", "ledger")
"""Options that name what each sampler needs for itself."""


@dataclass(frozen=True)
class _Options:
    """The command line for one sampler, as it was written.

    Args:
        outputs: Option to the file or folder that it names.
    """

    job: Job
    outputs: Mapping[str, Path]
    workers: int
    call_timeout: float
    time_budget: float | None
    exit_first: bool
    verbose: bool

    def with_own_files(self) -> _Options:
        """The same with the sampler's name put into the names of files.

        Raises:
            CannotStart: If several samplers would write the same file.
        """
        for name, path in self.outputs.items():
            if "{sampler}" not in str(path):
                option, own = _option(name), path.with_name(f"{path.stem}-{{sampler}}{path.suffix}")
                raise CannotStart(f"{option}={path}, but each sampler has a file of its own. Write {option} '{own}'.")
        slug = re.sub(r"[^A-Za-z0-9]+", "-", self.job.spec).strip("-")
        own_paths = {name: Path(str(path).replace("{sampler}", slug)) for name, path in self.outputs.items()}
        return replace(self, outputs=own_paths)

    @property
    def files(self) -> RunFiles:
        return RunFiles({form: path for form, path in self.outputs.items() if form in FORMS})

    @property
    def begun(self) -> Job:
        """What workers need to know; the time budget starts now."""
        ends_at = None if self.time_budget is None else time.time() + self.time_budget
        return replace(self.job, ends_at=ends_at, ledger=self.outputs.get("ledger"))

    def named_files(self, *, label: str = "") -> list[tuple[str, Path | None]]:
        """Options, and the files that they name; what is written has the label."""
        job, server = self.job, self.job.settings or ServerSettings()
        files = [("--xfails", job.xfails), ("--baseline", job.baseline)]
        files += [("--journal", server.journal), ("--against-journal", server.against)]
        return files + [(_option(name) + label, path) for name, path in self.outputs.items() if name != "pictures"]

    def refuse_early(self) -> None:
        """Refuse now what would lose its result after a long run."""
        self.files.require_writable()
        if "pictures" in self.outputs:
            require_extra("--pictures", "matplotlib")
        if "write_baseline" in self.outputs:
            expected.require_new(self.outputs["write_baseline"])
        for name, path in self.outputs.items():
            if name not in FORMS:
                require_writable(_option(name), path)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _seed(text: str | int) -> int:
    try:
        return parse_seed(str(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_PATH = click.Path(path_type=Path)
_WORKERS = "Use so many worker processes for all samplers; 0 runs everything in this one, for a debugger."
_BY_NAME: dict[str, Any] = {"envvar": "FAIRDRAW_WORKERS", "show_envvar": True}  # Any: of click's options
_HANGING = "Count a call of the sampler that takes longer as hanging."
_BUDGET = "Stop each sampler then; what is undecided is inconclusive."


@click.command("check", epilog=EXIT_CODES)
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", help="Set how much to try.")
@click.option("--only", type=click.Choice(list(SUITES)), help="Run the checks of one suite.")
@click.option("--seed", type=_seed, default=DEFAULT_SEED, metavar="N|fresh", help="Seed the cases.")
@click.option("--reference", metavar="SPEC|none", help="Compare with this sampler.  [default: vLLM's, if importable]")
@click.option("-k", "keywords", metavar="TEXT", multiple=True, help="Choose checks by code or title; repeatable.")
@click.option("-n", "workers", type=click.IntRange(0, 256), metavar="N", default=1, help=_WORKERS, **_BY_NAME)
@click.option("--call-timeout", type=POSITIVE, default=DEFAULT_CALL_TIMEOUT, metavar="SECONDS", help=_HANGING)
@click.option("--time-budget", type=Number(), metavar="SECONDS", help=_BUDGET)
@click.option("-x", "--exitfirst", "exit_first", is_flag=True, help="Stop at the first check that fails.")
@click.option("--no-controls", is_flag=True, help="Leave out mutation controls, which show that the checks can fail.")
@click.option("-q", "--quiet", is_flag=True, help="Print failure reports and the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for every check.")
@parts.colour_option
@with_options([click.option(f"--{name}", type=FILE, help=f"Write {words}.") for name, words in FORMS.items()])
@click.option("--xfails", type=_PATH, help="Require these failures, in TOML: code = reason.")
@click.option("--no-known", is_flag=True, help="Fail on defects that the sampler declares as known, too.")
@click.option("--baseline", type=_PATH, help="Ignore the failures listed here; only new ones fail the run.")
@click.option("--write-baseline", type=_PATH, help="Write what fails in this run as a baseline.")
@click.option("--pictures", type=FOLDER, help="Draw a picture of each statistic in this folder.")
@click.option("--ledger", type=FILE, help="Add up nightly runs in this file; needs --seed fresh.")
@server_options
def check_command(specs: tuple[str, ...], **options: Any) -> None:  # Any: click's, by the fields of Job and _Options
    """Run the checks of its contract on each sampler SPEC.

    SPEC is a name of `fairdraw list --samplers` (rejection/triton, penalties ...), pkg.module:factory, or the address
    of a server (http://127.0.0.1:8000/v1). The method of the sampler says which contract it has. Cases that fail are
    shrunk and stored under .fairdraw/crashes. The same run tries mutants (known wrong samplers) and says how many of
    them the checks catch; a check that misses its mutant makes the run red.

    Without SPEC, the sampler of the table [tool.fairdraw] is checked. The table stands in the nearest pyproject.toml,
    here or in a folder above, that has one: sampler, profile, baseline, budget (seconds), unsupported. The command line
    wins.

    Several samplers share the workers. Each has its own verdict, and the worst one decides the exit code. Names of
    files then contain {sampler}, for example --html 'run-{sampler}.html'.
    """
    specs, quiet = or_refuse(lambda: from_project(specs, options)), options.pop("quiet")
    names = [named(spec, options["model"]) for spec in dict.fromkeys(specs)]
    settings = or_refuse(lambda: settings_of(options, names))
    if any(map(is_address, names)):  # one process: the answers that its checks share are in it
        options["workers"] = min(options["workers"], 1)
    outputs = {name: path for name in _OUTPUTS if (path := options.pop(name)) is not None}
    of_job = {name: options.pop(name) for name in vars(Job("")) if name in options}
    chosen = [_Options(Job(name, settings=settings, **of_job), outputs, **options) for name in names]
    if len(chosen) > 1:
        chosen = or_refuse(lambda: [one.with_own_files() for one in chosen])
    labels = ["" if len(chosen) == 1 else f" of {one.job.spec}" for one in chosen]
    files = [file for one, label in zip(chosen, labels, strict=True) for file in one.named_files(label=label)]
    or_refuse(lambda: require_apart(files))
    for one in chosen:
        or_refuse(one.refuse_early)
    display = Display(quiet=quiet)
    runs = [_Run(one, display, is_alone=len(chosen) == 1) for one in chosen]
    _conduct(runs, chosen[0].workers, display)
    sys.exit(_exit_code(runs, display))


def _exit_code(runs: Sequence[_Run], display: Display) -> int:
    """The exit code of all runs; for several samplers their common verdict is printed.

    Raises:
        Refused: If one could not be run, or the verdict not printed. This comes last: what others found is not lost.
    """
    refused = [run.refusal for run in runs if run.refusal]
    verdicts = {run.options.job.spec: run.verdict for run in runs if run.verdict is not None}
    if len(runs) > 1:
        both = combined(verdicts, len(runs))
        display.say(f"\nall samplers: {both.text}", colour=both.colour, always=True)
        if not (refused or display.trouble):
            return both.exit_code
    if display.trouble:
        said = "; ".join(f"{spec}: {verdict.text}" for spec, verdict in verdicts.items())
        refused.append(f"standard output cannot be written: {display.trouble}. Send it elsewhere. The verdict: {said}")
    if refused:
        raise Refused("\n".join(refused))
    return next(iter(verdicts.values())).exit_code


def _conduct(runs: Sequence[_Run], num_workers: int, display: Display) -> None:
    """Run all samplers, as many at a time as there are workers; then the last ones have all workers."""
    waiting = deque(runs)
    active: dict[_Run, Generator[bool, None, None]] = {}

    def report_left(how: str) -> int:
        """Report what was found until a sampler ended this process. Only with `-n 0` it can."""
        display.__exit__()
        try:
            for run in active:
                now = run.crew.running() if run.crew is not None else ()
                run.left = how + "".join(f" during {piece}" for piece in now if isinstance(piece, str))
                run.report()
            return _exit_code(runs, display)
        except Refused as refused:
            refused.show()
            return refused.exit_code

    with Interrupts(exit_code=INTERRUPTED), last_words(report_left):
        try:
            with display:
                _work_through(waiting, active, num_workers)
        except KeyboardInterrupt as interrupt:
            with Interrupts.held():
                for run, steps in active.items():
                    run.records += run.crew.begun() if run.crew is not None else []
                    steps.close()
                for run in [run for run in active or runs[:1] if run.verdict is None]:
                    run.signal = str(interrupt) or "SIGINT"
                    run.report()


def _work_through(waiting: deque[_Run], active: dict[_Run, Generator[bool, None, None]], num_workers: int) -> None:
    """Take runs from `waiting` to `active`, and do their steps until none is left."""
    while waiting or active:
        Interrupts.require_none()  # one that arrived during a report
        while waiting and len(active) < max(1, num_workers):
            active[waiting[0]] = waiting[0].steps(1)
            waiting.popleft()
        for place, run in enumerate(active):
            if run.crew is not None:
                run.crew.number = (num_workers - place - 1) // len(active) + 1 if num_workers else 0
        has_news = False
        for run in list(active):
            state = next(active[run], None)
            has_news = has_news or state is not False
            if state is None:
                del active[run]
        if not has_news:
            wait_for(run.crew for run in active if run.crew is not None)


@dataclass(eq=False)
class _Run:
    """One sampler's run: what it found so far, whatever ends it.

    Args:
        is_alone: No other sampler is run beside it.
        verdict: Once it was reported.
        refusal: Why it could not be started, or could not go on.
    """

    options: _Options
    display: Display
    is_alone: bool
    crew: Crew | None = None
    plan: Plan | None = None
    records: list[CheckRecord] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    signal: str = ""
    left: str = ""
    refusal: str = ""
    verdict: Verdict | None = None
    began: float = 0.0
    started: tuple[str, str] = ("", "")

    def steps(self, num_workers: int) -> Generator[bool, None, None]:
        """Do everything, a step at a time: whether the step brought something new."""
        self.display.say(f"fairdraw {__version__}: loading {self.options.job.spec} ...")
        self.began, self.started = time.monotonic(), start_of_run()
        self.crew = open_crew(self.options.begun, min(num_workers, self.options.workers), self.options.call_timeout)
        try:
            yield from self._work(self.crew)
        except CannotStart as refusal:
            self.refusal = str(refusal)
        finally:
            self.crew.close()
            for phase in ("checks", "mutation controls"):
                self.display.drop(f"{self.options.job.spec} {phase}")
        if self.verdict is None and self.plan is not None:
            self.report()

    def _work(self, crew: Crew) -> Generator[bool, None, None]:
        self.plan = plan = yield from _each(crew.plan())
        if plan.nothing:
            summary = Summary([], scope=Scope(nothing=plan.nothing, is_silent=plan.is_silent))
            self.verdict = summary.judgement
            self.display.say(self._label + summary.verdict, always=True)
            self.options.files.write(self._header(), summary)  # no older file may pass for this run's
            return
        if self.is_alone:
            self.display.say("\n".join(self._header().lines()))
        self.options.files.start(self._header(), len(plan.pieces))
        for found in crew.records(plan):
            if isinstance(found, Plan):
                news = [line for line in found.header.lines() if line not in plan.header.lines()]
                if news and self.is_alone:
                    self.display.say("\n".join(news))
                self.plan = plan = found
            elif found is not None:
                self.records.append(found)
                self.options.files.add(found)
                self._say_record(found)
            self._show("checks", len(self.records), len(plan.pieces), plan.titles)
            yield found is not None
            if self.options.exit_first and self.records and self.records[-1].is_broken:
                return
        for control in crew.controls(plan):
            if control is not None:
                self.controls.append(control)
                if control.is_blind:  # the summary names mutants that this run did not try or cannot show
                    self.display.say(f"{self._label}{blindness(control)}", colour="red")
            names = {number: control.name for number, control in enumerate(plan.controls)}
            self._show("mutation controls", len(self.controls), len(plan.controls), names)
            yield control is not None
        if folder := self.options.outputs.get("pictures"):
            written = yield from _each(crew.draw_pictures(folder, plan))
            self.display.say(f"{self._label}{len(written)} pictures in {folder}")
            self.shown = shown_from(written)

    @property
    def _label(self) -> str:
        """Stands before every line if other samplers are run, too."""
        return "" if self.is_alone else f"{self.options.job.spec}: "

    def _say_record(self, record: CheckRecord) -> None:
        """A line of its own for every check that fails, and for the others if they are wanted."""
        is_failure = record.is_broken or record.status == "incomplete"
        same = record.status == "incomplete" and any(record.reason == other.reason for other in self.records[:-1])
        record = replace(record, reason="for the same reason") if same else record
        if is_failure or self.options.verbose:
            self.display.say(self._label + progress_line(record), colour="red" if is_failure else None)

    def _show(self, phase: str, done: int, total: int, titles: Mapping[Any, str]) -> None:
        """Show progress. Any: a piece, or the number of a mutation control."""
        running = {} if self.crew is None else self.crew.running()
        expected = self.plan.seconds if self.plan is not None else 0.0
        if phase != "checks":
            self.display.drop(f"{self.options.job.spec} checks")
        named = {titles.get(what, str(what)): since for what, since in running.items()}
        self.display.show(f"{self.options.job.spec} {phase}", done, total, named, self.began, expected)

    def report(self) -> None:
        """Print failures, summary and verdict, and write the files. No signal cuts the report."""
        with Interrupts.held():
            records = sorted(self.records, key=lambda record: record.code)
            seconds = time.monotonic() - self.began
            summary = Summary(records, self.controls, self._scope(), seconds)
            if not self.is_alone:
                self.display.say("\n" + "\n".join(self._header().lines()))
            _print(summary, self.display, self._label)
            self.verdict = summary.judgement
            if not (self.signal or summary.scope.not_run or summary.count("inconclusive", "incomplete")):
                finish_journal(self.options.job.settings)
            _write(self.options, self._header(), summary, self.shown)

    def _scope(self) -> Scope:
        planned, totals = (len(self.plan.pieces), self.plan.totals) if self.plan else (0, {})
        not_run, old = planned - len(self.records), self._header().old_answers
        narrowed, scale = self.options.job.narrowed, self.plan.scale if self.plan else 1.0
        found = Scope(not_run, narrowed, self.signal, self.left, totals=totals, scale=scale, old_answers=old)
        return replace(found, without_controls="--no-controls" if self.options.job.no_controls else "")

    def _header(self) -> Header:
        """The plan's. If the run was interrupted before there was one, what the command line says."""
        job, (started, commit) = self.options.job, self.started
        header = self.plan.header if self.plan else Header.unloaded(job.spec, job.profile, job.seed)
        return replace(header, started=started, commit=commit)


def _each(steps: Steps[T]) -> Generator[bool, None, T]:
    """The steps of something that has nothing to show before it ends."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: T = ended.value
            return found
        yield False


_MOST_REPORTS = 3
"""One fault breaks dozens of checks, and the first report is the one to read. Files hold all of them."""


def _print(summary: Summary, display: Display, label: str) -> None:
    """Print failure reports, summary and verdict."""
    texts = broken_texts(summary.causes)
    for text in texts[:_MOST_REPORTS]:
        title, _, rest = text.partition("\n")
        display.say(f"\n{title}", colour="red", always=True)
        display.say(rest, always=True)
    if texts[_MOST_REPORTS:]:
        display.say("\nalso failed (-k CODE reports one; --html holds all reports):", always=True)
        display.say("\n".join(f"  {text.splitlines()[0]}" for text in texts[_MOST_REPORTS:]), always=True)
    *lines, verdict = summary.lines()
    display.say("\n" + "\n".join(lines))
    display.say(label + verdict, colour=summary.judgement.colour, always=True)


def _write(options: _Options, header: Header, summary: Summary, shown: list[Shown]) -> None:
    """Write the files. The verdict was printed before, whatever becomes of them."""
    frozen, job = options.outputs.get("write_baseline"), options.job
    if frozen is not None and not summary.scope.signal:
        or_refuse(lambda: expected.write_baseline(frozen, job.spec, job.profile, summary.records))
    or_refuse(lambda: options.files.write(header, summary, shown))
