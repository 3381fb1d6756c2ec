"""The run as one HTML page that needs no network: verdict, totals, failures with their pictures, and every check.

The page is made from the same values as the JSON lines, so the two cannot disagree. Jinja2 fills the template and
escapes every value. A sampler's name or message cannot become markup, nor turn the direction of the text.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from fairdraw._core.foreign import printable
from fairdraw._report.summary import Header, Summary, advice
from fairdraw._report.verdict import GREEN, INCOMPLETE, INTERRUPTED, NOT_JUDGED, NOTHING_RUN, RED
from fairdraw._run.controls import controls_lines
from fairdraw._run.pace import worded_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Shown:
    """A picture of the page.

    Args:
        title: Its caption.
        png: The file's bytes.
        code: The check whose counts it shows; empty if there is none.
    """

    title: str
    png: bytes
    code: str = ""

    @property
    def source(self) -> str:
        """The picture as the `src` of an image: the page stays one file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


def shown_from(paths: Iterable[Path]) -> list[Shown]:
    """PNG files whose names begin with the code of a check (`dist203-s4-accepted-count.png`), as captions say it."""
    found = []
    for path in paths:
        code, _, rest = path.stem.partition("-")
        found.append(Shown(f"{code.upper()} {rest.replace('-', ' ')}", path.read_bytes(), code.upper()))
    return found


_MEANINGS = {
    GREEN: "Every check that was run passed, known failures aside. The line on distribution tests says how small a "
    "difference this run would have detected.",
    NOT_JUDGED: "No check failed, but a part of the sampler was not tested. The line above says which, and why.",
    NOTHING_RUN: "No check was run, so this page says nothing about the sampler.",
    INCOMPLETE: "The run did not come to its end, so the sampler is only partly tested.",
    INTERRUPTED: "The run was interrupted, so the sampler is only partly tested.",
    RED: "The sampler differs from what its contract requires, or the run cannot show that it does not. The most "
    "informative failure comes first; each has a command that reproduces it.",
}
"""What the exit code means, for a reader who has not written the sampler."""


def page(header: Header, summary: Summary, pictures: Sequence[Shown] = ()) -> str:
    """The whole page.

    Raises:
        ModuleNotFoundError: Without Jinja2, which torch brings along.
    """
    import jinja2
    from markupsafe import Markup, escape

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["code"] = lambda text: Markup(
        re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text))))
    )
    text = resources.files("fairdraw._report").joinpath("report.html.j2").read_text(encoding="utf-8")
    broken = [(cause, record) for cause in summary.causes for record in cause.records]
    codes = {record.code for _, record in broken}
    return environment.from_string(text).render(
        run={"header": dataclasses.asdict(header), "summary": summary.to_json()},
        colour=summary.judgement.colour,
        coverage=summary.coverage,
        words=_words(summary),
        totals=_totals(summary),
        broken=[
            {**record.to_json(), "advice": advice(cause) if record is cause.reported else []}
            for cause, record in broken
        ],
        to_declare="\n".join(summary.to_declare()),
        num_records=len(summary.records),
        statuses=Counter(record.status for record in summary.records),
        by_suite=_by_suite(summary),
        covered=summary.covered,
        several=len(summary.covered) > 1,
        controls_lines=controls_lines(summary.controls),
        controls=summary.controls,
        pictures=pictures,
        other_pictures=[picture for picture in pictures if picture.code not in codes],
    )


def _words(summary: Summary) -> dict[str, str]:
    """Title of the page, what the verdict means, and the duration."""
    return {
        "headline": re.split("[:,]", summary.verdict)[0],
        "meaning": _MEANINGS[summary.exit_code],
        "duration": worded_seconds(summary.seconds) if summary.seconds else "unknown",
    }


def _totals(summary: Summary) -> list[dict[str, str]]:
    """The large numbers below the verdict."""
    num_failed = summary.count("failed", "error", "xpassed")
    num_undecided = summary.count("inconclusive", "incomplete")
    tried = [control for control in summary.controls if not control.untried]
    num_caught = sum(control.caught for control in tried)
    draws = sum(record.cases for record in summary.records if record.suite == "statistical")
    cases = sum(record.cases for record in summary.records if record.suite != "statistical")
    totals = [
        ("good", summary.count("passed"), "checks passed"),
        ("bad" if num_failed else "", num_failed, "failed"),
        ("", summary.count("skipped"), "skipped"),
    ]
    if_any = [
        ("bad", num_undecided, "undecided"),
        ("", summary.count("xfailed"), "known failures"),
        ("", tried and f"{num_caught} / {len(tried)}", "mutants caught"),
        ("", cases and f"{cases:,}", "test cases"),
        ("", draws and f"{draws:,}", "draws judged"),
    ]
    shown = [*totals, *(total for total in if_any if total[1])]
    return [{"kind": kind, "number": str(number), "what": what} for kind, number, what in shown]


def _by_suite(summary: Summary) -> list[dict[str, Any]]:  # Any: values of a template
    """Per suite: how many of each status, and the records in the order of their codes."""
    suites = sorted({record.suite for record in summary.records})
    listed = {suite: [record for record in summary.records if record.suite == suite] for suite in suites}
    return [
        {"suite": suite, "counts": dict(Counter(record.status for record in records)), "records": records}
        for suite, records in listed.items()
    ]
