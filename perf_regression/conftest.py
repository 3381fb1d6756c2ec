"""The marks and options of this folder, the `verdicts` fixture, and the table at the end of a run.

`counts` is exact and runs with every test run. `timing` takes minutes and needs a machine of its own: it runs only on
request, with `-m timing` or `make bench`.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._findings import Finding, InconclusiveWarning, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARKS = (
    "counts: exact counts of what a sampler costs; no clock",
    "timing: needs minutes and a clock; runs only on request, with -m",
)
STRICT_VARIABLE = "FAIRDRAW_PERF_STRICT"
"""Set to 1 (or by `--perf-strict`) on main and for releases: then only PASS is green."""
FOUND: pytest.StashKey[list[Finding]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fairdraw performance")
    group.addoption("--perf-strict", action="store_true", help="only PASS is green: for main and for releases")
    group.addoption("--perf-history", type=Path, metavar="FILE", help="append what was measured, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--perf-strict", False):
        os.environ[STRICT_VARIABLE] = "1"
    # An ini file that turns warnings into errors does not mean this warning. `-W error` is applied later and does.
    config.addinivalue_line(
        "filterwarnings", f"always::{InconclusiveWarning.__module__}.{InconclusiveWarning.__name__}"
    )
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    config.stash[FOUND] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect timings unless they were requested, and, where a sampler is named, the counts of ours."""
    if config.option.markexpr:
        return
    marks = ("timing", "counts") if config.getoption("--sampler", None) else ("timing",)
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in marks)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash[FOUND]
    if not found:
        return
    terminalreporter.section("performance verdicts")
    terminalreporter.write_line("\n".join(table(found)))
    history = config.getoption("--perf-history", None)
    if history is not None:
        from fairdraw.perf_regression._records import append_history

        terminalreporter.write_line(f"{append_history(history, found)} lines appended to {history}")


@pytest.fixture
def verdicts(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[Iterable[Finding]], None]:
    """Record findings for the table and as JUnit properties, then let them decide the test."""

    def note(findings: Iterable[Finding]) -> None:
        __tracebackhide__ = True
        found = list(findings)
        request.config.stash[FOUND] += found
        for finding in found:
            record_property("perf.verdict", f"{finding.case}: {finding.what}: {finding.verdict.value}")
        settle(found)

    return note


def settle(findings: Iterable[Finding]) -> None:
    """Turn findings into the outcome of a test: FAIL fails, and without a decision the test is skipped with the reason.

    INCONCLUSIVE is also a warning, because a skip is easily overlooked and this one says that a limit is near.

    Raises:
        AssertionError: If a limit is broken, or under `FAIRDRAW_PERF_STRICT=1` not known to be kept.
    """
    __tracebackhide__ = True
    found = list(findings)
    wanted = {Verdict.PASS} if os.environ.get(STRICT_VARIABLE) == "1" else set(Verdict) - {Verdict.FAIL}
    broken = [finding for finding in found if finding.verdict not in wanted]
    if broken:
        raise AssertionError("\n".join(map(str, broken)))
    unknown = [finding for finding in found if finding.verdict is not Verdict.PASS]
    for finding in unknown:
        if finding.verdict is Verdict.INCONCLUSIVE:
            warnings.warn(str(finding), InconclusiveWarning, stacklevel=3)  # at the test, which called the fixture
    if unknown or not found:
        pytest.skip("; ".join(map(str, unknown)) or "NO VERDICT: nothing was measured")
