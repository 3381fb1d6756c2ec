"""The run through a template: as one HTML page that needs no network, as JUnit, SARIF, Markdown, annotations, a badge.

All are made from the same values as the JSON lines, so they cannot disagree. Jinja2 fills the template and
escapes every value. A sampler's name or message cannot become markup, nor turn the direction of the text.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fairdraw._core.foreign import printable
from fairdraw._report.summary import Header, Summary, advice
from fairdraw._report.verdict import GREEN, INCOMPLETE, INTERRUPTED, NOT_JUDGED, NOTHING_RUN, RED
from fairdraw._run.controls import controls_lines
from fairdraw._run.pace import worded_seconds


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
    GREEN: "Every check that was run passed, known failures aside. What could be seen, and what was not tested, stands "
    "below.",
    NOT_JUDGED: "No check failed, but a part of the sampler was not tested. The line above says which, and why.",
    NOTHING_RUN: "No check was run, so this page says nothing about the sampler.",
    INCOMPLETE: "The run did not come to its end, so the sampler is only partly tested.",
    INTERRUPTED: "The run was interrupted, so the sampler is only partly tested.",
    RED: "The sampler differs from what its contract requires, or the run cannot show that it does not. The most "
    "informative failure comes first; each has a command that reproduces it.",
}
"""What the exit code means, for a reader who has not written the sampler."""


def rendered(form: str, header: Header, summary: Summary, pictures: Sequence[Shown] = ()) -> str:
    """The run in one of the forms that have a template."""
    import jinja2
    from markupsafe import Markup, escape

    environment = jinja2.Environment(
        autoescape=form in ("html", "junit", "markdown"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.filters["code"] = lambda text: Markup(
        re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text))))
    )
    text = resources.files("fairdraw._report").joinpath(f"{form}.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        run={"header": dataclasses.asdict(header), "summary": summary.to_json()},
        summary=summary,
        words={
            "headline": re.split("[:,]", summary.verdict)[0],
            "meaning": _MEANINGS[summary.exit_code],
            "duration": worded_seconds(summary.seconds) if summary.seconds else "unknown",
        },
        advice=advice,
        controls_lines=controls_lines(summary.controls),
        pictures=pictures,
    )
