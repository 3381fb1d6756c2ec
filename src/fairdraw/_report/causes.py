"""From many broken promises to few causes: which are told together, and which first.

One fault breaks many promises, and what is read first should be what the fault is, not what follows from it:

1. Exceptions and malformed answers: nothing else means anything while they are there.
2. Properties: one small example decides. A single one beside many distributions is likely a fault of its own, and
waits. 3. Distributions, in the order in which a row comes to be. A wrong acceptance changes what is rejected and so
what is recovered,
   never the other way round; so the first distribution that fails in that order is the diagnosis. The nets that see
   every fault come last.
4. Distributions that mean what they say only if others hold, where those are broken.
5. Promises that were probably never given: most of the checks that need one capability are broken, and of the others
   far fewer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.budget import ENDED, undecided_by_budget
from fairdraw._core.failures import without_numbers
from fairdraw.protocols import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw._run.runner import CheckRecord

__all__ = ["DISTRIBUTIONS", "RESTS_ON", "SELDOM", "SHAPE", "Cause", "find_causes", "has_a_lone_property"]

SHAPE = ("REJ101", "REJ102", "REJ103", "REJ104", "REJ105", "SAM101")
"""About the very shape of an answer: ids of the vocabulary, and rows that a verification can leave."""

DISTRIBUTIONS = (
    *("DIST104", "DIST113", "DIST601", "DIST611", "DIST103"),  # acceptance; nothing that comes later changes it
    *("DIST203", "DIST213", "DIST602", "DIST612"),  # recovery, given a rejection
    *("DIST204", "DIST214", "DIST224", "DIST131"),  # the bonus token, given that all drafts were accepted
    *("DIST301", "DIST302"),  # noise shared between rows or calls
    *("DIST201", "DIST211", "DIST101", "DIST111", "DIST102", "DIST112"),  # whole rows: the nets
    *("DIST121", "DIST403", "DIST404", "DIST402", "DIST401"),  # the same in ragged batches and large vocabularies
    *(
        "DIST511",
        "DIST513",
        "DIST514",
        "DIST512",
        "DIST501",
        "DIST503",
        "DIST504",
        "DIST502",
    ),  # the same in a decoding loop
    *("DIST701", "DIST702", "DIST703", "DIST704", "DIST705", "DIST706"),  # token samplers: one filter, then all of them
    *("DIST732", "DIST731", "DIST707", "DIST711", "DIST712", "DIST713", "DIST722", "DIST721"),
)
"""Codes of distributions, from the diagnosis of one step to the nets that see every fault."""

RESTS_ON = {
    "DIST301": ("DIST102",),
    "DIST302": ("DIST102",),
    "DIST711": ("DIST701", "DIST702"),
    "DIST712": ("DIST701",),
    "DIST713": ("DIST707",),
}
"""Distributions of pairs of rows, and the distributions of one row: rows whose own distribution is wrong break the
former, too.
"""

SELDOM = (
    Capability.SYNTHETIC_RATES,
    Capability.NAN_LOGITS,
    Capability.EMPTY_ROWS,
    Capability.PLACEHOLDER_DRAFTS,
    Capability.STRIDED_INPUTS,
    Capability.HALF_LOGITS,
    Capability.GREEDY,
    Capability.LONG_DRAFTS,
    Capability.UPSTREAM_STREAM,
    Capability.COUNTER_NOISE,
    Capability.REQUEST_SEEDS,
    Capability.SEEDED_NOISE,
    Capability.REFERENCE_RACE,
)
"""What a right sampler may well not promise. Explicit noise, ragged batches and both kinds of drafts are not among
them: to decline those costs most of the checks, and a fault there is the fault that is looked for."""

_ABOUT_NOISE = (
    Capability.REFERENCE_RACE,
    Capability.SEEDED_NOISE,
    Capability.REQUEST_SEEDS,
    Capability.UPSTREAM_STREAM,
    Capability.COUNTER_NOISE,
)

_MANY_DISTRIBUTIONS = 3


@dataclass(frozen=True)
class Cause:
    """Broken promises that are told together.

    Args:
        records: Properties first, in the order of their codes; the first is told, the others are named.
        missing: The capability that the sampler probably lacks; empty if it is none.
        num_needing: How many of the checks that were asked need it.
        rests_on: Broken promises without which the first record means nothing of its own.
    """

    records: tuple[CheckRecord, ...]
    missing: str = ""
    num_needing: int = 0
    rests_on: tuple[str, ...] = ()

    @property
    def told(self) -> CheckRecord:
        return self.records[0]

    @property
    def is_a_property(self) -> bool:
        """Whether one example decides, and it is not about the shape of an answer."""
        is_distribution, is_shape = self.told.suite == "statistical", self.told.code in SHAPE
        return not (
            self.missing
            or is_distribution
            or is_shape
            or self.told.status == "error"
            or self.told.failure_report is None
        )


def find_causes(records: Sequence[CheckRecord]) -> list[Cause]:
    """What makes a run red, the first to be read first.

    Args:
        records: All of the run: which capability is missing shows in what passed, too.
    """
    missing = _missing(records)
    groups: dict[tuple[str, str], list[CheckRecord]] = {}
    for record in sorted(_broken(records), key=lambda record: (record.suite == "statistical", record.code)):
        groups.setdefault(_common(record, records, missing), []).append(record)
    needing = Counter(need for record in _asked(records) for need in record.needs)
    failed = {record.code for record in _broken(records)}
    causes = []
    for (kind, name), group in groups.items():
        word = name if kind == "missing" else ""
        rests_on = tuple(code for code in RESTS_ON.get(group[0].code, ()) if code in failed)
        causes.append(Cause(tuple(group), word, needing[word], rests_on))
    is_lone = has_a_lone_property(causes)
    return sorted(causes, key=lambda cause: _rank(cause, is_lone=is_lone))


def has_a_lone_property(causes: Iterable[Cause]) -> bool:
    """Whether just one property is broken beside many distributions: likely a fault of its own."""
    found = [cause for cause in causes if not cause.missing]
    num_properties = sum(len(cause.records) for cause in found if cause.is_a_property)
    return num_properties == 1 and sum(cause.told.suite == "statistical" for cause in found) >= _MANY_DISTRIBUTIONS


def _broken(records: Iterable[CheckRecord]) -> list[CheckRecord]:
    return [record for record in records if record.is_broken]


def _asked(records: Iterable[CheckRecord]) -> list[CheckRecord]:
    return [record for record in records if record.status != "skipped"]


def _missing(records: Sequence[CheckRecord]) -> dict[str, str]:
    """Code of a broken check to the seldom capability that it needs, if the sampler seems to lack it.

    That is so if at least half of the checks that need it broke, and at least twice the share of those that do not: a
    fault that breaks everything says nothing about capabilities. Of several it is the one that most broken checks need.
    """
    drawn_wrong = [r for r in records if r.suite == "statistical" and r.status == "failed"]
    asked, broken = _asked(records), [record for record in records if record.status in ("failed", "error")]
    needing = Counter(need for record in asked for need in record.needs)
    failing = Counter(need for record in broken for need in record.needs)

    def is_lacking(word: str) -> bool:
        if word in _ABOUT_NOISE and any(word not in record.needs for record in drawn_wrong):
            return False  # a wrong distribution breaks these, too; to give them up would only hide it
        num_others = max(len(asked) - needing[word], 1)
        share_of_others = (len(broken) - failing[word]) / num_others
        return failing[word] > 0 and failing[word] / needing[word] >= max(0.5, 2 * share_of_others)

    lacking = [word for word in SELDOM if is_lacking(word)]
    words = {record.code: [word for word in lacking if word in record.needs] for record in broken}
    return {code: max(found, key=failing.__getitem__) for code, found in words.items() if found}


def _common(record: CheckRecord, records: Sequence[CheckRecord], missing: dict[str, str]) -> tuple[str, str]:
    """What a broken record shares with those that are told together with it."""
    if record.status == "inconclusive":
        return "undecided", ENDED if undecided_by_budget(record) else record.reason
    kind = _raised(record)
    if kind:
        words = {missing.get(other.code, "") for other in records if _raised(other) == kind}
        if len(words) > 1 or "" in words:
            return "raised", kind
    if record.code in missing:
        return "missing", missing[record.code]
    alike = without_numbers(record.title)
    return ("sizes", alike) if alike != record.title else ("alone", record.code)


def _raised(record: CheckRecord) -> str:
    """Which exception ended a check; empty if none did."""
    return (
        without_numbers(record.failure_report.effect)
        if record.status == "error" and record.failure_report is not None
        else ""
    )


def _rank(cause: Cause, *, is_lone: bool) -> tuple[int, int, str]:
    told = cause.told
    distribution = DISTRIBUTIONS.index(told.code) if told.code in DISTRIBUTIONS else len(DISTRIBUTIONS)
    if told.failure_report is None:  # a known defect that is gone, or no verdict
        stage = 7
    elif cause.missing:
        stage = 6
    elif told.status == "error":
        stage = 0
    elif told.code in SHAPE:
        stage = 1
    elif cause.is_a_property:
        stage = 4 if is_lone else 2
    else:
        stage = 5 if cause.rests_on else 3
    return stage, distribution if told.suite == "statistical" else 0, told.code
