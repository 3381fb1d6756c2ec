"""What the pytest plugin knows of one run, and what it prints.

Under pytest-xdist the checks run in workers and the controller prints. What became of a check travels home in the
report's `user_properties` (which is also how it gets into JUnit files); the header travels in `workeroutput`.
"""

from __future__ import annotations

import dataclasses
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from fairdraw.checks import PROFILES, AnyCheck, Question
from fairdraw.controls import Control, is_control, run_control
from fairdraw.loading import DEFAULT_REFERENCE, CannotStart, all_checks, load_reference, load_sampler
from fairdraw.report import (
    BROKEN,
    GREEN,
    NO_STATISTICS,
    NOTHING_RUN,
    Header,
    Summary,
    count_checks,
    failure_text,
    worded_fairness,
)
from fairdraw.runner import CheckRecord, Session, run_check

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from fairdraw.mutants.rejection import Mutant
    from fairdraw.protocols import RejectionSampler

__all__ = ["DEFAULT_SAMPLER", "RUN", "CheckUnderPytest", "PytestRun"]

T = TypeVar("T")
Fields = dict[str, Any]  # Any: strings and numbers, as JSON has them

DEFAULT_SAMPLER = "torch"

_RECORD, _CONTROL = "fairdraw.check.", "fairdraw.control."

_EXIT_CODES = {BROKEN: pytest.ExitCode.TESTS_FAILED, NOTHING_RUN: pytest.ExitCode.NO_TESTS_COLLECTED}

_current_item: ContextVar[pytest.Item | None] = ContextVar("fairdraw item", default=None)


@dataclass(frozen=True)
class CheckUnderPytest:
    """A check that skips, xfails and fails the pytest way when it is called."""

    check: AnyCheck

    def __call__(self, sampler: RejectionSampler) -> None:
        __tracebackhide__ = True
        item = _current_item.get()
        if item is None:  # called outside a test
            self.check(sampler)
        else:
            item.config.stash[RUN].conduct(self.check, sampler, item)


class PytestRun:
    """One pytest run: a plugin object with the state that hooks share."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.records: list[CheckRecord] = []
        self.controls: list[Control] = []
        self.header: list[str] = []
        self.header_was_shown = False
        self.has_checks = False
        self._session: Session | None = None
        budget = config.getoption("fairdraw_time_budget")
        self._ends_at = None if budget is None else time.time() + budget

    @property
    def _is_worker(self) -> bool:
        return hasattr(self.config, "workeroutput")

    @property
    def _sampler_was_named(self) -> bool:
        return self.config.getoption("sampler") is not None

    @property
    def _spec(self) -> str:
        return str(self.config.getoption("sampler") or DEFAULT_SAMPLER)

    @cached_property
    def sampler(self) -> RejectionSampler:
        """The sampler under test, loaded once and when it is needed."""
        return load_sampler(self._spec)

    # -- running ------------------------------------------------------------------------------------------------

    def conduct(self, check: AnyCheck, sampler: RejectionSampler, item: pytest.Item) -> None:
        """Run a check and end the test accordingly."""
        __tracebackhide__ = True
        record = run_check(check, sampler, self._session_for(sampler, check, item))
        item.user_properties += _stored(_RECORD, dataclasses.replace(record, story=None).to_json())
        if record.status == "skipped":
            pytest.skip(record.reason)
        if record.status == "xfailed":
            pytest.xfail(record.reason)
        if record.is_broken:
            if self.config.get_verbosity() >= 2 or self.config.getoption("fulltrace"):
                item.add_report_section("call", "traceback", record.trace)
            pytest.fail(failure_text(record), pytrace=False)

    def plant(self, mutant: Mutant, item: pytest.Item) -> None:
        """Try one planted fault; the test fails if it goes unseen."""
        __tracebackhide__ = True
        profile = PROFILES[self.config.option.fairdraw_profile]
        check = next(check for check in all_checks() if check.code == mutant.caught_by[0])
        if not is_control(mutant, check, self.sampler, profile):
            pytest.skip("too small for the draws of this run, or its check is closed for this sampler")
        control = run_control(mutant, self.sampler, profile)
        item.user_properties += _stored(_CONTROL, dataclasses.asdict(control))
        if not control.caught:
            pytest.fail(f"the planted fault {control.name!r} was not caught by {control.code}", pytrace=False)

    def _session_for(self, sampler: RejectionSampler, check: AnyCheck, item: pytest.Item) -> Session:
        """The session as one test sees it: a sampler made by a test has no name on the command line."""
        session = self._session or self._open([check])[0]
        if sampler is self.__dict__.get("sampler"):
            return session
        options = f"--fairdraw-profile {session.profile.name} --fairdraw-seed {session.seed}"
        return dataclasses.replace(session, spec=None, command=f'pytest "{item.nodeid}" {options}')

    def _open(self, checks: Sequence[AnyCheck]) -> tuple[Session, str]:
        """The session that all tests share, and a word about its reference."""
        option = self.config.option
        reference, about_reference = load_reference(option.fairdraw_reference, checks)
        self._session = Session(
            spec=self._spec,
            profile=PROFILES[option.fairdraw_profile],
            seed=option.fairdraw_seed,
            reference=reference,
            reference_spec=option.fairdraw_reference or (DEFAULT_REFERENCE if reference else None),
            ends_at=self._ends_at,
        )
        return self._session, about_reference

    # -- hooks --------------------------------------------------------------------------------------------------

    def pytest_sessionstart(self) -> None:
        """Refuse an unknown sampler before anything else happens, and before xdist starts workers."""
        if self._sampler_was_named and not self._is_worker and not self.config.option.collectonly:
            _or_usage_error(lambda: self.sampler)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the checks of other lenses."""
        only = self.config.getoption("fairdraw_only")
        others = [item for item in items if only and (lens := _lens_of(item)) and lens != only]
        if others:
            self.config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item not in others]

    @pytest.hookimpl(tryfirst=True)  # before the terminal asks for the header
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Load what the collected checks need, and word the header."""
        asked = [(item, check) for item in session.items if (check := _check_of(item))]
        if self.config.option.collectonly or not (asked or self._sampler_was_named):
            return
        self.has_checks = bool(asked)
        self.header = _or_usage_error(lambda: self._worded_header(asked)).lines()
        if self._is_worker:
            self.config.workeroutput["fairdraw"] = (self.has_checks, self.header)  # type: ignore[attr-defined]  # xdist's

    def pytest_report_collectionfinish(self) -> list[str]:
        self.header_was_shown = True
        return self.header

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # Any: a class of xdist, which may be absent
        """A worker is done; one that collected checks has sent the header."""
        has_checks, header = getattr(node, "workeroutput", {}).get("fairdraw", (False, []))
        self.has_checks = self.has_checks or has_checks
        self.header = self.header or list(header)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Remember which test runs: a `CheckUnderPytest` is called with the sampler alone."""
        token = _current_item.set(item)
        try:
            return (yield)
        finally:
            _current_item.reset(token)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.records += [CheckRecord(**fields) for fields in _read(_RECORD, report.user_properties)]
            self.controls += [Control(**fields) for fields in _read(_CONTROL, report.user_properties)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing measured is not green."""
        code = Summary(self.records, self.controls).exit_code
        if self.has_checks and not self._is_worker and session.exitstatus == pytest.ExitCode.OK and code != GREEN:
            session.exitstatus = _EXIT_CODES[code]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if not (self.has_checks or self.controls):
            return
        terminalreporter.section("fairdraw")
        summary = Summary(self.records, self.controls)
        *lines, verdict = summary.lines()
        for line in lines if self.header_was_shown else [*self.header, *lines]:
            terminalreporter.line(line)
        if summary.exit_code == NOTHING_RUN and not self.has_checks:
            return  # controls alone: no sampler was judged
        ended_well = exitstatus == pytest.ExitCode.OK
        if summary.exit_code == GREEN and not ended_well:
            verdict = f"NOT GREEN: pytest ended with {pytest.ExitCode(exitstatus).name}, see above"
        terminalreporter.line(verdict, green=ended_well and summary.exit_code == GREEN, bold=True)

    def _worded_header(self, asked: Sequence[tuple[pytest.Item, AnyCheck]]) -> Header:
        checks = {check.id: check for _, check in asked}
        session, about_reference = self._open(list(checks.values()))
        samplers = {sampler.name: sampler for item, _ in asked if (sampler := _params(item).get("sampler"))}
        if self._sampler_was_named:
            samplers[self._spec] = self.sampler
        elif any("sampler" not in _params(item) for item, _ in asked):
            samplers[f"{self._spec} (the default; choose with --sampler)"] = self.sampler
        return Header(
            sampler=", ".join(samplers),
            device=", ".join(sorted({sampler.device for sampler in samplers.values()})),
            profile=session.profile.name,
            seed=session.seed,
            reference=about_reference,
            checks=count_checks(checks.values()),
            fairness=self._fairness(checks.values(), list(samplers.values())),
        )

    def _fairness(self, checks: Iterable[AnyCheck], samplers: Sequence[RejectionSampler]) -> str:
        """What the run can see of each sampler; its name is said if there are several."""
        option = self.config.option
        words = {
            sampler.name: worded_fairness(checks, sampler, PROFILES[option.fairdraw_profile], option.fairdraw_seed)
            for sampler in samplers
        }
        if len(set(words.values())) <= 1:
            return next(iter(words.values()), NO_STATISTICS)
        return "; ".join(f"{name}: {text}" for name, text in words.items())


RUN = pytest.StashKey[PytestRun]()


def _or_usage_error(action: Callable[[], T]) -> T:
    try:
        return action()
    except CannotStart as error:
        raise pytest.UsageError(str(error)) from None


def _params(item: pytest.Item) -> dict[str, Any]:  # Any: parameters of any test
    callspec = getattr(item, "callspec", None)
    return dict(callspec.params) if callspec else {}


def _check_of(item: pytest.Item) -> AnyCheck | None:
    """The check that a test puts to a sampler, if it does: other tests may be *about* a check."""
    for value in _params(item).values():
        if isinstance(value, CheckUnderPytest):
            return value.check
        if isinstance(value, Question) and "fairdraw_run" in getattr(item, "fixturenames", ()):
            return cast("AnyCheck", value)
    return None


def _lens_of(item: pytest.Item) -> str | None:
    """The lens that a test belongs to, as a check or as a planted fault that a check has to catch."""
    check = _check_of(item)
    if check is not None:
        return check.lens
    if "fairdraw_control" not in getattr(item, "fixturenames", ()):
        return None
    codes = {value.caught_by[0] for value in _params(item).values() if hasattr(value, "caught_by")}
    return next((check.lens for check in all_checks() if check.code in codes), None)


def _stored(prefix: str, fields: Fields) -> list[tuple[str, Any]]:  # Any: as in Fields
    """Fields as properties of a report."""
    return [(prefix + name, value) for name, value in fields.items() if value is not None]


def _read(prefix: str, properties: Iterable[tuple[str, Any]]) -> Iterator[Fields]:  # Any: as in Fields
    """Every group of fields stored under `prefix`; a test may have run several checks."""
    fields: Fields = {}
    for name, value in properties:
        key = name.removeprefix(prefix)
        if key in fields:
            yield fields
            fields = {}
        if key != name:
            fields[key] = value
    if fields:
        yield fields
