"""The command `fairdraw check`: ask a sampler to keep its promises."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairdraw import expected
from fairdraw._cli_parts import EXIT_CODES, Refused, or_refuse, with_progress
from fairdraw.checks import PROFILES, AnyCheck
from fairdraw.contracts import CONTRACTS, contract_of
from fairdraw.controls import Control, controls_for, run_control
from fairdraw.html_report import shown_from
from fairdraw.loading import LENSES, all_checks, load_reference, load_sampler, require_extra
from fairdraw.report import (
    GREEN,
    NOTHING_RUN,
    Header,
    Summary,
    broken_texts,
    count_checks,
    progress_line,
    worded_fairness,
)
from fairdraw.run_files import RunFiles, require_writable
from fairdraw.runner import DEFAULT_SEED, CheckRecord, Session, one_torch_thread, parse_seed, run_check
from fairdraw.workers import run_checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.contracts import Contract
    from fairdraw.html_report import Shown
    from fairdraw.protocols import Subject

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

    def matches(self, one: AnyCheck) -> bool:
        return not self.keywords or any(word.lower() in one.id.lower() for word in self.keywords)

    def why_nothing(self, contract: str) -> str:
        """Why no check is left."""
        if self.keywords:
            return f"no check has {' or '.join(map(repr, self.keywords))} in its code or title"
        return f"the {contract} contract has no {self.only or ''} checks".replace("  ", " ")

    def session(self, contract: Contract, compared: Subject | None) -> Session:
        """What all checks of the run share."""
        return Session(
            self.spec,
            PROFILES[self.profile],
            self.seed,
            compared,
            self.reference or (contract.reference if compared else None),
            ends_at=None if self.time_budget is None else time.time() + self.time_budget,
            expected=or_refuse(lambda: expected.read_expected(self.xfails, self.baseline)),
        )


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
    which contract it is under. Cases that break a promise are shrunk and stored under .fairdraw/crashes. Planted faults
    are tried in the same run: it is green only if all are caught.
    """
    asked = _Asked(**options)
    or_refuse(asked.refuse_early)
    sampler = or_refuse(lambda: load_sampler(asked.spec))
    contract = CONTRACTS[getattr(contract_of(sampler), "name", "")]
    checks = [check for check in all_checks(asked.only, contract.name) if asked.matches(check)]
    if not checks:
        click.echo(f"NOTHING MEASURED: {asked.why_nothing(contract.name)}")
        sys.exit(NOTHING_RUN)
    compared, about_reference = or_refuse(lambda: load_reference(asked.reference, checks))
    nights = None if asked.ledger is None else _ledger_check(asked.ledger, checks, asked.seed)
    session = asked.session(contract, compared)
    header = _header(asked, sampler, checks, about_reference)
    click.echo("\n".join(header.lines()))
    records = _run(checks, sampler, session, asked.workers, nights)
    shown = [] if asked.pictures is None else shown_from(_draw_pictures(asked.pictures, checks, sampler, session))
    summary = Summary(records, _plant(checks, sampler, session))
    _tell(summary)
    _write(asked, header, summary, shown)
    sys.exit(summary.exit_code)


def _header(asked: _Asked, sampler: Subject, checks: Sequence[AnyCheck], about_reference: str) -> Header:
    subject = asked.spec if sampler.name == asked.spec else f"{asked.spec} ({sampler.name})"
    fairness = worded_fairness(checks, sampler, PROFILES[asked.profile], asked.seed)
    number = count_checks(checks)
    return Header(subject, sampler.device, asked.profile, asked.seed, about_reference, number, fairness)


def _run(
    checks: Sequence[AnyCheck], sampler: Subject, session: Session, workers: int, nights: AnyCheck | None
) -> list[CheckRecord]:
    """The records, in the order of their codes; that of the ledger is the last."""
    running = run_checks(checks, sampler, session, workers)
    records = or_refuse(lambda: with_progress("checks", len(checks), running, progress_line))
    records.sort(key=lambda record: record.code)
    if nights is not None:
        records += with_progress("ledger", 1, [run_check(nights, sampler, session)], progress_line)
    return records


def _plant(checks: Sequence[AnyCheck], sampler: Subject, session: Session) -> list[Control]:
    """Try the planted faults of this run."""
    mutants = controls_for(checks, sampler, session.profile)
    tried = (run_control(mutant, sampler, session.profile) for mutant in mutants)
    return with_progress("controls", len(mutants), tried, _control_line)


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


_MOST_STORIES = 10
"""One fault breaks dozens of promises; nobody reads the eleventh story. Files and crash files have all of them."""


def _tell(summary: Summary) -> None:
    """Print stories, summary and verdict."""
    texts = broken_texts(summary.causes)
    for text in texts[:_MOST_STORIES]:
        click.echo(f"\n{text}")
    if texts[_MOST_STORIES:]:
        click.echo("\nbroken, too (-k CODE tells one; --json and --html tell all):")
        click.echo("\n".join(f"  {text.splitlines()[0]}" for text in texts[_MOST_STORIES:]))
    *lines, verdict = summary.lines()
    click.echo("\n" + "\n".join(lines))
    click.secho(verdict, fg="green" if summary.exit_code == GREEN else "red", bold=True)


def _write(asked: _Asked, header: Header, summary: Summary, shown: Sequence[Shown]) -> None:
    """Write the files; the verdict has been printed, whatever becomes of them."""
    frozen = asked.write_baseline
    if frozen is not None:
        failed = [record.code for record in summary.records if record.status in ("failed", "error")]
        or_refuse(lambda: expected.write_baseline(frozen, asked.spec, failed))
    or_refuse(lambda: asked.files.write(header, summary, shown))
