"""The work of `fairdraw check`, and the object that does it, in this process or in a worker.

A `Job` is the command line as plain data, so that it can be sent to another process. A `Bench` loads the sampler and
runs one piece of the job at a time. The process that prints (`check_cli`) needs neither torch nor the sampler, so it
survives whatever the sampler does to its process.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from fairdraw._core.budget import Deadline, FirstPart, undecided_by_budget
from fairdraw._core.checks import PROFILES, AnyCheck, Profile
from fairdraw._core.contracts import CONTRACTS, contract_of
from fairdraw._core.isolation import suite_state
from fairdraw._report.summary import Header, about_sampler, count_checks, worded_fairness
from fairdraw._run import expected
from fairdraw._run.controls import Control, Planned, Untried, mutants_of, plan_control, run_control
from fairdraw._run.loading import CannotStart, all_checks, another, last_line, load_reference, load_sampler, where_made
from fairdraw._run.pace import Begun, Limit, Turn, crowding, times_of_this_process, workload_key
from fairdraw._run.runner import Session, run_check

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from fairdraw._mutants._mutant import Mutant
    from fairdraw.contracts import AnySampler, ServerSettings


LEDGER = "the ledger"
"""The one piece of a job that is not the code of a check."""

COMPARED = "compared"
"""The group of what needs the reference sampler. One worker takes all of it where possible, and plans: the reference's
import takes seconds."""


@dataclass(frozen=True)
class Job:
    """What is to be done with one sampler, as it was written on the command line.

    Args:
        keywords: Checks whose code or title has one of them; all if empty.
        ends_at: When the time budget ends, by `time.time()`, which processes share; `None` for no budget.
        xfails, baseline: Files of failures that the user knows about.
        ledger: The ledger's file; `None` for none.
        no_known: Defects that the sampler declares as known fail, too.
        no_controls: No mutation control is planned.
        settings: Of a server, or what a sampler is declared not to support.
    """

    spec: str
    profile: str = "ci"
    only: str | None = None
    seed: int = 0
    reference: str | None = None
    keywords: tuple[str, ...] = ()
    ends_at: float | None = None
    xfails: Path | None = None
    baseline: Path | None = None
    ledger: Path | None = None
    no_known: bool = False
    no_controls: bool = False
    settings: ServerSettings | None = None

    @property
    def narrowed(self) -> str:
        """What the user left out by name, as written; empty if nothing."""
        only = [f"--only {self.only}"] if self.only else []
        return " ".join([*only, *(f"-k {word}" for word in self.keywords)])

    def matches(self, one: AnyCheck) -> bool:
        """Whether the keywords select a check."""
        return not self.keywords or any(word.lower() in one.id.lower() for word in self.keywords)

    def why_nothing(self, contract: str) -> str:
        """Why no check is left."""
        if self.keywords:
            return f"no check has {' or '.join(map(repr, self.keywords))} in its code or title"
        return f"the {contract} contract has no {self.only or ''} checks".replace("  ", " ")


@dataclass(frozen=True)
class Plan:
    """The pieces of a job, which are known once its sampler is loaded.

    Args:
        pieces: Codes of the checks, in the order in which they are run; and the ledger, which is the last.
        controls: The result of each mutation control if the process that tries it is lost.
        nothing: Why there is nothing to do; empty if there is something.
        is_silent: It is a server that does not answer.
        groups: Code to the workload whose draws the check shares with others.
        compared: Codes, and numbers of mutation controls, that need the reference sampler.
        titles: Piece to its code and title.
        seconds: Expected for the whole run, or its limit; 0 if unknown.
        scale: The part of the profile that is tried; below 1 if the time was short.
        limit: When the parts of the run have to end.
        is_timed: Its checks have first turns.
        totals: As `Scope` has them.
        crowding: How many times as long as on a quiet machine loading took.
    """

    sampler_name: str
    header: Header
    pieces: tuple[str, ...]
    controls: tuple[Control, ...]
    nothing: str = ""
    is_silent: bool = False
    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    compared: frozenset[str | int] = frozenset()
    titles: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    scale: float = 1.0
    totals: dict[str, int] = dataclasses.field(default_factory=dict)
    limit: Limit = dataclasses.field(default_factory=Limit)
    is_timed: bool = False
    crowding: float = 1.0

    def group_of(self, turn: Turn) -> str | int:
        """The group of turns that share work, so that one worker takes them where possible."""
        return COMPARED if turn.what in self.compared else self.groups.get(str(turn.what), turn.what)

    def announced(self, words: str, seconds: float) -> Plan:
        """The plan whose header says how long the run takes."""
        return dataclasses.replace(self, header=dataclasses.replace(self.header, duration=words), seconds=seconds)


class Bench:
    """One job in one process. The sampler is loaded once, and checks of one workload share its draws.

    Raises:
        CannotStart: If the sampler, the reference or a file of the job cannot be used.
    """

    def __init__(self, job: Job, clock: Callable[[], float] = time.time) -> None:
        self.job, self._clock = job, clock
        self.sampler = load_sampler(job.spec, job.settings)
        self.contract = CONTRACTS[getattr(contract_of(self.sampler), "name", "")]
        self.checks = [check for check in all_checks(job.only, self.contract.name) if job.matches(check)]
        known = expected.read_expected(job.xfails, job.baseline, job.spec, self.contract.name)
        self.profile: Profile = PROFILES[job.profile]
        self.session = Session(
            job.spec,
            self.profile,
            job.seed,
            words=job.settings.words if job.settings else (),
            renew=partial(another, job.spec, job.settings),
            expected=dataclasses.replace(known, nothing_declared=job.no_known),
        )
        self._mutants = [] if job.no_controls else mutants_of(self.checks)
        self._ledger = None if job.ledger is None else _ledger_check(job.ledger, self.checks, job.seed)

    def load(self) -> None:
        """Nothing more: the bench exists."""

    @cached_property
    def _reference(self) -> tuple[AnySampler | None, str]:
        """The reference sampler and a note about it. Importing vLLM takes as long as hundreds of checks."""
        return load_reference(self.job.reference, self.checks, self.job.settings)

    def _comparing(self, session: Session) -> Session:
        """The session with the reference."""
        reference, spec = self._reference[0], self.job.reference or self.contract.reference
        return dataclasses.replace(session, reference=reference, reference_spec=spec if reference else None)

    def plan(self, given: tuple[float, frozenset[str]] = (1.0, frozenset())) -> Plan:
        """The pieces of the job, and the header of a run.

        Args:
            given: The part of the profile that is tried, and the codes of checks that the time left undecided: what
                they would have seen is not claimed.
        """
        scale, undecided = given
        judging = [check for check in self.checks if check.code not in undecided]
        name = self.job.spec if self.sampler.name == self.job.spec else f"{self.job.spec} ({self.sampler.name})"
        words, seconds, scale = self._pace_of_server() if self.contract.is_remote else ((), 0.0, scale)
        header = Header(
            name,
            self.sampler.device,
            self.job.profile,
            self.job.seed,
            self._reference[1],
            count_checks(self.checks),
            worded_fairness(judging, self.sampler, self.profile.scaled(scale), self.job.seed),
            duration="; ".join(words),
            about=about_sampler(self.sampler),
            old_answers=getattr(self.sampler, "old_answers", ""),
            adapter=where_made(self.job.spec),
        )
        silent = getattr(self.sampler, "silent", "")
        nothing = silent or ("" if self.checks else self.job.why_nothing(self.contract.name))
        # Traces first in each suite: they find most faults, and time may end.
        ordered = sorted(self.checks, key=lambda one: (one.suite == "statistical", not one.plays_traces, one.code))
        return Plan(
            self.sampler.name,
            header,
            (*(check.code for check in ordered), *([LEDGER] if self._ledger else [])),
            tuple(self._planned(mutant, scale).control(untried=Untried.LOST) for mutant in self._mutants),
            nothing,
            is_silent=bool(silent),
            groups={check.code: key for check in self.checks if (key := workload_key(check))},
            compared=frozenset(
                [check.code for check in self.checks if check.differential]
                + [number for number, mutant in enumerate(self._mutants) if self._compares(mutant.caught_by)]
            ),
            titles={check.code: check.id for check in self.checks},
            seconds=seconds,
            scale=scale,
            is_timed=not self.contract.is_remote,
            crowding=crowding(times_of_this_process()),
            totals={self.contract.name: len(all_checks(contract=self.contract.name)) + bool(self._ledger)},
        )

    def _pace_of_server(self) -> tuple[tuple[str, ...], float, float]:
        """A server is timed by requests that its checks need anyhow; a slow one is judged by fewer tokens."""
        from fairdraw._run.server_pace import timed

        if getattr(self.sampler, "silent", ""):
            return (), 0.0, 1.0
        left = math.inf if self.job.ends_at is None else max(0.0, self.job.ends_at - self._clock())
        try:
            return timed(self.sampler, self.checks, self.profile, self.job.seed, left)
        except Exception as error:  # the first check that asks reports it
            return (f"the server could not be timed: {error}",), 0.0, 1.0

    def run(self, turn: Turn) -> Begun:
        """Give a check its turn, or enter the run into the ledger."""
        share = 0.1 if turn.ends_at is None else 0.0  # under a limit no more than it takes to time it
        first = FirstPart(self._clock, share, turn.quick) if turn.quick else None
        session, check = dataclasses.replace(self._session(turn), first=first), self._check(str(turn.what))
        record = run_check(check, self.sampler, self._comparing(session) if check.differential else session)
        is_open = undecided_by_budget(record)
        if first is None:
            return Begun(record, is_open=is_open)
        # One verdict for each set of draws: a part of them is planned, and judged, as a part.
        is_judged_again = turn.ends_at is not None and record.suite == "statistical" and record.status == "failed"
        is_open = is_open or is_judged_again or (first.was_stopped and record.status == "passed")
        return Begun(record, first.part if is_open else 1.0, first.whole, is_open)

    def _session(self, turn: Turn) -> Session:
        return dataclasses.replace(
            self.session, profile=self.profile.scaled(turn.scale), ends_at=turn.ends_at, clock=self._clock
        )

    def control(self, turn: Turn) -> Control:
        """Try one mutant."""
        planned = self._planned(self._mutants[int(turn.what)], turn.scale)
        try:
            return run_control(planned, self.sampler, self._session(turn))
        except Exception as error:  # the sampler's own attributes are read for it
            return planned.control(untried=Untried.LOST, detail=last_line(error))

    def draw_pictures(self, given: tuple[Path, float]) -> list[Path]:
        """Draw a picture per table. What was drawn in this process is not drawn again."""
        from fairdraw.statistical._nightly import draw_pictures

        with suite_state(self.sampler):
            folder, scale = given
            profile, deadline = self.profile.scaled(scale), Deadline(self.job.ends_at)
            return draw_pictures(folder, self.checks, self.sampler, profile, self.job.seed, deadline)

    def _planned(self, mutant: Mutant, scale: float) -> Planned:
        """The plan of a mutant, for this part of the profile."""
        session = dataclasses.replace(self.session, profile=self.profile.scaled(scale))
        if self._compares(mutant.caught_by):
            session = self._comparing(session)
        return plan_control(mutant, self.checks, self.sampler, session)

    def _compares(self, codes: Collection[str]) -> bool:
        return any(check.differential for check in self.checks if check.code in codes)

    def _check(self, piece: str) -> AnyCheck:
        if piece == LEDGER and self._ledger is not None:
            return self._ledger
        return next(check for check in self.checks if check.code == piece)


def _ledger_check(file: Path, checks: Sequence[AnyCheck], seed: int) -> AnyCheck:
    from fairdraw.statistical._nightly import ledger_check

    try:
        return ledger_check(file, checks, seed)
    except ValueError as error:
        raise CannotStart(f"--ledger: {error}") from None
