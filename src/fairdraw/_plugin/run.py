"""The state of one run under the pytest plugin, and what it prints.

Under pytest-xdist the checks run in workers, and the controller prints and writes files. Results of a check are sent to
it as an attribute of the test's report, the header in `workeroutput`. `user_properties` are for JUnit files.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import time
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from fairdraw import __version__
from fairdraw._core.checks import PROFILES, AnyCheck
from fairdraw._core.contracts import CONTRACTS, contract_name
from fairdraw._core.foreign import printable
from fairdraw._core.interrupts import Interrupted, Interrupts
from fairdraw._core.last_words import last_words
from fairdraw._core.pulse import limit_calls
from fairdraw._plugin.ending import Ending
from fairdraw._report import summary as summaries
from fairdraw._report.files import RunFiles, require_apart
from fairdraw._report.verdict import GREEN, NOTHING_RUN
from fairdraw._run.controls import Control, plan_control, run_control
from fairdraw._run.expected import read_expected
from fairdraw._run.loading import CannotStart, all_checks, another, load_reference, load_sampler, where_made
from fairdraw._run.runner import CheckRecord, Session, run_check

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from fairdraw._mutants._mutant import Mutant
    from fairdraw.contracts import AnySampler

T = TypeVar("T")
Fields = dict[str, Any]  # Any: JSON
_Sent = tuple[bool, Fields, list[str], dict[str, int]]
"""What a worker of xdist collected: whether checks, the header, the tests, and how many checks each contract has."""

_RECORD, _CONTROL = "fairdraw.check.", "fairdraw.control."

_FOUND = pytest.StashKey[dict[str, list[Fields]]]()
"""Of a test: its records and controls as plain data, by the names above."""

_EXIT_CODES = {NOTHING_RUN: pytest.ExitCode.NO_TESTS_COLLECTED}
"""Exit codes for which pytest has its own number. No verdict has 2 or 4, which are pytest's."""

_current_item: ContextVar[pytest.Item | None] = ContextVar("fairdraw item", default=None)


@dataclass(frozen=True)
class CheckUnderPytest:
    """A check that skips, xfails and fails as a pytest test when it is called."""

    check: AnyCheck

    def __call__(self, sampler: AnySampler) -> None:
        __tracebackhide__ = True
        if (item := _current_item.get()) is None:  # called outside a test
            self.check(sampler)
        else:
            item.config.stash[RUN].conduct(self.check, sampler, item)


class PytestRun:
    """One pytest run: a plugin object whose hooks share this state."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.records: list[CheckRecord] = []
        self.controls: list[Control] = []
        self.header: summaries.Header | None = None
        self.header_was_shown = False
        self.trouble = ""
        self.has_checks = False
        self._ending, self._interrupts, self._held = Ending(), Interrupts(), ExitStack()
        self._session_has_begun = False
        self._conducts, self._holds_end = "", False
        self._summary: summaries.Summary | None = None
        self._not_sent: _Sent | None = None
        self._sessions: dict[str, Session] = {}
        self._samplers: dict[str, AnySampler] = {}
        wanted = {form: path for form in ("json", "html") if (path := config.getoption(f"fairdraw_{form}"))}
        self._files = RunFiles(wanted, option="--fairdraw-")
        self._began = time.monotonic()
        budget = config.getoption("fairdraw_time_budget")
        self._ends_at = None if budget is None else time.time() + budget

    @property
    def _is_worker(self) -> bool:
        return hasattr(self.config, "workeroutput")

    @property
    def _sampler_was_named(self) -> bool:
        return self.config.getoption("sampler") is not None

    def sampler_for(self, contract: str = "") -> AnySampler:
        """The sampler under test for checks of `contract`: the named one, or the contract's default. Loaded once."""
        spec = self._spec(contract)
        if spec not in self._samplers:
            self._samplers[spec] = load_sampler(spec)
        return self._samplers[spec]

    def sampler_or_fail(self, contract: str = "") -> AnySampler:
        """The same. One that cannot be loaded fails the test with one sentence."""
        __tracebackhide__ = True
        try:
            return self.sampler_for(contract)
        except CannotStart as error:
            pytest.fail(str(error), pytrace=False)

    def _spec(self, contract: str) -> str:
        return str(self.config.getoption("sampler") or CONTRACTS[contract or next(iter(CONTRACTS))].default)

    # -- running ------------------------------------------------------------------------------------------------

    def conduct(self, check: AnyCheck, sampler: AnySampler, item: pytest.Item) -> None:
        """Run a check and end the test with its result."""
        __tracebackhide__ = True
        limit_calls(self.config.getoption("fairdraw_call_timeout"))
        self._conducts = f" during {check.code}"
        try:
            record = run_check(check, sampler, self._session_for(sampler, check, item))
        finally:
            limit_calls(None)
            self._conducts = ""
        _keep(item, _RECORD, record.to_json() | {"drawn": record.drawn and dataclasses.asdict(record.drawn)})
        if record.status == "skipped":
            pytest.skip(record.reason)
        if record.status == "xfailed":
            pytest.xfail(record.reason)
        if record.is_broken:
            if self.config.get_verbosity() >= 2 or self.config.getoption("fulltrace"):
                item.add_report_section("call", "traceback", record.trace)
            pytest.fail(summaries.failure_text(record), pytrace=False)

    def plant(self, mutant: Mutant, item: pytest.Item) -> None:
        """Try a mutant. The test fails if the check misses it; it xfails if only this run's numbers are too small."""
        __tracebackhide__ = True
        first = next(check for check in all_checks() if check.code == mutant.caught_by[0])
        contract = first.contract
        sampler = self.sampler_or_fail(contract)
        checks = all_checks(contract=contract)
        if (session := self._sessions.get(contract)) is None:
            collected = filter(None, map(_about, item.session.items))
            session, _ = self._open([check for check in collected if check.contract == contract] or [first])
        control = run_control(plan_control(mutant, checks, sampler, session), sampler, session)
        _keep(item, _CONTROL, dataclasses.asdict(control))
        if control.untried:
            pytest.skip(f"not tried, {control.untried}" + (f": {control.detail}" if control.detail else ""))
        if control.is_blind:
            pytest.fail(f"the mutant {control.name!r} was not caught by {control.code}", pytrace=False)
        if control.is_missed:
            pytest.xfail(f"missed by this run, whose numbers are too small for {control.code} to detect it")

    def _session_for(self, sampler: AnySampler, check: AnyCheck, item: pytest.Item) -> Session:
        """The session for one test. A sampler made by a test has no name on the command line."""
        session = self._sessions.get(check.contract) or self._open([check])[0]
        if any(sampler is loaded for loaded in self._samplers.values()):
            return session
        path, _, names = item.nodeid.partition("::")  # relative to pytest's root, which need not be where it was typed
        test = f"{os.path.relpath(item.path)}::{names}" if names else path
        options = ["--fairdraw-profile", session.profile.name, "--fairdraw-seed", str(session.seed)]
        return dataclasses.replace(
            session, spec=None, renew=lambda: None, command=shlex.join(["pytest", test, *options])
        )

    def _open(self, checks: Sequence[AnyCheck]) -> tuple[Session, str]:
        """The session that all tests of one contract share, and a text about its reference."""
        option, contract = self.config.option, checks[0].contract
        reference, about_reference = load_reference(option.fairdraw_reference, checks)
        self._sessions[contract] = Session(
            spec=self._spec(contract),
            profile=PROFILES[option.fairdraw_profile],
            seed=option.fairdraw_seed,
            reference=reference,
            reference_spec=option.fairdraw_reference or (CONTRACTS[contract].reference if reference else None),
            ends_at=self._ends_at,
            renew=partial(another, self._spec(contract)),
            under_pytest=True,
            expected=_or_usage_error(
                lambda: read_expected(option.fairdraw_xfails, option.fairdraw_baseline, option.sampler)
            ),
        )
        return self._sessions[contract], about_reference

    # -- hooks --------------------------------------------------------------------------------------------------

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Refuse an unknown sampler, or files that cannot be written, before xdist starts workers."""
        if self._is_worker or self.config.option.collectonly:
            return
        _or_usage_error(lambda: require_apart(self._named_files()))
        _or_usage_error(self._files.require_writable)
        if self._sampler_was_named or self._files.paths:
            self._hold_end(session)
        if self._sampler_was_named:
            _or_usage_error(self.sampler_for)

    def pytest_collection(self) -> None:
        self._session_has_begun = True

    def _named_files(self) -> list[tuple[str, Path | None]]:
        """Options, and the files that they name."""
        option, names = self.config.option, ("xfails", "baseline", "json", "html")
        junit = getattr(option, "xmlpath", None)
        own: list[tuple[str, Path | None]] = [
            (f"--fairdraw-{one}", getattr(option, f"fairdraw_{one}")) for one in names
        ]
        return [("--junitxml", Path(junit) if junit else None), *own]

    def leave_out(self, items: list[pytest.Item]) -> None:
        """Deselect checks of other suites, and of other contracts than the named sampler's, and unwanted controls."""
        only, is_run = self.config.getoption("fairdraw_only"), not self.config.option.collectonly
        named = _or_usage_error(self.sampler_for) if self._sampler_was_named and is_run else None
        contract = None if named is None else contract_name(named)
        others = [
            item
            for item in items
            if (check := _about(item)) and (only not in (None, check.suite) or contract not in (None, check.contract))
        ]
        if self.config.getoption("fairdraw_no_controls"):
            others += [item for item in items if _is_control(item) and item not in others]
        if others:
            self.config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item not in others]

    @pytest.hookimpl(tryfirst=True)  # before the header is printed
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Load what the collected checks need, and write the header."""
        pairs = [(item, check) for item in session.items if (check := _check_of(item))]
        if self.config.option.collectonly or not (pairs or self._sampler_was_named):
            return
        self.has_checks = bool(pairs)
        self.header = _or_usage_error(lambda: self._worded_header(pairs))
        self._ending.plan(item.nodeid for item, _ in pairs)
        self._ending.totals = {c: len(all_checks(contract=c)) for c in {check.contract for _, check in pairs}}
        if self._is_worker:
            planned, totals = sorted(self._ending.planned), self._ending.totals
            self._not_sent = (self.has_checks, dataclasses.asdict(self.header), planned, totals)
            self.config.workeroutput["fairdraw"] = self._not_sent  # type: ignore[attr-defined]  # xdist's
        else:
            self._hold_end(session)
            self._start_files(self.header)

    def _hold_end(self, session: pytest.Session) -> None:
        """Let no signal and nothing that the sampler does end the process before the verdict was said."""
        if not self._holds_end:
            self._holds_end = True
            self._held.enter_context(self._interrupts)
            self._held.enter_context(last_words(lambda how: self._report_left(session, how)))
            self.config.add_cleanup(self._held.close)

    def _report_left(self, session: pytest.Session, how: str) -> int:
        """Report what was found until the sampler ended this process, as pytest does at the end of a session."""
        capture, terminal = map(self.config.pluginmanager.get_plugin, ("capturemanager", "terminalreporter"))
        if capture is not None:
            capture.suspend(in_=True)
        self._ending.left = how + self._conducts
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if not self._session_has_begun:  # pytest's hooks need one
            self.pytest_sessionfinish(session)
            if terminal is not None:
                self.pytest_terminal_summary(terminal)
        else:
            self.config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        return int(session.exitstatus)

    def _start_files(self, header: summaries.Header) -> None:
        _or_usage_error(lambda: self._files.start(header, len(self._ending.planned)))

    def pytest_report_collectionfinish(self) -> list[str]:
        self.header_was_shown = True
        return self._header_lines()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # Any: a class of xdist, which may be absent
        """A worker is done. If it ran no test, it has not yet sent what it collected."""
        self._hear(getattr(node, "workeroutput", {}).get("fairdraw"))

    def _hear(self, sent: _Sent | None) -> None:
        """Take what a worker collected; the header comes from the first."""
        if sent is None:
            return
        has_checks, header, planned, totals = sent
        self._ending.totals |= totals
        self.has_checks = self.has_checks or has_checks
        self._ending.plan(planned)
        if self.header is None:
            self.header = summaries.Header(**header)
            self._start_files(self.header)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Remember which test runs, because a `CheckUnderPytest` is called with the sampler only."""
        token = _current_item.set(item)
        found: dict[str, list[Fields]] = {_RECORD: [], _CONTROL: []}
        item.stash[_FOUND] = found
        try:
            return (yield)
        finally:
            _current_item.reset(token)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach results to the report. xdist sends attributes of reports to the controller."""
        report = yield
        found = item.stash.get(_FOUND, {})
        if call.when == "call" and any(found.values()):
            report.fairdraw = found  # type: ignore[attr-defined]  # reports take any attribute
        if self._not_sent is not None:  # with the first report: an interrupted run sends nothing at its end
            report.fairdraw_start, self._not_sent = self._not_sent, None  # type: ignore[attr-defined]  # as above
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        self._hear(getattr(report, "fairdraw_start", None))
        found: dict[str, list[Fields]] = getattr(report, "fairdraw", {})
        records = [CheckRecord.from_json(fields) for fields in found.get(_RECORD, ())]
        lost = self._ending.watch(report, has_records=bool(records))
        for record in [*records, *([lost] if lost else [])]:
            self.records.append(record)
            self._files.add(record)
        self.controls += [Control(**fields) for fields in found.get(_CONTROL, ())]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if excinfo.type in (KeyboardInterrupt, Interrupted):  # xdist and `-x` raise subclasses of their own
            self._ending.signal = self._interrupts.received or "SIGINT"
            self._held.enter_context(Interrupts.held())

    @pytest.hookimpl(tryfirst=True)  # before the JUnit file is written
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """One verdict for terminal, files, JUnit and exit code. Files are written here, by the controller."""
        self._held.enter_context(Interrupts.held())
        ours = self._sampler_was_named or self._files.paths
        # There is a header, there are controls, or an interrupt came before them in a run of ours.
        has_run = self.header is not None or self.controls or (self._ending.was_cut and ours)
        if self._is_worker or not has_run:
            return
        summary = self._summary = self._summarised(session.exitstatus)
        if self.has_checks or self._ending.was_cut:
            self._end_with(session, summary)
        try:
            option = self.config.option
            bare = summaries.Header.unloaded(option.sampler or "ours", option.fairdraw_profile, option.fairdraw_seed)
            self._files.write(self.header or bare, summary)
        except CannotStart as error:
            self.trouble, session.exitstatus = str(error), pytest.ExitCode.USAGE_ERROR

    def _summarised(self, exit_status: int | pytest.ExitCode) -> summaries.Summary:
        """The summary, with how pytest itself ended."""
        outside = ""
        if exit_status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            name = pytest.ExitCode(exit_status).name if exit_status in set(pytest.ExitCode) else str(exit_status)
            outside = f"pytest ended with {name}, see above"
        seconds = time.monotonic() - self._began
        without = "--fairdraw-no-controls" if self.config.option.fairdraw_no_controls else ""
        scope = dataclasses.replace(self._ending.scope(self._narrowed(), outside), without_controls=without)
        return summaries.Summary(self.records, self.controls, scope, seconds)

    def _narrowed(self) -> str:
        """What the user left out by name."""
        option, given = self.config.option, {"--fairdraw-only": "fairdraw_only", "-k": "keyword", "-m": "markexpr"}
        words = [
            *(f"{word} {value}" for word, name in given.items() if (value := getattr(option, name, ""))),
            *(word for word, name in (("--lf", "lf"), ("--sw", "stepwise")) if getattr(option, name, False)),
            *(f"--deselect {name}" for name in getattr(option, "deselect", None) or ()),
            *(f"--ignore {name}" for name in getattr(option, "ignore", None) or ()),
            *(["tests named one by one"] if any("::" in str(argument) for argument in self.config.args) else []),
        ]
        return " ".join(words)

    def _end_with(self, session: pytest.Session, summary: summaries.Summary) -> None:
        """Exit with the verdict's code, also in the JUnit file. Usage and internal errors keep pytest's code."""
        if session.exitstatus in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
            return
        if summary.exit_code != GREEN and (self.has_checks or summary.exit_code != NOTHING_RUN):
            session.exitstatus = _EXIT_CODES.get(summary.exit_code, summary.exit_code)
        for plugin in self.config.pluginmanager.get_plugins():
            if hasattr(plugin, "add_global_property"):  # pytest's writer of JUnit files
                plugin.add_global_property("fairdraw.verdict", summary.verdict)
                plugin.add_global_property("fairdraw.exit_code", str(int(session.exitstatus)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        summary = self._summary
        if summary is None or not (self.has_checks or self.controls or self._ending.was_cut):
            return
        terminalreporter.section("fairdraw")
        *lines, verdict = summary.lines()
        for line in lines if self.header_was_shown else [*self._header_lines(), *lines]:
            terminalreporter.line(line)
        if self.trouble:
            terminalreporter.line(printable(self.trouble), red=True)
        if summary.exit_code == NOTHING_RUN and not self.has_checks:
            return  # controls only: no sampler was tested
        terminalreporter.line(verdict, bold=True, **{summary.judgement.colour: True})

    def _header_lines(self) -> list[str]:
        return [] if self.header is None else self.header.lines()

    def _worded_header(self, pairs: Sequence[tuple[pytest.Item, AnyCheck]]) -> summaries.Header:
        checks = {check.id: check for _, check in pairs}
        contracts = {c: [k for k in checks.values() if k.contract == c] for c in CONTRACTS}
        about = {c: self._open(listed)[1] for c, listed in contracts.items() if listed}
        samplers = self._samplers_of(pairs)
        option, (started, commit) = self.config.option, summaries.start_of_run()
        return summaries.Header(
            sampler=", ".join(samplers),
            device=", ".join(sorted({sampler.device for sampler in samplers.values()})),
            profile=option.fairdraw_profile,
            seed=option.fairdraw_seed,
            reference=_joined(about, "none of these checks needs one"),
            checks=summaries.count_checks(checks.values()),
            fairness=self._fairness(checks.values(), list(samplers.values())),
            started=started,
            commit=commit,
            about=tuple(line for sampler in samplers.values() for line in summaries.about_sampler(sampler)),
            adapter=where_made(self._spec("")) if self._sampler_was_named else "",
        )

    def _samplers_of(self, pairs: Sequence[tuple[pytest.Item, AnyCheck]]) -> dict[str, AnySampler]:
        """Every sampler of this run, by its name in the header."""
        samplers = {sampler.name: sampler for item, _ in pairs if (sampler := _params(item).get("sampler"))}
        if self._sampler_was_named:
            return {**samplers, self._spec(""): self.sampler_for()}
        for contract in sorted({check.contract for item, check in pairs if "sampler" not in _params(item)}):
            samplers[f"{self._spec(contract)} (the default; choose with --sampler)"] = self.sampler_for(contract)
        return samplers

    def _fairness(self, checks: Iterable[AnyCheck], samplers: Sequence[AnySampler]) -> str:
        """What the run can detect in each sampler, with its name if there are several."""
        option = self.config.option
        profile = PROFILES[option.fairdraw_profile]
        words = {}
        for sampler in samplers:
            own = [check for check in checks if check.contract == contract_name(sampler)]
            words[sampler.name] = summaries.worded_fairness(own, sampler, profile, option.fairdraw_seed)
        return _joined(words, summaries.NO_STATISTICS)


def _joined(words: dict[str, str], nothing: str) -> str:
    """One text if all are the same, else each with its name."""
    if len(set(words.values())) <= 1:
        return next(iter(words.values()), nothing)
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
    """The check that a test runs on a sampler, if it does. Other tests may be *about* a check."""
    for value in _params(item).values():
        if isinstance(value, CheckUnderPytest):
            return value.check
        if isinstance(value, AnyCheck) and "fairdraw_run" in getattr(item, "fixturenames", ()):
            return value
    return None


def _about(item: pytest.Item) -> AnyCheck | None:
    """The check that a test is about: it runs it on a sampler, or on a mutant that the check has to catch."""
    if (check := _check_of(item)) is not None:
        return check
    if not _is_control(item):
        return None
    codes = {value.caught_by[0] for value in _params(item).values() if hasattr(value, "caught_by")}
    return next((check for check in all_checks() if check.code in codes), None)


def _is_control(item: pytest.Item) -> bool:
    """Whether a test runs a check on its mutant."""
    return "fairdraw_control" in getattr(item, "fixturenames", ())


def _keep(item: pytest.Item, prefix: str, fields: Fields) -> None:
    """Keep the results of a test: all fields for us, the plain ones as properties for JUnit files."""
    fields = json.loads(json.dumps(fields))  # enums of strings are no strings to xdist
    item.stash[_FOUND][prefix].append(fields)
    plain = {name: value for name, value in fields.items() if isinstance(value, str | int | float)}
    item.user_properties += [(prefix + name, value) for name, value in plain.items()]
    if ("fairdraw.suite_version", __version__) not in item.user_properties:
        item.user_properties.append(("fairdraw.suite_version", __version__))
