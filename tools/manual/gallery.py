"""The gallery: ten mutants as `fairdraw check` reports them, each with the picture of the table that decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.examples import mutants_of

from fairdraw._core.checks import PROFILES
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._report.explanation import Explanation, explanation, failing_examples
from fairdraw._run.loading import all_checks
from fairdraw.statistical._nightly import judged_tables
from fairdraw.statistical._pictures import write_pictures

if TYPE_CHECKING:
    from pathlib import Path

CODES = ["DIST102", "DIST104", "DIST203", "DIST321", "DIST322", "DIST341", "DIST763", "DIST804", "DIST951", "DIST971"]
"""Faults of acceptance, recovery, noise, a drafter, log-probabilities, masks. Their tables are drawn in seconds."""
CHECKS = {check.code: check for check in all_checks("statistical") if check.code in CODES}


def sections() -> str:
    """Return the failures as Markdown."""
    return "\n".join(section(explanation(check)) for check in CHECKS.values())


def section(about: Explanation) -> str:
    code, _, title = about.title.partition(" ")
    picture = f"![{code}: what was seen, beside what is expected](pictures/{code}.png)"
    return "\n".join([f"## {title}: [{code}](checks/{code}.md)", "", *failure(about), picture, ""])


def failure(about: Explanation) -> list[str]:
    """Return the failing example of a check as lines of Markdown."""
    if (failing := about.failing) is None:
        return ["No mutant: this check compares with something outside of fairdraw.", ""]
    lines = [f"The mutant **{failing.mutant}** fails this check. {about.fault}", ""]
    lines += ["```text", failing.effect, f"evidence: {failing.evidence}", "```", ""]
    if failing.example:
        lines += ["The smallest case that shows it:", "", "```python", failing.example, "```", ""]
    return lines


def draw(path: Path) -> Path:
    """Draw the table by which a check, whose code is the name of the file, caught the mutant of its failing example."""
    check = CHECKS[path.stem]
    failing = failing_examples()[check.code]
    mutant = next(one for one in mutants_of(check) if one.name == failing.mutant)
    tables = judged_tables([check], mutant.make(), PROFILES["ci"], DEFAULT_SEED)
    decisive = next(one for one in tables if one.name.removeprefix(f"{check.code} ") in failing.effect)
    return write_pictures(path.parent, [decisive])[0].rename(path)
