"""From many failed checks to few causes: which are reported together, and in which order.

One fault fails many checks. The report starts with the check that is nearest to the fault:

1. Exceptions and malformed outputs: no other result means anything while they occur.
2. Properties: one small example decides. If just one fails beside many distributions, it is likely a fault of its own,
   and comes later.
3. Distributions, in the order of their stages (`checks.Stage`).
4. Checks that mean something only if others pass (`depends_on`), where those failed, too. Properties of this kind come
   last among the properties.
5. Checks of features that the sampler probably does not support: most of the checks that need one capability failed,
   and none of the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.budget import ENDED, undecided_by_budget
from fairdraw._core.checks import Stage
from fairdraw._core.failures import without_numbers
from fairdraw.contracts import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw._run.runner import CheckRecord

_SELDOM = (
    "synthetic-rates nan-logits empty-rows placeholder-drafts strided-inputs half-logits greedy long-drafts "
    "upstream-stream counter-noise request-seeds seeded-noise reference-race"
)
SELDOM = tuple(map(Capability, _SELDOM.split()))
"""What a correct sampler may well not support. Explicit noise, ragged batches and both kinds of drafts are not among
them: a failure of their checks is the fault to look for."""

_SAME_SEEDS = frozenset({"REJ501", "SAM161"})
"""Checks that the same seeds give the same tokens. Others compare calls with the same seeds to find something else."""

_MANY_DISTRIBUTIONS = 3


@dataclass(frozen=True)
class Cause:
    """Failed checks that are reported together.

    Args:
        records: Properties first, in the order of their codes; the first is reported, the others are named.
        missing: The capability that the sampler probably lacks; empty if there is none.
        num_needing: How many of the checks that were run need it.
        rests_on: Checks that failed, too, and without which the first record means little.
    """

    records: tuple[CheckRecord, ...]
    missing: str = ""
    num_needing: int = 0
    rests_on: tuple[str, ...] = ()

    @property
    def reported(self) -> CheckRecord:
        return self.records[0]

    @property
    def is_a_property(self) -> bool:
        """Whether one example decides, and the check is not about the shape of the output."""
        one, is_unjudged = self.reported, self.missing or self.reported.status == "error"
        is_example = one.suite != "statistical" and one.stage != Stage.SHAPE
        return is_example and not is_unjudged and one.failure_report is not None

    @property
    def may_be_lone(self) -> bool:
        """Whether it may be a fault of its own beside others. Noise that is shared is none: distributions follow it."""
        return self.is_a_property and self.reported.stage != Stage.INDEPENDENCE


def find_causes(records: Sequence[CheckRecord]) -> list[Cause]:
    """What makes a run red, in the order in which to read it.

    Args:
        records: All of the run: checks that passed also show whether a capability is missing.
    """
    missing = _missing(records)
    groups: dict[tuple[str, str], list[CheckRecord]] = {}
    for record in sorted(_broken(records), key=lambda record: (record.suite == "statistical", record.code)):
        groups.setdefault(_common(record, records, missing), []).append(record)
    needing = Counter(need for record in _not_skipped(records) for need in record.needs)
    failed = {record.code for record in _broken(records)}
    causes = []
    for (kind, name), group in groups.items():
        word = name if kind == "missing" else ""
        rests_on = tuple(code for code in group[0].depends_on if code in failed)
        causes.append(Cause(tuple(group), word, needing[word], rests_on))
    is_lone = has_a_lone_property(causes)
    return sorted(causes, key=lambda cause: _rank(cause, is_lone=is_lone))


def has_a_lone_property(causes: Iterable[Cause]) -> bool:
    """Whether just one property failed beside many distributions: likely a fault of its own."""
    found = [cause for cause in causes if not cause.missing]
    num_properties = sum(len(cause.records) for cause in found if cause.may_be_lone)
    return num_properties == 1 and sum(cause.reported.suite == "statistical" for cause in found) >= _MANY_DISTRIBUTIONS


def _broken(records: Iterable[CheckRecord]) -> list[CheckRecord]:
    return [record for record in records if record.is_broken]


def _not_skipped(records: Iterable[CheckRecord]) -> list[CheckRecord]:
    return [record for record in records if record.status != "skipped"]


def _missing(records: Sequence[CheckRecord]) -> dict[str, str]:
    """Return, by the code of a failed check, the seldom capability that it needs, if the sampler seems to lack it.

    That is so only if everything that failed needs one: a fault that is seen elsewhere, too, would hide behind the
    advice. Of several capabilities it is the one that most failed checks need.
    """
    found: dict[str, str] = {}
    for contract in {record.contract for record in records}:
        ran = [record for record in _not_skipped(records) if record.contract == contract]
        broken = [record for record in ran if record.status in ("failed", "error")]
        lacking = _lacking(ran, broken)
        failing = Counter(need for record in broken for need in record.needs)
        words = {record.code: [word for word in lacking if word in record.needs] for record in broken}
        if all(words.values()):
            found |= {code: max(own, key=failing.__getitem__) for code, own in words.items()}
    return found


def _lacking(ran: Sequence[CheckRecord], broken: Sequence[CheckRecord]) -> list[str]:
    """Return the seldom capabilities whose absence would explain why checks that need them failed.

    At least half of the checks that need one failed; no capability that is not seldom explains the same failures as
    well; and for each failure, checks of the same kind passed without the capability, with no fewer cases.
    """
    needing = Counter(need for record in ran for need in record.needs)
    failing = Counter(need for record in broken for need in record.needs)
    mostly = [word for word in SELDOM if failing[word] and 2 * failing[word] >= needing[word]]

    def is_sole(word: str) -> bool:
        own = [record for record in broken if word in record.needs]
        common = set(own[0].needs).intersection(*(record.needs for record in own)) - set(SELDOM)
        return not any(failing[other] * needing[word] >= failing[word] * needing[other] for other in common)

    def is_spared(record: CheckRecord, word: str) -> bool:
        rest = set(record.needs) - set(mostly)
        kind = (other for other in ran if other.status == "passed" and other.suite == record.suite)
        return any(word not in one.needs and rest <= set(one.needs) and one.cases >= record.cases for one in kind)

    sole = [word for word in mostly if is_sole(word)]
    return [word for word in sole if all(is_spared(record, word) for record in broken if word in record.needs)]


def _common(record: CheckRecord, records: Sequence[CheckRecord], missing: dict[str, str]) -> tuple[str, str]:
    """What a failed record shares with those that are reported together with it."""
    if record.status == "incomplete":
        return "unfinished", record.reason
    if record.status == "inconclusive":
        return "undecided", ENDED if undecided_by_budget(record) else record.reason
    if kind := _raised(record):
        words = {missing.get(other.code, "") for other in records if _raised(other) == kind}
        if len(words) > 1 or "" in words:
            return "raised", kind
    if record.code in missing:
        return "missing", missing[record.code]
    unseeded = _SAME_SEEDS.intersection(record.depends_on, (other.code for other in _broken(records)))
    if unseeded:
        return "alone", min(unseeded)
    alike = without_numbers(record.title)
    return ("sizes", alike) if alike != record.title else ("alone", record.code)


def _raised(record: CheckRecord) -> str:
    """Which exception ended a check; empty if none did."""
    report = record.failure_report
    return without_numbers(report.effect) if record.status == "error" and report is not None else ""


def _rank(cause: Cause, *, is_lone: bool) -> tuple[int, bool, int, str]:
    reported = cause.reported
    if reported.failure_report is None:  # a known defect that is gone, or no verdict
        group = 7
    elif cause.missing:
        group = 6
    elif reported.status == "error":
        group = 0
    elif reported.stage == Stage.SHAPE:
        group = 1
    elif cause.is_a_property:
        group = 4 if is_lone and cause.may_be_lone else 2
    else:
        group = 5 if cause.rests_on else 3
    stages = [str(stage) for stage in Stage]
    # A file of another release may hold a stage that this one does not know.
    stage = stages.index(reported.stage) if reported.stage in stages else len(stages)
    return group, bool(cause.rests_on), stage, reported.code
