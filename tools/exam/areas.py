"""Where a right first report of a fault would point: decided when a fault is written, before anything is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraw._report.causes import Cause
    from fairdraw._run.runner import CheckRecord


@dataclass(frozen=True)
class Area:
    """A first report is right if its check has such a title or such a stage, or is such an example.

    Args:
        words: What it would say.
        titles: A regular expression.
        stages: Words of `Stage`.
        example: A property counts whose one small example shows a wrong answer; not one about noise.
        missing: Capabilities that the report may say are missing.
    """

    words: str
    titles: str = r"$^"
    stages: tuple[str, ...] = ()
    example: bool = False
    missing: tuple[str, ...] = ()

    def is_right(self, cause: Cause) -> bool:
        """Whether this first report points here."""
        if cause.missing:
            return cause.missing in self.missing
        record = cause.reported
        by_title = re.search(self.titles, record.title) is not None
        return by_title or str(record.stage) in self.stages or (self.example and _is_example(record))

    def __or__(self, other: Area) -> Area:
        return Area(
            f"{self.words}; or {other.words}",
            f"(?:{self.titles})|(?:{other.titles})",
            self.stages + other.stages,
            self.example or other.example,
            self.missing + other.missing,
        )


_ABOUT_NOISE = r"noise|uniform|seed|generator|random|independen|share"


def _is_example(record: CheckRecord) -> bool:
    return record.suite != "statistical" and re.search(_ABOUT_NOISE, record.title) is None


EXAMPLE = Area("one small example with a wrong answer", example=True)
SHARED = Area(
    "noise shared between rows, positions or calls",
    r"share|independen|dependen|even|too (good|regular|close)|collision|correlat|lag|related|repeat",
    ("independence",),
)
ACCEPTANCE = Area(
    "drafts are accepted too often or too seldom",
    r"accept|kept",
    ("acceptance", "num_accepted", "large_acceptance", "decoded_acceptance"),
)
RECOVERY = Area("recovered tokens", r"recover|residual|race", ("recovery", "large_recovery"))
DISTRIBUTION = Area(
    "the distribution of tokens",
    r"follow|distribution",
    ("tokens", "rows", "large_rows", "pairs", "completed_rows", "ragged_rows", "decoded_text"),
)
FILTERS = Area("what the filters leave", r"top.?k|top.?p|min.?p|filter|support|keep")
TEMPERATURE = Area("the temperature", r"temperature")
SIZES = Area(
    "an input of a certain size",
    r"vocabular|many|up to \d+|large|production|last id|size|wide|long|batch|tile|huge|stride",
    ("large_acceptance", "large_recovery", "large_rows"),
)
SEEDS = Area("seeds of requests", r"seed|generator")
OTHERS = Area("a row depends on other rows", r"other requests|permut|neighbour|mixed|beside|rows do not")
TIME = Area(
    "calls that follow each other",
    r"call|later|earlier|again|twice|state|session|kept|buffer|generator|event|over time|fresh|same seeds|instance|mod",
)
TAIL = Area("rare tokens", r"tail|rare|by rank|by id|production|large|every token", ("large_rows", "large_recovery"))
GREEDY = Area("greedy requests", r"greedy|argmax|largest")
HALF = Area("half precision", r"half|dtype|precision")
TRACE = Area("a trace of events with a wrong answer", r"event|move|follow|grow|shrink|recount|parameters|rows", ())
