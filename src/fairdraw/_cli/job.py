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
from functools import cached_property
from typing import TYPE_CHECKING

from fairdraw._core.budget import Deadline
from fairdraw._core.checks import PROFILES, AnyCheck, Profile
from fairdraw._core.contracts import CONTRACTS, contract_of
from fairdraw._core.failures import Inconclusive
from fairdraw._core.pulse import SamplerHangs
from fairdraw._report.summary import Header, count_checks, worded_fairness
from fairdraw._run import expected
from fairdraw._run.controls import Untried, controls_for, run_control
from fairdraw._run.loading import CannotStart, all_checks, last_line, load_reference, load_sampler
from fairdraw._run.runner import CheckRecord, Session, one_torch_thread, run_check
from fairdraw._run.speed import estimate, in_order, measure, measuring_seconds, workload_key
from fairdraw.protocols import NoAnswer
from fairdraw.protocols._server import SilentServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fairdraw._run.controls import Control, Planned
    from fairdraw.protocols import ServerSettings

LEDGER = "the ledger"
"""The one piece of a job that is not the code of a check."""

_WORTH_TIMING = 9
"""A run of at least so many checks is timed first. Fewer checks are done about as soon as the timing would be."""


@dataclass(frozen=True)
class Job:
    """What is to be done with one sampler, as it was written on the command line.

    Args:
        keywords: Checks whose code or title has one of them; all if empty.
        ends_at: When the time budget ends, by `time.time()`, which processes share; `None` for no budget.
        xfails, baseline: Files of failures that the user knows about.
        ledger: The ledger's file; `None` for none.
        no_known: Defects that the sampler declares as known fail, too.
        settings: Of a server.
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
class Pace:
    """How fast the sampler is, and what follows for the run. Measured once, so that all processes plan the same.

    Args:
        scale: Of the profile: below 1 if only a part of it fits into the time budget.
        words: For the header.
        order: Codes of the checks, as `in_order` has them; empty if nothing was timed.
        seconds: Expected for the whole run; 0 if nothing was timed.
    """

    scale: float = 1.0
    words: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The pieces of a job, which are known once its sampler is loaded.

    Args:
        pieces: Codes of the checks, in the order in which they are run; and the ledger, which is the last.
        controls: The result of each mutation control if the process that tries it is lost.
        nothing: Why there is nothing to do; empty if there is something.
        is_silent: It is a server that does not answer.
        groups: Code to the workload whose draws the check shares with others.
        titles: Piece to its code and title.
        seconds: Expected for the whole run; 0 if unknown.
        totals: As `Scope` has them.
    """

    sampler_name: str
    header: Header
    pieces: tuple[str, ...]
    controls: tuple[Control, ...]
    nothing: str = ""
    is_silent: bool = False
    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    titles: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    totals: dict[str, int] = dataclasses.field(default_factory=dict)


class Bench:
    """One job in one process. The sampler is loaded once, and checks of one workload share its draws.

    Raises:
        CannotStart: If the sampler, the reference or a file of the job cannot be used.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.sampler = load_sampler(job.spec, job.settings)
        self.contract = CONTRACTS[getattr(contract_of(self.sampler), "name", "")]
        self.checks = [check for check in all_checks(job.only, self.contract.name) if job.matches(check)]
        self.pace = Pace()
        self.profile: Profile = PROFILES[job.profile]
        reference, self.about_reference = load_reference(job.reference, self.checks, job.settings)
        self.session = Session(
            job.spec,
            self.profile,
            job.seed,
            reference,
            job.reference or (self.contract.reference if reference else None),
            ends_at=job.ends_at,
            expected=expected.read_expected(job.xfails, job.baseline, job.spec, nothing_declared=job.no_known),
        )
        self._ledger = None if job.ledger is None else _ledger_check(job.ledger, self.checks, job.seed)

    def load(self) -> None:
        """Nothing more: the bench exists."""

    def time_sampler(self, num_workers: int) -> Pace:
        """Time the sampler for at most some seconds, and fit the run into what is left of the budget.

        Args:
            num_workers: Processes that share the checks.
        """
        if isinstance(self.sampler, SilentServer):
            return Pace()
        if self.contract.name == "server":
            return self._pace_of_server()
        if len(self.checks) < _WORTH_TIMING and self.job.ends_at is None:
            return Pace()  # the checks themselves end sooner
        try:
            speed = measure(self.sampler, self.checks, seconds=measuring_seconds(self._left()))
        except SamplerHangs as hangs:
            return Pace(words=(f"the sampler could not be timed: {hangs}",))
        left = self._left()
        reference = self.session.reference
        found = estimate(
            self.checks, self.sampler, self.profile, speed, budget=left, reference=reference, workers=num_workers
        )
        is_shared = num_workers > 1 and left is None
        ordered = in_order(self.checks, self.sampler, found.profile, speed, reference=reference, is_shared=is_shared)
        return Pace(found.profile.scale, tuple(found.lines()), tuple(check.code for check in ordered), found.seconds)

    def _left(self) -> float | None:
        """Seconds of the time budget; `None` without one."""
        return None if self.job.ends_at is None else max(0.0, self.job.ends_at - time.time())

    def _pace_of_server(self) -> Pace:
        """A server is timed by requests that its checks need anyhow; a slow one is judged by fewer tokens."""
        from fairdraw._run.server_pace import timed

        left = math.inf if self.job.ends_at is None else self._left() or 0.0
        try:
            words, seconds, scale = timed(self.sampler, self.checks, self.profile, self.job.seed, left)
        except (NoAnswer, Inconclusive) as error:
            return Pace(words=(f"the server could not be timed: {error}",))
        return Pace(scale, words, seconds=seconds)

    def adopt(self, pace: Pace) -> None:
        """Use this pace from now on."""
        self.pace, self.profile = pace, self.profile.scaled(pace.scale)
        self.session = dataclasses.replace(self.session, profile=self.profile)

    def plan(self) -> Plan:
        """The pieces of the job, and the header of the run."""
        name = self.job.spec if self.sampler.name == self.job.spec else f"{self.job.spec} ({self.sampler.name})"
        fairness = worded_fairness(self.checks, self.sampler, self.profile, self.job.seed)
        about = getattr(self.sampler, "about", tuple)
        header = Header(
            name,
            self.sampler.device,
            self.job.profile,
            self.job.seed,
            self.about_reference,
            count_checks(self.checks),
            fairness,
            duration="; ".join(self.pace.words),
            about=tuple(about()),
            old_answers=getattr(self.sampler, "old_answers", ""),
        )
        silent = self.sampler.why if isinstance(self.sampler, SilentServer) else ""
        nothing = silent or ("" if self.checks else self.job.why_nothing(self.contract.name))
        by_suite = sorted(self.checks, key=lambda check: (check.suite == "statistical", check.code))
        codes = self.pace.order or tuple(check.code for check in by_suite)
        pieces = (*codes, *([LEDGER] if self._ledger else []))
        return Plan(
            self.sampler.name,
            header,
            pieces,
            tuple(one.control(untried=Untried.LOST) for one in self._mutants),
            nothing,
            is_silent=bool(silent),
            groups={check.code: key for check in self.checks if (key := workload_key(check))},
            titles={check.code: check.id for check in self.checks},
            seconds=self.pace.seconds,
            totals={self.contract.name: len(all_checks(contract=self.contract.name)) + bool(self._ledger)},
        )

    def run(self, piece: str) -> CheckRecord:
        """Run one check, or enter the run into the ledger."""
        return run_check(self._check(piece), self.sampler, self.session)

    def control(self, number: int) -> Control:
        """Try one mutant."""
        planned = self._mutants[number]
        try:
            return run_control(planned, self.sampler, self.session)
        except Exception as error:  # the sampler's own attributes are read for it
            return planned.control(untried=Untried.LOST, detail=last_line(error))

    def draw_pictures(self, folder: Path) -> list[Path]:
        """A picture per table. What was drawn in this process is not drawn again.

        Raises:
            CannotStart: If Matplotlib is not installed.
        """
        from fairdraw.statistical._nightly import draw_pictures

        try:
            with one_torch_thread():
                deadline = Deadline(self.job.ends_at)
                return draw_pictures(folder, self.checks, self.sampler, self.profile, self.job.seed, deadline)
        except ImportError as error:
            raise CannotStart(str(error)) from None

    @cached_property
    def _mutants(self) -> list[Planned]:
        return controls_for(self.checks, self.sampler, self.session)

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
