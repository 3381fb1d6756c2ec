"""The command line: check, list, explain, replay, init, bench, schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairdraw import __version__
from fairdraw._cli_parts import EXIT_CODES, Refused, or_refuse
from fairdraw.bench_cli import bench_command
from fairdraw.case_text import batch_lines
from fairdraw.check_cli import check_command
from fairdraw.checks import AnyCheck, Check
from fairdraw.contracts import CONTRACTS
from fairdraw.crash import Crash, CrashFileError, read_crash
from fairdraw.loading import LENSES, all_checks, load_reference, load_sampler
from fairdraw.report import BROKEN, GREEN, NOTHING_RUN
from fairdraw.run_files import schema_text
from fairdraw.runner import RAISED, CheckRecord, Session, replay_case
from fairdraw.skeleton import write_skeleton

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["main"]


@click.group(epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="fairdraw")
def main() -> None:
    """Is a token sampler right, fair and fast?"""


main.add_command(bench_command)
main.add_command(check_command)


@main.command()
@click.argument("spec")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where to write.")
def init(spec: str, folder: Path) -> None:
    """Write the adapter, a test file and a CI workflow for the callable SPEC (pkg.module:callable)."""
    made = or_refuse(lambda: write_skeleton(spec, folder))
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
def schema() -> None:
    """Print the JSON Schema of a line that `check --json` and `pytest --fairdraw-json` write."""
    click.echo(schema_text(), nl=False)


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
    sampler = or_refuse(lambda: load_sampler(name))
    compared, _ = or_refuse(lambda: load_reference(reference or crash.reference, [found]))
    again = f"fairdraw replay {file}" + (f" --sampler {spec}" if spec else "")
    session = Session(name, seed=crash.seed, reference=compared, crash_folder=None, command=again)
    told = _tell_replay(replay_case(found, sampler, case, session), crash, name)
    numbers = batch_lines(case) if told == BROKEN else []
    if numbers:
        click.echo("\n".join(["\nthe batch, in numbers:", *numbers]))
    sys.exit(told)


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
