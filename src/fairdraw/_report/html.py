"""The run as one HTML page that needs no network: verdict, failures as they are told, every check, pictures.

The page is made from the same values as the JSON lines, so that it says nothing a machine could not read. Jinja2 fills
the template and escapes every value; a sampler's name or message cannot become markup.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from fairdraw._report.summary import advice
from fairdraw._run.controls import controls_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fairdraw._report.summary import Header, Summary

__all__ = ["Shown", "page", "shown_from"]


@dataclass(frozen=True)
class Shown:
    """A picture of the page.

    Args:
        title: Its caption.
        png: The file's bytes.
    """

    title: str
    png: bytes

    @property
    def source(self) -> str:
        """The picture as the `src` of an image: the page stays one file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


def shown_from(paths: Iterable[Path]) -> list[Shown]:
    """PNG files, with their names as captions."""
    return [Shown(path.stem.replace("_", " "), path.read_bytes()) for path in paths]


def page(header: Header, summary: Summary, pictures: Sequence[Shown] = ()) -> str:
    """The whole page.

    Raises:
        ModuleNotFoundError: Without Jinja2, which torch brings along.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = resources.files("fairdraw._report").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        run={"header": dataclasses.asdict(header), "summary": summary.to_json()},
        colour=summary.judgement.colour,
        broken=[
            {**record.to_json(), "advice": advice(cause) if record is cause.told else []}
            for cause in summary.causes
            for record in cause.records
        ],
        to_declare="\n".join(summary.to_declare()),
        by_suite=_by_suite(summary),
        controls_lines=controls_lines(summary.controls),
        controls=summary.controls,
        pictures=pictures,
    )


def _by_suite(summary: Summary) -> list[dict[str, Any]]:  # Any: values of a template
    """Per suite: how many of each status, and the records in the order of their codes."""
    suites = sorted({record.suite for record in summary.records})
    listed = {suite: [record for record in summary.records if record.suite == suite] for suite in suites}
    return [
        {"suite": suite, "counts": dict(Counter(record.status for record in records)), "records": records}
        for suite, records in listed.items()
    ]
