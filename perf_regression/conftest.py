"""The marks and options of this folder, and its table of verdicts at the end of a run.

`counts` is exact and runs with every test run. `timing` takes minutes and a machine of its own: it runs only if it is
asked for, with `-m timing` or `make bench`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression._findings import Finding, InconclusiveWarning, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARKS = (
    "counts: exact counts of what a sampler costs; no clock",
    "timing: needs minutes and a clock; runs only if asked for with -m",
)
FOUND: pytest.StashKey[list[Finding]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fairdraw performance")
    group.addoption("--perf-strict", action="store_true", help="only PASS is green: for main and for releases")
    group.addoption("--perf-history", type=Path, metavar="FILE", help="append what was measured, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--perf-strict", False):
        os.environ["FAIRDRAW_PERF_STRICT"] = "1"
    # An ini file that makes errors of warnings is about other people's; `-W error` is asked for, and comes later.
    config.addinivalue_line(
        "filterwarnings", f"always::{InconclusiveWarning.__module__}.{InconclusiveWarning.__name__}"
    )
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    config.stash[FOUND] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out clocks that nobody asked for, and, where a sampler is named, the figures of ours."""
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
        from fairdraw.perf_regression._history import append_history

        terminalreporter.write_line(f"{append_history(history, found)} lines appended to {history}")


@pytest.fixture
def verdicts(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[Iterable[Finding]], None]:
    """Note findings for the table and as JUnit properties, then let them decide the test."""
    from fairdraw.perf_regression._benching import settle

    def note(findings: Iterable[Finding]) -> None:
        __tracebackhide__ = True
        found = list(findings)
        request.config.stash[FOUND] += found
        for finding in found:
            record_property("perf.verdict", f"{finding.case}: {finding.what}: {finding.verdict.value}")
        settle(found)

    return note
