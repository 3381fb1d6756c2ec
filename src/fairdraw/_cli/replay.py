"""The command `fairdraw replay`: run failed checks again, on the cases that are stored in crash files.

A property is checked on the stored batch; where the failure depended on chance, so often that one that is still there
would have been seen. A distribution is drawn again, from the stored seed and with the stored
profile. The same sampler gives the same counts, and a pass means something only if the number of draws is no smaller
than where the check failed.

A name in a file is code that would run, and files come from other people's machines. A sampler that does not come with
fairdraw is imported only with `-y`, or if the command line names it.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log, log1p
from pathlib import Path
from typing import Any, Literal, cast

import click

from fairdraw._cli.parts import Refused, colour_option, echo, find_check, or_refuse, say_loading
from fairdraw._cli.server import server_options, settings_of
from fairdraw._core.checks import PROFILES, AnyCheck, Check, DrawnQuestion
from fairdraw._core.contracts import CONTRACTS, contract_name
from fairdraw._core.foreign import one_line
from fairdraw._core.wrapping import Limited, Wrapped
from fairdraw._report.case_text import batch_lines
from fairdraw._report.verdict import GREEN, NOTHING_RUN, RED
from fairdraw._run.crash import NUM_REPEATS, Crash, CrashFileError, read_crash
from fairdraw._run.loading import NO_REFERENCE, is_catalogued, load_reference, load_sampler
from fairdraw._run.runner import CRASH_FOLDER, CheckRecord, Session, replay_case, run_check
from fairdraw.contracts import AnySampler

_CODE = re.compile(r"[A-Za-z]+\d+")

Outcome = Literal["FIXED", "PASSED", "FAILED", "UNDECIDED", "NOT REPRODUCED", "NOT RUN"]
NOT_REPRODUCED = 12
_EXIT_CODES: dict[Outcome, int] = {
    "FIXED": GREEN,
    "PASSED": GREEN,
    "FAILED": RED,
    "UNDECIDED": RED,
    "NOT REPRODUCED": NOT_REPRODUCED,
    "NOT RUN": NOTHING_RUN,
}


@click.command("replay")
@click.argument("targets", metavar="FILE|CODE...", nargs=-1, required=True)
@click.option("--sampler", "spec", metavar="SPEC", help="Run this one, not what the file names.")
@click.option("--reference", metavar="SPEC", help="Compare with this one, not with what the file names.")
@click.option("-y", "--yes", is_flag=True, help="Import and call what the files name.")
@server_options
@colour_option
# Any: click's, of servers
def replay_command(
    targets: tuple[str, ...], spec: str | None, reference: str | None, yes: bool, **options: Any
) -> None:
    """Run failed checks again, on the cases stored in crash files.

    Each target is a FILE, or the CODE of a check: all of its files in .fairdraw/crashes. A sampler that a file names
    and that does not come with fairdraw is code of somebody: without -y or --sampler the command says what it would
    import, and ends. Prints FIXED (PASSED, if another sampler had failed), FAILED, for distributions UNDECIDED, or NOT
    REPRODUCED, if the failure depended on chance and too few tries passed to call it gone. Exit code 0 if nothing
    failed, 1 if a check failed or is undecided, 12 if one was not reproduced, 3 if no check was run, 2 if a file cannot
    be replayed; then none is.
    """
    say_loading(" and ".join(targets), err=True)
    stored = [_read(path, spec, reference, yes) for target in targets for path in _files(target)]
    for name in dict.fromkeys(one.name for one in stored):
        click.echo(f"sampler: {escaped(name)}", err=True)
    # One for each file: a fault of first calls passes on a sampler that another file has called.
    settings = or_refuse(lambda: settings_of(options, [one.name for one in stored]))
    samplers = [or_refuse(partial(load_sampler, one.name, settings)) for one in stored]
    named = [word for pair in (("--sampler", spec), ("--reference", reference)) if pair[1] for word in pair if word]
    given, outcomes = [*named, *["-y"] * yes, *(settings.words if settings else ())], []
    for one, sampler in zip(stored, samplers, strict=True):
        if len(stored) > 1:
            echo(f"{one.path}:")
        compared, _ = or_refuse(partial(load_reference, reference or one.crash.reference, [one.check], settings))
        outcomes.append(_replay(one, sampler, compared, given))
        if len(stored) > 1:
            echo()
    if len(stored) > 1:
        failed, not_run = outcomes.count("FAILED"), outcomes.count("NOT RUN")
        rare: tuple[Outcome, ...] = ("UNDECIDED", "NOT REPRODUCED")
        also = "".join(f", {outcomes.count(word)} {word.lower()}" for word in rare if word in outcomes)
        echo(f"{len(outcomes)} replayed: {failed} failed{also}, {not_run} not run")
    codes = [_EXIT_CODES[word] for word in outcomes]
    sys.exit(next((code for code in (RED, NOT_REPRODUCED) if code in codes), min(codes)))


@dataclass(frozen=True)
class _Stored:
    """A crash file that can be replayed.

    Args:
        name: Of the sampler to be run.
    """

    path: Path
    crash: Crash
    case: Any  # Any: of the contract, or a `DistributionCase`
    check: AnyCheck
    name: str

    @property
    def place(self) -> str:
        """Where the check failed, in words."""
        return "on the stored case" if isinstance(self.check, Check) else "with the stored seed and profile"


def _files(target: str) -> list[Path]:
    """The file `target`, or the crash files of that code, the newest first."""
    if Path(target).exists() or not _CODE.fullmatch(target):
        return [Path(target)]
    code = find_check(target).code
    found = sorted(CRASH_FOLDER.glob(f"{code}-*.json"), key=lambda path: (-path.stat().st_mtime, path.name))
    if not found:
        raise Refused(f"{CRASH_FOLDER} has no crash file of {code}. An exception is stored once, for its first check.")
    return found


def _read(path: Path, spec: str | None, reference: str | None, yes: bool) -> _Stored:
    try:
        crash = read_crash(path)
        name = _allowed(path, crash, spec, reference, yes)
        check = find_check(crash.check)
        case = crash.rebuild(check.suite)
    except CrashFileError as error:
        raise Refused(f"{path} cannot be replayed: {one_line(str(error))}.") from None
    return _Stored(path, crash, case, check, name)


def _allowed(path: Path, crash: Crash, spec: str | None, reference: str | None, yes: bool) -> str:
    """Return the sampler to be run, or refuse to import what only the file names. Nothing is imported to find out."""
    name = crash.sampler if spec is None else spec
    if name is None:
        raise Refused(f"{path} names no sampler: it was an object of a test. Add --sampler SPEC.")
    compared = None if crash.reference == NO_REFERENCE else crash.reference
    named = {"sampler": name if spec is None else None, "reference": compared if reference is None else None}
    code = {what: one for what, one in named.items() if one is not None and not is_catalogued(one)}
    if code and not yes:
        would = " and ".join(f"the {what} {escaped(one)}" for what, one in code.items())
        remedies = " and ".join(f"--{what} SPEC" for what in code)
        rule, remedy = "which is code: nothing of it was run", f"Add -y to run it, or {remedies} to run another"
        raise Refused(f"{path} would import {would}, {rule}. {remedy}.")
    return name


def escaped(text: str) -> str:
    """A name from a file, made safe to show: one line of ASCII, not too long, and harmless if it is pasted."""
    shown = ascii(text)[1:-1].replace("\\'", "'")
    return shlex.quote(shown if len(shown) <= 100 else f"{shown[:100]}... ({len(text)} characters)")


def _replay(stored: _Stored, sampler: AnySampler, compared: AnySampler | None, given: Sequence[str]) -> Outcome:
    """Run the check again, and print the outcome; `given` are the options of this command."""
    found, needed = contract_name(sampler), stored.check.contract
    if found != needed:
        rule = f"{stored.path} is of a check of the {needed} contract"
        remedy = "Name a sampler of that contract with --sampler"
        raise Refused(f"{escaped(stored.name)}: contract={found!r}, but {rule}. {remedy}.")
    again = shlex.join(["fairdraw", "replay", str(stored.path), *given])
    session = Session(stored.name, seed=stored.crash.seed, reference=compared, crash_folder=None, command=again)
    record, tries = _run_again(stored, sampler, session)
    outcome = _report(record, stored, _why_undecided(record, stored, sampler), tries)
    numbers = batch_lines(stored.case) if outcome == "FAILED" else []
    if numbers:
        echo("\n".join(["\nthe batch, in numbers:", *numbers]))
    return outcome


_MISSED = 0.01
"""Most probability that a failure which is still there, and depends on chance, is called fixed."""
_ALWAYS = [NUM_REPEATS, NUM_REPEATS]
_MOST_TRIES, _TRYING_SECONDS = 1_000, 60.0


def tries_needed(repeats: list[int] | None) -> int:
    """Return how many tries must pass before a failure is called gone; 0 if no number is enough.

    Args:
        repeats: Of a crash file.

    Example:
        >>> tries_needed(None), tries_needed([10, 20]), tries_needed([1, 20]), tries_needed([0, 20])
        (3, 13, 1796, 0)
    """
    from scipy.special import betaincinv

    failed, tried = repeats or _ALWAYS
    # The least rate at which so many failures, or more, have a probability of 5 % (Clopper and Pearson).
    return ceil(log(_MISSED) / log1p(-betaincinv(failed, tried - failed + 1, 0.05))) if failed else 0


def _run_again(stored: _Stored, sampler: AnySampler, session: Session) -> tuple[CheckRecord, int]:
    """Return the first record that does not pass, or the last one; and the number of tries, 0 if one means nothing."""
    if not isinstance(stored.check, Check):
        record = run_check(stored.check, sampler, replace(session, profile=stored.case.build()))
        return record, int(record.status != "passed" or _draws_again(stored.check, sampler, session))
    ends_at, tries = time.monotonic() + _TRYING_SECONDS, 0
    while True:
        record, tries = replay_case(stored.check, sampler, stored.case, session), tries + 1
        is_over = tries == (tries_needed(stored.crash.repeats) or _MOST_TRIES) or time.monotonic() > ends_at
        if record.status != "passed" or is_over:
            return record, tries


_FEW = PROFILES["smoke"].scaled(0.02)


def _draws_again(check: AnyCheck, sampler: AnySampler, session: Session) -> bool:
    """Whether the stored seed gives the same tokens twice, in a few draws; no seed reaches some generators.

    A server is taken at its word, as requests are what it costs.
    """
    if CONTRACTS[check.contract].is_remote:
        return True
    seen: list[list[str]] = [[], []]
    # Two objects, both alive until the end: draws are kept by the identity of what is in the wrapper.
    twins = [Limited(sampler, sampler.capabilities) for _ in seen]
    for twin, answers in zip(twins, seen, strict=True):

        def see(call: Callable[[], Any], _: object, answers: list[str] = answers) -> Any:  # Any: of the contract
            answer = call()
            answers.append(repr(answer))
            return answer

        run_check(check, cast("AnySampler", Wrapped(twin, see)), replace(session, profile=_FEW))
    return seen[0] == seen[1]


def _why_undecided(record: CheckRecord, stored: _Stored, sampler: AnySampler) -> str:
    """Why a distribution that did not fail has not passed either; empty if it has, and for properties."""
    if record.status == "inconclusive":
        return record.reason
    if not isinstance(stored.check, DrawnQuestion):
        return ""
    budget = stored.check.num_draws(sampler, stored.case.build())
    if budget >= stored.case.num_draws:
        return ""
    return (
        f"{stored.name} draws {budget} times here; where the check failed there were {stored.case.num_draws} draws. "
        "Replay it on such a device."
    )


def _report(record: CheckRecord, stored: _Stored, undecided: str, tries: int) -> Outcome:
    """Print the outcome: one word first, then the details."""
    crash, name = stored.crash, stored.name
    if record.status == "skipped":
        echo(f"NOT RUN: {record.id}: {record.reason}")
        return "NOT RUN"
    if record.failure_report is not None:
        echo(f"FAILED: {name} still fails this check {stored.place}.\n")
        echo("\n".join(record.failure_report.lines()))
        return "FAILED"
    if undecided:
        echo(f"UNDECIDED: {record.id}\n{undecided}")
        return "UNDECIDED"
    why, again = "", f"run the check again with fairdraw check -k {record.code}."
    if not tries:
        why = f"passes this check, but the stored seed gives other tokens each time. Seed it, or {again}"
    elif isinstance(stored.check, Check) and not 0 < tries_needed(crash.repeats) <= tries:
        failed, tried = crash.repeats or _ALWAYS
        found = f"where {failed} of {tried} tries failed when it was found"
        why = f"passed {tries} times {stored.place}, {found}. That is too few to call it gone: {again}"
    if why:
        echo(f"NOT REPRODUCED: {record.id}\n{name} {why}")
        return "NOT REPRODUCED"
    same = crash.sampler == name
    often = f", {tries} times" if crash.repeats else ""
    now = f"{name} passes this check {stored.place}{often}" + (" now." if same else ".")
    outcome: Outcome = "FIXED" if same else "PASSED"
    echo(f"{outcome}: {record.id}\n{now}")
    other = "" if same else f" of {escaped(crash.sampler or 'an object of a test')}"
    echo(f"The failure{other} was: {one_line(crash.effect)}")
    return outcome
