"""What is known about a check: `fairdraw explain CODE` prints it, and the check's page of the manual shows the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairdraw._core.contracts import CONTRACTS, load_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairdraw._core.checks import AnyCheck

RECORD = Path(__file__).with_name("failing_examples.json")
"""What `tools/record.py examples` writes: one row per check."""


@dataclass(frozen=True)
class FailingExample:
    """How one mutant fails a check.

    Args:
        mutant: Its name.
        effect: What it emitted, against what is required.
        evidence: Why that decides.
        example: The smallest case, as code; empty for distribution checks, which have no single case.
    """

    mutant: str
    effect: str
    evidence: str
    example: str


@dataclass(frozen=True)
class Explanation:
    """One check, in the order in which it is read.

    Args:
        required: What every correct sampler does.
        cause: Paragraphs: what a failure usually means, and where to look.
        facts: Contract, suite, what it needs and how to run it alone, by label.
        fault: What the mutant of `failing` does wrong.
        failing: A failure of this check; `None` if it has no mutant.
    """

    title: str
    required: str
    cause: tuple[str, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    failing: FailingExample | None = None

    def lines(self) -> list[str]:
        """As text; `fairdraw explain` prints it."""
        paragraphs = [self.title, f"required: {self.required}"]
        paragraphs += [f"usual cause: {' '.join(self.cause)}"] if self.cause else []
        if self.failing is not None:
            one, labels = self.failing, ("failing example", "evidence", "smallest case")
            texts = zip(labels, (one.effect, one.evidence, one.example), strict=True)
            shown = [f"caught mutant: {one.mutant}. {self.fault}", *(f"{what}: {text}" for what, text in texts if text)]
            paragraphs.append("\n".join(shown))
        paragraphs.append("\n".join(f"{label}: {text}" for label, text in self.facts.items()))
        return "\n\n".join(paragraphs).splitlines()


def explanation(check: AnyCheck) -> Explanation:
    """What is known about `check`."""
    required, *cause = (" ".join(paragraph.split()) for paragraph in check.meaning.split("\n\n"))
    failing, common = failing_examples().get(check.code), {("--profile", "ci"), ("--seed", "0")}
    options = (f"{option} {value}" for option, value in check.again("ci", 0).items() if (option, value) not in common)
    facts = {
        "contract": check.contract.replace("_", " "),
        "suite": check.suite,
        "needs": ", ".join(check.needed) or "nothing",
        "run it alone": " ".join(["fairdraw check SPEC", *options]),
    }
    fault = "" if failing is None else _faults(check.contract).get(failing.mutant, "")
    return Explanation(check.id, required, tuple(cause), facts, fault, failing)


@cache
def failing_examples() -> Mapping[str, FailingExample]:
    """By check code, as recorded."""
    return {row.pop("code"): FailingExample(**row) for row in json.loads(RECORD.read_text(encoding="utf-8"))}


@cache
def _faults(contract: str) -> Mapping[str, str]:
    """Name of a mutant to what it does wrong."""
    mutants = (mutant for path in CONTRACTS[contract].mutants for mutant in load_part(path))
    return {mutant.name: " ".join(mutant.description.split()) for mutant in mutants}
