"""The command line: check, list, explain, replay."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairdraw import __version__, expected
from fairdraw.bench_cli import bench_command
from fairdraw.checks import PROFILES, AnyCheck, Check
from fairdraw.contracts import CONTRACTS, contract_of
from fairdraw.controls import Control, controls_for, run_control
from fairdraw.crash import Crash, CrashFileError, read_crash
from fairdraw.html_report import page, shown_from
from fairdraw.loading import (
    LENSES,
    CannotStart,
    all_checks,
    load_reference,
    load_sampler,
)
from fairdraw.report import (
    BROKEN,
    GREEN,
    NOTHING_RUN,
    Header,
    Summary,
    broken_texts,
    count_checks,
    progress_line,
    run_as_json,
    worded_fairness,
)
from fairdraw.runner import (
    DEFAULT_SEED,
    RAISED,
    CheckRecord,
    Session,
    one_torch_thread,
    parse_seed,
    replay_case,
    run_check,
)
from fairdraw.skeleton import write_skeleton
from fairdraw.workers import run_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairdraw.protocols import Subject

__all__ = ["main"]

T = TypeVar("T")

_EXIT_CODES = """\b
Exit codes:
  0  green: every promise asked for was kept (or is a known defect)
  1  a promise is broken, the sampler raised, a known defect is gone, a planted fault was missed,
     or a check could not be decided
  2  usage: unknown sampler, check or option, unreadable file
  3  nothing was measured
"""


class Refused(click.ClickException):
    """A caller's mistake: one sentence, exit code 2."""

    exit_code = 2


def _seed(text: str | int) -> int:
    try:
        return parse_seed(str(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group(epilog=_EXIT_CODES)
@click.version_option(__version__, prog_name="fairdraw")
def main() -> None:
    """Is a token sampler right, fair and fast?"""


main.add_command(bench_command)


@main.command(epilog=_EXIT_CODES)
@click.argument("spec")
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", help="How much is tried; ci if omitted.")
@click.option("--only", type=click.Choice(list(LENSES)), help="One lens.")
@click.option(
    "--seed", type=_seed, default=DEFAULT_SEED, metavar="N|fresh", help=f"Of the cases; {DEFAULT_SEED} in this release."
)
@click.option("--reference", metavar="SPEC|none", help="Compare with this sampler; vllm if it can be imported.")
@click.option("-k", "keywords", metavar="TEXT", multiple=True, help="Checks whose code or title has TEXT; repeatable.")
@click.option("-n", "workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option(
    "--time-budget", type=click.FloatRange(0), metavar="SECONDS", help="What is not decided by then is inconclusive."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the run to a file.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the run as a page.")
@click.option("--xfails", type=click.Path(path_type=Path), help="TOML: code = reason. Known failures; strict.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Only failures that are not in it are red.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Freeze what fails in this run.")
@click.option("--pictures", type=click.Path(file_okay=False, path_type=Path), help="A picture per statistic, here.")
@click.option("--ledger", type=click.Path(dir_okay=False, path_type=Path), help="Adds up nights; with --seed fresh.")
def check(
    spec: str,
    profile: str,
    only: str | None,
    seed: int,
    reference: str | None,
    keywords: tuple[str, ...],
    workers: int,
    time_budget: float | None,
    json_file: Path | None,
    html_file: Path | None,
    xfails: Path | None,
    baseline: Path | None,
    write_baseline: Path | None,
    pictures: Path | None,
    ledger: Path | None,
) -> None:
    """Ask the sampler SPEC to keep its promises.

    SPEC is a built-in name (triton, sampling, penalties ...), a registered one, or pkg.module:factory; its method says
    which contract it is under. Cases that break a promise are shrunk and stored under .fairdraw/crashes. Planted faults
    are tried in the same run: it is green only if all are caught.
    """
    _require_writable("--json", json_file)
    _require_writable("--html", html_file)
    _require_new(write_baseline)
    sampler = _or_refuse(lambda: load_sampler(spec))
    contract = CONTRACTS[getattr(contract_of(sampler), "name", "")]
    checks = [check for check in all_checks(only, contract.name) if _matches(check, keywords)]
    if not checks:
        click.echo(f"NOTHING MEASURED: {_why_nothing(only, contract.name, keywords)}")
        sys.exit(NOTHING_RUN)
    compared, about_reference = _or_refuse(lambda: load_reference(reference, checks))
    nights = None if ledger is None else _ledger_check(ledger, checks, seed)
    session = Session(
        spec,
        PROFILES[profile],
        seed,
        compared,
        reference or (contract.reference if compared else None),
        expected=_or_refuse(lambda: expected.read_expected(xfails, baseline)),
    )
    if time_budget is not None:
        session = dataclasses.replace(session, ends_at=time.time() + time_budget)
    subject = spec if sampler.name == spec else f"{spec} ({sampler.name})"
    fairness = worded_fairness(checks, sampler, session.profile, seed)
    header = Header(subject, sampler.device, profile, seed, about_reference, count_checks(checks), fairness)
    click.echo("\n".join(header.lines()))
    running = run_checks(checks, sampler, session, workers)
    records = _or_refuse(lambda: _progress("checks", len(checks), running, progress_line))
    records.sort(key=lambda record: record.code)
    if nights is not None:
        records += _progress("ledger", 1, [run_check(nights, sampler, session)], progress_line)
    shown = [] if pictures is None else shown_from(_draw_pictures(pictures, checks, sampler, session))
    mutants = controls_for(checks, sampler, session.profile)
    tried = (run_control(mutant, sampler, session.profile) for mutant in mutants)
    controls = _progress("controls", len(mutants), tried, _control_line)
    if write_baseline is not None:
        failed = [record.code for record in records if record.status in ("failed", "error")]
        _or_refuse(lambda: expected.write_baseline(write_baseline, spec, failed))
    if html_file is not None:
        html_file.write_text(page(header, Summary(records, controls), shown), encoding="utf-8")
    _conclude(header, Summary(records, controls), json_file)


@main.command()
@click.argument("spec")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where to write.")
def init(spec: str, folder: Path) -> None:
    """Write the adapter, a test file and a CI workflow for the callable SPEC (pkg.module:callable)."""
    made = _or_refuse(lambda: write_skeleton(spec, folder))
    for path in made.files:
        click.echo(f"written: {path}")
    if made.unknown:
        click.echo(f"fill in, in {made.files[0]}: {', '.join(made.unknown)}")
    click.echo(f"then: fairdraw check {made.module}:make --profile smoke")


@main.command("list")
@click.option("--only", type=click.Choice(list(LENSES)), help="One lens.")
def list_checks(only: str | None) -> None:
    """Name every check, by lens and contract, and the capabilities that each needs."""
    for place, checks in _by_place(all_checks(only)).items():
        click.echo(f"{place}: {len(checks)} checks")
        for one in checks:
            needs = [*one.needs, *(["a reference sampler"] if one.differential else [])]
            click.echo(f"  {one.id}" + (f"  [needs {', '.join(needs)}]" if needs else ""))
    raised = ", ".join(contract.raised for contract in CONTRACTS.values())
    click.echo(f"exceptions where an answer was due: {raised}")


@main.command()
@click.argument("code")
def explain(code: str) -> None:
    """Say what the check CODE promises, and what it usually means when the promise is broken."""
    if code.upper() in {contract.raised for contract in CONTRACTS.values()}:
        click.echo("\n\n".join(f"{code.upper()} {title}\n{meaning}" for title, meaning in RAISED.items()))
        return
    found = _find(code)
    click.echo(f"{found.id}\n")
    click.echo(f"{found.meaning}\n")
    click.echo(f"lens: {found.lens}\ncontract: {found.contract}")
    click.echo(f"needs: {', '.join(found.needs) or 'nothing'}{', a reference sampler' if found.differential else ''}")
    click.echo(f"alone: fairdraw check SPEC -k {found.code}")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--sampler", "spec", metavar="SPEC", help="Another sampler than the one in FILE.")
@click.option("--reference", metavar="SPEC", help="Compare with another sampler than the one in FILE.")
def replay(file: Path, spec: str | None, reference: str | None) -> None:
    """Ask again for the promise that was broken, on the very case stored in the crash file FILE.

    Says FIXED (exit code 0; KEPT, if another sampler found it) or FAILED (1). An unreadable or foreign file is 2, a
    check that was not run 3.
    """
    try:
        crash = read_crash(file)
        case = crash.rebuild()
    except CrashFileError as error:
        raise Refused(f"{file} cannot be replayed: {error}.") from None
    name = spec or crash.sampler
    if name is None:
        raise Refused(f"{file} names no sampler: it was an object of a test. Add --sampler SPEC.")
    found = _find(crash.check)
    if not isinstance(found, Check):
        raise Refused(
            f"{found.code} is a statistical check and has no case. Run: fairdraw check {name} -k {found.code}"
        )
    sampler = _or_refuse(lambda: load_sampler(name))
    compared, _ = _or_refuse(lambda: load_reference(reference or crash.reference, [found]))
    again = f"fairdraw replay {file}" + (f" --sampler {spec}" if spec else "")
    session = Session(name, seed=crash.seed, reference=compared, crash_folder=None, command=again)
    sys.exit(_tell_replay(replay_case(found, sampler, case, session), crash, name))


def _tell_replay(record: CheckRecord, crash: Crash, name: str) -> int:
    """Print what became of the case; the exit code."""
    if record.status == "skipped":
        click.echo(f"NOT RUN: {record.id}: {record.reason}")
        return NOTHING_RUN
    if record.story is None:
        same = crash.sampler in (None, name)
        now = f"{name} keeps this promise on the stored case" + (" now." if same else ".")
        click.echo(f"{'FIXED' if same else 'KEPT'}: {record.id}\n{now}")
        click.echo(f"It was broken so{'' if same else f' by {crash.sampler}'}: {crash.effect}")
        return GREEN
    click.echo(f"FAILED: {name} still breaks this promise on the stored case.\n")
    click.echo("\n".join(record.story.lines()))
    return BROKEN


def _or_refuse(action: Callable[[], T]) -> T:
    try:
        return action()
    except CannotStart as error:
        raise Refused(str(error)) from None


def _require_new(path: Path | None) -> None:
    if path is not None and path.exists():
        raise Refused(f"--write-baseline={path} exists and is not overwritten. Remove it first, or name another.")


def _require_writable(option: str, path: Path | None) -> None:
    """Refuse before the run what would lose its result after it."""
    if path is not None and not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise Refused(f"{option}={path} cannot be written. Name a file in a folder that exists and may be written.")


def _why_nothing(only: str | None, contract: str, keywords: Sequence[str]) -> str:
    """Why no check is left."""
    if keywords:
        return f"no check has {' or '.join(map(repr, keywords))} in its code or title"
    return f"the {contract} contract has no {only or ''} checks".replace("  ", " ")


def _matches(one: AnyCheck, keywords: Sequence[str]) -> bool:
    return not keywords or any(word.lower() in one.id.lower() for word in keywords)


def _find(code: str) -> AnyCheck:
    for one in all_checks():
        if one.code == code.upper():
            return one
    raise Refused(f"code={code!r} is no check of fairdraw {__version__}. See: fairdraw list")


def _by_place(checks: Iterable[AnyCheck]) -> dict[str, list[AnyCheck]]:
    """Checks by lens and contract."""
    places: dict[str, list[AnyCheck]] = {}
    for one in checks:
        places.setdefault(f"{one.lens} of the {one.contract} contract", []).append(one)
    return places


def _progress(what: str, total: int, results: Iterable[T], line: Callable[[T], str | None]) -> list[T]:
    """Collect `results`: under a bar on a terminal, a line each elsewhere."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        return [_echoed(result, line) for result in results]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, done = bar.add_task(what, total=total), []
        for result in results:
            bar.advance(task)
            done.append(result)
    return done


def _echoed(result: T, line: Callable[[T], str | None]) -> T:
    text = line(result)
    if text is not None:
        click.echo(text)
    return result


def _control_line(control: Control) -> str | None:
    """Faults that were caught are only counted."""
    return None if control.caught else f"missed   {control.name} (not caught by {control.code})"


def _ledger_check(file: Path, checks: Sequence[AnyCheck], seed: int) -> AnyCheck:
    from fairdraw.statistical.keeping import ledger_check

    try:
        return ledger_check(file, checks, seed)
    except ValueError as error:
        raise Refused(f"--ledger: {error}") from None


def _draw_pictures(folder: Path, checks: Sequence[AnyCheck], sampler: Subject, session: Session) -> list[Path]:
    from fairdraw.statistical.keeping import draw_pictures

    try:
        with one_torch_thread():
            written = draw_pictures(folder, checks, sampler, session.profile, session.seed)
    except ImportError as error:
        raise Refused(str(error)) from None
    click.echo(f"{len(written)} pictures in {folder}")
    return written


def _conclude(header: Header, summary: Summary, json_file: Path | None) -> None:
    """Print stories and summary, write JSON, end the program."""
    for text in broken_texts(summary.records):
        click.echo(f"\n{text}")
    *lines, verdict = summary.lines()
    click.echo("\n" + "\n".join(lines))
    click.secho(verdict, fg="green" if summary.exit_code == GREEN else "red", bold=True)
    if json_file is not None:
        json_file.write_text(json.dumps(run_as_json(header, summary), indent=1) + "\n", encoding="utf-8")
    sys.exit(summary.exit_code)
