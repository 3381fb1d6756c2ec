"""How a pytest run ended: which checks were planned, which were run, and what stopped the rest.

A missing check must not look like a pass. A worker of xdist that dies, a signal, `-x` and a plugin that times a test
out all leave tests without a record. They are counted here, and named where pytest says which test it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._report.verdict import Scope
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


class Ending:
    """The tests that run a check on a sampler: planned, and done."""

    def __init__(self) -> None:
        self.planned: set[str] = set()
        self.signal = self.left = ""
        self.totals: dict[str, int] = {}
        self.num_marked = 0
        self._done: set[str] = set()

    @property
    def was_cut(self) -> bool:
        """Whether a signal or the sampler ended the run."""
        return bool(self.signal or self.left)

    def plan(self, node_ids: Iterable[str]) -> None:
        """These tests are to be run. All workers of xdist plan the same ones."""
        self.planned.update(node_ids)

    def watch(self, report: pytest.TestReport, *, has_records: bool) -> CheckRecord | None:
        """Note the result of a test. A check that failed without a record gets an incomplete one."""
        node_id = report.nodeid
        if has_records or node_id in self._done:
            self._done.add(node_id)
            return None
        if report.skipped and report.when == "setup" and node_id in self.planned:  # by a mark of the user's
            self.planned.discard(node_id)
            self.num_marked += 1
            return None
        if not report.failed or (self.planned and node_id not in self.planned):
            return None
        if (check := next((check for check in all_checks() if check.id in node_id), None)) is None:
            return None
        self.planned.add(node_id)
        self._done.add(node_id)
        return CheckRecord.of(check, "", "incomplete", reason=_first_line(report.longreprtext))

    def scope(self, narrowed: str, outside: str) -> Scope:
        """What the verdict needs."""
        marked = f"{self.num_marked} checks skipped by marks" if self.num_marked else ""
        words = ", ".join(word for word in (narrowed, marked) if word)
        return Scope(len(self.planned - self._done), words, self.signal, self.left, outside, self.totals)


def _first_line(text: str) -> str:
    """The line of a failure's text that says what happened. Pytest marks the exception with an E."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return next(iter([*marked, *lines[-1:]]), "the test ended without a result")
