"""The command `fairdraw replay`: ask again for broken promises, on the very cases that are stored in crash files."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairdraw._cli_parts import Refused, find_check, or_refuse
from fairdraw.case_text import batch_lines
from fairdraw.checks import Check
from fairdraw.crash import Crash, CrashFileError, read_crash
from fairdraw.loading import load_reference, load_sampler
from fairdraw.report import BROKEN, GREEN, NOTHING_RUN
from fairdraw.runner import CRASH_FOLDER, CheckRecord, Session, replay_case

if TYPE_CHECKING:
    from fairdraw.protocols import Subject

__all__ = ["replay_command"]

_CODE = re.compile(r"[A-Za-z]+\d+")


@click.command("replay")
@click.argument("targets", metavar="FILE|CODE...", nargs=-1, required=True)
@click.option("--sampler", "spec", metavar="SPEC", help="Another sampler than the one in the file.")
@click.option("--reference", metavar="SPEC", help="Compare with another sampler than the one in the file.")
def replay_command(targets: tuple[str, ...], spec: str | None, reference: str | None) -> None:
    """Ask again for promises that were broken, on the very cases stored in crash files.

    Each is a FILE, or the CODE of a check: all of its files in .fairdraw/crashes. Says FIXED (KEPT, if another sampler
    found it) or FAILED. Exit code 0 if nothing failed, 1 if something did, 3 if no check was run; 2 if a file cannot be
    replayed, and then none is.
    """
    stored = [_read(path, spec) for target in targets for path in _files(target)]
    samplers = {name: or_refuse(partial(load_sampler, name)) for name in dict.fromkeys(one.name for one in stored)}
    codes = []
    for one in stored:
        if len(stored) > 1:
            click.echo(f"{one.path}:")
        codes.append(_replay(one, samplers[one.name], spec, reference))
        if len(stored) > 1:
            click.echo()
    if len(stored) > 1:
        click.echo(f"{len(codes)} replayed: {codes.count(BROKEN)} failed, {codes.count(NOTHING_RUN)} not run")
    sys.exit(BROKEN if BROKEN in codes else min(codes))


@dataclass(frozen=True)
class _Stored:
    """A crash file that can be replayed.

    Args:
        name: Of the sampler to be asked.
    """

    path: Path
    crash: Crash
    case: Any  # Any: of the contract
    check: Check
    name: str


def _files(target: str) -> list[Path]:
    """The file called `target`, or the crash files of that code, the newest first."""
    if Path(target).exists() or not _CODE.fullmatch(target):
        return [Path(target)]
    code = find_check(target).code
    found = sorted(CRASH_FOLDER.glob(f"{code}-*.json"), key=lambda path: (-path.stat().st_mtime, path.name))
    if not found:
        raise Refused(f"{CRASH_FOLDER} has no crash file of {code}. An exception is stored once, for its first check.")
    return found


def _read(path: Path, spec: str | None) -> _Stored:
    try:
        crash = read_crash(path)
        case = crash.rebuild()
    except CrashFileError as error:
        raise Refused(f"{path} cannot be replayed: {error}.") from None
    name = spec or crash.sampler
    if name is None:
        raise Refused(f"{path} names no sampler: it was an object of a test. Add --sampler SPEC.")
    found = find_check(crash.check)
    if not isinstance(found, Check):
        raise Refused(
            f"{found.code} is a statistical check and has no case. Run: fairdraw check {name} -k {found.code}"
        )
    return _Stored(path, crash, case, found, name)


def _replay(stored: _Stored, sampler: Subject, spec: str | None, reference: str | None) -> int:
    """Ask, and say what became of it; the exit code."""
    compared, _ = or_refuse(lambda: load_reference(reference or stored.crash.reference, [stored.check]))
    again = f"fairdraw replay {stored.path}" + (f" --sampler {spec}" if spec else "")
    session = Session(stored.name, seed=stored.crash.seed, reference=compared, crash_folder=None, command=again)
    told = _tell(replay_case(stored.check, sampler, stored.case, session), stored.crash, stored.name)
    numbers = batch_lines(stored.case) if told == BROKEN else []
    if numbers:
        click.echo("\n".join(["\nthe batch, in numbers:", *numbers]))
    return told


def _tell(record: CheckRecord, crash: Crash, name: str) -> int:
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
