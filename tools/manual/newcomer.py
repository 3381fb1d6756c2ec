"""Follow the manual from an empty folder to a verdict, as newcomers would, and record how long each of them took.

    python tools/pages.py newcomer            # everybody, in half an hour; needs a package index
    python tools/pages.py newcomer JAX C      # these; what is recorded of others is kept

The manual is the program: a block with the title of a file is written to it, a diff is applied, a command is run.
Nothing else is typed, so a missing step stops the script. docs/first-verdict.md is one way; what the commands print is
put beneath them, shortened, with the seconds that each took. Sections of docs/languages.md are the others.

Tests follow the same ways.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gates import copied
from records import ROOT, Json, commit, cpu_seconds, machine, save, table

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE, LANGUAGES = (ROOT / "docs" / f"{name}.md" for name in ("first-verdict", "languages"))
RECORD = ROOT / "docs" / "records" / "first_verdicts.json"
PADDED = "Padded PyTorch"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
TOOK = re.compile(r"  # (\d+) s, (\d+) s of CPU$", flags=re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*?)(?:  # \d+ s.*)?$", flags=re.MULTILINE)
MOST, HEAD, TAIL, WIDTH = 20, 6, 10, 120
"""What is printed of an output: so many lines, or these at its ends; so many characters of a line."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help="what a newcomer has; all if none is named")
    chosen = parser.parse_args().ways or [*ways()]
    if unknown := {*chosen} - {*ways()}:
        parser.error(f"WAY={unknown}, but it must be one of {[*ways()]}.")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        for way in chosen:
            folder = Path(scratch) / way
            folder.mkdir()
            shutil.copy(wheel, folder)
            load, text = round(os.getloadavg()[0], 1), Newcomer(folder, Shell(folder)).follow(ways()[way])
            if way == PADDED:
                PAGE.write_text(text, encoding="utf-8")
            _write({"way": way, **times(text), "load": load, "commit": commit()[:10]})
    return 0


def ways() -> dict[str, str]:
    """Return what newcomers follow, by what they have: a page, or a section with the installation before it."""
    _, install, *sections = re.split(r"^## ", LANGUAGES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {section.partition("\n")[0]: f"{install}{section}" for section in sections}
    return {PADDED: PAGE.read_text(encoding="utf-8"), **found}


def recorded() -> dict[str, Json]:
    """Return the rows of the record by their ways."""
    return {row["way"]: row for row in json.loads(RECORD.read_text(encoding="utf-8"))["rows"]}


def _write(row: Json) -> None:
    found = (recorded() if RECORD.exists() else {}) | {row["way"]: row}
    rows = [found[way] for way in ways() if way in found]
    save(RECORD, {"machine": machine(), "rows": rows})


def times(text: str) -> Json:
    """Return seconds from the first command to the first verdict, its first report, all verdicts, and versions."""
    before = TOOK.findall(text[: text.index("\nRED: ")])
    first = re.search(r"^start with (\w+) (.*): fairdraw explain", text, flags=re.MULTILINE)
    versions = re.search(r"^  versions: (.*)$", text, flags=re.MULTILINE)
    return {
        "wall_s": sum(int(wall) for wall, _ in before),
        "cpu_s": sum(int(cpu) for _, cpu in before),
        "code": first and first[1],
        "title": first and first[2],
        "verdicts": verdicts(text),
        "versions": versions and versions[1],
    }


def verdicts(text: str) -> list[str]:
    """Return the words that commands ended with, in their order."""
    return re.findall(r"^(RED|FAILED|FIXED|GREEN)\b", text, flags=re.MULTILINE)


def first_verdicts() -> str:
    """Return a table of all ways."""
    rows = (
        [way, row["wall_s"], row["cpu_s"], row["load"], f"[{row['code']}](checks/{row['code']}.md) {row['title']}"]
        for way, row in recorded().items()
    )
    return "\n".join(table(("you have", "seconds", "CPU, s", "load before", "first report"), rows))


def build_wheel(scratch: Path) -> Path:
    """The wheel of the working tree; everything it is made of is copied first, so that no build folder is left."""
    source = copied(scratch / "source")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(scratch), str(source)]
    subprocess.run(build, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    return next(scratch.glob("*.whl"))


class Stuck(Exception):
    """The page cannot be followed; it says where."""


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder; an environment that stands in its `venv` is active."""

    folder: Path

    def __call__(self, command: str) -> str:
        """What `command` prints.

        Raises:
            Stuck: Unless it ends well, or with 1, which is a red verdict.
        """
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        kept["PATH"] = os.pathsep.join([str(self.folder / "venv" / "bin"), kept["PATH"]])
        words = ["bash", "-c", command]
        done = subprocess.run(words, cwd=self.folder, env=kept, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise Stuck(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.replace(str(self.folder), ".")


@dataclass(frozen=True)
class Newcomer:
    """Somebody who does what a page says.

    Args:
        folder: Where the files of the page are written.
        run: A command to what it prints.
    """

    folder: Path
    run: Callable[[str], str]

    def follow(self, page: str) -> str:
        """Do every step; the page with what the commands printed.

        Raises:
            Stuck: If a step cannot be done.
        """
        return FENCE.sub(self._step, page)

    def _step(self, found: re.Match[str]) -> str:
        kind, title, body = found.groups()
        if kind == "console":
            return "```console\n" + "".join(self._type(command) for command in COMMAND.findall(body)) + "```"
        if kind == "diff":
            patch(self.folder / title, body)
        elif title:
            (self.folder / title).write_text(body, encoding="utf-8")
        return found[0]

    def _type(self, command: str) -> str:
        started, used = time.perf_counter(), cpu_seconds()
        printed = self.run(command)
        took = f"{time.perf_counter() - started:.0f} s, {cpu_seconds() - used:.0f} s of CPU"
        print(f"$ {command}  # {took}", flush=True)
        return f"$ {command}  # {took}\n{shortened(printed)}"


def patch(path: Path, diff: str) -> None:
    """Replace the lines of `diff` that begin with a blank or a minus by those that begin with a blank or a plus.

    Raises:
        Stuck: Unless `path` has the former at one place.
    """
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise Stuck(f"{path.name} has {text.count(old)} places like this one:\n{old}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def shortened(text: str) -> str:
    """Both ends of a long text, and the beginnings of long lines."""
    lines = [line if len(line) <= WIDTH else f"{line[:WIDTH]}..." for line in text.strip("\n").splitlines()]
    if len(lines) > MOST:
        lines = [*lines[:HEAD], "...", *lines[-TAIL:]]
    return "".join(f"{line}\n" for line in lines)
