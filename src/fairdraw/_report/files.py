"""A run as files: JSON lines for machines, a page for people, and what CI systems read; a template for each.

Command line and pytest plugin write the same files.

    {"kind": "header", "format": "fairdraw-run", "format_version": 1, "sampler": ..., "suite_version": ...}
    {"kind": "check", "code": "REJ101", "status": "passed", ...}        one for each check
    {"kind": "control", "name": ..., "caught": true, ...}               one for each mutant
    {"kind": "summary", "exit_code": 0, "verdict": "GREEN: ..."}        the last line

Lines are appended during the run. A file without the summary is of a run that was killed: INCOMPLETE.

`fairdraw schema` prints the JSON Schema of a line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fairdraw._report.html import Shown, rendered
from fairdraw._report.summary import Header, Summary
from fairdraw._report.verdict import Scope
from fairdraw._run.loading import CannotStart
from fairdraw._run.runner import CheckRecord

FORMAT = "fairdraw-run"
FORMAT_VERSION = 1
"""Raised when a reader of the old number would misread a line; a new field does not raise it."""

Line = dict[str, Any]  # Any: JSON


def run_lines(header: Header, summary: Summary) -> Iterator[Line]:
    """The whole run, a JSON object at a time."""
    yield {"kind": "header", "format": FORMAT, "format_version": FORMAT_VERSION, **dataclasses.asdict(header)}
    yield from ({"kind": "check", **record.to_json()} for record in summary.records)
    yield from ({"kind": "control", **dataclasses.asdict(control)} for control in summary.controls)
    yield {"kind": "summary", **summary.to_json()}


def schema_text() -> str:
    """The JSON Schema (draft 2020-12) that every line of such a file obeys."""
    return resources.files("fairdraw._report").joinpath("run-line.schema.json").read_text(encoding="utf-8")


def require_writable(option: str, path: Path | None) -> None:
    """Refuse a file before the run if the result could not be written to it. Nothing is left behind or changed.

    Raises:
        CannotStart: If `path` can be neither written nor made.
    """
    if path is None:
        return
    if path.is_fifo() or path.is_socket():
        raise CannotStart(f"{option}={path} is a pipe, but the run writes it more than once. Name a file.")
    try:
        if path.exists() and not path.is_dir():
            path.open("ab").close()  # append nothing: a look at the permissions is not enough for root
        else:
            tempfile.TemporaryFile(dir=next(p for p in (path, *path.absolute().parents) if p.exists())).close()
    except OSError as error:
        raise CannotStart(f"{option}={path} cannot be written: {error.strerror}. Name one that can.") from None


def require_apart(files: Iterable[tuple[str, Path | None]]) -> None:
    """Refuse two options that name one file, by whatever way: one of them would be lost.

    Args:
        files: Options and what they name. The same pair may come twice.

    Raises:
        CannotStart: If two different options name one file.
    """
    first: dict[tuple[int, int] | str, str] = {}
    for option, path in files:
        try:
            if path is None or path.is_char_device():  # nothing is kept in /dev/null
                continue
            file = (path.stat().st_dev, path.stat().st_ino) if path.exists() else os.path.realpath(path)
        except OSError as error:  # a name that is too long
            raise CannotStart(f"{option}: {error.strerror}. Name another file.") from None
        if first.setdefault(file, option) != option:
            raise CannotStart(f"{option}={path}, but that is the file of {first[file]}, too. Name another.")


FORMS = {
    "json": "the run as JSON lines; see: fairdraw schema",
    "html": "a page for people, which needs no network",
    "junit": "JUnit XML",
    "sarif": "SARIF, for code scanning",
    "markdown": "Markdown, for the summary of a job",
    "annotations": "annotations of GitHub Actions, at the adapter's line",
    "badge": "a badge, as an endpoint of shields.io",
}
"""Option to the form in which it writes a run. All but JSON lines have a template beside this module."""


@dataclass(frozen=True)
class RunFiles:
    """Where a run is written.

    Args:
        paths: By form, of those that are wanted.
        option: How the names of the options begin.
    """

    paths: Mapping[str, Path]
    option: str = "--"

    def require_writable(self) -> None:
        """Refuse before the run.

        Raises:
            CannotStart: If one of the files cannot be written.
        """
        for form, path in self.paths.items():
            name = f"{self.option}{form}"
            if path.is_dir():
                raise CannotStart(f"{name}={path} cannot be written: it is a folder. Name a file in it.")
            if not path.absolute().parent.is_dir():
                raise CannotStart(f"{name}={path} cannot be written: no such folder. Make it first, or name another.")
            require_writable(name, path)

    def start(self, header: Header, num_checks: int) -> None:
        """Write files that say INCOMPLETE, so that a run that is killed leaves no older verdict.

        Raises:
            CannotStart: If that fails.
        """
        begun = Summary([], scope=Scope(not_run=num_checks, is_begun=True))
        self._write(header, begun, (), [next(run_lines(header, begun))], "Nothing was run.")

    def add(self, record: CheckRecord) -> None:
        """Append a finished check to the lines. `write` sorts them at the end."""
        if path := self.paths.get("json"):
            with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": "check", **record.to_json()}) + "\n")

    def write(self, header: Header, summary: Summary, pictures: Sequence[Shown] = ()) -> None:
        """Write the files once the run is over.

        Raises:
            CannotStart: If that fails now; the disk may be full.
        """
        self._write(header, summary, pictures, run_lines(header, summary), "The verdict is printed all the same.")

    def _write(
        self, header: Header, summary: Summary, pictures: Sequence[Shown], lines: Iterable[Line], so_far: str
    ) -> None:
        for form, path in self.paths.items():
            try:
                with path.open("w", encoding="utf-8") as file:
                    if form == "json":
                        file.writelines(json.dumps(line) + "\n" for line in lines)
                    else:
                        file.write(rendered(form, header, summary, pictures))
            except OSError as error:
                raise CannotStart(f"{path} cannot be written: {error.strerror}. {so_far}") from None
